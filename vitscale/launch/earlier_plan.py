"""What the plan of the last start says, if it can be read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vitscale.plan.fields import DEFAULTS
from vitscale.plan.parents import entries
from vitscale.plan.parts import PARTS, is_part, name_of, parts_of
from vitscale.plan.spelling import shown
from vitscale.plan.study import Study, to_json
from vitscale.record.store import Store
from vitscale.record.trial_files import TRIAL_ID

# of a plan: what is said of trials, follows from the rest, or is drawn behind it
LISTED = {"trials", "parents", "comparisons", "costs", "published"}


def plan_before(store: Store, slug: str) -> dict[str, Any]:
    """The plan of the last start; empty if it cannot be read: it is rewritten anyway."""
    try:
        return store.plan(slug)
    except ValueError:
        return {}


def is_encoded_as(read: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether a plan that was read is this one, whose lists may be tuples beside the trials."""
    rest = json.loads(json.dumps({name: plan[name] for name in plan if name != "trials"}))
    return read == {**rest, "trials": plan["trials"]}


def once_planned(plan: Mapping[str, Any]) -> list[str]:
    """Ids of all trials in a study's plans so far; empty if they cannot be read."""
    try:
        planned = entries({"trials": (), **plan})
        ids = [*plan.get("earlier", ()), *(entry["id"] for entry in planned)]
        return [trial_id for trial_id in dict.fromkeys(ids) if TRIAL_ID.fullmatch(trial_id)]
    except (KeyError, TypeError):
        return []


def changed_parts(plan: Mapping[str, Any], study: Study) -> list[str]:
    """A line for each part whose source is another one than in the last plan.

    Trials of any earlier plan are not new: an edit may have been undone.
    """
    before: dict[str, set[str]] = {}
    planned = set(once_planned(plan))
    try:
        configs = [entry["config"] for entry in entries({"trials": (), **plan})]
        for value in (fields.get(field) for fields in configs for field in PARTS):
            if is_part(value):
                before.setdefault(name_of(value), set()).add(value)
    except (KeyError, TypeError, AttributeError):
        return []
    new: Counter[str] = Counter()
    for trial in study.trained:
        for part in set(parts_of(trial.config).values()):
            if part not in before.get(name_of(part), {part}):
                new[name_of(part)] += trial.config.id not in planned
    return [
        f"{name} has changed: {num or 'no'} new trial{'s' * (num != 1)}"
        for name, num in new.items()
    ]


def renamed(plan: Mapping[str, Any], study: Study) -> set[str]:
    """Ids of trials that the last plan had as another arm or point; empty if it cannot be read."""
    try:
        trials = plan.get("trials", ())
        before = {entry["id"]: (entry["arm"], entry["point"]) for entry in trials}
    except (KeyError, TypeError):
        return set()
    now = {trial.config.id: (trial.arm.name, trial.point) for trial in study.trials}
    return {i for i, place in before.items() if now.get(i, place) != place}


def differing(plan: Mapping[str, Any], study: Study) -> str:
    """A line on how a study differs from its last plan; empty if it does not, or if that cannot be
    read.
    """
    try:
        before = {entry["id"] for entry in entries({"trials": (), **plan})}
    except (KeyError, TypeError):
        return ""
    if not before:
        return ""
    now = json.loads(json.dumps(to_json(study)))
    ids = {trial.config.id for trial in study.trained}
    said = [new_throughout(plan, study), *changed_parts(plan, study)]
    if not any(said):
        counts = {
            "more": len(ids - before),
            "fewer": len(before - ids),
            "of another arm or point": len(renamed(plan, study)),
        }
        said = [f"{num} trial{'s' * (num != 1)} {what}" for what, num in counts.items() if num]
        said += [
            f"other {name}"
            for name in now
            if name in plan and name not in LISTED and now[name] != plan[name]
        ]
    return "; ".join(filter(None, said))


def new_throughout(plan: Mapping[str, Any], study: Study) -> str:
    """A line on what makes each trial of a study differ from all of its last plan; empty if they
    share some, or it cannot be read.
    """
    try:
        before = {entry["id"]: dict(entry["config"]) for entry in plan.get("trials", ())}
    except (KeyError, TypeError, ValueError):
        return ""
    now = {trial.config.id: trial.config.non_default() for trial in study.trials}
    if not before or before.keys() & now.keys():
        return ""
    said = []
    for name in dict.fromkeys(
        name for config in [*now.values(), *before.values()] for name in config
    ):
        new, old = (
            list(dict.fromkeys(shown(_unversioned(c, name)) for c in configs.values()))
            for configs in (now, before)
        )
        if set(new) != set(old):
            few = max(len(new), len(old)) <= 3
            said.append(
                f"{name} {', '.join(new)} instead of {', '.join(old)}" if few else f"other {name}"
            )
    if not said and changed_parts(plan, study):
        return ""  # which has a line of its own
    if not said:
        said = ["its values in other combinations"]
    more = f", and {len(said) - 3} more" * (len(said) > 3)
    return f"no trial is one of the last plan of {study.slug}: {'; '.join(said[:3])}{more}"


def _unversioned(config: Mapping[str, Any], name: str) -> Any:
    """The value of a field, without the digest of a part."""
    value = config.get(name, DEFAULTS.get(name))
    return name_of(value) if is_part(value) else value
