"""What does orchestration cost a trial that is trivial to train?

Three contestants train the same trials, the project's own trainer for one epoch of digits with a
ViT of width 16 and depth 1 (some 60 ms of CPU, loading digits included), each run in a fresh
process with a fresh Ray cluster, MLflow database and store:

    tune-default  Ray Tune as it comes: a process a trial, default loggers, no MLflow
    tune-tuned    Ray Tune at its best: workers reused, no loggers, one report per trial, no MLflow
    vitscale      a Study, run: workers reused, claims, checkpoints, rows, MLflow, report
    loop          for scale: the trainer alone in one warm process, no Ray; one trial at a time

Seconds a trial are a slope, (time of many trials - time of few) / (many - few), so what a run pays
once cancels: the first import of torch and timm in each worker, creating the MLflow database. The
clock leaves out starting Python, starting and stopping Ray, for all, and drawing the report, for
vitscale; all of them stand in the column `once`. What MLflow has left to write when the last trial
ends is on the clock, and nothing else runs while it is written. The first imports vary by half a
second or more, so the two sizes must lie far apart, and the machine must be quiet.

    python benchmarks/overhead.py  # about 10 minutes on 2 cores, which must be quiet
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vitscale import Study, TrainConfig, Trial

BASE = TrainConfig(
    width=16, depth=1, heads=2, mlp_ratio=2.0, batch_size=256, epochs=1, warmup_epochs=0.0
)
CONTESTANTS = ("tune-default", "tune-tuned", "vitscale", "loop")
AIMS = (("tune-default", "vitscale", ">=", 10.0), ("vitscale", "tune-tuned", "<=", 1.2))


@dataclass(frozen=True)
class Run:
    """One process that trained `num` trials."""

    num: int
    clock_s: float
    # of the driver with all its threads, without Ray's own processes and workers
    driver_cpu_s: float
    total_s: float  # wall, from the start of the process to its exit
    parts_s: dict[str, float]  # wall


@dataclass(frozen=True)
class Pair:
    """Two runs of one contestant that differ in the number of trials."""

    few: Run
    many: Run

    @property
    def trial_s(self) -> float:
        return (self.many.clock_s - self.few.clock_s) / (self.many.num - self.few.num)

    @property
    def driver_cpu_s(self) -> float:
        return (self.many.driver_cpu_s - self.few.driver_cpu_s) / (self.many.num - self.few.num)

    @property
    def once_s(self) -> float:
        return self.many.total_s - self.many.num * self.trial_s


# In the child process: one contestant, one number of trials


def contest(name: str, num: int, slots: int, folder: Path) -> dict[str, float]:
    """Seconds by part, `clock` among them, of one contestant.

    Raises RuntimeError unless all trials finish.
    """
    if name == "loop":
        return run_loop(num, folder)
    if name == "vitscale":
        return run_vitscale(num, slots, folder)
    return run_tune(num, slots, folder, tuned=name == "tune-tuned")


def trivial(params: dict[str, Any]) -> None:
    """A Tune trainable: one trial of the project's trainer, one report with its last row."""
    from ray import tune

    from vitscale.train.loop import train

    last: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=params["folder"]) as workdir:
        for row in train(BASE.replace(seed=params["seed"]), Path(workdir)):
            last = row
    tune.report(last)


def run_tune(num: int, slots: int, folder: Path, tuned: bool) -> dict[str, float]:
    """Ray Tune without vitscale's launcher.

    The loggers of Tune are switched by the environment (see `environment`).
    """
    import ray
    from ray import tune

    with timed() as init:
        ray.init(num_cpus=slots, include_dashboard=False, log_to_driver=False)
    with timed() as clock:
        results = tune.Tuner(
            trivial,
            param_space={"seed": tune.grid_search(list(range(num))), "folder": str(folder)},
            tune_config=tune.TuneConfig(reuse_actors=tuned),
            run_config=tune.RunConfig(
                storage_path=str(folder / "tune"), verbose=0 if tuned else None
            ),
        ).fit()
    rows = [results[i].metrics for i in range(len(results))]
    check(num, sum(row is not None and row.get("epoch") == BASE.epochs for row in rows))
    with timed() as shutdown:
        ray.shutdown()
    return {"clock": clock(), "ray start": init(), "ray stop": shutdown()}


