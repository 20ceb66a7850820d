"""A study: a question, and the fixed list of trials that answers it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, TypeGuard

from vitscale.plan.comparisons import sets
from vitscale.plan.config import MAX_LAWFUL, TrainConfig
from vitscale.plan.cost import Complexity, Measured, complexity, shape_of
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.kinds import check_kind
from vitscale.plan.laws import FREE
from vitscale.plan.metrics import ERROR, SPEED, Column
from vitscale.plan.parents import check_parents, check_trunks, entries
from vitscale.plan.parts import PARTS, is_part
from vitscale.plan.profile import METRIC, ProfileConfig
from vitscale.plan.questions import COMPARED
from vitscale.plan.spelling import shown, shown_text
from vitscale.plan.trial import Arm, Trial, check_label

# per study, and points per sample: each is a directory, and a row of every table
MAX_TRIALS = 10**6
MOST_IN_A_NAME, MOST_IN_A_TEXT = 100, 100_000  # characters

PARENTS = "parents"  # the name under which they are shown while they are trained
NUMBERED = ("repeats", "shapes", "scaling")  # kinds of which an arm needs no reference

Sampler = Literal["tpe", "gp", "random"]
SAMPLERS: dict[Sampler, str] = {"tpe": "TPE", "gp": "Gaussian process", "random": "random points"}


@dataclass(frozen=True, kw_only=True)
class SearchInfo:
    """How the points of a search are chosen. Raises ValueError for impossible values."""

    sampler: Sampler
    per_round: int  # points per arm that are proposed at once
    sampler_seed: int = 0
    asha: bool = False  # whether ASHA stops trainings with a bad intermediate rank
    # name of an arm -> axis -> its distribution in Optuna's JSON
    spaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, str) or self.sampler not in SAMPLERS:
            raise ValueError(
                f"sampler in ({', '.join(SAMPLERS)}) must hold, but got "
                f"(sampler={shown(self.sampler)})"
            )
        for name in ("per_round", "sampler_seed"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} >= 0 must hold, but got ({name}={shown(value)})")
        if type(self.asha) is not bool:
            raise ValueError(f"asha must be of type bool, but got (asha={shown(self.asha)})")
        _check_spaces(self.spaces)

    def describe(self) -> str:
        """The search in words, for reports."""
        rounds = f"{self.per_round} points at a time, "
        stops = ", stopped early by ASHA" if self.asha else ""
        return f"{SAMPLERS[self.sampler]}, {rounds}sampler seed {self.sampler_seed}{stops}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the trials that answer it. Raises ValueError for inconsistent fields.

    `kind` selects the analysis, a package of vitscale.analysis: "distribution" of errors over
    draws, "repeats" of single settings with several seeds, "shapes" at the best lr of each,
    "scaling" over sizes and images, "profile", "search", or a kind that the script registers.
    """

    # what is done with the outcomes: distribution, repeats, shapes, scaling, profile, search
    kind: str
    name: str  # with the scale, that of the directory in the store and of the MLflow experiment
    scale: str  # which version of the question, as "demo": other data, shapes and epochs
    question: str  # one sentence, the title of the report
    source: str  # author, year, figure; "ours"
    trials: tuple[Trial, ...]  # in the order in which they are trained
    # trainings whose final weights trials need (init_from, teacher): trained first, in no arm or
    # table
    parents: tuple[TrainConfig, ...] = ()
    # 0: draws are i.i.d.; R: the points are R equal blocks of independent Sobol scrambles
    num_scrambles: int = 0
    # the column of the rows that tables and figures use: plan/metrics.py
    metric: str = "val_ema_error_pct"
    # title -> arms drawn together
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()  # arms compared with each other
    figures: tuple[str, ...] = ()  # names that its kind defines
    tables: tuple[str, ...] = ()  # names that its kind defines
    design: str = ""  # how points, seeds and reference runs were chosen, for the report
    notes: str = ""  # what the study does and does not show, for the report
    # draw the papers' numbers behind ours, as context and not as a target
    published: bool = False
    # evaluation set -> arm -> top-1 error in percent that the source prints, of a single run
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    axis: str = ""  # a numeric factor or field, along which the figure arm_lines has its lines
    # the largest difference of two means, in units of the metric's differences, that would not
    # matter: within it, arms are shown to be equivalent. Stated before the first training.
    margin: float | None = None
    # how points were chosen from earlier outcomes; such a study has no distribution
    search: SearchInfo | None = None
    # costs of models without a closed form
    measured: Measured = field(default_factory=dict, compare=False, repr=False)

    def __new__(cls, *args: object, **given: object) -> Self:
        check_arguments(cls, args, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _check_types(self)
        if not self.trials:
            raise ValueError(f"a study must have a trial, but got (name={self.name!r}, trials=())")
        twice = [
            trial_id for trial_id, n in Counter(t.config.id for t in self.trials).items() if n > 1
        ]
        if twice:
            trial = next(t for t in self.trials if t.config.id == twice[0])
            raise ValueError(
                "each config must occur once in a study (vary seed to repeat a run), but got "
                f"{len(twice)} twice, first (arm={trial.arm.name!r}, "
                f"{shown(trial.config.non_default(), 500)})"
            )
        _check_not_mixed(self)
        _check_metric(self)
        unknown = {arm for arms in [*self.panels.values(), *self.pairs] for arm in arms} - set(
            self.arms
        )
        if unknown:
            raise ValueError(
                f"panels and pairs must name arms of the study, but got ({shown(sorted(unknown))})"
            )
        if alone := [pair for pair in self.pairs if pair[0] == pair[1]]:
            raise ValueError(f"a pair must be of two arms, but got ({shown(alone[0])})")
        _check_factors(self)
        _check_printed(self)
        check_kind(self)
        check_trunks(self)
        check_parents(self)
        if self.kind in NUMBERED:
            object.__setattr__(self, "trials", _numbered(self.trials))

    @property
    def slug(self) -> str:
        """Name and scale: the name of the directory in the store and of the MLflow experiment."""
        return f"{self.name}-{self.scale}"

    def cost(self, config: TrainConfig) -> Complexity:
        """As plan.cost.complexity, with the measured costs of this study."""
        return complexity(config, self.measured)

    @cached_property
    def trained(self) -> tuple[Trial, ...]:
        """All trainings of the study: parents, as of an arm of their own, and trials."""
        return (*(Trial(PARENTS, config, i) for i, config in enumerate(self.parents)), *self.trials)

    @cached_property
    def column(self) -> Column:
        """What the column named `metric` contains."""
        return self.trials[0].config.columns[self.metric]

    @property
    def measures(self) -> bool:
        """Whether the trials are profiles, which have a speed and no error."""
        return self.kind == "profile"

    @cached_property
    def arms(self) -> Mapping[str, Arm]:
        """Name -> arm, in the order of the arms' first trials."""
        arms: dict[str, Arm] = {}
        for trial in self.trials:
            arms.setdefault(trial.arm.name, trial.arm)
        return arms


def _numbered(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The trials, with points for arms in which none has one: such an arm has no reference."""
    drawn = {trial.arm.name for trial in trials if trial.point is not None}
    if all(trial.arm.name in drawn for trial in trials):
        return trials
    numbers = {name: itertools.count() for name in {trial.arm.name for trial in trials} - drawn}
    return tuple(
        Trial(trial.arm, trial.config, next(numbers[trial.arm.name]))
        if trial.arm.name in numbers
        else trial
        for trial in trials
    )


def config_of(fields: Mapping[str, Any]) -> TrainConfig:
    """The config with these fields of a store: a ProfileConfig if one of them is `profile`.

    Raises ValueError as the config does, and for a part without digest or version, by which a store
    could name a file or a package of this machine.
    """
    if "profile" in fields:
        return ProfileConfig(**fields)
    # most trials of a study differ in FREE alone: a copy of the first takes a third of the time
    others = repr([(name, value) for name, value in fields.items() if name not in FREE])
    if others not in _first:
        for name in PARTS:
            if is_part(value := fields.get(name, "")) and "@" not in value:
                raise ValueError(
                    "a part in a store must have its digest or version, but got "
                    f"({name}={shown(value)})"
                )
        if len(_first) >= MAX_LAWFUL:
            return TrainConfig(**fields)
        _first[others] = TrainConfig(**fields)
    return _first[others].replace(**{name: fields.get(name, DEFAULTS[name]) for name in FREE})


_first: dict[str, TrainConfig] = {}  # the first config with these fields, but for those of FREE


def check_arguments(kind: type, args: Collection[object], given: Mapping[str, object]) -> None:
    """Raises ValueError for unknown, missing or positional arguments of a dataclass."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = [name for name in given if name not in fields]
    required = (dataclasses.MISSING, dataclasses.MISSING)
    missing = [
        name
        for name, f in fields.items()
        if (f.default, f.default_factory) == required and name not in given
    ]
    if args or unknown or missing:
        wrong = (
            f"{shown_text(unknown[0])}={shown(given[unknown[0]])}"
            if unknown
            else f"without {', '.join(missing)}"
        )
        raise ValueError(
            f"the keywords of a {kind.__name__} must be among ({', '.join(fields)}), but got "
            f"({wrong if unknown or missing else f'positional {shown(args)}'})"
        )


def _check_types(study: Study) -> None:
    """Raises ValueError for fields of a wrong type or length."""
    check_names(study.name, study.scale)
    if not isinstance(study.kind, str) or not re.fullmatch(r"[a-z0-9_]{1,100}", study.kind):
        raise ValueError(
            f"the kind of a study must match [a-z0-9_]+, but got (kind={shown(study.kind)})"
        )
    for name in ("question", "source", "design", "notes", "axis"):
        _check_text(name, getattr(study, name))
    if type(study.published) is not bool:
        raise ValueError(
            f"published must be of type bool, but got (published={shown(study.published)})"
        )
    if type(study.num_scrambles) is not int or study.num_scrambles < 0 or study.num_scrambles == 1:
        raise ValueError(
            "num_scrambles must be 0 or at least 2, but got "
            f"(num_scrambles={shown(study.num_scrambles)})"
        )
    if study.margin is not None and not (
        type(study.margin) in (int, float) and 0 < study.margin < math.inf
    ):
        raise ValueError(
            f"margin must be None or a positive number, but got (margin={shown(study.margin)})"
        )
    if not isinstance(study.measured, Mapping):
        raise ValueError(
            f"measured must map shapes to costs, but got (measured={shown(study.measured)})"
        )
    for name in ("figures", "tables"):
        _check_list(name, getattr(study, name))
    _check_trials(study.trials)
    if not _is_list(study.parents) or not all(type(c) is TrainConfig for c in study.parents):
        raise ValueError(
            f"parents of a study must be a tuple of TrainConfig, but got ({shown(study.parents)})"
        )
    check_panels(study.panels)
    if not _is_list(study.pairs) or not all(
        _is_list(pair) and len(pair) == 2 for pair in study.pairs
    ):
        raise ValueError(f"pairs must be tuples of two arms, but got (pairs={shown(study.pairs)})")
    for pair in study.pairs:
        _check_list("pairs", pair)
    if study.search is not None and not isinstance(study.search, SearchInfo):
        raise ValueError(f"search must be a SearchInfo, but got (search={shown(study.search)})")


def check_names(name: object, scale: object) -> None:
    """Raises ValueError unless name and scale of a study are valid in a folder's name."""
    for text in (name, scale):
        if not isinstance(text, str) or not re.fullmatch(r"[a-z0-9_]+", text):
            raise ValueError(
                f"name and scale of a study must match [a-z0-9_]+, but got ({shown(text)})"
            )
        if len(text) > MOST_IN_A_NAME:
            law = f"name and scale of a study must have at most {MOST_IN_A_NAME} characters"
            raise ValueError(f"{law}, but got ({shown(text)})")


def _check_trials(trials: object) -> None:
    if not _is_list(trials) or not all(isinstance(trial, Trial) for trial in trials):
        raise ValueError(
            f"trials of a study must be a tuple of Trial, but got (trials={shown(trials)})"
        )
    if len(trials) > MAX_TRIALS:
        raise ValueError(
            f"at most {MAX_TRIALS} trials of a study must hold, but got ({len(trials)})"
        )
    for trial in trials:
        if not isinstance(trial.config, TrainConfig):
            raise ValueError(
                f"config of a trial must be a TrainConfig, but got (config={shown(trial.config)})"
            )
        if trial.point is not None and (
            type(trial.point) is not int or not 0 <= trial.point < MAX_TRIALS
        ):
            law = f"point of a trial must be None, for a reference, or 0 <= point < {MAX_TRIALS}"
            raise ValueError(f"{law}, but got (arm={trial.arm.name!r}, point={shown(trial.point)})")


def check_panels(panels: object) -> None:
    """Raises ValueError unless panels map titles to arms."""
    if not isinstance(panels, Mapping):
        raise ValueError(
            f"panels must map titles to tuples of arms, but got (panels={shown(panels)})"
        )
    for title, arms in panels.items():
        if title != "":  # the only panel needs no title
            check_label("the title of a panel", title)
        _check_list("panels", arms)
        if not arms:
            raise ValueError(f"a panel must show an arm, but got ({title!r}: none)")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or len(text) > MOST_IN_A_TEXT or "\0" in text:
        raise ValueError(
            f"{name} must be a string of at most {MOST_IN_A_TEXT} characters, but got "
            f"({name}={shown(text)})"
        )


def _is_list(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is a tuple or a list; both are accepted."""
    return isinstance(value, tuple | list)


def _check_list(name: str, value: object) -> None:
    if not _is_list(value) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} must be tuples of strings, but got ({name}={shown(value)})")


def _check_factors(study: Study) -> None:
    """Raises ValueError unless arms have constant factors, and all the same names of factors."""
    for trial in study.trials:
        earlier = study.arms[trial.arm.name]
        if trial.arm is not earlier and trial.arm != earlier:
            both = [dict(arm.factors) for arm in (earlier, trial.arm)]
            raise ValueError(
                "an arm must have the same factors in all its trials, but got "
                f"(arm={trial.arm.name!r}: {shown(both[0])} and {shown(both[1])})"
            )
    names = {tuple(sorted(arm.factors)) for arm in study.arms.values()}
    if len(names) > 1:
        raise ValueError(f"all arms must have the same factors, but got ({shown(sorted(names))})")


def _check_spaces(spaces: object) -> None:
    """Raises ValueError unless spaces map arms to axes, and axes to strings."""
    if not isinstance(spaces, Mapping) or not all(
        isinstance(axes, Mapping) for axes in spaces.values()
    ):
        raise ValueError(f"spaces must map arms to axes, but got (spaces={shown(spaces)})")
    for axes in spaces.values():
        for axis, text in axes.items():
            check_label("a name in spaces", axis)
            if not isinstance(text, str):
                raise ValueError(
                    f"a value in spaces must be of type str, but got ({axis}={shown(text)})"
                )


def _check_metric(study: Study) -> None:
    """Raises ValueError for a metric that a trial does not report for the split that it evaluates.

    Also for `published` or `printed` with a metric other than the top-1 error.
    """
    for config in {t.config.eval_split: t.config for t in study.trials}.values():
        columns = config.columns
        if not isinstance(study.metric, str) or study.metric not in columns:
            raise ValueError(
                "the metric must be a column of the evaluated split, "
                f"({', '.join(columns)}), but got "
                f"(metric={shown(study.metric)}, eval_split={config.eval_split!r})"
            )
    if (study.published or study.printed) and study.column.metric not in (ERROR, SPEED):
        raise ValueError(
            "published=True and printed must come with the top-1 error as metric, which the papers "
            f"report, but got (metric={shown(study.metric)})"
        )


def _check_printed(study: Study) -> None:
    """Raises ValueError unless printed errors are percentages of arms on evaluation sets."""
    if not isinstance(study.printed, Mapping) or not all(
        isinstance(errors, Mapping) for errors in study.printed.values()
    ):
        law = "printed must map evaluation sets to errors in percent by arm"
        raise ValueError(f"{law}, but got (printed={shown(study.printed)})")
    for name, errors in study.printed.items():
        if unknown := [*({name} - {*sets(study, "all")}), *(errors.keys() - study.arms.keys())]:
            law = "printed must name sets on which every trial is evaluated, and arms of the study"
            raise ValueError(f"{law}, but got ({shown(unknown[0])})")
        for arm, error in errors.items():
            if type(error) not in (int, float) or not 0 <= error <= 100:
                got = f"({name}, {arm}={shown(error)})"
                raise ValueError(f"0 <= printed <= 100 must hold, but got {got}")


def _check_not_mixed(study: Study) -> None:
    devices = {
        t.config.hardware if isinstance(t.config, ProfileConfig) else "" for t in study.trials
    }
    if len(devices) > 1:
        raise ValueError(
            "a study must contain trainings, or profiles on one hardware, but got "
            f"({sorted(devices)})"
        )
    if bool(devices - {""}) != (study.metric == METRIC):
        raise ValueError(
            f"{METRIC} must be the metric of studies of profiles, and of no others, but got "
            f"(metric={shown(study.metric)})"
        )


def to_json(study: Study) -> dict[str, Any]:
    """The complete study as plain values, for plan.json.

    Configs are given by their non-default fields. `comparisons` are those of the tables, as they
    are before any training; they follow from the rest.
    """
    trials = [
        {"id": t.config.id, "arm": t.arm.name, "point": t.point, "config": t.config.non_default()}
        for t in study.trials
    ]
    compared = {name: COMPARED[name].make(study) for name in study.tables if name in COMPARED}
    made = {name: [dataclasses.asdict(row) for row in rows] for name, rows in compared.items()}
    return {
        **in_short(study),
        **({"comparisons": made} if made else {}),
        **({"costs": costs} if (costs := _costs(study)) else {}),
        "parents": [{"id": c.id, "config": c.non_default()} for c in study.parents],
        "trials": trials,
    }


def _costs(study: Study) -> list[dict[str, Any]]:
    """The costs of models that are parts: who reads a plan does not run them."""
    shapes = {shape_of(t.config): t.config for t in study.trained if is_part(t.config.model)}
    return [
        {"id": config.id, **dataclasses.asdict(study.measured[shape])}
        for shape, config in shapes.items()
        if shape in study.measured
    ]


def in_short(study: Study) -> dict[str, Any]:
    """The same with the ids of configs alone, which are hashes of them: enough for a digest."""
    factors = {name: dict(arm.factors) for name, arm in study.arms.items() if arm.factors}
    printed = {name: dict(errors) for name, errors in study.printed.items()}
    given = {"printed": printed, "axis": study.axis}
    return {
        **{name: getattr(study, name) for name in _PLAIN},
        "panels": dict(study.panels),
        "pairs": study.pairs,
        "factors": factors,
        "search": study.search and dataclasses.asdict(study.search),
        **{name: value for name, value in given.items() if value},  # older plans have neither
        "trials": [(t.config.id, t.arm.name, t.point) for t in study.trials],
    }


def encoded(plan: Mapping[str, Any]) -> bytes:
    """A plan as JSON, with a trial per line: a value per line takes seconds for many trials."""
    rest = json.dumps({name: plan[name] for name in plan if name != "trials"}, indent=1)
    trials = ",\n  ".join(map(json.dumps, plan["trials"]))
    return f'{rest[:-2]},\n "trials": [\n  {trials}\n ]\n}}'.encode()


def from_json(plan: Mapping[str, Any]) -> Study:
    """The study of a plan.json.

    Raises ValueError if a config no longer has the id that the plan gave it.
    """
    factors = plan.get("factors", {})
    names = dict.fromkeys(t["arm"] for t in plan["trials"])
    arms = {name: Arm(name, factors.get(name, {})) for name in names}
    trials = tuple(
        Trial(arms[t["arm"]], config_of(t["config"]), t["point"]) for t in plan["trials"]
    )
    parents = tuple(config_of(entry["config"]) for entry in plan.get("parents", ()))
    read = [*(trial.config for trial in trials), *parents]
    for config, entry in zip(read, entries(plan), strict=True):
        if config.id != entry["id"]:
            raise ValueError(
                f"a config must keep its id, but got (planned={entry['id']}, now={config.id})"
            )
    texts: dict[str, Any] = {
        name: tuple(plan[name]) if isinstance(plan[name], list) else plan[name]
        for name in (*_PLAIN, "printed", "axis")
        if name in plan
    }
    panels = {title: tuple(arms) for title, arms in plan["panels"].items()}
    pairs = tuple((a, b) for a, b in plan["pairs"])
    search = SearchInfo(**plan["search"]) if plan.get("search") else None
    by_id = {config.id: config for config in read}
    measured = {
        shape_of(by_id[cost["id"]]): Complexity(cost["params"], cost["flops"], cost["acts"])
        for cost in plan.get("costs", ())
    }
    texts |= {"panels": panels, "pairs": pairs, "search": search, "measured": measured}
    return Study(**texts, trials=trials, parents=parents)


_PLAIN = (
    "kind",
    "name",
    "scale",
    "question",
    "source",
    "num_scrambles",
    "metric",
    "figures",
    "tables",
    "design",
    "notes",
    "published",
    "margin",
)
