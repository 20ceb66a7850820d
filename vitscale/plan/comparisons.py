"""Comparisons as values of the plan: what is tested, corrected together and pre-registered.

A comparison is a weighted sum of the means of arms, tested against 0. The comparisons of a table
follow from the plan alone, by a function of plan/questions.py. From this one list everything else
follows: the rows of the table and Holm's families, what the plan can show, its warnings, and
plan.json.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from typing import Literal

from vitscale.catalog.shapes import shape_name
from vitscale.plan.spelling import shown
from vitscale.plan.trial import DROP_PATH_BY, Plan, conditions

CHOOSES = "minival"  # the evaluation set that chooses an lr, and is not reported
Value = str | int | float | bool
Sets = Literal["metric", "reported", "all"]  # that of the metric; all but `CHOOSES`; all


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of the means of arms.

    `weights` map arms to numbers that add up to 0. `on` names one evaluation set, or two of which
    the difference within each run is compared; by default each set of the table is compared.
    """

    weights: Mapping[str, float]
    about: Mapping[str, Value]  # the columns that identify its row
    on: tuple[str, ...] = ()
    family: str = ""  # comparisons of a table that are corrected together


@dataclass(frozen=True)
class Compared:
    """The comparisons of a table, the sets that they are made on, and their names in --plan.

    `what` has a family's words; a family without words is tested and has no statement of power.
    """

    make: Callable[[Plan], Iterator[Comparison]]
    sets: Sets
    what: Mapping[str, str] = field(default_factory=dict)

    def on(self, plan: Plan, comparison: Comparison) -> list[tuple[str, ...]]:
        """The sets of each row of a comparison."""
        return [comparison.on] if comparison.on else [(name,) for name in sets(plan, self.sets)]

    def families(self, plan: Plan) -> dict[tuple[str, bool], tuple[int, tuple[float, ...]]]:
        """(family, whether paired by parent) -> number of tests of the whole family, which are
        corrected together, and the weights of the comparison with the most noise.
        """
        tests: Counter[str] = Counter()
        widest: dict[tuple[str, bool], tuple[float, ...]] = {}
        for comparison in self.make(plan):
            weights = tuple(comparison.weights.values())
            key = comparison.family, is_paired(plan, comparison.weights)
            tests[comparison.family] += len(self.on(plan, comparison))
            if sum(w * w for w in weights) > sum(w * w for w in widest.get(key, ())):
                widest[key] = weights
        return {key: (tests[key[0]], weights) for key, weights in widest.items()}


def is_paired(plan: Plan, arms: Collection[str]) -> bool:
    """Whether the runs of these arms start from the same parents at each lr: then they are compared
    within parents. Several runs from one single parent are not.
    """
    starts: dict[tuple[str, float], list[str]] = {}
    for trial in plan.trials if plan.parents else ():
        if trial.arm.name in arms:
            key = trial.arm.name, trial.config.lr
            starts.setdefault(key, []).append(trial.config.init_from)
    parents = list(starts.values())
    return bool(parents) and all(
        all(own) and set(own) == set(parents[0]) and len(set(own)) == num_independent(own)
        for own in parents
    )


def num_independent(starts: Sequence[str]) -> int:
    """How many means of runs are independent, given what each run starts from: one per parent. If
    that is one and the same, the runs are independent given this parent.
    """
    num = len(set(starts))
    return num if num > 1 else len(starts)


def sets(plan: Plan, which: Sets) -> list[str]:
    """The evaluation sets of a plan: those on which every trial is evaluated."""
    first = plan.trials[0].config
    if which == "metric":
        return [first.eval_split]
    every = [name for name in first.evals if all(name in t.config.evals for t in plan.trials)]
    if which == "all":
        return every
    return [name for name in every if name != CHOOSES] or [first.eval_split]


def minus(a: str, b: str) -> dict[str, float]:
    """The weights of the difference of two arms."""
    return {a: 1, b: -1}