def run_vitscale(num: int, slots: int, folder: Path) -> dict[str, float]:
    """The real thing: driver.run of a study, in a fresh store
    and a fresh MLflow database (see `environment`).
    """
    from vitscale.launch import driver
    from vitscale.launch.resources import Resources
    from vitscale.record.store import Store

    trials = tuple(Trial("trivial", BASE.replace(seed=seed), seed) for seed in range(num))
    study = Study(
        kind="distribution",
        name="overhead",
        scale="demo",
        question="What does a trial cost?",
        source="none",
        trials=trials,
    )
    store = Store.open(folder / "store")
    resources = Resources(max_concurrent=slots if slots < (os.cpu_count() or 1) else 0)
    with timed() as whole, stopwatches() as parts:
        code = driver.run(study, store, resources)
    check(0, code)
    check(num, sum(store.read(trial.config.id).status == "finished" for trial in trials))
    aside = ("ray start", "ray stop", "report")
    return {"clock": whole() - sum(parts[name] for name in aside), **parts}


@contextlib.contextmanager
def stopwatches() -> Iterator[dict[str, float]]:
    """Times the parts of driver.run, and lets MLflow write all it
    has before Ray stops: no overlap hides its cost.
    """
    from vitscale.analysis.report import draw as drawing
    from vitscale.launch import cluster as joining
    from vitscale.record.mlflow import mirror

    parts: dict[str, float] = {}
    mirrors: list[mirror.Mirror] = []
    cluster, draw = joining.cluster, drawing.draw

    class Watched(mirror.Mirror):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            mirrors.append(self)

    @contextlib.contextmanager
    def timed_cluster(*args: Any) -> Iterator[None]:
        inner = cluster(*args)
        with timed() as start:
            inner.__enter__()
        with timed() as trials:
            yield
        with timed() as drain:
            mirrors[0].closing.set()
            mirrors[0].thread.join()
        with timed() as stop:
            inner.__exit__(None, None, None)
        parts.update(
            {"ray start": start(), "trials": trials(), "mlflow drain": drain(), "ray stop": stop()}
        )

    def timed_draw(*args: Any) -> Any:
        with timed() as elapsed:
            drawn = draw(*args)
        parts["report"] = elapsed()
        return drawn

    swap = mock.patch.object
    with (
        swap(joining, "cluster", timed_cluster),
        swap(drawing, "draw", timed_draw),
        swap(mirror, "Mirror", Watched),
    ):
        yield parts


def run_loop(num: int, folder: Path) -> dict[str, float]:
    """The trainer alone, one trial after another in this
    process, with one thread as in a Ray worker.
    """
    import torch

    from vitscale.train.loop import train

    torch.set_num_threads(1)
    with timed() as clock:
        rows = []
        for seed in range(num):
            with tempfile.TemporaryDirectory(dir=folder) as workdir:
                rows += list(train(BASE.replace(seed=seed), Path(workdir)))
    check(num, len(rows))
    return {"clock": clock()}


def check(want: int, have: int) -> None:
    if want != have:
        raise RuntimeError(f"every trial must finish, but got (want={want}, have={have})")


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Yields a function that gives the seconds spent inside."""
    start = end = time.perf_counter()
    try:
        yield lambda: end - start
    finally:
        end = time.perf_counter()


# In the parent process: interleaved repeats and the table


def run(name: str, num: int, slots: int) -> Run:
    """Runs one contestant in a fresh process and folder.

    Raises RuntimeError with the end of its output if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="overhead-") as text:
        folder = Path(text)
        command = [
            sys.executable,
            __file__,
            "--contest",
            name,
            "--trials",
            str(num),
            "--slots",
            str(slots),
        ]
        with timed() as total:
            done = subprocess.run(
                [*command, "--folder", text], env=environment(name, folder), capture_output=True
            )
        if done.returncode:
            raise RuntimeError(
                f"{name} failed:\n{(done.stdout + done.stderr).decode(errors='replace')[-4000:]}"
            )
        parts = json.loads((folder / "parts.json").read_text())
    return Run(num, parts.pop("clock"), parts.pop("driver cpu"), total(), parts)


