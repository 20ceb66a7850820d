"""Short study scripts of one's own to start from, for `vitscale new`."""

from __future__ import annotations

import re
from pathlib import Path

from vitscale.cli.project import scripts
from vitscale.plan.spelling import shown

BASE = """
# what all trials share, of `vitscale fields`; for images of your own: **facts("data/mine-64")
BASE = TrainConfig(dataset="digits", depth=2, width=32, heads=2, epochs=15, warmup_epochs=3.0)
ARMS = {{  # what is compared: the fields in which each differs from BASE
    "AdamW": {{{adamw}}},
    "SGD": {{"optimizer": "sgd"{sgd}}},
}}
"""
END = """

if __name__ == "__main__":
    main(study)
"""
REPEATS = """\"\"\"Does SGD train a small ViT as well as AdamW?

python {file} --plan  # what would be trained
python {file} --final-num 16  # trains and reports 5 seeds; --num 16 makes them 16
\"\"\"

from vitscale import Study, TrainConfig, grid, main, trials
{base}

def study(num: int = 5) -> Study:
    return Study(
        kind="repeats",
        name="{name}",
        scale="digits",
        question="Does SGD train a small ViT as well as AdamW?",
        source="ours",
        trials=trials(BASE, ARMS, grid(seed=range(num))),
        metric="val_error_pct",
        pairs=(("AdamW", "SGD"),),  # chosen before the first result
        tables=("seed_statistics", "pair_differences"),
        figures=("comparison_forest", "learning_curves"),
    )
"""
DISTRIBUTION = """\"\"\"Which optimizer forgives a wrong lr and wd more?

python {file} --plan  # what would be trained
python {file} --final-num 32  # trains and reports 8 draws; --num 32 makes them 32
\"\"\"

from optuna.distributions import FloatDistribution

from vitscale import Study, TrainConfig, Trial, interleaved, main, sample, trials
{base}# good values, such as the winners of a search; draws go from a tenth of them to ten times
GOOD = {{"AdamW": {{"lr": 3e-3, "wd": 0.1}}, "SGD": {{"lr": 0.1, "wd": 1e-3}}}}


def study(num: int = 8, num_references: int = 4) -> Study:
    plan = []
    for arm, good in GOOD.items():
        space = {{
            axis: FloatDistribution(value / 10, value * 10, log=True)
            for axis, value in good.items()
        }}
        plan += [  # what draws are measured against, with seeds that no search used
            Trial(arm, BASE.replace(**ARMS[arm], **good, seed=1000 + i))
            for i in range(num_references)
        ]
        points = [{{**point, "seed": i}} for i, point in enumerate(sample(space, num=num))]
        plan += trials(BASE, {{arm: ARMS[arm]}}, points)
    return Study(
        kind="distribution",
        name="{name}",
        scale="digits",
        question="Which optimizer forgives a wrong lr and wd more?",
        source="ours",
        trials=interleaved(plan),
        metric="val_error_pct",
        pairs=(("AdamW", "SGD"),),  # chosen before the first result
        tables=("edf_summary", "arm_comparison"),
        figures=("edf_panels", "lr_wd_scatter"),
    )
"""
SEARCH = """\"\"\"Which lr and wd train each optimizer well? Scored on minival, and not on val.

python {file} --plan  # what would be trained
python {file}  # 16 points per arm; in a study, winners("{name}-digits") reads the best ones
\"\"\"

from optuna.distributions import FloatDistribution

from vitscale import Search, TrainConfig, main
{base}

def study(num: int = 16) -> Search:
    lr = {{"AdamW": (3e-4, 3e-2), "SGD": (1e-2, 1.0)}}
    wd = FloatDistribution(1e-4, 1.0, log=True)
    return Search(
        name="{name}",
        scale="digits",
        question="Which lr and wd train each optimizer well?",
        source="ours",
        arms={{arm: BASE.replace(**fields, eval_split="minival") for arm, fields in ARMS.items()}},
        spaces={{arm: {{"lr": FloatDistribution(*lr[arm], log=True), "wd": wd}} for arm in ARMS}},
        num=num,
        per_round=4,  # points that are proposed at once
        sampler="tpe",  # or gp, random
        metric="minival_error_pct",
    )
"""
RATES = {"adamw": '"lr": 3e-3, "wd": 0.1', "sgd": ', "lr": 0.1, "wd": 1e-3'}
DRAWN = {"adamw": "", "sgd": ""}
KINDS = {
    "repeats": (REPEATS, RATES),
    "distribution": (DISTRIBUTION, DRAWN),
    "search": (SEARCH, DRAWN),
}


def write(name: str, kind: str) -> Path:
    """Writes NAME.py, in studies/ if there is such a folder, and returns its path.

    Raises ValueError for a name that a study cannot have, and for a file that exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name):
        raise ValueError(f"the name of a study must match [a-z][a-z0-9_]*, but got ({shown(name)})")
    folder = Path("studies") if scripts(Path()) else Path()
    path = folder / f"{name}.py"
    text, fields = KINDS[kind]
    content = text.format(name=name, file=path, base=BASE.format(**fields)) + END
    try:
        with path.open("x") as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(f"a new study must overwrite nothing, but got ({path}: exists)") from None
    return path