def difference(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """The weights of one effect minus another; an arm of both whose weights cancel is in none."""
    total = {arm: a.get(arm, 0) - b.get(arm, 0) for arm in (*a, *b)}
    return {arm: weight for arm, weight in total.items() if weight}


def _arms(plan: Plan, *names: str) -> dict[tuple[Value, ...], str]:
    """Values of fields or factors -> the arm that has them, in the order of the plan."""
    return {tuple(values[name] for name in names): arm for arm, values in conditions(plan).items()}


# ---- optimizers and lengths


def _stability(plan: Plan) -> dict[tuple[str, str, int], str]:
    """(model, optimizer, epochs) -> arm, shorter schedules first."""
    arms = _arms(plan, "model", "optimizer", "epochs")
    by_cell = {(str(m), str(o), int(e)): arm for (m, o, e), arm in arms.items()}
    return dict(sorted(by_cell.items(), key=lambda item: item[0][2]))


def optimizer_gap(plan: Plan) -> Iterator[Comparison]:
    """SGD minus AdamW, for each model and length that has both."""
    arms = _stability(plan)
    for model in dict.fromkeys(model for model, _, _ in arms):
        for name, optimizer, epochs in arms:
            pair = [(model, other, epochs) for other in ("sgd", "adamw")]
            if (name, optimizer) == (model, "sgd") and pair[1] in arms:
                weights = minus(arms[pair[0]], arms[pair[1]])
                yield Comparison(weights, {"model": model, "epochs": epochs})


def training_length(plan: Plan) -> Iterator[Comparison]:
    """Each schedule minus the longest of its model, with the first optimizer of the plan.

    No result has a say in the choice of the optimizer: to choose it by the errors that are then
    tested would make 7% of claims false instead of 5%, with four optimizers that are alike.
    """
    arms = _stability(plan)
    for model in dict.fromkeys(model for model, _, _ in arms):
        planned = list(dict.fromkeys(optimizer for name, optimizer, _ in arms if name == model))
        rule = "the only one" if len(planned) == 1 else "the first of the plan"
        *lengths, longest = (e for name, o, e in arms if (name, o) == (model, planned[0]))
        for epochs in lengths:
            about: dict[str, Value] = {
                "model": model,
                "optimizer": planned[0],
                "optimizer_rule": rule,
                "epochs": epochs,
                "longest_epochs": longest,
            }
            pair = (arms[model, planned[0], length] for length in (epochs, longest))
            yield Comparison(minus(*pair), about)


def between_models(
    effect: Callable[[Plan], Iterator[Comparison]],
) -> Callable[[Plan], Iterator[Comparison]]:
    """An effect on one model minus that on another, of each two models of a panel, by length."""

    def make(plan: Plan) -> Iterator[Comparison]:
        by_key = {(x.about["model"], x.about["epochs"]): x.weights for x in effect(plan)}
        models = {arm: str(c["model"]) for arm, c in conditions(plan).items()}
        lengths = sorted({int(epochs) for _, epochs in by_key})
        for arms in plan.panels.values() or [tuple(plan.arms)]:
            for a, b in combinations(dict.fromkeys(models[arm] for arm in arms), 2):
                for epochs in lengths:
                    if (a, epochs) in by_key and (b, epochs) in by_key:
                        weights = difference(by_key[a, epochs], by_key[b, epochs])
                        yield Comparison(weights, {"a": a, "b": b, "epochs": epochs})

    return make


# ---- recipes


def recipe_interaction(plan: Plan) -> Iterator[Comparison]:
    """Simple effects of the architecture under each recipe, their differences, and the change of a
    simple effect from one evaluation set to the next.
    """
    by_factors = _arms(plan, "architecture", "recipe")
    arms = {(str(a), str(r)): arm for (a, r), arm in by_factors.items()}
    architectures, recipes = (list(dict.fromkeys(key[i] for key in arms)) for i in (0, 1))
    squares = [
        (a, b, two)
        for a, b in combinations(architectures, 2)
        for two in combinations(recipes, 2)
        if all((x, recipe) in arms for x in (a, b) for recipe in two)
    ]
    seen = set()
    for comparison in (
        *(effect for square in squares for effect in _square(plan, arms, *square)),
        *(effect for square in squares for effect in _across_sets(plan, arms, *square)),
    ):
        key = comparison.on, comparison.about["effect"]
        if key not in seen:  # a simple effect belongs to the squares of several recipes
            seen.add(key)
            yield comparison


Arms = Mapping[tuple[str, str], str]  # (architecture, recipe) -> arm


def _square(plan: Plan, arms: Arms, a: str, b: str, two: tuple[str, str]) -> Iterator[Comparison]:
    simple = {recipe: minus(arms[a, recipe], arms[b, recipe]) for recipe in two}
    for name in sets(plan, "all"):
        for recipe in two:
            about = _effect(f"{a} − {b} under {recipe}", "simple", a, b, recipe)
            yield Comparison(simple[recipe], about, (name,), "simple")
        effect = f"({a} − {b}) under {two[0]} − under {two[1]}"
        about = _effect(effect, "interaction", a, b, two[0])
        both = difference(simple[two[0]], simple[two[1]])
        yield Comparison(both, about, (name,), "interaction")


def _across_sets(
    plan: Plan, arms: Arms, a: str, b: str, two: tuple[str, str]
) -> Iterator[Comparison]:
    for on in combinations(sets(plan, "all"), 2):
        for recipe in two:
            effect = f"({a} − {b}) on {on[0]} − on {on[1]}, under {recipe}"
            about = _effect(effect, "test set", a, b, recipe)
            yield Comparison(minus(arms[a, recipe], arms[b, recipe]), about, on, "test set")


def _effect(effect: str, kind: str, a: str, b: str, recipe: str) -> dict[str, Value]:
    return {"kind": kind, "effect": effect, "a": a, "b": b, "recipe": recipe}


# ---- shapes

Trained = tuple[bool, int]  # with LayerScale or not, and the epochs


@dataclass(frozen=True)
class Shape:
    """The shape of an arm: shapes are compared within a size and a rule for drop path."""

    arm: str
    size: str
    drop_path_by: str  # "size" or "depth"; empty if the factors do not say it
    depth: int
    branches: int
    trained: Trained

    @property
    def pairs(self) -> int:
        """Pairs of attention and MLP."""
        return self.depth * self.branches


def shapes(plan: Plan) -> list[Shape]:
    """The shapes of a plan, in its order."""
    return [
        Shape(
            arm,
            str(values["size"]),
            str(values.get(DROP_PATH_BY, "")),
            int(values["depth"]),
            int(values["branches"]),
            (bool(values["layerscale"]), int(values["epochs"])),
        )
        for arm, values in conditions(plan).items()
    ]


def branch_differences(plan: Plan) -> Iterator[Comparison]:
    """Parallel branches minus the sequence with as many pairs, trained alike."""
    every = shapes(plan)
    keys = {
        shape.arm: (shape.size, shape.drop_path_by, shape.pairs, shape.trained) for shape in every
    }
    sequence = {keys[shape.arm]: shape.arm for shape in every if shape.branches == 1}
    several = len({shape.drop_path_by for shape in every}) > 1
    for shape in every:
        if shape.branches > 1 and keys[shape.arm] in sequence:
            about: dict[str, Value] = {
                "size": shape.size,
                **({DROP_PATH_BY: shape.drop_path_by} if several else {}),
                "pairs": shape.pairs,
                "branches": shape.branches,
                "layerscale": shape.trained[0],
                "epochs": shape.trained[1],
            }
            yield Comparison(minus(shape.arm, sequence[keys[shape.arm]]), about)


def layerscale_and_epochs(plan: Plan) -> Iterator[Comparison]:
    """LayerScale minus none at each length, and each length minus the next shorter one."""
    by_shape: dict[str, dict[Trained, str]] = {}
    for shape in shapes(plan):
        name = shape_name(shape.size, shape.depth, shape.branches) + " ladder" * (
            shape.drop_path_by == "depth"
        )
        by_shape.setdefault(name, {})[shape.trained] = shape.arm
    for name, arms in by_shape.items():
        for factor, effect, a, b in _effects(list(arms)):
            about = {"shape": name, "factor": factor, "effect": effect}
            yield Comparison(minus(arms[a], arms[b]), about)


def _effects(trained: list[Trained]) -> Iterator[tuple[str, str, Trained, Trained]]:
    """(factor, effect, with it, without it)."""
    for epochs in sorted({epochs for _, epochs in trained}):
        if (True, epochs) in trained and (False, epochs) in trained:
            yield "layerscale", f"LayerScale, {epochs} epochs", (True, epochs), (False, epochs)
    for on in (False, True):
        for short, long in pairwise(sorted(epochs for has, epochs in trained if has == on)):
            what = f"{long} epochs against {short}, {'with' if on else 'without'} LayerScale"
            yield "epochs", what, (on, long), (on, short)


# ---- arms of any kind


def pairs(plan: Plan) -> Iterator[Comparison]:
    """The pairs that the study names, a minus b."""
    for a, b in plan.pairs:
        yield Comparison(minus(a, b), {"a": a, "b": b})


def varied(plan: Plan) -> dict[str, list[Value]]:
    """Factor -> its levels, of the factors with several, in the order of the plan."""
    levels: dict[str, dict[Value, None]] = {}
    for arm in plan.arms.values():
        for name, value in arm.factors.items():
            levels.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in levels.items() if len(values) > 1}


