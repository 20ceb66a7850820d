"""Asks a Ray cluster for nodes, and its nodes whether trials can run on them."""

from __future__ import annotations

import vitscale.launch.ray_settings  # isort: skip  # noqa: F401

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vitscale.launch.cluster import watched
from vitscale.launch.preflight import Data, clock_apart
from vitscale.launch.resources import Resources
from vitscale.plan.cores import num_readers
from vitscale.plan.data import check_readable
from vitscale.plan.study import Study
from vitscale.record.provenance import provenance
from vitscale.record.store import Store
from vitscale.record.study_files import NotShared

T = TypeVar("T")
Node = Mapping[str, Any]  # an element of ray.nodes()
CHECK_STORE_S = 120.0  # time for all nodes to answer what they have
# compute capabilities of the first cards with tensor cores, and with those that take bf16 and tf32
TENSOR_CORES, TENSOR_CORES_OF_BF16 = 7.0, 8.0


def workers_on(node: Node, resources: Resources) -> int:
    """How many workers of trials fit on a node."""
    has = node["Resources"]
    if not node["Alive"] or not resources.placement().keys() <= has.keys():
        return 0
    num = int(has.get("CPU", 0) / resources.cpus_per_trial + 1e-9)
    if share := resources.gpus_per_trial:  # at most 1, of a single GPU
        num = min(num, int(has.get("GPU", 0)) * int(1 / share + 1e-9))
    return num


def slots(resources: Resources, nodes: Sequence[Node] | None = None) -> int:
    """How many trials fit at once, on the nodes of the cluster or on given ones.

    Each worker must fit on one node; the workers of a team may be on several. Raises ValueError if
    no trial fits.
    """
    nodes = ray.nodes() if nodes is None else nodes
    num = sum(workers_on(node, resources) for node in nodes) // resources.workers_per_trial
    if num == 0:
        total = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
        raise ValueError(
            f"a trial must fit on a node, but got (cpus_per_trial={resources.cpus_per_trial:g}, "
            f"gpus_per_trial={resources.gpus_per_trial:g}, "
            f"workers_per_trial={resources.workers_per_trial}, "
            f"accelerator_type={resources.accelerator_type!r}, cluster={total})"
        )
    return min(num, resources.max_concurrent) if resources.max_concurrent else num


def await_slots(
    resources: Resources,
    stop: threading.Event,
    report: Callable[[str], object] = lambda line: None,
) -> int:
    """Waits until at least one trial fits, and returns `slots`; 0 if `stop` is set before.

    A cluster that was not started here may scale by itself. If it lacks something that more nodes
    may bring, it is asked for such nodes. Raises ValueError if they have not come by
    `cluster_timeout_s`, or if nodes have what a trial needs, but too little of it; and HeadLost.
    """

    def wait() -> int:
        reported, start_s, demand = "", time.monotonic(), None
        try:
            while not stop.is_set():
                nodes = ray.nodes()
                try:
                    return slots(resources, nodes)
                except ValueError:
                    if not resources.address or not (lack := _lack(resources, nodes)):
                        raise
                if demand is None:
                    demand = ask_for_nodes(resources)
                if reported != lack:
                    reported = lack
                    report(
                        f"waiting for nodes, at most {resources.cluster_timeout_s:g} s "
                        f"(--cluster-timeout-s): {lack} yet; Ctrl-C stops"
                    )
                if time.monotonic() - start_s >= resources.cluster_timeout_s:
                    raise ValueError(
                        "nodes on which a trial fits must join the cluster in time, but got "
                        f"(cluster_timeout_s={resources.cluster_timeout_s:g}, {lack}); "
                        "the same command waits again"
                    )
                stop.wait(1)
            return 0
        finally:
            if demand is not None:
                with contextlib.suppress(ray.exceptions.RayError):
                    remove_placement_group(demand)

    return watched(wait, resources)


