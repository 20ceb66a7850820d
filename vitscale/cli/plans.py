"""The plan of a study before training: trials, samples, FLOPs, device-hours and makespan."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from vitscale.catalog import epoch_times
from vitscale.catalog.costs import published_models
from vitscale.catalog.datasets import DATASETS, dataset_facts
from vitscale.cli.terminal import columns, hours, print_json, si
from vitscale.launch.earlier_plan import changed_parts, new_throughout, plan_before
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import (
    SMALL_BYTES,
    Measured,
    complexity,
    has_closed_form,
    own_training_flops,
    shape_of,
    training_flops,
    weights_bytes,
)
from vitscale.plan.parents import num_steps_saved
from vitscale.plan.plan_warnings import plan_warnings
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.schedule import check_devices_per_trial, makespan, num_slots
from vitscale.plan.spelling import shown, shown_text
from vitscale.plan.study import Study, encoded, to_json
from vitscale.plan.trial import Trial
from vitscale.record.look_ledger import Ledger, sizes
from vitscale.record.outcome import Status
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged

PREVIEW = "plan-preview.json"
OPTIONS = ("devices", "devices_per_trial", "throughput", "epoch_minutes", "json")
MIN_PACE, MAX_PACE = 1e-6, 1e9  # images per second, or minutes per epoch
# at most, per arm: enough for a mean, and each is a file to read
MEASURED_TRIALS = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a plan, which `OPTIONS` names."""
    group = parser.add_argument_group("options of --plan")
    group.add_argument(
        "--devices", type=int, metavar="N", help="estimate the wall-clock time on N devices"
    )
    group.add_argument(
        "--devices-per-trial",
        type=float,
        metavar="K",
        help="devices per trial; a fraction packs several on one (default: 1, or as published)",
    )
    # without either option: as measured, once trials of the study are done
    pace = group.add_mutually_exclusive_group()
    pace.add_argument(
        "--throughput",
        nargs="+",
        metavar="[ARM=]IMAGES_PER_S",
        help=(
            "training speed of a trial on its devices; ARM may contain * (default: as measured on "
            "done trials)"
        ),
    )
    pace.add_argument(
        "--epoch-minutes",
        nargs="+",
        metavar="[ARM=]MINUTES",
        help="minutes per epoch on the devices of one trial; or xiao2021: as published for 8 V100",
    )
    group.add_argument(
        "--json", action="store_true", default=None, help="print one JSON document and nothing else"
    )


def check_options(options: argparse.Namespace) -> None:
    """Raises ValueError for options of a plan without --plan, where they would have no effect."""
    for name in OPTIONS:
        value = getattr(options, name)
        if value is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} must come with --plan, but got "
                f"({name}={shown_text(str(value))})"
            )


def show(
    study: Study, store: Store, options: argparse.Namespace, ledger: Ledger | None = None
) -> None:
    """Prints the plan and writes all trials to a file of the store.

    Raises ValueError for speeds or times that do not fit the study.
    """
    summary = summarize(study, store, options)
    if ledger and (ledger.looks or ledger.final):
        summary["looks"] = _looks(study, ledger)
    if study.slug in store.slugs() and not study.search:
        before = plan_before(store, study.slug)
        differs = () if summary["done"] else (new_throughout(before, study),)
        summary["differs"] = "; ".join(filter(None, (*differs, *changed_parts(before, study))))
    try:
        folder = store.study(study.slug)
        folder.write(PREVIEW, encoded(to_json(study)))
    except OSError as error:
        raise ValueError(
            f"the store must be writable, but got (store={str(store.root)!r}: {error})"
        ) from error
    summary["plan"] = folder.address(PREVIEW)
    if options.json:
        print_json(summary)
    else:
        print(_as_text(summary))


