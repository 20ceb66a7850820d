"""Ray: the nodes and resources that it sees, and trials that share a device."""

from __future__ import annotations

import contextlib
import queue
import statistics
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from vitscale.doctor.check import Finding, Machine, judged
from vitscale.doctor.storage import scratch
from vitscale.doctor.training import BOUNDS, SMALL, gap, rows
from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_cores
from vitscale.record.store import Store
from vitscale.record.workdir import Workdir

WAIT_S = 20.0  # for nodes of a cluster that scales by itself
NUM_PACKED = 4


def nodes(machine: Machine) -> Finding:
    """Resources of each node; that vitscale is on it, in this version, and sees the store."""
    from vitscale.launch.cluster import cluster
    from vitscale.launch.nodes import ask_nodes, await_slots, resources_of_nodes
    from vitscale.record.provenance import provenance

    gpus = 1.0 if machine.on_gpu else 0.0
    resources = Resources(address=machine.address, gpus_per_trial=gpus)
    with _stop_later(machine) as stop, scratch(machine) as folder:
        folder.write("seen", (name := uuid.uuid4().hex).encode())
        with cluster(resources, _no_log):
            slots = await_slots(resources, stop)
            listed = resources_of_nodes()
            answers = ask_nodes(_report, folder, name, timeout_s=WAIT_S)
    wrong = [f"{node}: {why}" for node, why in _wrong(answers, provenance()["versions"])]
    if len(answers) < len(listed):
        wrong.append(f"{len(listed) - len(answers)} nodes did not answer within {WAIT_S:g} s")
    if not slots:
        wrong.append("no node with the resources of a trial")
    where = f"at {machine.address}" if machine.address else "started here and stopped"
    detail = f"{where}, {len(listed)} nodes: {'; '.join(listed)}; {slots} trials at once"
    return judged(not wrong, "; ".join([detail, *wrong]), num_nodes=len(listed), slots=slots)


def _report(folder: Workdir, name: str) -> tuple[str, bool]:
    """Versions on a node, and whether it sees the file that the command wrote; runs on the node."""
    from vitscale.record.provenance import provenance

    return provenance()["versions"], folder.exists("seen") and folder.read("seen") == name.encode()


def _wrong(
    answers: Mapping[str, tuple[str, bool] | Exception], here: str
) -> Iterator[tuple[str, str]]:
    """(node, what is wrong with it) of each node that gave a wrong answer, or none."""
    for node, answer in answers.items():
        if isinstance(answer, Exception):
            yield node, str(answer).strip().splitlines()[-1]
            continue
        versions, sees = answer
        if versions != here:
            yield node, f"other versions ({versions}; here: {here})"
        if not sees:
            yield node, "does not see the store"


@contextlib.contextmanager
def _stop_later(machine: Machine) -> Iterator[threading.Event]:
    """An event that is set after WAIT_S, if nodes of a cluster are waited for."""
    stop = threading.Event()
    timer = threading.Timer(WAIT_S, stop.set)
    if machine.address:  # a cluster that is started here, however slowly, has its node
        timer.start()
    try:
        yield stop
    finally:
        timer.cancel()


def packed(machine: Machine) -> Finding:
    """Four trials that share a device, through Ray, against the same trials one after another."""
    configs = [SMALL.replace(seed=seed) for seed in range(NUM_PACKED)]
    with tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder:
        store = Store.open(Path(folder) / "runs")
        run_packed(configs, store, machine)
        lost = [config.id for config in configs if not store.is_done(config.id)]
        if lost:
            reason = store.failure(lost[0]) or store.fault(lost[0]) or "no reason known"
            return judged(False, f"{len(lost)} of {NUM_PACKED} trials did not finish: {reason}")
        together = [store.read(config.id).rows for config in configs]
    alone = [rows(config, machine) for config in configs]
    size = max(
        gap(*([row["train_loss"] for row in run] for run in pair))
        for pair in zip(alone, together, strict=True)
    )
    spent_s = [statistics.median(run[-1]["train_s"] for run in runs) for runs in (together, alone)]
    gain = NUM_PACKED * spent_s[1] / spent_s[0]
    detail = (
        f"{NUM_PACKED} trials at once on one device have the losses that they have alone within "
        f"{size:.1e} (bound {BOUNDS['fp32']:.0e}); {spent_s[0]:.2g} s per trial, "
        f"{spent_s[1]:.2g} s alone: {gain:.2g} times as many trials per second as one at a time"
    )
    seconds = {"together_s": spent_s[0], "alone_s": spent_s[1]}
    return judged(size <= BOUNDS["fp32"], detail, **seconds, gain=gain)


def run_packed(configs: Sequence[TrainConfig], store: Store, machine: Machine) -> None:
    """Trains the trials on a Ray of its own, of which each gets a quarter of a device."""
    from vitscale.launch.cluster import cluster
    from vitscale.launch.nodes import await_slots
    from vitscale.launch.tune import Run

    share = 1 / NUM_PACKED
    resources = (
        Resources(gpus_per_trial=share, cpus_per_trial=share)
        if machine.on_gpu
        else Resources(cpus_per_trial=max(0.01, share * num_cores()))
    )
    slug, events, stop = "doctor", queue.Queue[Event](), threading.Event()
    with store.drive(slug) as attempt, cluster(resources, _no_log):
        await_slots(resources, stop)  # refuses what does not fit
        Run(configs, store, slug, attempt, resources, events, stop, _no_log).train()


def _no_log() -> contextlib.AbstractContextManager[TextIO]:
    """Ray's output goes where that of the checks goes."""
    return contextlib.nullcontext(sys.stdout)
