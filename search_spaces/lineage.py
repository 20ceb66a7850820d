"""Arms whose runs learn from, or start from, those of other arms with the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from search_spaces.recipes import DEIT, Recipe
from search_spaces.resolutions import AT_384, at_384
from search_spaces.touvron_thesis import OF_VIT

Fields = dict[str, Any]


class Cell(NamedTuple):
    """The fields of an arm, and the arms whose runs with the same seed teach it, or begin it."""

    fields: Fields
    teacher: str = ""
    model: str = ""  # a line of a figure; "": the name of the arm
    start: str = ""  # the arm that is fine-tuned with these fields


def configs_of(
    cells: Mapping[str, Cell], seeds: Iterable[int], make: Callable[..., Any]
) -> dict[tuple[str, int], Any]:
    """(arm, seed) -> training, which `make` makes: TrainConfig. `cells` have teachers and starts
    before the arms that need them.
    """
    configs: dict[tuple[str, int], Any] = {}
    for arm, cell in cells.items():
        for seed in seeds:
            teacher = configs[cell.teacher, seed].id if cell.teacher else ""
            fields = {**cell.fields, "seed": seed, "teacher": teacher}
            if cell.start:
                start = configs[cell.start, seed]
                configs[arm, seed] = start.replace(**fields, init_from=start.id)
            else:
                configs[arm, seed] = make(**fields)
    return configs


def tuned(cells: Mapping[str, Cell], names: Iterable[str]) -> dict[str, Cell]:
    """The fine-tunings of arms at 384 pixels, by teachers that are fine-tuned in the same way."""
    return {
        at_384(name): Cell(
            AT_384, teacher=cells[name].teacher and at_384(cells[name].teacher), start=name
        )
        for name in names
    }


# a model of timm is not our ViT, and a CNN has no tokens: the same training would have two ids
_NOT_TIMM = ("dropout", "layerscale", "weight_init")


def timm(name: str, recipe: Recipe, **fields: object) -> Fields:
    """A model of timm with the fields of a recipe that are not of our ViT alone."""
    kept = {field: value for field, value in recipe.fields.items() if field not in _NOT_TIMM}
    return {**kept, "model": f"timm:{name}", "more_evals": "v2,real", **fields}


def regnety(gf: int, recipe: Recipe, **fields: object) -> Fields:
    """A teacher of H. Touvron's thesis, 2022, section 3.4.2: "with the same data and same
    data-augmentation as DeiT", here with its whole recipe. Unstated: BatchNorm's statistics are
    those of 256 images, a GPU of four.
    """
    kept = timm(f"regnety_{10 * gf:03d}", recipe, norm_batch=256, **fields)
    return {field: value for field, value in kept.items() if field not in OF_VIT}


BEST = "RegNetY-16GF"  # "the default teacher"
REGNETS = {f"RegNetY-{gf}GF": regnety(gf, DEIT) for gf in (4, 8, 12, 16)}