def ask_for_nodes(resources: Resources) -> PlacementGroup:
    """Requests what the workers of one trial need, which a cluster that scales by itself sees.

    Unlike a request by Ray's request_resources, of which a cluster has one, it adds to the requests
    of other drivers, and ends with this driver.
    """
    needs = {"CPU": resources.cpus_per_trial} | resources.placement()
    if resources.gpus_per_trial:
        needs["GPU"] = resources.gpus_per_trial
    return placement_group([needs] * resources.workers_per_trial)


def _lack(resources: Resources, nodes: Sequence[Node]) -> str:
    """What the cluster lacks that more nodes may bring: a resource that no node has, any node
    but the head, or nodes for all workers of a team. Empty if nodes are too small for a trial.
    """
    nodes = [node for node in nodes if node["Alive"]]
    needs = {"CPU": resources.cpus_per_trial, "GPU": resources.gpus_per_trial}
    for name, amount in (needs | resources.placement()).items():
        if amount and not any(node["Resources"].get(name, 0) for node in nodes):
            return f"none of the cluster has a {name}"
    num, fit = resources.workers_per_trial, sum(workers_on(node, resources) for node in nodes)
    if fit:
        return f"the cluster has place for {fit} of {num} workers of a trial" if fit < num else ""
    is_head_alone = all("node:__internal_head__" in node["Resources"] for node in nodes)
    return "no trial fits on the head, and no other node is there" if is_head_alone else ""


def share_of_cores(resources: Resources) -> float:
    """The cores of a worker of a trial that shares a node's with those on its other GPUs, on the
    node with the fewest; whole ones, at least 1. Raises HeadLost.
    """
    per_gpu = int(1 / resources.gpus_per_trial + 1e-9)
    amounts = [
        node["Resources"]["CPU"] // (int(node["Resources"]["GPU"]) * per_gpu)
        for node in watched(ray.nodes, resources)
        if workers_on(node, resources)
    ]
    return max(1.0, float(min(amounts, default=1)))


def missing_nodes(resources: Resources) -> str:
    """What a cluster that has shrunk lacks, so that trials wait. Empty if one fits, and for a
    cluster that was started for the study: its only node cannot leave. Raises HeadLost.
    """

    def ask() -> str:
        nodes = ray.nodes()
        try:
            slots(resources, nodes)
        except ValueError as refusal:
            return _lack(resources, nodes) or str(refusal)
        return ""

    return watched(ask, resources) if resources.address else ""


def check_nodes(store: Store, study: Study, resources: Resources) -> list[str]:
    """Warnings of nodes that do not answer, whose clocks differ from the store's, or that have
    other code. Raises ValueError naming nodes on which trials would fail, and HeadLost.

    A node must see the driver's store. Where trials fit or teams may be led, which is on any node,
    it must have vitscale and be able to use the store; where trials fit, it must have the datasets.
    """
    configs = [trial.config for trial in study.trials]
    datasets = sorted({config.dataset for config in configs if config.reads_images})
    arguments = (store, study.slug, store.nonce(study.slug), datasets, resources.data_root)
    nodes, answers = watched(
        lambda: (ray.nodes(), ask_nodes(_look, *arguments, timeout_s=CHECK_STORE_S)), resources
    )
    used = {label(node) for node in nodes if workers_on(node, resources)}
    sights = {node: _sight(answer) for node, answer in answers.items()}
    if blind := [node for node, sight in sights.items() if not sight.store]:
        raise ValueError(
            "the store must be one folder that all nodes see, but got "
            f"(store={str(store.root)!r}, another one on: {', '.join(blind)})"
        )
    needed = used  # any node may lead a team, and a leader reads no data
    if resources.workers_per_trial > 1:
        needed = used | {node for node, sight in sights.items() if not sight.lacks_data}
    failures = [
        (node, sight.reason) for node, sight in sights.items() if sight.reason and node in needed
    ]
    if failures:
        node, reason = failures[0]
        more = f", and {len(failures) - 1} more nodes" if failures[1:] else ""
        raise ValueError(
            f"each node must have what a trial needs, but got ({node}: {reason}{more}); "
            "`vitscale doctor --address` asks all nodes"
        )
    silent = (
        f"{node} did not answer whether it sees the store and the data; a trial there waits until "
        "it does"
        for node in sorted(used - sights.keys())
    )
    apart = [
        clock_apart(f"of {node}", sight.clock_ahead_s, store.in_bucket and node in needed)
        for node, sight in sights.items()
    ]
    return [*silent, *filter(None, [*apart, _other_code(sights, used)])]


