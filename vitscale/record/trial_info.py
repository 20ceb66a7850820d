"""All that a store knows of single trials, found by id or by arm and point."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from vitscale.plan.parents import AT_END, entries
from vitscale.plan.spelling import did_you_mean
from vitscale.record.outcome import DONE, Status
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN
from vitscale.record.trial_files import TRIAL_ID
from vitscale.record.trial_links import FOLDER, link_paths, point_names
from vitscale.record.workdir import CHECKPOINT, CheckpointName, Damaged, pinned, read_json

PREFIX = re.compile(r"[0-9a-f]{1,12}")
MOST_NAMED = 5  # of the candidates in a refusal
RUN = ("commit", "versions", "machine", "device", "workers", "captured", "deterministic")
FACTS = (*RUN, "attempt")
Plans = Mapping[str, Mapping[str, Any]]
Place = dict[str, Any]  # study, arm, point, name and link of a trial


def readable_plans(store: Store) -> dict[str, dict[str, Any]]:
    """Study -> its plan; those that cannot be read are left out, with a warning that names them."""
    plans = {}
    for slug in store.slugs():
        try:
            plan = store.plan(slug)
            if not all(map(_is_named, plan["trials"])):
                where = store.study(slug).address(PLAN)
                raise Damaged(f"a trial of a plan must have an arm and fields, but got ({where})")
            plans[slug] = plan
        except (Damaged, OSError) as damage:
            warnings.warn(str(damage), stacklevel=2)
    return plans


def _is_named(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("arm"), str) and isinstance(entry.get("config", {}), dict)


def find(store: Store, plans: Plans, name: str) -> list[str]:
    """Ids of the trials that are meant by an id, a prefix of one, STUDY:ARM or STUDY:ARM:POINT.

    Raises ValueError if there is none, or for a prefix if there are several.
    """
    return _by_arm(plans, name) if ":" in name else [_by_prefix(store, plans, name)]


def _by_prefix(store: Store, plans: Plans, prefix: str) -> str:
    if prefix in plans:
        arms = dict.fromkeys(entry["arm"] for entry in plans[prefix]["trials"])
        raise ValueError(
            "a trial must be named by its id, STUDY:ARM or STUDY:ARM:POINT, but got "
            f"({prefix!r}; its arms are: {', '.join(arms)})"
        )
    planned = {entry["id"] for plan in plans.values() for entry in entries(plan)}
    ids = sorted(i for i in {*planned, *store.trial_ids()} if i.startswith(prefix))
    if not PREFIX.fullmatch(prefix) or len(ids) != 1:
        shown = ", ".join(ids[:MOST_NAMED]) + (", ..." if len(ids) > MOST_NAMED else "")
        matches = f"{len(ids)} trials: {shown}" if ids and prefix else "no trial of the store"
        raise ValueError(
            "a trial must be named by a unique prefix of its id, STUDY:ARM or STUDY:ARM:POINT, "
            f"but got ({prefix[:100]!r}: {matches}){did_you_mean(prefix, plans)}"
        )
    return ids[0]


def _by_arm(plans: Plans, name: str) -> list[str]:
    slug, _, rest = name.partition(":")
    if slug not in plans:
        raise ValueError(
            f"a study must be in the store, but got ({slug!r}; there are: {', '.join(plans)})"
            f"{did_you_mean(slug, plans)}"
        )
    trials = plans[slug]["trials"]
    arms = dict.fromkeys(str(entry["arm"]) for entry in trials)
    arm, _, point = (rest, "", "") if rest in arms else rest.rpartition(":")
    of_arm = [entry for entry in trials if entry["arm"] == arm]
    if not of_arm:
        raise ValueError(
            f"an arm must be among ({', '.join(arms)}), but got ({rest!r})"
            f"{did_you_mean(rest, arms)}"
        )
    names = point_names(of_arm)
    matches = [
        entry["id"] for entry in of_arm if not point or _is_at(entry, names[entry["id"]], point)
    ]
    if not matches:
        shown = list(names.values())
        more = ", ..." if len(shown) > 2 * MOST_NAMED else ""
        raise ValueError(
            f"a point of {arm} must be among ({', '.join(shown[: 2 * MOST_NAMED])}{more}), but got "
            f"({point!r})"
        )
    return matches


def _is_at(entry: Mapping[str, Any], name: str, point: str) -> bool:
    """Whether a trial is meant by "7", "007", "reference" or its whole name."""
    if point.isdigit():
        return entry.get("point") == int(point)
    return point == name or (point == "reference" and entry.get("point") is None)


def describe(store: Store, plans: Plans, trial_ids: Sequence[str]) -> list[dict[str, Any]]:
    """What is known of each trial, as plain values. A damaged file counts for nothing, with a
    warning that names it.
    """
    planned = _planned(store, plans, set(trial_ids))
    return [_described(store, plans, trial_id, planned[trial_id]) for trial_id in trial_ids]


def _described(
    store: Store, plans: Plans, trial_id: str, planned: Sequence[tuple[Mapping[str, Any], Place]]
) -> dict[str, Any]:
    workdir = store.trial(trial_id)
    outcome = store.outcome(trial_id)
    holder = store.running_holder(trial_id)
    running = bool(holder) and outcome.status not in DONE
    files = workdir.files()
    config = _config(store, trial_id, [entry for entry, _ in planned])
    return {
        "trial_id": trial_id,
        "status": (Status.RUNNING if running else outcome.status).value,
        "running_in": holder,
        "error": outcome.error,
        "config": config,
        "trunk": _trunk(store, config),
        "parent": _parent(store, config.get("init_from")),
        "teacher": _parent(store, config.get("teacher")),
        "branches": _branches(plans, trial_id),
        "planned_by": [place for _, place in planned],
        "parent_in": [
            slug
            for slug, plan in plans.items()
            if any(entry["id"] == trial_id for entry in plan.get("parents", ()))
        ],
        "earlier_of": list(earlier_studies(plans, trial_id)),
        "last_row": dict(outcome.rows[-1]) if outcome.rows else {},
        "num_rows": len(outcome.rows),
        "provenance": {name: value for name in FACTS if (value := outcome.facts.get(name, ""))},
        "evaluations": [
            {"name": evaluation.facts.get("name", ""), **evaluation.rows[0]}
            for evaluation in store.evaluations(trial_id).values()
        ],
        "checkpoint": _checkpoint(workdir.names(CHECKPOINT)),
        "folder": workdir.address(),
        "files": [
            {"path": workdir.address(name), "num_bytes": state.num_bytes, "changed": when(state[1])}
            for name, state in sorted(files.items())
        ],
    }


def _trunk(store: Store, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trial from which a trial starts, and the step; None if it starts from its beginning."""
    trunk, step = config.get("trunk"), config.get("trunk_step")
    if not isinstance(trunk, str) or not TRIAL_ID.fullmatch(trunk) or type(step) is not int:
        return None
    kept = bool(pinned(store.trial(trunk), step))
    return {
        "trial_id": trunk,
        "step": step,
        "status": store.outcome(trunk, store.peek).status.value,
        "kept": kept,
    }