def lines(plan: Plan) -> list[str]:
    """The factors that vary beside the axis of the plan: a line for each combination of levels."""
    return [name for name in varied(plan) if name != plan.axis]


def factorial(plan: Plan) -> dict[tuple[Value, ...], str]:
    """Levels of the factors that vary -> the arm.

    Raises ValueError unless the arms are every combination of these levels, each once.
    """
    levels = varied(plan)
    arms = {tuple(arm.factors[name] for name in levels): arm.name for arm in plan.arms.values()}
    num = math.prod(map(len, levels.values()))
    if not levels or not num == len(arms) == len(plan.arms):
        raise ValueError(
            "the arms of a factorial must be every combination of the levels of their factors, "
            f"each once, but got ({len(plan.arms)} arms, of {num} combinations of "
            f"{shown(levels)})"
        )
    return arms


def factorial_effects(plan: Plan) -> Iterator[Comparison]:
    """Main effects of the factors, each two levels, and interactions of each two factors, averaged
    over the levels of the others.
    """
    levels, arms = varied(plan), factorial(plan)
    names = list(levels)
    for num in (1, 2):
        for chosen in combinations(names, num):
            for two in product(*(combinations(levels[name], 2) for name in chosen)):
                weights = dict.fromkeys(arms.values(), 0.0)
                at = [names.index(name) for name in chosen]
                share = math.prod(map(len, levels.values())) / math.prod(
                    len(levels[name]) for name in chosen
                )
                for key, arm in arms.items():
                    signs = [
                        (key[i] == a) - (key[i] == b) for i, (a, b) in zip(at, two, strict=True)
                    ]
                    weights[arm] = math.prod(signs) / share
                effect = f"{chosen[0]}: {two[0][0]} − {two[0][1]}"
                if num == 2:
                    effect += f", at {chosen[1]} {two[1][0]} − at {two[1][1]}"
                kind = "main effect" if num == 1 else "interaction"
                kept = {arm: weight for arm, weight in weights.items() if weight}
                yield Comparison(kept, {"kind": kind, "effect": effect}, family=kind)


