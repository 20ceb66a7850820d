"""Where trials run on a cluster: nodes to avoid after failures, and place for teams."""

from __future__ import annotations

import vitscale.launch.ray_settings  # isort: skip  # noqa: F401

import contextlib
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray._private.state import actors, state
from ray.core.generated import gcs_pb2
from ray.experimental.internal_kv import _internal_kv_put
from ray.tune.experiment import Trial
from ray.util.placement_group import PlacementGroup, PlacementGroupID, remove_placement_group

from vitscale.launch.faults import is_of_unknown_cause
from vitscale.launch.graceful_exit import GRACE_S, STOPS
from vitscale.launch.nodes import ask_for_nodes, label, slots, workers_on
from vitscale.launch.resources import Resources

# failures of a trial on a node, without progress between them, after which it avoids the node
MAX_ON_A_NODE = 2
# trials that failed on a node since any made progress there, after which all that fail avoid it
MAX_TRIALS_ON_A_NODE = 3
# nodes on which a trial may fail without its retries being fewer, while it has others to go to
MAX_NODES = 3
NODE_ID = "ray.io/node-id"  # the label of a node that Ray sets
LOOK_S = 5.0  # how often trials that avoid nodes are looked at
COUNT_S = 2.0  # how often place for teams is counted


class Places:
    """Where the trials of one run fail, so that other nodes retry them.

    Notes nothing on a single machine, and nothing of teams, whose workers Ray Train places.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.are_noted = bool(resources.address) and resources.workers_per_trial == 1
        # by Tune's trial:
        self.actors: dict[str, str] = {}  # the actor that ran it last
        self.labels: dict[str, str] = {}  # of the node on which it failed last
        self.failures: dict[str, Counter[str]] = {}  # by node, since it made progress
        self.avoided: dict[str, set[str]] = {}  # nodes that its next try avoids
        self.nodes: dict[str, str] = {}  # of actors that made progress
        # node -> Tune's trials that failed there before they made progress, since any did
        self.trials: dict[str, set[str]] = {}
        self.looked_s = time.monotonic()

    def fitting(self) -> set[str]:
        """The nodes on which a trial fits."""
        return {node["NodeID"] for node in ray.nodes() if workers_on(node, self.resources)}

    def note_start(self, trial: Any) -> None:
        if self.are_noted:
            self.actors[trial.trial_id] = trial.temporary_state.ray_actor._actor_id.hex()

    def note_progress(self, trial: Trial) -> None:
        """Both the trial and its node work."""
        self.failures.pop(trial.trial_id, None)
        if actor := self.actors.get(trial.trial_id):
            if actor not in self.nodes and (facts := actors(actor)):
                self.nodes[actor] = facts["Address"]["NodeID"]
            self.trials.pop(self.nodes.get(actor, ""), None)

    def note_failure(self, trial: Any) -> None:
        """Lets the next try of a trial avoid bad nodes, if there are others.

        A node is bad if the trial has failed there MAX_ON_A_NODE times, or once of unknown cause,
        or if MAX_TRIALS_ON_A_NODE trials have failed there and none made progress.
        """
        if not self.are_noted:
            return
        self.labels.pop(trial.trial_id, None)
        # without a node, its process has not begun
        actor = self.actors.pop(trial.trial_id, "") or _dead_actor(trial)
        if not actor or not (facts := actors(actor)) or not facts["Address"]["NodeID"]:
            return
        node, address = facts["Address"]["NodeID"], facts["Address"]["IPAddress"]
        self.labels[trial.trial_id] = label({"NodeID": node, "NodeManagerAddress": address})
        failures = self.failures.setdefault(trial.trial_id, Counter())
        failures[node] += 1
        if actor not in self.nodes:  # else the node worked, and may have lost all its workers once
            self.trials.setdefault(node, set()).add(trial.trial_id)
        if trial.status != Trial.ERROR:  # Tune does not retry it
            return
        # of unknown cause, the next one counts as the config's if it is on another node
        most = 1 if is_of_unknown_cause(last_line(trial)) else MAX_ON_A_NODE
        bad = {node for node, num in failures.items() if num >= most}
        bad |= {n for n, trials in self.trials.items() if len(trials) >= MAX_TRIALS_ON_A_NODE}
        bad = bad if self.fitting() - bad else set()
        self.avoided[trial.trial_id] = bad
        labels = [{NODE_ID: f"!in({','.join(sorted(bad))})"}]
        selector: dict[str, Any] = {"bundle_label_selector": labels} if bad else {}
        bundles = trial.placement_group_factory.bundles
        trial.update_resources(tune.PlacementGroupFactory(bundles, **selector))

    def gives_more(self, trial: Trial) -> bool:
        """Whether a trial that has just failed has another node to try, and has not tried many."""
        failures = self.failures.get(trial.trial_id, ())
        return bool(self.avoided.get(trial.trial_id)) and len(failures) <= MAX_NODES

    def is_stuck(self, trials: Sequence[Trial]) -> bool:
        """Whether no trial runs or can, since each avoids all nodes that are left. Without any
        node, trials wait for one to come. Looks every LOOK_S.
        """
        if time.monotonic() - self.looked_s < LOOK_S:
            return False
        self.looked_s = time.monotonic()
        waiting = [trial for trial in trials if not trial.is_finished()]
        avoided = [self.avoided.get(trial.trial_id, set()) for trial in waiting]
        if not waiting or not all(avoided) or any(t.status != Trial.PENDING for t in waiting):
            return False
        with contextlib.suppress(ray.exceptions.RayError):
            nodes = self.fitting()
            return bool(nodes) and all(map(nodes.issubset, avoided))
        return False

    def facts(self, trial: Trial) -> dict[str, str]:
        """The last failure of a trial, and on which node of a cluster it was."""
        node, avoided = self.labels.get(trial.trial_id), self.avoided.get(trial.trial_id)
        facts = {"node": node} if node else {}
        return {"error": last_line(trial), **facts, **({"elsewhere": "yes"} if avoided else {})}


class Teams:
    """Place for the teams of one run. Tune does not know what a team takes: its trial only leads
    the team, and requests next to nothing.
    """

    def __init__(self, resources: Resources, num_trials: int, nonce: str) -> None:
        self.resources, self.num_trials, self.nonce = resources, num_trials, nonce
        self.num_fitting = 1
        with contextlib.suppress(ValueError):  # nodes have left: one team waits for others
            self.num_fitting = slots(resources)
        self.demand: PlacementGroup | None = None  # for one more team
        self.saving: list[Trial] = []  # teams that have been told to end, and have not yet
        self.deadline_s = 0.0  # for them; 0: not told
        self.looked_s = time.monotonic()

    def look(self, trials: Sequence[Trial]) -> None:
        """Counts, every COUNT_S, how many teams fit on the cluster, which may have grown, asks it
        for nodes for one more, and frees what dead teams hold.
        """
        if time.monotonic() - self.looked_s < COUNT_S:
            return
        self.looked_s = time.monotonic()
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # nothing fits any more
            self.num_fitting = slots(self.resources)
        with contextlib.suppress(ray.exceptions.RayError):
            self._ask_for_nodes(sum(trial.is_finished() for trial in trials))
            _remove_dead_groups()

    def _ask_for_nodes(self, num_ended: int) -> None:
        """Asks for nodes for one more team, if there is a trial for it.

        A demand that is met is removed and makes place for the team. It may be met by a node that
        has come, or by a team that has ended.
        """
        num_left = self.num_trials - num_ended
        num = min(num_left, self.resources.max_concurrent or num_left)  # teams at once
        is_wanted = self.resources.address and num > self.num_fitting
        if self.demand and (not is_wanted or self.demand.wait(0)):
            remove_placement_group(self.demand)
            self.demand = None
        elif is_wanted and not self.demand:
            self.demand = ask_for_nodes(self.resources)

    def stop(self, running: Sequence[Trial]) -> None:
        """Lets all teams save and end. Ray would kill them: it ends the process that leads a team,
        and its workers with that one.

        The key stays in the head: each start has a nonce of its own.
        """
        with contextlib.suppress(ray.exceptions.RayError):  # without a head, all has ended
            _internal_kv_put(self.nonce.encode(), b"stop", namespace=STOPS)
        self.saving, self.deadline_s = list(running), time.monotonic() + GRACE_S

    def have_saved(self) -> bool:
        """Whether the teams that ran at the stop have ended, or their time to save is over."""
        self.saving = [trial for trial in self.saving if trial.status == Trial.RUNNING]
        return not self.saving or time.monotonic() > self.deadline_s

    def close(self) -> None:
        """Ends the demand for nodes. If the driver fails, Ray does, at the end of its job."""
        if self.demand:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(self.demand)


def _remove_dead_groups() -> None:
    """Removes placement groups of this job whose creators have died: what the workers of a team
    held whose controller was killed. Ray would keep them until the end of the job, and the next
    team would wait forever.
    """
    Group: Any = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
    job = ray.get_runtime_context().get_job_id()
    for text in state._connect_and_get_accessor().get_placement_group_table():
        group = Group.FromString(text)
        # Ray also calls Tune dead, which is no actor and has no id
        is_dead = group.creator_actor_dead and group.creator_actor_id.strip(b"\xff")
        if group.creator_job_id.hex() == job and is_dead and group.state != Group.REMOVED:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))


def _dead_actor(trial: Trial) -> str:
    """The actor whose process has died, if the last failure of a trial names one; else empty."""
    actor = re.search(r"actor_id[=:] ?([0-9a-f]{32})\b", _last_failure(trial))
    return actor[1] if actor else ""


def _last_failure(trial: Trial) -> str:
    """What Tune wrote of the last failure of a trial; empty if it could not."""
    try:
        # the original; trial.get_error() reads a copy that is made later
        return Path(trial.error_file).read_text().rpartition("Failure # ")[2]
    except (OSError, TypeError):
        return ""


def last_line(trial: Trial) -> str:
    """The last failure of a trial in one line: its exception, or how its worker died."""
    lines = [line.strip() for line in _last_failure(trial).splitlines()[1:] if line.strip()]
    if not lines:
        return "the worker died: it left no message"
    exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    if exceptions:
        return exceptions[-1].removeprefix("ray.exceptions.")
    detail = lines[-1].partition(" Some common causes")[0].rpartition("Worker exit detail: ")[2]
    return f"the worker died: {detail}"
