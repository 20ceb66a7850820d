"""Families of models under one recipe: H. Touvron's thesis, 2022, chapters 3 and 4. CaiT, ResMLP
and the RegNetY that teach them, and three models that are trained on CIFAR-10 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from search_spaces.lineage import BEST, REGNETS, Cell, Fields, regnety, timm, tuned
from search_spaces.recipes import DEIT, stated, unstated
from search_spaces.resolutions import OF_384, at_384
from search_spaces.vit import SHAPES
from vitscale.catalog.tables import printed_errors

Printed = Mapping[str, Mapping[str, float]]  # evaluation set -> arm -> error in percent

_SETS = {name: f"{name}_top1_pct" for name in ("val", "v2", "real")}
_SEEDS = "One run per arm, as in print, shows no difference: --num adds seeds."
_TEACHING = (
    f"Distilled models learn from the {BEST} of their seed, here with DeiT's recipe: the text "
    "has DeiT's data and augmentation (section 3.4.2) and 'a similar optimization procedure' "
    "(Table 3.5). Its drop path and BatchNorm's statistics over 256 images are not stated. "
)


@dataclass(frozen=True)
class Table:
    """Trainings of tables, each an arm, and the pairs that are compared."""

    scale: str
    source: str
    question: str
    cells: Mapping[str, Cell]
    pairs: tuple[tuple[str, str], ...]
    printed: Printed
    notes: str


def distilled(name: str) -> str:
    return f"{name} distilled"


def taught(arms: Mapping[str, Fields]) -> dict[str, Cell]:
    """The models again; half of their loss is that of the teacher's class."""
    return {
        distilled(name): Cell({**fields, "distill": "hard"}, BEST) for name, fields in arms.items()
    }


def plain(arms: Mapping[str, Fields]) -> dict[str, Cell]:
    return {name: Cell(fields) for name, fields in arms.items()}


def val_errors(name: str, arms: Iterable[str], column: str = "top1_pct") -> dict[str, float]:
    """Arm -> printed error on val, for the models of a table that are arms."""
    errors = printed_errors(name, lambda row: row["model"], {"val": column})["val"]
    return {arm: error for arm, error in errors.items() if arm in arms}


# --- CaiT: Tables 3.15, 3.16 and 3.20 -------------------------------------------------------------

_CAIT = DEIT.but(
    "cait",
    stated("thesis, section 3.7", epochs=400, eval_crop_ratio=1.0, drop_path_rule="uniform"),
)
# timm's model of the width; blocks before those of the class token; drop path and first gain as in
# Table 3.16
_SIZES = {
    "CaiT-XXS-24": ("cait_xxs24_224", 24, 0.05, 1e-5),
    "CaiT-XXS-36": ("cait_xxs36_224", 36, 0.1, 1e-6),
    "CaiT-XS-24": ("cait_xs24_384", 24, 0.05, 1e-5),
    "CaiT-XS-36": ("cait_xs24_384", 36, 0.1, 1e-6),
    "CaiT-S-24": ("cait_s24_224", 24, 0.1, 1e-5),
    "CaiT-S-36": ("cait_s36_384", 36, 0.2, 1e-6),
    "CaiT-S-48": ("cait_s36_384", 48, 0.3, 1e-6),
    "CaiT-M-24": ("cait_m36_384", 24, 0.2, 1e-5),
    "CaiT-M-36": ("cait_m36_384", 36, 0.3, 1e-6),
}
_CAITS = {
    name: timm(model, _CAIT, drop_path=rate, timm_args=f"depth={depth},init_values={gain}")
    for name, (model, depth, rate, gain) in _SIZES.items()
}


_SHORTER = "CaiT-S-36, 300 epochs"  # Table 3.20 has the usual crop until its last step


def _of_table_3_22(row: Mapping[str, str]) -> str:
    if row["crop_ratio"] != "1.0":
        return ""
    name = f"CaiT-{row['model'].replace('36', '-36')}"
    name = distilled(name) if row["distilled"] == "1" else name
    return at_384(name) if row["resolution"] == "384" else name


def _of_cait() -> Printed:
    val = val_errors("thesis_table4_1", [BEST])
    columns: dict[str, Callable[[str], str]] = {
        "top1_pct": str,
        "top1_384_pct": at_384,
        "distilled_top1_pct": distilled,
        "distilled_top1_384_pct": lambda name: at_384(distilled(name)),
    }
    for column, arm in columns.items():
        errors = val_errors("thesis_table3_15", _CAITS, column)
        val |= {arm(name): error for name, error in errors.items()}
    steps = {"class attention": _SHORTER}
    val |= printed_errors(
        "thesis_table3_20", lambda row: steps.get(row["step"], ""), {"val": "top1_pct"}
    )["val"]
    return {**printed_errors("thesis_table3_22", _of_table_3_22, _SETS), "val": val}


