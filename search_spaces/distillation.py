"""Students of teachers on ImageNet: the arms of H. Touvron's thesis, 2022, Tables 3.2 and 3.3, and
Figure 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.lineage import BEST, REGNETS, Cell, Fields, tuned
from search_spaces.recipes import DEIT
from search_spaces.resolutions import OF_384, at_384
from search_spaces.vit import SHAPES
from vitscale.catalog.tables import printed_errors

WAYS = ("soft", "hard", "token")
Errors = dict[str, float]  # arm -> error in percent


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure, or a scale: its arms and teachers, and the pairs that it compares."""

    source: str = "H. Touvron's thesis, 2022, Table 3.3"
    question: str = (
        "What does a ViT learn from a teacher: its probabilities, its class, or its class by a "
        "token?"
    )
    cells: Mapping[str, Cell]  # teachers before their students
    parents: tuple[str, ...] = ()  # cells that only teach, and are no arms
    pairs: tuple[tuple[str, str], ...]
    notes: str
    num_seeds: int = 1
    first_seed: int = 0
    margin: float | None = None
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    printed: Mapping[str, Errors] = field(default_factory=dict)  # by evaluation set
    lengths: bool = False  # whether it is about lengths of training


def _deit(size: str, **fields: Any) -> Fields:
    return {**SHAPES[size], **DEIT.fields, "more_evals": "v2,real", **fields}


SIZES = ("DeiT-Ti", "DeiT-S", "DeiT-B")
# Figure 3.2 is not in our copy of the text, which names 300, 400 and 1,000 epochs; 600 is ours.
LONGER = (400, 600, 1000)


def _at(name: str, epochs: int) -> str:
    return name if epochs == DEIT.fields["epochs"] else f"{name}, {epochs} epochs"


CELLS = {name: Cell(fields) for name, fields in REGNETS.items()}
for _name in SIZES:
    _size = _name.removeprefix("DeiT-")
    CELLS[_name] = Cell(_deit(_size))
    CELLS |= {f"{_name} {way}": Cell(_deit(_size, distill=way), BEST) for way in WAYS}
_OTHERS = {
    teacher: f"DeiT-B token of {teacher}" for teacher in ("DeiT-B", *REGNETS) if teacher != BEST
}
CELLS |= {name: Cell(_deit("B", distill="token"), teacher) for teacher, name in _OTHERS.items()}
for _epochs in LONGER:
    CELLS[_at("DeiT-B", _epochs)] = Cell(_deit("B", epochs=_epochs), model="DeiT-B")
    CELLS[_at("DeiT-B token", _epochs)] = Cell(
        _deit("B", epochs=_epochs, distill="token"), BEST, "DeiT-B token"
    )
_TUNED = ("DeiT-B", *REGNETS, "DeiT-B soft", "DeiT-B hard", "DeiT-B token", *_OTHERS.values())
CELLS |= tuned(CELLS, _TUNED)

# ---- what the thesis prints

_SETS = {name: f"{name}_top1_pct" for name in ("val", "v2", "real")}
# method of Table 3.3 -> what follows the name of the model. A prediction of a model with a
# distillation token is that of both heads, so the rows of either head alone have no arm.
_METHODS = {
    "no distillation": "",
    "usual distillation": " soft",
    "hard distillation": " hard",
    "class+distillation": " token",
}


def _of_table_3_5(row: Mapping[str, str]) -> str:
    arm = _at(row["model"].replace("distilled", "token"), int(row["epochs"]))
    return at_384(arm) if row["resolution"] == "384" else arm


def _of_table_3_3(name: str, column: str) -> Errors:
    def arm(row: Mapping[str, str]) -> str:
        return f"{name}{_METHODS[row['method']]}" if row["method"] in _METHODS else ""

    return printed_errors("thesis_table3_3", arm, {"val": column})["val"]


_TABLE_3_5 = printed_errors("thesis_table3_5", _of_table_3_5, _SETS)
_TEACHERS = printed_errors(
    "thesis_table3_2", lambda row: row["teacher"], {"val": "teacher_top1_pct"}
)["val"]


def _student(row: Mapping[str, str]) -> str:
    return _OTHERS.get(row["teacher"], "DeiT-B token")


_STUDENTS = {
    **printed_errors("thesis_table3_2", _student, {"val": "top1_pct"})["val"],
    **printed_errors("thesis_table3_2", lambda row: at_384(_student(row)), {"val": "top1_384_pct"})[
        "val"
    ],
}