def summarize(study: Study, store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """The plan as plain values: counts, samples, multiply-adds, device-hours, makespan, by arm.

    What is not known is None. `device_hours` are those of all trials; `device_hours_to_do` and
    `makespan_h` those of trials that are not done. Profiles have timed runs instead of epochs and
    samples, and no estimate of their time. Raises ValueError for impossible options.
    """
    done = store.done_of([trial.config.id for trial in study.trials])
    trains = not study.measures
    if not trains:
        _check_no_times(options)
    pace = _pace(study, store, done, options) if trains else None
    if options.devices is not None and pace is None:
        raise ValueError(
            "throughput or epoch_minutes must be given until a trial is done, but got "
            f"(devices={options.devices})"
        )
    arms = [_costs_of_arm(study, arm, trials, done, pace) for arm, trials in _by_arm(study)]
    summary = {
        "study": study.slug,
        "question": study.question,
        "source": study.source,
        **_totals(arms),
        "arms": arms,
        "time": pace.source if pace else None,
        "weights": _weights(study, options) if trains else None,
        "doubts": plan_warnings(study),
        "trunks": _trunks(study),
        "parents": _parents(study, store),
    }
    from vitscale.analysis import power  # scipy takes a moment

    return {
        **summary,
        **_until_done(study, done, pace, options),
        "can_show": power.sentences(study),
    }


def _check_no_times(options: argparse.Namespace) -> None:
    for name in OPTIONS:
        value = getattr(options, name)
        if name != "json" and value is not None:
            raise ValueError(
                f"{name} must not be given for profiles, which measure the speed, but got "
                f"({name}={value})"
            )


def _weights(study: Study, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes of final weights: largest trial, sum over trials, and sum of those that are kept."""
    sizes = [weights_bytes(trial.config, study.measured) for trial in study.trials]
    keep = getattr(options, "keep_weights", None)
    kept = [size for size in sizes if keep or (keep is None and size <= SMALL_BYTES)]
    return {"most": max(sizes), "all": sum(sizes), "kept": sum(kept), "trials_kept": len(kept)}


def _trunks(study: Study) -> dict[str, Any] | None:
    """What trials that start from another one save; None if there are none."""
    branches = [trial.config for trial in study.trials if trial.config.trunk]
    if not branches:
        return None
    steps = sum(trial.config.num_steps for trial in study.trials)
    return {
        "trunks": len({config.trunk for config in branches}),
        "branches": len(branches),
        "steps": steps - num_steps_saved(study),
        "steps_in_one_piece": steps,
    }


def _parents(study: Study, store: Store) -> dict[str, Any] | None:
    """What parents cost, which are in no arm, and what teaching costs; None if there is neither."""
    done = store.done_of([config.id for config in study.parents])
    flops = sum(training_flops(config, study.measured) for config in study.parents)
    num, by_id = len(study.parents), {trial.config.id: trial.config for trial in study.trained}
    teaching = sum(  # one forward pass per sample
        study.cost(by_id[config.teacher]).flops * config.num_samples
        for config in by_id.values()
        if config.teacher
    )
    if not num and not teaching:
        return None
    parents = {"parents": num, "to_do": num - len(done), "training_flops": flops}
    return parents | ({"teacher_flops": teaching} if teaching else {})


def _parents_text(parents: dict[str, Any], own: float) -> str:
    flops, teaching = parents["training_flops"], parents.get("teacher_flops", 0)
    beside = f"multiply-adds beside the {own:.3g} of the trials"
    if not parents["parents"]:
        return f"teachers: {teaching:.3g} {beside}"
    return (
        f"parents: {parents['parents']} trainings, {parents['to_do']} to do first: {flops:.3g} "
        f"{beside}" + (f", and {teaching:.3g} of teachers" if teaching else "")
    )


def _trunks_text(trunks: dict[str, Any]) -> str:
    whole, steps = trunks["steps_in_one_piece"], trunks["steps"]
    branches, num = trunks["branches"], trunks["trunks"]
    return (
        f"trunks: {branches} trial{'s' * (branches > 1)} start from {num} other{'s' * (num > 1)}, "
        f"which saves {si(whole - steps)} of {si(whole)} steps "
        f"({100 * (whole - steps) / whole:.0f}%)"
    )


def _weights_text(weights: dict[str, Any], num: int) -> str:
    """What is kept of final weights, a line."""
    sizes = f"up to {si(weights['most'])}B per trial, {si(weights['all'])}B in all"
    if weights["trials_kept"] == num:
        return f"final weights: {sizes}; kept"
    if not weights["trials_kept"]:
        return f"final weights: {sizes}; not kept without --keep-weights"
    kept = f"{weights['trials_kept']} of {num} trials ({si(weights['kept'])}B)"
    return f"final weights: {sizes}; kept of {kept}, of all with --keep-weights"


def _by_arm(study: Study) -> Iterator[tuple[str, list[Trial]]]:
    for arm in study.arms:
        yield arm, [trial for trial in study.trials if trial.arm.name == arm]


def _costs_of_arm(
    study: Study, arm: str, trials: Sequence[Trial], done: set[str], pace: Pace | None
) -> dict[str, Any]:
    """Counts and costs of an arm; `params` and `flops` per image are those of its first trial."""
    cost = study.cost(trials[0].config)
    todo = [trial for trial in trials if trial.config.id not in done]
    return {
        "arm": arm,
        "trials": len(trials),
        "done": len(trials) - len(todo),
        "to_do": len(todo),
        "params": cost.params,
        "flops": cost.flops,
        **_work([trial.config for trial in trials], study.measured),
        "device_hours": pace.device_hours(trials) if pace else None,
        "device_hours_to_do": pace.device_hours(todo) if pace else None,
    }


def _work(configs: Sequence[TrainConfig], measured: Measured) -> dict[str, Any]:
    """Epochs, samples and multiply-adds of trainings, or the timed runs of profiles."""
    timed_runs = [config.timed_runs for config in configs if isinstance(config, ProfileConfig)]
    if timed_runs:
        return {
            "epochs": None,
            "samples": None,
            "training_flops": None,
            "timed_runs": sum(timed_runs),
        }
    return {
        "epochs": sorted({config.epochs for config in configs}),
        "samples": sum(config.num_own_steps * config.batch_size for config in configs),
        "training_flops": sum(own_training_flops(config, measured) for config in configs),
        "timed_runs": None,
    }


def _totals(arms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    work = ("samples", "training_flops", "timed_runs")
    names = ("trials", "done", "to_do", *work, "device_hours", "device_hours_to_do")
    return {
        name: None if arms[0][name] is None else sum(arm[name] for arm in arms) for name in names
    }


def _until_done(
    study: Study, done: set[str], pace: Pace | None, options: argparse.Namespace
) -> dict[str, Any]:
    """The makespan of the trials to do on `options.devices`."""
    per_trial = pace.devices_per_trial if pace else None
    if pace is None or options.devices is None:
        return {
            "devices": None,
            "devices_per_trial": per_trial,
            "trials_at_once": None,
            "makespan_h": None,
        }
    slots = num_slots(options.devices, pace.devices_per_trial)
    todo = [pace.hours[trial.config.id] for trial in study.trials if trial.config.id not in done]
    return {
        "devices": options.devices,
        "devices_per_trial": per_trial,
        "trials_at_once": slots,
        "makespan_h": makespan(todo, slots)._asdict(),
    }


def _looks(study: Study, ledger: Ledger) -> list[str]:
    """How many looks there were, and what the next costs if it sees the whole plan."""
    from vitscale.analysis.report_look import next_look

    planned = sizes(study.trials)
    past = [f"{max(look.seen.values(), default=0)}" for look in ledger.looks]
    so_far = f" (at up to {', '.join(past)} per arm)" if past else ""
    num = len(past)
    if past and ledger.looks[-1].seen == ledger.looks[-1].planned == planned:
        return [f"looks: {num} so far{so_far}; the last saw all of this plan"]
    looks = next_look(ledger, planned)
    declared = ledger.final.option if ledger.final else ""
    left = f"within {100 * looks.budget:.2g}% error"
    rule = {
        "fixed": "no correction" if not declared else f"{left} ({declared})",
        "spending": f"spends error over looks at {declared or 'one plan'}",
        "anytime": f"anytime-valid {left} ({declared or 'no final size was declared'})",
    }[looks.rule]
    needs = f"a single test then needs p < {looks.threshold:.2g} for its n"
    if not looks.budget:
        rule, needs = "all 5% error is spent", "nothing new can be claimed"
    return [
        f"looks: {num or 'none'} so far{so_far}; the next, number {looks.number}, at "
        f"{max(planned.values())} per arm: {rule}; {needs}"
    ]


# How long trials take


@dataclass(frozen=True)
class Pace:
    """Hours per trial on its devices, by trial id, and the source of this estimate."""

    hours: dict[str, float]
    devices_per_trial: float
    source: str

    def device_hours(self, trials: Sequence[Trial]) -> float:
        return self.devices_per_trial * math.fsum(self.hours[trial.config.id] for trial in trials)


def _pace(study: Study, store: Store, done: set[str], options: argparse.Namespace) -> Pace | None:
    """The pace as given, else as measured on done trials; None if no trial is done."""
    per_trial = 1.0 if options.devices_per_trial is None else options.devices_per_trial
    check_devices_per_trial(per_trial)
    if options.throughput:
        speed = _per_arm(study, "throughput", options.throughput)
        return _timed(
            study,
            per_trial,
            "images/s as given",
            lambda t: t.config.num_samples / speed[t.arm.name] / 3600,
        )
    if options.epoch_minutes == ["xiao2021"]:
        return _published(study, options.devices_per_trial)
    if options.epoch_minutes:
        minutes = _per_arm(study, "epoch_minutes", options.epoch_minutes)
        return _timed(
            study,
            per_trial,
            "minutes per epoch as given",
            lambda t: t.config.epochs * minutes[t.arm.name] / 60,
        )
    return _measured(study, store, done, per_trial)


def _timed(
    study: Study, devices_per_trial: float, source: str, hours_of: Callable[[Trial], float]
) -> Pace:
    """`hours_of` gives the hours of a trial in one piece, of which its trunk takes a part."""
    hours = {
        t.config.id: hours_of(t) * t.config.num_own_steps / t.config.num_steps for t in study.trials
    }
    return Pace(hours, devices_per_trial, source)


def _per_arm(study: Study, name: str, texts: Sequence[str]) -> dict[str, float]:
    """Arm -> the number of the first text whose ARM matches it, or that names no arm.

    Raises ValueError if an arm has no number.
    """
    rules = [_rule(study, name, text) for text in texts]
    numbers_by_arm = {
        arm: [number for pattern, number in rules if pattern == arm or fnmatchcase(arm, pattern)][
            :1
        ]
        for arm in study.arms
    }
    without = [arm for arm, numbers in numbers_by_arm.items() if not numbers]
    if without:
        raise ValueError(f"{name} must be given for every arm, but got none (arm={without[0]!r})")
    return {arm: numbers[0] for arm, numbers in numbers_by_arm.items()}


def _rule(study: Study, name: str, text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(
            f"{name} must be a number > 0, or ARM=NUMBER, but got ({name}={shown(text)})"
        )
    if not MIN_PACE <= value <= MAX_PACE:
        raise ValueError(
            f"{MIN_PACE:g} <= {name} <= {MAX_PACE:g} must hold, but got ({name}={shown(text)})"
        )
    if pattern not in ("", *study.arms) and not any(
        fnmatchcase(arm, pattern) for arm in study.arms
    ):
        raise ValueError(
            f"ARM of {name} must match an arm of the study, but got "
            f"({shown(text)}; {shown_text(', '.join(study.arms), 500)})"
        )
    return pattern or "*", value


def _published(study: Study, devices_per_trial: float | None) -> Pace:
    """The pace by published epoch times on ImageNet, for models of exactly the published costs."""
    if devices_per_trial not in (None, epoch_times.DEVICES):
        raise ValueError(
            f"devices_per_trial == {epoch_times.DEVICES} must hold for the published epoch times, "
            f"but got (devices_per_trial={devices_per_trial:g})"
        )
    printed = epoch_times.epoch_minutes()
    models = {
        model.name: TrainConfig(**model.fields)
        for model in published_models()
        if model.source == "Xiao et al. 2021, Table 2"
    }
    minutes = {
        complexity(config, study.measured): printed[name]
        for name, config in models.items()
        # no closed form: measured where the study has the model
        if has_closed_form(config) or shape_of(config) in study.measured
    }

    def hours_of(trial: Trial) -> float:
        config, facts = trial.config, DATASETS["imagenet"]
        cost = study.cost(config)
        if dataset_facts(config.dataset) != facts or cost not in minutes:
            raise ValueError(
                f"an arm must have a published epoch time, but got none (arm={trial.arm.name!r})"
            )
        return config.epochs * minutes[cost] * config.num_train / facts.num_train / 60

    return _timed(study, epoch_times.DEVICES, epoch_times.SOURCE, hours_of)


def _measured(study: Study, store: Store, done: set[str], devices_per_trial: float) -> Pace | None:
    """The pace by seconds per multiply-add in the arm's finished trials, or else in the study's."""
    spent = {
        arm: _spent(study, store, [t for t in trials if t.config.id in done])
        for arm, trials in _by_arm(study)
    }
    num, seconds, flops = (sum(numbers) for numbers in zip(*spent.values(), strict=True))
    if not num:
        return None
    rates = {
        arm: arm_s / arm_flops if n else seconds / flops
        for arm, (n, arm_s, arm_flops) in spent.items()
    }
    return _timed(
        study,
        devices_per_trial,
        f"seconds per multiply-add as measured on {num:.0f} finished trials",
        lambda trial: training_flops(trial.config, study.measured) * rates[trial.arm.name] / 3600,
    )


def _spent(study: Study, store: Store, done: Sequence[Trial]) -> tuple[int, float, float]:
    """(number, seconds, multiply-adds) of a few finished trials.

    Diverged trials are left out: they ended early.
    """
    num, seconds, flops = 0, 0.0, 0.0
    for trial in done[:: max(1, math.ceil(len(done) / MEASURED_TRIALS))]:
        try:
            outcome = store.read(trial.config.id)
        except Damaged:  # the next start reports and restores it; a plan needs only a rate
            continue
        if outcome.status is Status.FINISHED and "train_s" in outcome.rows[-1]:
            num, seconds = num + 1, seconds + outcome.rows[-1]["train_s"]
            flops += training_flops(trial.config, study.measured)
    return num, seconds, flops


# As text


def _as_text(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['study']}: {summary['question']}",
        summary["source"],
        "",
        _table(summary),
        "",
    ]
    if summary["timed_runs"] is not None:
        lines.append(
            "FLOPs: multiply-adds of the forward pass of one image, at the arm's first resolution"
        )
        return "\n".join([*lines, f"plan: {summary['plan']}"])
    lines.append(
        f"training: {summary['training_flops']:.3g} multiply-adds in total, forward and backward"
    )
    if summary["time"] is None:
        lines.append(
            "device-hours: not known until a trial is done; or give --throughput or --epoch-minutes"
        )
    else:
        total, todo = (hours(summary[name]) for name in ("device_hours", "device_hours_to_do"))
        lines.append(f"device-hours: {total} in total, {todo} to do (by {summary['time']})")
    if summary["makespan_h"]:
        lines.append(_makespan_text(summary))
    if summary["parents"]:
        lines.append(_parents_text(summary["parents"], summary["training_flops"]))
    if summary["trunks"]:
        lines.append(_trunks_text(summary["trunks"]))
    lines.append(_weights_text(summary["weights"], summary["trials"]))
    lines += [
        # sentences about precision name their own level
        f"{'to be expected' if '95%' in sentence else 'shown with 80% power'}: {sentence}"
        for sentence in summary["can_show"]
    ]
    lines += summary.get("looks", [])
    lines += [summary["differs"]] if summary.get("differs") else []
    lines += [f"warning: {warning}" for warning in summary["doubts"]]
    return "\n".join([*lines, f"plan: {summary['plan']}"])


def _makespan_text(summary: dict[str, Any]) -> str:
    lower, longest_first, plan_order = (hours(number) for number in summary["makespan_h"].values())
    where = f"on {summary['devices']} devices, {summary['devices_per_trial']:g} per trial"
    return (
        f"time for the trials to do {where}, {summary['trials_at_once']} trials at once: "
        f"{plan_order} hours in the order of the plan, in which a study starts them; "
        f"{longest_first} with the longest first; {lower} at least in any order"
    )


def _table(summary: dict[str, Any]) -> str:
    if summary["timed_runs"] is not None:
        return _table_of_profiles(summary)
    rows = [
        ["arm", "trials", "done", "to do", "params", "FLOPs", "epochs", "samples", "training FLOPs"]
    ]
    for arm in summary["arms"]:
        ends = arm["epochs"][:: max(1, len(arm["epochs"]) - 1)]
        rows.append(
            [
                *_counts(arm["arm"], arm),
                si(arm["params"]),
                si(arm["flops"]),
                "-".join(map(str, ends)),
                *_sums(arm),
            ]
        )
    rows.append([*_counts("all", summary), "", "", "", *_sums(summary)])
    if summary["time"] is not None:
        numbers = [hours(part["device_hours"]) for part in (*summary["arms"], summary)]
        rows = [[*row, cell] for row, cell in zip(rows, ["device-hours", *numbers], strict=True)]
    return columns(rows)


def _table_of_profiles(summary: dict[str, Any]) -> str:
    rows = [["arm", "profiles", "done", "to do", "timed runs", "params", "FLOPs"]]
    rows += [
        [*_counts(arm["arm"], arm), str(arm["timed_runs"]), si(arm["params"]), si(arm["flops"])]
        for arm in summary["arms"]
    ]
    return columns([*rows, [*_counts("all", summary), str(summary["timed_runs"]), "", ""]])


def _counts(name: str, part: dict[str, Any]) -> list[str]:
    return [name, *(str(part[key]) for key in ("trials", "done", "to_do"))]


def _sums(part: dict[str, Any]) -> list[str]:
    return [si(part["samples"]), f"{part['training_flops']:.3g}"]
