"""Ingredients of recipes that the papers change, one row of a table at a time.

H. Touvron's thesis, 2022: Tables 3.8, 6.2, 6.3 and 6.4, and the crop of section 6.2.3. Xiao et al.
2021: Table 5 and Figure 10 (appendix F), and the weight decay of section 5.4. Touvron et al. 2022:
Tables 1 and 8. Tables that print the same training share its arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from search_spaces import xiao2021
from search_spaces.recipes import (
    A2,
    A2_LAYERSCALE,
    DEIT,
    DEIT3,
    XIAO2021,
    Recipe,
    Values,
    stated,
    unstated,
)
from search_spaces.touvron_thesis import ARCHITECTURES
from search_spaces.touvron_thesis import RECIPES as RECIPES_6_3_4
from search_spaces.vit import SHAPES
from vitscale.catalog.tables import printed_errors, table_rows

Fields = dict[str, Any]
Printed = Mapping[str, Mapping[str, float]]  # evaluation set -> arm -> error in percent


class Item(NamedTuple):
    """A table or figure: its arms, and the pairs that it compares, (changed, base)."""

    title: str
    arms: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    metric: str = "val_error_pct"
    panels: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    printed: Printed = MappingProxyType({})


_VAL, _V2 = {"val": "val_top1_pct"}, {"v2": "v2_top1_pct"}
_SETS = {**_VAL, **_V2, "real": "real_top1_pct"}  # evaluation set -> column of chapter 6


def vit(size: str, recipe: Recipe, more_evals: str = "v2,real") -> Fields:
    """A ViT of the thesis; its chapter 6 prints val, Real and V2."""
    return {**SHAPES[size], **recipe.fields, "more_evals": more_evals}


def against(base: str, arms: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((arm, base) for arm in arms if arm != base)


ARMS: dict[str, Fields] = {}  # name -> fields of TrainConfig
ITEMS: dict[str, Item] = {}

# --- thesis, Table 3.8: DeiT-B without one of its parts -------------------------------------------

_T38 = "thesis, Table 3.8"
# The header of the table is lost in the text at hand. Its columns follow from the section, and from
# Table 5 of Xiao et al. 2021, which copies two of its errors.
TABLE_3_8: dict[str, Values] = {
    "DeiT-B": {},
    "DeiT-B SGD": {
        **stated(_T38, optimizer="sgd"),
        **unstated(
            "no lr of SGD is named: the caption fixes all values as in Table 3.9, and says that "
            "they may be suboptimal",
            lr=5e-4, wd=0.05,
        ),
        **unstated("SGD of the authors' code (timm)", momentum=0.9, nesterov=True),
    },
    "DeiT-B no RandAugment": stated(_T38, augment="none"),
    "DeiT-B AutoAugment": stated(_T38, augment="autoaugment"),
    "DeiT-B no mixup": stated(_T38, mixup_alpha=0.0),
    "DeiT-B no CutMix": stated(_T38, cutmix_alpha=0.0),
    "DeiT-B no mixup, no CutMix": {
        **stated(_T38, mixup_alpha=0.0, cutmix_alpha=0.0),
        **unstated("nothing is mixed", mix_groups=1),
    },
    "DeiT-B no erasing": stated(_T38, erasing_prob=0.0),
    "DeiT-B no drop path": stated(_T38, drop_path=0.0, drop_path_rule="uniform"),
    "DeiT-B no repeats": stated(_T38, repeats=1),
    "DeiT-B dropout": unstated(
        "Table 3.8 has dropout and not its rate; 0.1 is that of Dosovitskiy et al. 2021, Table 3",
        dropout=0.1,
    ),
}  # fmt: skip
# The row with EMA is the base's run: its averaged weights are a second error of every row.
_DEIT_B = DEIT.but(
    "deit-b-ema",
    unstated("Table 3.8 has EMA and not its decay; that of the authors' code", ema_decay=0.99996),
)
ARMS |= {name: vit("B", _DEIT_B.but(name, row), "") for name, row in TABLE_3_8.items()}
_PARTS_3_8 = {"randaugment": "RandAugment", "mixup": "mixup", "cutmix": "CutMix",
              "erasing": "erasing", "stochastic_depth": "drop path",
              "repeated_augmentation": "repeats"}  # fmt: skip


def arm_3_8(row: Mapping[str, str]) -> str:
    """The arm of a row of Table 3.8; none for another way to read or fine-tune the first."""
    if row["ema"] == "1" or row["optimizer_384"] == "sgd":
        return ""  # the first row's run: averaged, or fine-tuned otherwise
    if row["autoaugment"] == "1":
        return "DeiT-B AutoAugment"
    changed = [
        *(["SGD"] if row["optimizer"] == "sgd" else []),
        *(f"no {part}" for column, part in _PARTS_3_8.items() if row[column] == "0"),
        *(["dropout"] if row["dropout"] == "1" else []),
    ]
    return f"DeiT-B {', '.join(changed)}".strip()


ITEMS["thesis_3_8"] = Item(
    _T38,
    tuple(TABLE_3_8),
    against("DeiT-B", TABLE_3_8),
    printed=printed_errors("thesis_table3_8", arm_3_8, {"val": "top1_pct"}),
)

# --- thesis, Table 6.4: loss, LayerScale, length and augmentation ---------------------------------

_T64 = "thesis, Table 6.4"
_CE = {
    **stated(_T64, loss="ce"),
    **unstated("the table names the loss alone: no smoothing, and the lr, as with BCE",
               label_smoothing=0.0, bce_targets="soft"),
}  # fmt: skip
_LAYERSCALE_300 = stated(_T64, epochs=300)
_400 = stated(_T64, epochs=400)
for _size in "SBL":
    _rows = {
        "CE RA 300": A2[_size].but("ce", _CE),
        "BCE RA 300": A2[_size],
        "BCE RA 400": A2[_size].but("400", _400),
        "BCE LS RA 300": A2_LAYERSCALE[_size].but("300", _LAYERSCALE_300),
        "BCE LS RA 400": A2_LAYERSCALE[_size],
        "BCE LS 3A 400": DEIT3[_size],
    }
    _without = ("CE RA 300", "BCE LS RA 300") if _size == "L" else ("BCE RA 400",)
    for _name in _without:
        del _rows[_name]
    ARMS |= {f"ViT-{_size} {name}": vit(_size, recipe) for name, recipe in _rows.items()}
# depth_vs_width trains this one, without Real, which `vitscale evaluate --split real` adds
ARMS["ViT-B BCE RA 300"]["more_evals"] = "v2"
_SHORT = {"AutoAugment": "AA", "RandAugment": "RA", "TrivialAugment": "TA", "3-Augment": "3A"}


def _arm_6_4(row: Mapping[str, str]) -> str:
    layerscale = " LS" if row["layerscale"] == "1" else ""
    policy = _SHORT[row["augmentation"]]
    return f"{row['model']} {row['loss']}{layerscale} {policy} {row['epochs']}"


_OF_6_4 = tuple(arm for arm in ARMS if " RA " in arm or " 3A " in arm)
ITEMS["thesis_6_4"] = Item(
    _T64,
    _OF_6_4,
    # each row and the one above it, which differs in one column
    tuple((b, a) for a, b in pairwise(_OF_6_4) if a[:5] == b[:5]),
    printed=printed_errors("thesis_table6_4", _arm_6_4, {**_VAL, **_V2}),
)

# --- thesis, Table 6.2: parts of 3-Augment; section 6.2.3: the crop -------------------------------

_T62, _ALL = "thesis, Table 6.2", "ViT-B BCE LS 3A 400"
_OPS = "of the operations that are left an image gets each with the same probability"
TABLE_6_2: dict[str, Values] = {
    "ViT-B jitter": stated(_T62, augment="none"),
    "ViT-B jitter, gray": {
        **stated(_T62, color_jitter=0.3), **unstated(_OPS, augment_ops="gray")
    },
    "ViT-B jitter, gray, blur": {
        **stated(_T62, color_jitter=0.3), **unstated(_OPS, augment_ops="gray-blur")
    },
    "ViT-B 3A without jitter": stated(_T62, color_jitter=0.0),
}  # fmt: skip
ARMS |= {name: vit("B", DEIT3["B"].but(name, row)) for name, row in TABLE_6_2.items()}
_JITTER, _GRAY, _BLUR, _WITHOUT = TABLE_6_2
_ROWS_6_2 = {"0.3 0 0 0": _JITTER, "0.3 1 0 0": _GRAY, "0.3 1 1 0": _BLUR, "0.3 1 1 1": _ALL,
             "0.0 1 1 1": _WITHOUT}  # fmt: skip
_PARTS_6_2 = ("color_jitter", "grayscale", "gaussian_blur", "solarization")
ITEMS["thesis_6_2"] = Item(
    _T62,
    (_JITTER, _GRAY, _BLUR, _ALL, _WITHOUT),
    ((_GRAY, _JITTER), (_BLUR, _GRAY), (_ALL, _BLUR), (_WITHOUT, _ALL)),
    printed=printed_errors(
        "thesis_table6_2", lambda row: _ROWS_6_2[" ".join(row[part] for part in _PARTS_6_2)], _SETS
    ),
)
ARMS["ViT-S SRC"] = vit("S", DEIT3["S"].but("src", stated("thesis, section 6.2.3", crop="src")))
_RRC = "ViT-S BCE LS 3A 400"
ITEMS["thesis_src"] = Item("thesis, section 6.2.3", (_RRC, "ViT-S SRC"), (("ViT-S SRC", _RRC),))

# --- thesis, Table 6.3: policies ------------------------------------------------------------------

_T63 = "thesis, Table 6.3"
# The rows of RandAugment and 3-Augment print the errors of Table 6.4 for ViT-B and ViT-L, so the
# other learned policies are taken to have the recipe of the first.
_POLICIES: dict[str, Fields] = {
    "AA": {"augment": "autoaugment"},
    "RA": {"augment": "randaugment", "randaugment_magnitude": 7.0},
    "TA": {"augment": "trivialaugment"},
    "3A": {"augment": "3augment", "color_jitter": 0.3},  # section 6.2.2: the jitter belongs to it
}
for _size in "BL":
    _kept = {**vit(_size, A2_LAYERSCALE[_size]), "randaugment_magnitude": 9.0}  # the default
    ARMS |= {f"ViT-{_size} {name}": {**_kept, **_POLICIES[name]} for name in ("AA", "TA")}
# Neither recipe nor length of ResNet-50 is stated. A2 of section 6.3.4 stands in: it prints 79.85 ±
# 0.08 there, where this table has 79.5 with RandAugment, so it is not the same.
_RESNET = {**RECIPES_6_3_4["A2"], **ARCHITECTURES["ResNet-50"], "more_evals": "v2,real"}
ARMS |= {
    f"ResNet-50 {name}": {**_RESNET, "randaugment_magnitude": 9.0, **policy}
    for name, policy in _POLICIES.items()
}
_OF_6_3 = {
    "ResNet-50": tuple(f"ResNet-50 {name}" for name in _POLICIES),
    **{
        f"ViT-{size}": (
            f"ViT-{size} AA", f"ViT-{size} BCE LS RA 400", f"ViT-{size} TA",
            f"ViT-{size} BCE LS 3A 400",
        )
        for size in "BL"
    },
}  # fmt: skip


def _arm_6_3(row: Mapping[str, str]) -> str:
    policy = _SHORT[row["augmentation"]]
    of_6_4 = row["model"] != "ResNet-50" and policy in ("RA", "3A")
    return f"{row['model']} BCE LS {policy} 400" if of_6_4 else f"{row['model']} {policy}"


ITEMS["thesis_6_3"] = Item(
    _T63,
    tuple(arm for arms in _OF_6_3.values() for arm in arms),
    tuple(pair for arms in _OF_6_3.values() for pair in against(arms[-1], arms)),
    printed=printed_errors("thesis_table6_3", _arm_6_3, _SETS),
)

# --- Xiao et al. 2021, section 5.4: weight decay of gains and biases ------------------------------


def xiao(model: str, epochs: int, **values: Any) -> Fields:
    """As in optimizer_stability: AdamW at the lr and wd of Table 4."""
    lr, wd = xiao2021.OPTIMA[model, "adamw"]
    fields = {**XIAO2021.fields, **xiao2021.HELD_OUT, **xiao2021.MODELS[model]}
    return {**fields, "optimizer": "adamw", "lr": lr, "wd": wd, "epochs": epochs, **values}


_DECAYED = ("ViT_P-1GF", "ViT_P-1GF gains decayed")  # "small models and short schedules"
ARMS |= {name: xiao("ViT_P-1GF", 50, decay_gains=name != _DECAYED[0]) for name in _DECAYED}
ITEMS["xiao_decay"] = Item(
    "Xiao et al. 2021, section 5.4", _DECAYED, (_DECAYED[::-1],), "val_ema_error_pct"
)

# --- Xiao et al. 2021, Table 5 and Figure 10: their recipe against DeiT's -------------------------

_OF_DEIT = DEIT.fields  # Table 5 has ticks; their values are those of DeiT
_RAND: Fields = {"augment": "randaugment", "ema_alpha": 0.0, "ema_every": 1,
                 "ema_after_warmup": False}  # fmt: skip
_ERASING = {**_RAND, "erasing_prob": _OF_DEIT["erasing_prob"]}
_REPEATS = {**_ERASING, "repeats": _OF_DEIT["repeats"]}
_DEPTH = {name: _OF_DEIT[name] for name in ("drop_path", "drop_path_rule")}
# Rows 1 to 5. Row 6 is row 1 without averaging, which is the other error of the same run.
TABLE_5: dict[str, Fields] = {
    "ours": {},
    "DeiT's": {**_REPEATS, **_DEPTH},
    "DeiT's, no drop path": _REPEATS,
    "RandAugment, erasing": _ERASING,
    "RandAugment": _RAND,
}


def table_5(model: str, row: str, epochs: int) -> Fields:
    """A row of Table 5, whose caption raises wd to 0.5 for ViT_P-18GF with RandAugment. That
    ViT_C-18GF of Figure 10 has the same is unstated.
    """
    raised = {"wd": 0.5} if row != "ours" and model.endswith("18GF") else {}
    return xiao(model, epochs, **TABLE_5[row], **raised)


_TICKS_5 = dict(zip(("Auto000", "Rand111", "Rand101", "Rand100", "Rand000"), TABLE_5, strict=True))


def _printed_5(ema: str) -> Printed:
    """The errors of `TABLE_5`; the first row has those of row 6 with `ema` "0"."""
    errors: dict[str, float] = {}
    for row in table_rows("xiao2021_table5"):
        ticks = (row[name] for name in ("augmentation", "erasing", "stochastic_depth", "repeating"))
        name = _TICKS_5.get("".join(ticks))  # rows of DeiT at 300 epochs have no error here
        if name and (name != "ours" or row["ema"] == ema):
            for epochs in (100, 400):
                if error := row[f"error_{epochs}_epochs_pct"]:
                    errors[f"{row['model']} {name} {epochs} epochs"] = float(error)
    return {"val": errors}


def _xiao_item(
    title: str, models: Iterable[str], rows: Iterable[str], lengths: Iterable[int]
) -> Item:
    cells = {
        (model, row, epochs): f"{model} {row} {epochs} epochs"
        for model in models
        for epochs in lengths
        for row in rows
    }
    ARMS.update({name: table_5(*cell) for cell, name in cells.items()})
    pairs = tuple(
        (name, cells[model, "ours", epochs])
        for (model, row, epochs), name in cells.items()
        if row != "ours"
    )
    sizes = dict.fromkeys(model.partition("-")[2] for model, *_ in cells)
    panels = {
        size: tuple(name for (model, *_), name in cells.items() if model.endswith(f"-{size}"))
        for size in sizes
    }
    return Item(title, tuple(cells.values()), pairs, "val_ema_error_pct", panels)


ITEMS["xiao_table_5"] = _xiao_item(
    "Xiao et al. 2021, Table 5", ("ViT_P-4GF", "ViT_P-18GF"), tuple(TABLE_5), (100, 400)
)._replace(printed=_printed_5(ema="1"))
# All tables at once, by the error of the weights themselves: row 1 of Table 5 is then its row 6.
TABLES = Item(
    "H. Touvron's thesis, 2022, Tables 3.8, 6.2, 6.3, 6.4, section 6.2.3; Xiao et al. 2021, "
    "section 5.4 and Table 5",
    tuple(ARMS),
    tuple(pair for item in ITEMS.values() for pair in item.pairs),
    panels={item.title: item.arms for item in ITEMS.values()},
    printed={
        "val": {
            **{
                arm: error
                for item in ITEMS.values()
                for arm, error in item.printed.get("val", {}).items()
            },
            **_printed_5(ema="0")["val"],
        }
    },
)
# The legend of Figure 10 has ViT_P with both recipes and ViT_C with theirs; its caption speaks of
# both models, so ViT_C has DeiT's recipe, too.
ITEMS["xiao_figure_10"] = _xiao_item(
    "Xiao et al. 2021, Figure 10",
    ("ViT_P-4GF", "ViT_C-4GF", "ViT_P-18GF", "ViT_C-18GF"),
    ("ours", "DeiT's"),
    (50, 100, 200, 400),
)

# --- Touvron et al. 2022, Tables 1 and 8: their recipe by size, and DeiT's ------------------------

ARMS |= {
    "ViT-Ti BCE RA 300": vit("Ti", A2["Ti"]),
    "ViT-Ti BCE LS RA 400": vit("Ti", A2_LAYERSCALE["Ti"]),
    "DeiT-Ti": vit("Ti", DEIT, ""),
    "DeiT-S": vit("S", DEIT, ""),  # as in vit_design
}
_BASELINES = tuple(f"ViT-{size} BCE {recipe}" for size in A2 for recipe in ("RA 300", "LS RA 400"))
_T1 = printed_errors(
    "touvron2022_table1",
    lambda row: f"ViT-{row['size']} BCE {'LS ' * int(row['layerscale'])}RA {row['epochs']}",
    {**_VAL, **_V2},
)
ITEMS["touvron_table_1"] = Item(
    "Touvron et al. 2022, Table 1",
    _BASELINES,
    tuple(zip(_BASELINES[1::2], _BASELINES[::2], strict=True)),
    printed=_T1,
)
_DEIT_ERRORS = {"DeiT-Ti": 27.8, "DeiT-S": 20.2, "DeiT-B": 18.2}
ITEMS["touvron_table_8"] = Item(
    "Touvron et al. 2022, Table 8",
    (*_DEIT_ERRORS, *_BASELINES),
    tuple((f"ViT{arm.removeprefix('DeiT')} BCE RA 300", arm) for arm in _DEIT_ERRORS),
    printed={"val": {**_DEIT_ERRORS, **_T1["val"]}},
)