def _printed(arms: tuple[str, ...], val: Errors) -> dict[str, Errors]:
    """The errors of a table on val, and those of Table 3.5 on the other sets."""
    errors = {**_TABLE_3_5, "val": {**_TABLE_3_5["val"], **val}}
    return {
        name: {arm: values[arm] for arm in arms if arm in values} for name, values in errors.items()
    }


_NOTES = (
    "The recipe is DeiT's, also of the RegNetY: the thesis has the same data and augmentation for "
    "them, and states neither drop path nor BatchNorm's batch. tau 3 and lambda 0.1 of 'soft' are "
    "those of section 3.4.5. Equations 3.2 and 3.3 have the label in the loss, while Table 3.3 has "
    "no check mark for it in the rows of usual and hard distillation: these are the equations. A "
    "prediction of a student with a token is the mean of the softmax outputs of both heads, the "
    "last row of Table 3.3; neither head is evaluated alone. The student of RegNetY-16GF has 83.1% "
    "in Table 3.2 and 83.4% in Tables 3.3 and 3.5; at 384 pixels 84.2% and 84.5%. "
    + OF_384
    + "One run per arm, as in the tables, shows no difference: --num adds seeds."
)


def _item(arms: tuple[str, ...], pairs: tuple[tuple[str, str], ...], **more: Any) -> Item:
    needed = set(arms)
    for name, cell in reversed(CELLS.items()):  # what a cell needs is before it
        needed |= {cell.teacher, cell.start} if name in needed else set()
    cells = {name: cell for name, cell in CELLS.items() if name in needed}
    parents = tuple(name for name in cells if name not in arms)
    return Item(cells=cells, parents=parents, pairs=pairs, notes=_NOTES, **more)


_COLUMNS = {name: f"{name.removeprefix('DeiT-').lower()}_top1_pct" for name in SIZES}
_PANELS = {
    **{name: tuple(f"{name}{way}" for way in _METHODS.values()) for name in SIZES},
    at_384("DeiT-B"): tuple(at_384(f"DeiT-B{way}") for way in _METHODS.values()),
}
_3_3 = tuple(arm for arms in _PANELS.values() for arm in arms)
_ERRORS_3_3 = {
    **{
        arm: e
        for name, column in _COLUMNS.items()
        for arm, e in _of_table_3_3(name, column).items()
    },
    **{at_384(arm): e for arm, e in _of_table_3_3("DeiT-B", "b_384_top1_pct").items()},
}
_TOKEN_OF = {**_OTHERS, BEST: "DeiT-B token"}  # teacher -> student
_3_2 = (*REGNETS, "DeiT-B", *_TOKEN_OF.values(), *map(at_384, _TOKEN_OF.values()))
_EPOCHS = (300, *LONGER)
_LENGTHS = tuple(_at(name, epochs) for name in ("DeiT-B", "DeiT-B token") for epochs in _EPOCHS)
ITEMS = {
    "thesis_3_3": _item(
        (BEST, *_3_3),
        (
            *(
                pair
                for none, soft, hard, token in _PANELS.values()
                for pair in ((soft, none), (hard, none), (hard, soft), (token, hard))
            ),
            ("DeiT-B token", BEST),
        ),
        source="H. Touvron's thesis, 2022, Tables 3.3 and 3.5",
        panels=_PANELS,
        printed=_printed((BEST, *_3_3), _ERRORS_3_3),
    ),
    "thesis_3_2": _item(
        _3_2,
        (
            *((_TOKEN_OF[name], _TOKEN_OF["DeiT-B"]) for name in REGNETS),
            *((at_384(_TOKEN_OF[name]), at_384(_TOKEN_OF["DeiT-B"])) for name in REGNETS),
            *((student, teacher) for teacher, student in _TOKEN_OF.items()),
        ),
        source="H. Touvron's thesis, 2022, Tables 3.2 and 3.5",
        question="Is a convnet a better teacher of a ViT than a ViT?",
        printed=_printed(_3_2, {**_TEACHERS, **_STUDENTS}),
    ),
    "thesis_figure_3_2": _item(
        _LENGTHS,
        tuple((_at("DeiT-B token", epochs), _at("DeiT-B", epochs)) for epochs in _EPOCHS),
        source="H. Touvron's thesis, 2022, Figure 3.2 and Table 3.5",
        question="Does a longer training bring a student more than a ViT without a teacher?",
        printed=_printed(_LENGTHS, {}),
        lengths=True,
    ),
}