def _other_code(sights: Mapping[str, Sight], used: Collection[str]) -> str:
    """A warning if nodes would train with other code or other packages than the driver's."""
    codes = {node: sight.code for node, sight in sights.items() if node in used}
    others = [(node, code) for node, code in codes.items() if code not in ("", _code())]
    if not others:
        return ""
    node, code = others[0]
    more = f", and {len(others) - 1} more nodes" if others[1:] else ""
    return f"{node}{more} will train with other code or packages ({code}; here: {_code()})"


class Sight(NamedTuple):
    """What a node sees of what trials need."""

    store: bool = True  # the driver's, and not another one
    reason: str = ""  # why it cannot read the store or a dataset, in one line
    lacks_data: bool = False  # a dataset, which it needs only where trials fit
    clock_ahead_s: float = 0.0  # of the store's
    code: str = ""  # the commit of vitscale, and versions of packages


def _sight(answer: Any) -> Sight:
    """What a node sees, from its answer. A node that was lost meanwhile counts as one that sees
    all: each claim checks again.
    """
    if isinstance(answer, ray.exceptions.RayTaskError):
        return Sight(reason=str(answer).strip().splitlines()[-1])
    if isinstance(answer, ray.exceptions.RayError):
        return Sight()
    return answer if isinstance(answer, Sight) else Sight(code="another version of vitscale")


def _look(store: Store, slug: str, nonce: str, datasets: Sequence[str], data_root: str) -> Sight:
    """Runs on a node; the driver waits for CHECK_STORE_S."""
    store = store.impatient()
    try:
        store.check_shared(slug, nonce, patience_s=30)
    except NotShared:
        return Sight(store=False)
    except OSError as error:  # a bucket, say, without credentials there
        return Sight(reason=f"it cannot read the store: {error}")
    try:  # what a worker writes first: nodes may run as another user
        store.check_permitted(slug)
        store.check_trials_writable()
    except (OSError, ValueError) as error:
        return Sight(reason=f"it cannot write to the store: {error}")
    try:
        for dataset in datasets:
            check_readable(dataset, data_root)
    except ValueError as error:
        return Sight(reason=str(error), lacks_data=True)
    return Sight(clock_ahead_s=store.clock_ahead_s(slug), code=_code())


class Hardware(NamedTuple):
    """What decides how fast a node trains, beside its cores."""

    shm_bytes: int | None  # that are free; None: no /dev/shm
    capabilities: tuple[float, ...] = ()  # of compute, of each card that NVIDIA's tool lists


def look_at_hardware(study: Study, resources: Resources, data: Data) -> list[str]:
    """Hints about slow arithmetic on GPUs, and warnings of nodes whose shared memory is too small
    for the batches of their readers.

    Asks only nodes on which trials fit, and none if neither can concern the study. Raises HeadLost.
    """
    configs = [trial.config for trial in study.trials]
    trains = resources.device_name() == "cuda" and not study.measures
    slow = trains and any(c.precision == "fp32" for c in configs)
    cores = int(resources.cpus_per_trial)
    readers = num_readers(resources.num_loader_workers, cores, data.is_on_disk)
    if not slow and not readers:
        return []
    nodes, answers = watched(
        lambda: (ray.nodes(), ask_nodes(_hardware, timeout_s=CHECK_STORE_S)), resources
    )
    num = {label(node): workers_on(node, resources) for node in nodes}
    hardware = {
        node: has for node, has in answers.items() if isinstance(has, Hardware) and num.get(node)
    }
    most = resources.max_concurrent * resources.workers_per_trial
    lines = []
    if readers:
        needs = {node: min(num[node], most or num[node]) * readers for node in hardware}
        lines += list(_short_of_shm(hardware, needs, data.batch_bytes))
    if slow and (
        hint := tensor_core_hint([c for has in hardware.values() for c in has.capabilities])
    ):
        lines.append(hint)
    return lines