def _parent(store: Store, parent: object) -> dict[str, Any] | None:
    """The trial whose final weights a trial needs; None if `parent` is no id."""
    if not isinstance(parent, str) or not TRIAL_ID.fullmatch(parent):
        return None
    return {"trial_id": parent, "status": store.outcome(parent, store.peek).status.value}


def _branches(plans: Plans, trial_id: str) -> list[dict[str, Any]]:
    """The planned trials that start from a trial, and the steps at which they do; AT_END with its
    final weights.
    """
    steps = {}
    for plan in plans.values():
        for entry in entries(plan):
            config = entry.get("config")
            if not isinstance(config, Mapping):
                continue
            if config.get("trunk") == trial_id:
                steps[entry["id"]] = config.get("trunk_step")
            elif trial_id in (config.get("init_from"), config.get("teacher")):
                steps[entry["id"]] = AT_END
    return [{"trial_id": branch, "step": step} for branch, step in steps.items()]


def _config(store: Store, trial_id: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that differ from their defaults, of the trial's folder or of its first plan."""
    try:
        config = read_json(store.trial(trial_id), "config.json")
    except (Damaged, OSError) as damage:
        warnings.warn(str(damage), stacklevel=2)
        config = {}
    return config or (dict(entries[0].get("config", {})) if entries else {})


def _planned(
    store: Store, plans: Plans, trial_ids: Collection[str]
) -> dict[str, list[tuple[Mapping[str, Any], Place]]]:
    """Trial -> its entry in each plan that has it, with the arm, point and link that it is there.

    Names of a plan depend on all its trials, so they are made once per plan.
    """
    by_id: dict[str, list[tuple[Mapping[str, Any], Place]]] = {i: [] for i in trial_ids}
    for slug, plan in plans.items():
        entries = [entry for entry in plan["trials"] if entry["id"] in by_id]
        if not entries:
            continue
        names, links = point_names(plan["trials"]), link_paths(plan["trials"])
        folder = store.study(slug).within(FOLDER)
        for entry in entries:
            place = {
                "study": slug,
                "arm": entry["arm"],
                "point": entry.get("point"),
                "name": names[entry["id"]],
                "link": folder.address(links[entry["id"]]),
            }
            by_id[entry["id"]].append((entry, place))
    return by_id


def earlier_studies(plans: Plans, trial_id: str) -> tuple[str, ...]:
    """The studies of which an earlier plan had the trial."""
    earlier = {slug: plan.get("earlier", ()) for slug, plan in plans.items()}
    return tuple(slug for slug, ids in earlier.items() if isinstance(ids, list) and trial_id in ids)


def _checkpoint(names: Sequence[str]) -> dict[str, Any] | None:
    """The newest one: of a done trial, it holds the final weights if they were kept."""
    newest = CheckpointName.parse(names[-1]) if names else None
    return {"file": names[-1], "step": newest.step} if newest else None


def when(unix_s: float) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")
