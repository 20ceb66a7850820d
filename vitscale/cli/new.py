"""Short study scripts of one's own to start from, for `vitscale new`."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from vitscale.cli.project import scripts
from vitscale.plan.spelling import shown

BASE = """
# what all trials share, of `vitscale fields`; for images of your own: **facts("data/mine-64")
BASE = TrainConfig(dataset="digits", depth=2, width=32, heads=2, epochs=15, warmup_epochs=3.0)
"""
ARMS = """\
ARMS = {  # what is compared: the fields in which each differs from BASE
%s}
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
SHAPES = """\"\"\"Is a deep or a wide ViT better, each at the best of three lr?

python {file} --plan  # what would be trained
python {file}  # trains and reports 3 seeds at each lr
\"\"\"

from vitscale import Study, TrainConfig, cross, grid, main, trials
{base}

def study(num: int = 3) -> Study:
    points = cross(grid(seed=range(num)), grid(lr=(1e-3, 3e-3, 1e-2)))
    return Study(
        kind="shapes",
        name="{name}",
        scale="digits",
        question="Is a deep or a wide ViT better?",
        source="ours",
        # the lr of an arm is chosen on minival, images of the training set that are held out
        trials=trials(BASE.replace(more_evals="minival"), ARMS, points),
        metric="val_error_pct",
        pairs=(("deep", "wide"),),  # chosen before the first result
        tables=("pair_differences", "arm_means"),
        figures=("comparison_forest",),
    )
"""
SCALING = """\"\"\"How does error fall with width and training images?

python {file} --plan  # what would be trained
python {file}  # trains and reports 2 seeds of each cell at each lr
\"\"\"

from vitscale import Arm, Study, TrainConfig, cross, grid, main, trials
{base}

def study(num: int = 2) -> Study:
    points, plan = cross(grid(seed=range(num)), grid(lr=(4e-3, 1.2e-2, 3.6e-2))), []
    for width in (16, 24, 32, 48):  # a law has three sizes, and forecasts the last
        for images in (250, 499, 0):  # 0: all
            fields = {{"width": width, "heads": width // 8, "subset_images": images}}
            config = BASE.replace(**fields, more_evals="minival")  # which chooses the lr of a cell
            name = f"width {{width}}, {{config.num_train}} images"
            arm = Arm(name, {{"family": "ViT", "size": f"width {{width}}"}})
            plan += trials(config, {{arm: {{}}}}, points)
    return Study(
        kind="scaling",
        name="{name}",
        scale="digits",
        question="How does error fall with width and training images?",
        source="ours",
        trials=plan,
        metric="val_error_pct",
        tables=("scaling_cells", "scaling_fit", "scaling_forecast"),
        figures=("error_by_scale",),
    )
"""
RATES = """\
    "AdamW": {"lr": 3e-3, "wd": 0.1},
    "SGD": {"optimizer": "sgd", "lr": 0.1, "wd": 1e-3},
"""
DRAWN = """\
    "AdamW": {},
    "SGD": {"optimizer": "sgd"},
"""
FORMS = """\
    "deep": {"depth": 4, "width": 24, "heads": 3},
    "wide": {"depth": 2, "width": 32, "heads": 4},
"""
KINDS = {  # kind -> the script, and its arms
    "repeats": (REPEATS, RATES),
    "shapes": (SHAPES, FORMS),
    "distribution": (DISTRIBUTION, DRAWN),
    "scaling": (SCALING, ""),
    "search": (SEARCH, DRAWN),
}


def write(name: str, kind: str) -> Path:
    """Writes NAME.py, in studies/ if there is such a folder, and returns its path.

    Raises ValueError for a name that a study cannot have, for that of an installed module, which
    the script would hide from all that import it, and for a file that exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name):
        raise ValueError(f"the name of a study must match [a-z][a-z0-9_]*, but got ({shown(name)})")
    folder = Path("studies") if scripts(Path()) else Path()
    path = folder / f"{name}.py"
    if name in {*sys.stdlib_module_names, *packages_distributions()}:
        raise ValueError(
            f"the name of a study must not be that of an installed module, but got ({name})"
        )
    text, arms = KINDS[kind]
    content = text.format(name=name, file=path, base=BASE + (ARMS % arms if arms else "")) + END
    try:
        with path.open("x") as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(f"a new study must overwrite nothing, but got ({path}: exists)") from None
    return path
