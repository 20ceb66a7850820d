"""Questions: which tables and figures a kind of study has, what each compares, and its law about a
plan.

This is the only list of them. It is read without pandas and matplotlib, so a plan is checked in a
moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from vitscale.plan import comparisons
from vitscale.plan.comparisons import Compared, factorial, screening
from vitscale.plan.spelling import shown
from vitscale.plan.trial import (
    DROP_PATH_BY,
    Plan,
    Trial,
    check_factors,
    check_not_pooled,
    conditions,
    most_common,
)

Law = Callable[[Plan], None]  # raises ValueError
VIEWS = ("branches", "widths", "depths")  # figures of one panel each, of the same name
FAR = 4  # times the largest value of an axis that a law was fitted to; beyond it only if asked for
MIN_VALUES = 3  # of an axis, for a gain, an exponent and a floor; one more where one is held out


@dataclass(frozen=True, kw_only=True)
class Question:
    """Tables and figures that a study may ask for together.

    `module` of vitscale.analysis has a function for each table and, if `drawn` names no other, for
    each figure. A figure with the name of a table is the function of that name with "_figure".
    """

    kinds: tuple[str, ...]
    module: str
    tables: Mapping[str, Compared | None] = field(default_factory=dict)  # what a table compares
    figures: tuple[str, ...] = ()
    drawn: str = ""
    laws: tuple[Law, ...] = ()  # of the plans that ask for a table or figure

    def is_asked(self, plan: Plan) -> bool:
        asked = {*plan.tables, *plan.figures}
        return plan.kind in self.kinds and not asked.isdisjoint((*self.tables, *self.figures))


def tables(*names: str) -> dict[str, Compared | None]:
    """Tables that compare no arms, or none that a plan knows."""
    return dict.fromkeys(names)


# ---- laws


def _cells_of_stability(plan: Plan) -> None:
    check_not_pooled(
        plan,
        "model, optimizer and epochs",
        lambda c: (c["model"], c["optimizer"], c["epochs"]),
    )


def _cells_of_recipes(plan: Plan) -> None:
    check_factors(plan, ("architecture", "recipe"))
    check_not_pooled(plan, "architecture and recipe", lambda c: (c["architecture"], c["recipe"]))


def _factorial(plan: Plan) -> None:
    factorial(plan)


def _screening(plan: Plan) -> None:
    screening(plan)


def _axis(plan: Plan) -> None:
    for arm, labels in conditions(plan).items():
        if type(labels.get(plan.axis)) not in (int, float):
            raise ValueError(
                "axis must name a numeric factor or field of each arm for the figure arm_lines, "
                f"but got (axis={shown(plan.axis)}, arm={arm!r}: {shown(labels.get(plan.axis))})"
            )
    names = (plan.axis, *comparisons.lines(plan))
    check_not_pooled(plan, ", ".join(names), lambda c: tuple(c[name] for name in names))


def _views(plan: Plan) -> None:
    without = [name for name in VIEWS if name in plan.figures and name not in plan.panels]
    if without:
        raise ValueError(
            f"the figures {', '.join(VIEWS)} must have a panel of their name, with their arms, but "
            f"got (figure={without[0]!r}, panels={shown(list(plan.panels))})"
        )


def _cells_of_shapes(plan: Plan) -> None:
    check_factors(plan, ("size",))
    check_not_pooled(
        plan,
        "size, drop path rule, depth, branches, LayerScale and epochs",
        lambda c: (
            c["size"],
            c.get(DROP_PATH_BY, ""),
            c["depth"],
            c["branches"],
            c["layerscale"] != 0,
            c["epochs"],
        ),
    )


def _profiles(plan: Plan) -> None:
    names = ("model", "profile", "resolution", "batch_size", "layout")
    factors = [{**trial.config.axes(), **trial.arm.factors} for trial in plan.trials]
    num, cell = most_common(tuple(c[name] for name in names) for c in factors)
    if num > 1:
        raise ValueError(
            f"profiles must differ in {', '.join(names)}, or in their factors, but "
            f"got ({num} of {shown(cell)})"
        )


def _laws_of_scaling(plan: Plan) -> None:
    for family, values in _axes(plan).items():
        _check_axes(plan, family, values)


def _axes(plan: Plan) -> dict[str, dict[str, list[float]]]:
    """Family -> axis of a law -> its values, ascending: parameters and training images."""
    cells: dict[str, dict[str, Trial]] = {}
    for trial in plan.trials:
        cells.setdefault(str(trial.arm.factors["family"]), {}).setdefault(trial.arm.name, trial)
    axes: dict[str, dict[str, list[float]]] = {}
    for family, members in cells.items():
        images = sorted({float(trial.config.num_train) for trial in members.values()})
        sizes = {trial.arm.factors["size"]: trial.config for trial in members.values()}
        # one size needs no cost, which not every model has in closed form
        several = len(sizes) > 1
        params = {float(plan.cost(c).params) for c in sizes.values()} if several else {1.0}
        axes[family] = {"size": sorted(params), "images": images}
    return axes


def _check_axes(plan: Plan, family: str, axes: Mapping[str, list[float]]) -> None:
    """Raises ValueError for a law of too few values, and for a forecast beyond the range."""
    varied = {axis: values for axis, values in axes.items() if len(values) > 1}
    held_out = next(iter(varied), "size")
    for axis, values in (varied or axes).items():
        least = MIN_VALUES + (axis == held_out)
        if len(values) < least:
            held = ", one of which is held out" if axis == held_out else ""
            raise ValueError(
                f"a scaling law must have at least {least} values of {axis}{held}, but got "
                f"(family={family!r}, {axis}={', '.join(f'{value:g}' for value in values)})"
            )
    *_, before, last = varied[held_out]
    if last > FAR * before and "scaling_forecast_far" not in plan.tables:
        raise ValueError(
            f"the {held_out} that is held out must be at most {FAR} times the next one without "
            f"--far, but got (family={family!r}, {held_out}={last:g}, next={before:g})"
        )


# ---- the questions

SHORT = "above that of the longest schedule"
OF_ARMS = ("repeats", "shapes")
QUESTIONS = (
    Question(
        kinds=("distribution",),
        module="distribution.curves",
        tables=tables("edf_curves", "edf_curves_vs_best"),
        figures=("edf_panels", "edf_panels_vs_best"),
        drawn="distribution.edf_figures",
    ),
    Question(
        kinds=("distribution",),
        module="distribution.tables",
        tables=tables("edf_summary", "arm_comparison", "good_range"),
        figures=("lr_wd_scatter",),
        drawn="distribution.figures",
    ),
    Question(
        kinds=("distribution", *OF_ARMS, "scaling"),
        module="distribution.figures",
        figures=("learning_curves",),
    ),
    Question(
        kinds=("distribution",),
        module="distribution.budget",
        tables=tables("tuning_budget", "tuning_crossings"),
        figures=("tuning_budget",),
        drawn="distribution.figures",
    ),
    Question(kinds=OF_ARMS, module="arm_means", tables=tables("arm_means")),
    Question(
        kinds=(*OF_ARMS, "scaling"),
        module="comparisons",
        tables={
            "pair_differences": Compared(
                comparisons.pairs, "reported", {"": "difference of two arms"}
            )
        },
    ),
    Question(
        kinds=OF_ARMS,
        module="comparisons",
        tables={
            "factorial_effects": Compared(
                comparisons.factorial_effects,
                "reported",
                {
                    "main effect": "main effect of a factor",
                    "interaction": "interaction of two factors",
                },
            ),
            "factorial_means": None,
        },
        figures=("factorial_grid",),
        drawn="displays.grid",
        laws=(_factorial,),
    ),
    Question(
        kinds=OF_ARMS,
        module="comparisons",
        tables={
            "main_effects": Compared(
                comparisons.main_effects, "reported", {"main effect": "main effect of a factor"}
            )
        },
        laws=(_screening,),
    ),
    Question(
        kinds=OF_ARMS,
        module="comparisons",
        figures=("comparison_forest",),
        drawn="displays.forest",
    ),
    Question(
        kinds=OF_ARMS,
        module="arm_means",
        figures=("arm_lines",),
        drawn="displays.arm_lines",
        laws=(_axis,),
    ),
    Question(
        kinds=("repeats",),
        module="questions.stability",
        tables=tables("stability_cells"),
        laws=(_cells_of_stability,),
    ),
    Question(
        kinds=("repeats",),
        module="questions.optimizer_gap",
        tables={
            "optimizer_gap": Compared(
                comparisons.optimizer_gap, "metric", {"": "gap of SGD to AdamW"}
            ),
            "optimizer_gap_interaction": Compared(
                comparisons.between_models(comparisons.optimizer_gap),
                "metric",
                {"": "gap of one model minus that of another"},
            ),
        },
        figures=("optimizer_stability",),
        laws=(_cells_of_stability,),
    ),
    Question(
        kinds=("repeats",),
        module="questions.optimizer_gap_copied",
        tables={"optimizer_gap_copied": Compared(comparisons.optimizer_gap, "metric")},
        figures=("optimizer_stability_copied",),
        laws=(_cells_of_stability,),
    ),
    Question(
        kinds=("repeats",),
        module="questions.training_length",
        tables={
            "training_length": Compared(
                comparisons.training_length, "metric", {"": f"{{metric}} {SHORT}"}
            ),
            "training_length_interaction": Compared(
                comparisons.between_models(comparisons.training_length),
                "metric",
                {"": "what a short schedule costs one model more than another"},
            ),
        },
        figures=("training_length",),
        laws=(_cells_of_stability,),
    ),
    Question(
        kinds=("repeats",),
        module="questions.seeds",
        tables=tables(
            "seed_statistics",
            "seed_normality",
            "seed_noise",
        ),
    ),
    Question(
        kinds=("repeats",),
        module="questions.seed_sets",
        tables=tables("seed_correlation"),
        figures=("seed_sets",),
    ),
    Question(
        kinds=("repeats",),
        module="questions.seed_epochs",
        tables=tables("seed_epochs"),
        figures=("seed_curves", "seed_intermediate"),
    ),
    Question(
        kinds=("repeats",),
        module="questions.seed_bins",
        tables=tables("seed_bins"),
        figures=("seed_histogram",),
    ),
    Question(
        kinds=("repeats",),
        module="questions.mistakes",
        tables=tables("seed_spread"),
    ),
    Question(
        kinds=("repeats",),
        module="questions.agreement",
        tables=tables("agreement"),
        figures=("agreement",),
    ),
    Question(kinds=("repeats",), module="questions.seed_power", tables=tables("seed_power")),
    Question(
        kinds=("repeats",),
        module="questions.sets",
        tables=tables("sets_regression"),
        figures=("sets_regression",),
    ),
    Question(
        kinds=("repeats",),
        module="questions.recipes",
        tables={
            "recipe_interaction": Compared(
                comparisons.recipe_interaction,
                "all",
                {
                    "simple": "difference of architectures under a recipe",
                    "interaction": "interaction of recipe and architecture",
                },
            ),
            "recipe_cells": None,
            "rank_agreement": None,
        },
        figures=("recipe_interaction",),
        drawn="questions.recipe_figure",
        laws=(_cells_of_recipes,),
    ),
    Question(
        kinds=("repeats",),
        module="published.tables",
        tables=tables(
            "published_training_length",
            "published_seed_statistics",
            "published_recipe_interaction",
            "published_finetuning",
        ),
    ),
    Question(kinds=OF_ARMS, module="published.tables", tables=tables("published_arms")),
    Question(
        kinds=("shapes",),
        module="questions.shapes",
        tables={
            "shape_cells": None,
            "branch_differences": Compared(
                comparisons.branch_differences, "reported", {"": "branches against a sequence"}
            ),
            "layerscale_and_epochs": Compared(
                comparisons.layerscale_and_epochs,
                "reported",
                {"": "LayerScale, and longer training"},
            ),
        },
        figures=VIEWS,
        drawn="questions.shape_figures",
        laws=(_cells_of_shapes, _views),
    ),
    Question(
        kinds=("shapes",),
        module="questions.blocks_or_width",
        tables={
            "blocks_or_width": Compared(
                comparisons.pairs, "reported", {"": "more blocks against more width"}
            )
        },
        laws=(_cells_of_shapes,),
    ),
    Question(
        kinds=("shapes",),
        module="questions.lr_sweep",
        tables=tables("lr_sweep"),
        figures=("lr_sweep",),
    ),
    Question(
        kinds=("shapes",),
        module="published.tables",
        tables=tables("published_depth_vs_width"),
    ),
    Question(
        kinds=("scaling",),
        module="scaling.tables",
        tables=tables("scaling_cells", "scaling_frontier"),
        figures=("error_by_scale", "error_by_compute"),
        drawn="scaling.figures",
    ),
    SCALING_LAW := Question(
        kinds=("scaling",),
        module="scaling.tables",
        tables=tables(
            "scaling_fit",
            "scaling_curves",
            "scaling_forecast",
            "scaling_forecast_far",
            "scaling_crossing",
        ),
        laws=(_laws_of_scaling,),
    ),
    Question(
        kinds=("scaling",),
        module="scaling.compute",
        tables=tables("scaling_optimum", "scaling_crossing_at_cost"),
    ),
    Question(
        kinds=("profile",),
        module="profile.tables",
        tables=tables("throughput"),
        figures=(
            "throughput_by_batch",
            "throughput_gain",
            "peak_memory",
            "throughput_by_resolution",
        ),
        drawn="profile.figures",
        laws=(_profiles,),
    ),
    Question(
        kinds=("profile",),
        module="profile.tables",
        tables=tables("epoch_minutes", "published_throughput"),
    ),
    Question(
        kinds=("search",),
        module="search.tables",
        tables=tables("search_best", "search_importance"),
        figures=("search_history", "search_slices", "search_contour", "importance_bars"),
        drawn="search.figures",
    ),
)
COMPARED = {  # table -> what it compares
    name: compared
    for question in QUESTIONS
    for name, compared in question.tables.items()
    if compared is not None
}


def functions(kind: str) -> Iterator[tuple[str, str, str, str]]:
    """("table" or "figure", its name, the module of vitscale.analysis, the function)."""
    named = {name for question in of_kind(kind) for name in question.tables}
    for question in of_kind(kind):
        for name in question.tables:
            yield "table", name, question.module, name
    for question in of_kind(kind):
        for name in question.figures:
            function = f"{name}_figure" if name in named else name
            yield "figure", name, question.drawn or question.module, function


def of_kind(kind: str) -> list[Question]:
    """The questions of a kind; none of a kind that a study script defines."""
    return [question for question in QUESTIONS if kind in question.kinds]


def compares_pairs(plan: Plan) -> bool:
    """Whether a table of the plan compares the pairs that it names."""
    asked = (COMPARED[name].make for name in plan.tables if name in COMPARED)
    return any(make is comparisons.pairs for make in asked)


def check_questions(plan: Plan) -> None:
    """Raises ValueError if the plan breaks a law of what it asks for."""
    laws = dict.fromkeys(law for q in QUESTIONS if q.is_asked(plan) for law in q.laws)
    for law in laws:
        law(plan)