_CELLS = {
    BEST: Cell(REGNETS[BEST]),
    **plain(_CAITS),
    **taught(_CAITS),
    _SHORTER: Cell({**_CAITS["CaiT-S-36"], "epochs": 300, "eval_crop_ratio": 0.875}),
}
CAIT = Table(
    scale="imagenet",
    source="H. Touvron's thesis, 2022, Table 3.15",
    question="What do depth, width and a teacher bring to CaiT?",
    cells={**_CELLS, **tuned(_CELLS, (BEST, *_CAITS, *map(distilled, _CAITS)))},
    pairs=(
        *((distilled(name), name) for name in _CAITS),
        *((at_384(name), name) for name in _CAITS),
        *((at_384(distilled(name)), at_384(name)) for name in _CAITS),
        *((f"CaiT-{size}-36", f"CaiT-{size}-24") for size in ("XXS", "XS", "S", "M")),
        ("CaiT-S-48", "CaiT-S-36"),
    ),
    printed=_of_cait(),
    notes="XS-36, S-48 and M-24 are no models of timm: they are its models of their width with as "
    f"many blocks. {OF_384}`vitscale evaluate --crop-ratio 0.875` adds the other crop of Table "
    "3.22. " + _TEACHING + _SEEDS,
)

# --- ResMLP: Tables 4.1 and 4.3 -------------------------------------------------------------------

_RESMLP = DEIT.but(
    "resmlp",
    {
        **stated("thesis, section 4.3.1", optimizer="lamb", lr=5e-3, wd=0.2),
        **unstated("the lr is taken to be that of the batch of chapter 3", lr_batch=0),
        **stated("thesis, Table 4.3", epochs=400),
        **unstated(
            "section 4.3.1 refers to chapter 3, where 0.05 in all blocks is as good as DeiT's 0.1 "
            "in a linear rise (Table 3.11); timm's ResMLP has one rate",
            drop_path=0.05, drop_path_rule="uniform",
        ),
    },
)  # fmt: skip
_MLPS = {
    "ResMLP-S12": timm("resmlp_12_224", _RESMLP),
    "ResMLP-S24": timm("resmlp_24_224", _RESMLP),
    "ResMLP-B24/8": timm("resmlp_big_24_224", _RESMLP),
}


_TEACHERS = {name: REGNETS[name] for name in ("RegNetY-4GF", "RegNetY-8GF", BEST)}


def _of_table_4_3(row: Mapping[str, str]) -> str:
    if row["model"] not in _MLPS:
        return ""
    if row["ablation"] in ("baseline", "patch size"):
        return row["model"]
    return distilled(row["model"]) if row["variant"] == "distillation" else ""


_OF_4_3 = printed_errors("thesis_table4_3", _of_table_4_3, _SETS)
RESMLP = Table(
    scale="imagenet",
    source="H. Touvron's thesis, 2022, Tables 4.1 and 4.3",
    question="How far are MLPs behind transformers and CNNs?",
    cells={
        **plain({**_TEACHERS, "CaiT-XS-24": _CAITS["CaiT-XS-24"], **_MLPS}),
        **taught(_MLPS),
    },
    pairs=(
        *((distilled(name), name) for name in _MLPS),
        ("ResMLP-S12", "RegNetY-4GF"),
        ("ResMLP-S24", "RegNetY-8GF"),
    ),
    printed={
        **_OF_4_3,
        "val": {
            **_OF_4_3["val"],
            **val_errors("thesis_table4_1", _TEACHERS),
            "CaiT-XS-24": CAIT.printed["val"]["CaiT-XS-24"],
        },
    },
    notes="First gains are timm's, 1e-4, 1e-5 and 1e-6; the text has them follow CaiT. Patches of "
    "timm's models are fixed: B24 has 8 pixels, S12 and S24 16. " + _TEACHING + _SEEDS,
)

# --- CIFAR-10 from scratch: section 3.4.4 ---------------------------------------------------------

# 7,200 epochs "correspond to 300 ImageNet epochs": warm-up and evaluations in proportion
_CIFAR = DEIT.but(
    "deit-cifar10",
    {
        **stated("thesis, section 3.4.4", dataset="cifar10", num_classes=10),
        **unstated("section 3.4.4 has up to 7,200, and not which model has how many", epochs=7200),
        **unstated("5 of 300 epochs, as on ImageNet", warmup_epochs=120.0),
    },
)
_SCRATCH: Fields = {"more_evals": "", "eval_every": 24}
_DEIT_B: Fields = {**SHAPES["B"], **_CIFAR.fields, **_SCRATCH}
SCRATCH = Table(
    scale="cifar",
    source="H. Touvron's thesis, 2022, section 3.4.4",
    question="Can a transformer be trained on CIFAR-10 alone?",
    cells={
        **plain({BEST: regnety(16, _CIFAR, **_SCRATCH), "DeiT-B": _DEIT_B}),
        distilled("DeiT-B"): Cell({**_DEIT_B, "distill": "token"}, BEST),
    },
    pairs=(("DeiT-B", BEST), (distilled("DeiT-B"), "DeiT-B")),
    printed={"val": val_errors("thesis_cifar10_scratch", (BEST, "DeiT-B", distilled("DeiT-B")))},
    notes="Images of 32 pixels are resized to 224. The text has up to 7,200 epochs; that each "
    "model has as many is not stated, nor is the warm-up, here of 120. The recipe is otherwise "
    "that of ImageNet, to which the text wants to be as close as possible. The teacher is taken to "
    "be the RegNetY of the table. " + _SEEDS,
)

TABLES = {"thesis_cait": CAIT, "thesis_resmlp": RESMLP, "thesis_scratch": SCRATCH}