def _short_of_shm(
    hardware: Mapping[str, Hardware], readers: Mapping[str, int], batch_bytes: int
) -> Iterator[str]:
    """A warning of each node on which two batches of each reader do not fit."""
    for node, has in hardware.items():
        needed = 2 * readers[node] * batch_bytes
        if has.shm_bytes is not None and needed > has.shm_bytes:
            yield (
                f"/dev/shm must hold two batches per reader, or trials may end with a bus error, "
                f"but got ({node}: {has.shm_bytes / 2**30:.3g} GiB free, {readers[node]} readers "
                f"need up to {needed / 2**30:.3g} GiB); enlarge it (Docker: --shm-size), or give "
                "fewer readers by --num-loader-workers"
            )


def tensor_core_hint(capabilities: Collection[float]) -> str:
    """A line for a study in fp32, by the compute capabilities of the cards; empty if all are from
    before tensor cores (7.0).
    """
    if not any(c >= TENSOR_CORES for c in capabilities):
        return ""
    faster = "bf16 or tf32" if max(capabilities) >= TENSOR_CORES_OF_BF16 else "fp16"
    return (
        f"trials in fp32 do not use the tensor cores of the GPUs here; in {faster} (the field "
        "precision) matrix products are several times as fast, with other rounding and ids"
    )


def _hardware() -> Hardware:
    """Runs on a node."""
    shm_bytes: int | None = None
    with contextlib.suppress(OSError):
        shm_bytes = shutil.disk_usage("/dev/shm").free
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return Hardware(shm_bytes, tuple(float(line) for line in answer.stdout.split()))
    except (OSError, subprocess.SubprocessError, ValueError):  # no tool, or one without the query
        return Hardware(shm_bytes)


def _code() -> str:
    """What decides the numbers of a trial, besides its config and device."""
    facts = provenance()
    return f"commit {facts['commit'] or 'unknown'}; {facts['versions']}"


def ask_nodes(
    question: Callable[..., T], *arguments: Any, timeout_s: float
) -> dict[str, T | ray.exceptions.RayError]:
    """Node -> the answer of a function that runs on each node of the cluster, or how it failed.

    Nodes that do not answer in time are left out.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(question)
    nodes = {
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(*arguments): label(node)
        for node in ray.nodes()
        if node["Alive"]
    }
    answers, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=timeout_s)
    return {nodes[answer]: _result(answer) for answer in answers}


def _result(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except ray.exceptions.RayError as error:
        return error


def label(node: Node) -> str:
    return f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})"


def resources_of_nodes() -> list[str]:
    """One line per node of the cluster: its address, cores, GPUs with their type, memory."""
    lines = []
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            gpus = f"{has.get('GPU', 0):g} GPUs{''.join(f' {kind}' for kind in _gpu_kinds(node))}"
            memory = f"{has.get('memory', 0) / 2**30:.0f} GiB"
            lines.append(
                f"{node['NodeManagerAddress']} {has.get('CPU', 0):g} cores, {gpus}, {memory}"
            )
    return lines


def kinds_of_gpus(resources: Resources) -> list[str]:
    """The types of GPUs that nodes of the cluster have, by Ray's names. Raises HeadLost."""
    kinds = set()
    for node in watched(ray.nodes, resources):
        if node["Alive"] and node["Resources"].get("GPU", 0):
            kinds |= set(_gpu_kinds(node)) or {"of no name"}
    return sorted(kinds)


def _gpu_kinds(node: Node) -> list[str]:
    prefix = "accelerator_type:"
    return [name.removeprefix(prefix) for name in node["Resources"] if name.startswith(prefix)]