EMPTY = "empty"  # begins the names of columns of a screening design that stand for nothing


def screening(plan: Plan) -> dict[str, dict[str, int]]:
    """Factor -> arm -> -1 at the level of the first arm, 1 at the other.

    Raises ValueError unless each factor that varies has two levels in as many arms each, and any
    two factors are orthogonal: each two levels meet in as many arms.
    """
    levels, num = varied(plan), len(plan.arms)
    signs = {
        name: {arm.name: -1 if arm.factors[name] == pair[0] else 1 for arm in plan.arms.values()}
        for name, pair in levels.items()
    }
    odd = [
        name for name, pair in levels.items() if len(pair) != 2 or sum(signs[name].values()) != 0
    ]
    if odd or not levels:
        counts = dict(Counter(arm.factors[odd[0]] for arm in plan.arms.values())) if odd else {}
        raise ValueError(
            "each factor of a screening design must have two levels, each in half of the arms, but "
            f"got ({num} arms, {odd[0] if odd else 'no factor'}={shown(counts)})"
        )
    for a, b in combinations(levels, 2):
        if sum(signs[a][arm] * signs[b][arm] for arm in plan.arms):
            both = Counter((arm.factors[a], arm.factors[b]) for arm in plan.arms.values())
            raise ValueError(
                "two factors of a screening design must be orthogonal, each two levels in as many "
                f"arms, but got ({a}, {b}={shown(dict(both))})"
            )
    return signs


def main_effects(plan: Plan) -> Iterator[Comparison]:
    """Each factor of a screening design: the mean at the level that the first arm does not have,
    minus the mean at the level that it has. Empty columns are a family of their own.
    """
    levels = varied(plan)
    for name, signs in screening(plan).items():
        kind = "empty column" if name.startswith(EMPTY) else "main effect"
        weights = {arm: 2 * sign / len(signs) for arm, sign in signs.items()}
        effect = f"{name}: {levels[name][1]} − {levels[name][0]}"
        yield Comparison(weights, {"kind": kind, "effect": effect}, family=kind)