def environment(name: str, folder: Path) -> dict[str, str]:
    """This environment without the user's settings of Ray
    and Tune, plus those of the contestant.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("RAY_", "TUNE_", "MLFLOW_", "VITSCALE_"))
    }
    kept |= {"RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    return kept | ({"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"} if name == "tune-tuned" else {})


def measure(options: argparse.Namespace) -> dict[str, list[Pair]]:
    """Pairs of runs by contestant, all contestants in turn
    within a repeat, so that drift hits all alike.
    """
    pairs: dict[str, list[Pair]] = {name: [] for name in CONTESTANTS}
    for repeat in range(options.repeats):
        for name in CONTESTANTS:
            many, few = options.trials, options.small
            if name == "tune-default":
                many, few = options.reuse_free_trials, options.reuse_free_trials // 2
            pair = Pair(few=run(name, few, options.slots), many=run(name, many, options.slots))
            pairs[name].append(pair)
            print(
                (
                    f"repeat {repeat + 1}/{options.repeats}  {name}: {1000 * pair.trial_s:.0f} ms "
                    f"per trial  load {os.getloadavg()[0]:.1f}  {parts_line(pair.many)}"
                ),
                file=sys.stderr,
            )
    return pairs


def parts_line(done: Run) -> str:
    return f"{done.num} trials in {done.total_s:.1f} s: " + ", ".join(
        f"{k} {v:.2f}" for k, v in done.parts_s.items()
    )


def table(pairs: dict[str, list[Pair]], repeats: int) -> str:
    """Markdown: median (min to max) over the repeats."""
    lines = [
        f"median of {repeats} (min to max)\n",
        (
            "| contestant | trials | ms per trial | trials/s | driver CPU, ms per trial | "
            "once, s | total, s |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, entries in pairs.items():
        sizes = f"{entries[0].many.num} - {entries[0].few.num}"
        trial_ms = [1000 * entry.trial_s for entry in entries]
        cpu_ms = [1000 * entry.driver_cpu_s for entry in entries]
        once, total = [e.once_s for e in entries], [e.many.total_s for e in entries]
        lines.append(
            f"| {name} | {sizes} | {spread(trial_ms, 0)} | "
            f"{1000 / statistics.median(trial_ms):.1f} | {spread(cpu_ms, 0)} | {spread(once, 1)} "
            f"| {spread(total, 1)} |"
        )
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    return (
        f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to "
        f"{max(values):.{digits}f})"
    )


def ratios(pairs: dict[str, list[Pair]]) -> str:
    """Ratios of the medians, with the spread of the ratios
    within repeats, and whether the aims are reached.
    """
    return "\n".join(verdict(above, below, sign, aim, pairs) for above, below, sign, aim in AIMS)


def verdict(above: str, below: str, sign: str, aim: float, pairs: dict[str, list[Pair]]) -> str:
    """One ratio against its aim; none if more trials once
    took less time, which only a busy machine does.
    """
    over, under = ([pair.trial_s for pair in pairs[name]] for name in (above, below))
    if min(over + under) <= 0:
        return (
            f"{above} / {below}: NOT measured, the machine is too busy for a slope; aim {sign} "
            f"{aim:g}"
        )
    ratio = statistics.median(over) / statistics.median(under)
    within = [x / y for x, y in zip(over, under, strict=True)]
    reached = "reached" if (ratio >= aim if sign == ">=" else ratio <= aim) else "NOT reached"
    if min(within) < aim < max(within):
        reached += " by the medians, but NOT settled: the repeats lie on both sides"
    return (
        f"{above} / {below} = {ratio:.2f} (by repeat {min(within):.2f} to {max(within):.2f}), "
        f"aim {sign} {aim:g}: {reached}"
    )


def header(options: argparse.Namespace) -> str:
    from importlib.metadata import version

    from vitscale.record.provenance import provenance

    facts = provenance()
    load = " ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"overhead of a trivial trial, {time.strftime('%Y-%m-%d %H:%M')}, {options.slots} trials "
        f"at a time\nmachine: {facts['machine']}; load average at the start {load}\nversions: "
        f"{facts['versions']}, mlflow {version('mlflow')}; commit {facts['commit']}\ntrials: "
        f"{BASE.non_default()}, {BASE.num_steps} steps, seeds from 0"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=200, help="of a long run (default: %(default)s)"
    )
    parser.add_argument(
        "--small", type=int, default=20, help="trials of a short run (default: %(default)s)"
    )
    parser.add_argument(
        "--reuse-free-trials",
        type=int,
        default=8,
        help=("of a long run of tune-default; a short one has half (default: %(default)s)"),
    )
    parser.add_argument("--repeats", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--slots",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="trials at a time, one core each (default: %(default)s)",
    )
    # the child process
    parser.add_argument("--contest", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (
        not options.contest
        and not options.trials > options.small >= 1 <= options.reuse_free_trials // 2
    ):
        parser.error("trials > small >= 1 and reuse_free_trials >= 2 must hold")
    return options


def main() -> None:
    options = parse()
    if options.contest:
        parts = contest(options.contest, options.trials, options.slots, options.folder)
        (options.folder / "parts.json").write_text(
            json.dumps({"driver cpu": time.process_time(), **parts})
        )
        return
    print(header(options), flush=True)
    with timed() as took:
        pairs = measure(options)
    print(f"load average at the end {os.getloadavg()[0]:.2f}; took {took() / 60:.1f} minutes\n")
    print(table(pairs, options.repeats), "\n\n", ratios(pairs), sep="")


if __name__ == "__main__":
    main()
