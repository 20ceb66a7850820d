"""The store: its speed in a folder against another checkout, and requests per trial in a bucket.

python benchmarks/store.py --against ../vitscale-before   # pairs of runs, in folders
python benchmarks/store.py --requests                     # on moto's S3 server, on loopback
python benchmarks/store.py --commands 10000               # a finished study in a folder
python benchmarks/store.py --commands 10000 --bucket      # in a bucket
python benchmarks/store.py --commands 100000 --no-mlflow  # status, plan and report alone
python benchmarks/store.py --commands 100000 --folder large  # kept, and used by the next call
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHECKPOINT = os.urandom(100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of vitscale")
    parser.add_argument("--requests", action="store_true", help="count requests per trial")
    parser.add_argument("--commands", type=int, help="trials of a finished study")
    parser.add_argument("--bucket", action="store_true", help="which is in a bucket")
    parser.add_argument("--no-mlflow", action="store_true", help="no runs, no start, no sync")
    parser.add_argument("--folder", type=Path, help="where the study is made, unless it is there")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--num", type=int, default=200, help="trials in a folder")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(local(options.num)))
    if options.against:
        compare(options.against, options.pairs, options.num)
    if options.requests:
        count()
    if options.commands:
        commands(options.commands, options.bucket, not options.no_mlflow, options.folder)


def local(num: int) -> dict[str, float]:
    """CPU ms per trial of what workers, and what drivers, do with a store in a folder."""
    from vitscale.record.outcome import Outcome, Status
    from vitscale.record.store import Store

    rows = tuple({"epoch": float(e), "step": 5.0 * e, "loss": 1.0 / e} for e in range(1, 11))
    ids = [f"{n:012x}" for n in range(num)]
    with tempfile.TemporaryDirectory() as folder:
        store, took = Store.open(folder), {}
        start = time.process_time()
        for trial_id in ids:
            workdir = store.claim(trial_id, {"lr": 0.1}, "s", 1)
            for step in range(3):
                workdir.write(f"checkpoint-{step}", CHECKPOINT)
            store.finish(workdir, Outcome(Status.FINISHED, rows, {"commit": "abc"}))
        took["train"] = time.process_time() - start
        start = time.process_time()
        for _ in range(5):
            assert all(map(store.is_done, ids))
            with store.drive("s-demo"), getattr(store, "planning", contextlib.nullcontext)():
                pass
            for trial_id in ids:
                store.read(trial_id)
        took["start"] = (time.process_time() - start) / 5
    return {name: 1000 * seconds / num for name, seconds in took.items()}


def compare(other: Path, num_pairs: int, num: int) -> None:
    """Prints the ratio of this checkout over the other one, of alternating runs."""
    command = [sys.executable, str(Path(__file__).absolute()), "--step", "--num", str(num)]
    times: dict[str, list[dict[str, float]]] = {"here": [], "there": []}
    for number in range(num_pairs):
        for name in ("here", "there") if number % 2 else ("there", "here"):
            path = str(ROOT if name == "here" else other.absolute())
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
            )
            times[name].append(json.loads(done.stdout))
    for step in times["here"][0]:
        here, there = ([run[step] for run in times[name]] for name in ("here", "there"))
        ratios = [a / b for a, b in zip(here, there, strict=True)]
        print(
            f"{step:6} CPU ms per trial {statistics.median(here):7.2f}, there "
            f"{statistics.median(there):7.2f}; ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}), n={num_pairs} pairs of {num} trials"
        )


def commands(num: int, in_bucket: bool, in_mlflow: bool, at: Path | None = None) -> None:
    """Prints what commands need for a finished study, with all its runs in MLflow or without."""
    sys.path.insert(0, str(ROOT / "tests"))
    load_script = importlib.import_module("conftest").load_script
    load = importlib.import_module("golden.capture").load
    script = ROOT / "studies" / "lr_wd_edf.py"
    per_arm = num // 4 - 4  # and four reference runs
    study = load_script(script).study(num=per_arm)
    outcomes = [end for end in load(study.slug)[1].values() if end.status == "finished"]
    with contextlib.ExitStack() as stack:
        folder = str(at.absolute()) if at else stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        root = "s3://studies/runs" if in_bucket else f"{folder}/runs"
        if in_bucket:
            stack.enter_context(served(Counted()))
        if in_bucket or not Path(root).exists():
            put = put_object if in_bucket else put_file
            made = fill(root, study, outcomes, put, in_mlflow)
            print(f"{len(study.trials)} trials of {len(outcomes[0].rows)} rows in {made:.0f} s")
        run = [sys.executable, str(script), "--num", str(per_arm), "--store", root]
        vitscale = [sys.executable, "-m", "vitscale"]
        report = [*vitscale, "report", study.slug, "--store", root]
        steps = {
            "status, no copy": [*vitscale, "status", "--store", root],
            "start, no copy": run,
            "report, no copy": report,
            "start, nothing changed": run,
            "status": [*vitscale, "status", "--store", root],
            "plan": [*run, "--plan"],
            "report": report,
            "sync": [*vitscale, "sync", study.slug, "--store", root],
            "sync, nothing changed": [*vitscale, "sync", study.slug, "--store", root],
            "sync --reread": [*vitscale, "sync", study.slug, "--reread", "--store", root],
        }
        left_out = {"report, no copy"} if in_mlflow else {"start", "sync"}
        for name, command in steps.items():
            if not left_out & {name, name.split()[0].rstrip(",")}:
                measure(name, command, folder)


def measure(name: str, command: list[str], folder: str) -> None:
    """Prints seconds, CPU seconds with those of children, and the memory at most of a command: of
    its largest process, and of all together, in which pages that forks share count once.
    """
    start, together, ended = time.monotonic(), 0, 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(f"{folder}/said", "w+") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
        while not ended:
            time.sleep(0.2)
            together = max(together, memory(process.pid))
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        said.seek(0)
        text = said.read()
    print(
        f"{name:26} {time.monotonic() - start:6.1f} s {used.ru_utime + used.ru_stime:6.1f} CPU s "
        f"{used.ru_maxrss / 1024:6.0f} MB, {together / 2**20:6.0f} MB together; load "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if os.waitstatus_to_exitcode(status):
        print(text[-2000:])


def memory(pid: int) -> int:
    """Bytes of a process and all below it."""
    import psutil

    with contextlib.suppress(psutil.Error):
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return sum(child.memory_full_info().pss for child in family)
    return 0


def fill(
    root: str,
    study: Any,
    outcomes: list[Any],
    put: Callable[[str, bytes], None],
    in_mlflow: bool = True,
) -> float:
    """Makes a finished study, without the store's care for each file; the seconds it took."""
    from vitscale.plan.study import to_json
    from vitscale.record.rows import encode
    from vitscale.record.store import Store

    start, draws = time.monotonic(), random.Random(0)
    fixed = ("epoch", "step", "samples", "diverged")
    for number, trial in enumerate(study.trials):
        outcome = outcomes[number % len(outcomes)]
        rows = tuple(
            {
                **{k: v if k in fixed else v * draws.uniform(0.999, 1.0) for k, v in row.items()},
                "unix_s": 1e9 + row["epoch"],
            }
            for row in outcome.rows
        )
        place, config = f"{root}/trials/{trial.config.id}", trial.config.non_default()
        put(f"{place}/config.json", json.dumps(config).encode())
        put(f"{place}/checkpoint-000000620-x.pt", b"x")
        put(f"{place}/rows.parquet", encode(trial.config.id, replace(outcome, rows=rows)))
    store = Store.open(root)
    store.study(study.slug).write("plan.json", json.dumps(to_json(study)).encode())
    if in_mlflow:
        from vitscale.launch.colors import arm_colors

        fill_mlflow = importlib.import_module("mlflow_scale").fill
        fill_mlflow(store, study, replace(outcome, rows=rows), arm_colors)
    return time.monotonic() - start


def put_file(path: str, content: bytes) -> None:
    """Without fsync."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_bytes(content)


def put_object(address: str, content: bytes) -> None:
    """Straight into moto's memory."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    key = address.removeprefix("s3://studies/")
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("studies", key, content)


class Counted:
    """Moto's S3 as an application that counts requests and bytes."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.application: Any = DomainDispatcherApplication(create_backend_app)
        self.requests: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = environ["REQUEST_METHOD"]
        if "list-type" in environ.get("QUERY_STRING", ""):
            kind = "LIST"
        self.requests[kind] += 1
        self.num_bytes["up"] += int(environ.get("CONTENT_LENGTH") or 0)
        for part in self.application(environ, start_response):
            self.num_bytes["down"] += len(part) if kind != "HEAD" else 0
            yield part

    def since(self) -> str:
        """What was counted since the last call."""
        parts = [f"{number} {name}" for name, number in sorted(self.requests.items())]
        text = (
            f"{self.requests.total():4} requests ({', '.join(parts)}), "
            f"{self.num_bytes['up'] / 1e3:.0f} kB up, {self.num_bytes['down'] / 1e3:.0f} kB down"
        )
        self.requests.clear()
        self.num_bytes.clear()
        return text


def count() -> None:
    """Prints the requests of each part of a study's life."""
    os.environ["VITSCALE_LEASE_S"] = "3600"  # no renewals, of which there are four in a lease
    with served(Counted()) as counted:
        life(counted)
        for num in (2, 6):
            study(counted, num)


@contextlib.contextmanager
def served(counted: Counted) -> Iterator[Counted]:
    """A server of this process with the bucket `studies`, of which the environment speaks."""
    import logging

    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, counted, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": (url := f"http://127.0.0.1:{server.server_port}"),
    }
    request = urllib.request.Request(f"{url}/studies", method="PUT", data=b"")
    urllib.request.urlopen(request).close()
    counted.since()
    yield counted
    server.shutdown()


def life(counted: Counted) -> None:
    from vitscale.launch.resources import Resources
    from vitscale.launch.worker import train_trial
    from vitscale.plan.config import TrainConfig
    from vitscale.record.store import Store

    base = TrainConfig(width=16, heads=2, depth=1, batch_size=64, warmup_epochs=1.0)
    store = Store.open("s3://studies/runs")
    print(f"open and probe             {counted.since()}")
    with store.drive("s-demo"):
        print(f"lock of the driver         {counted.since()}")
        for name, epochs, every_s in (
            ("a trial of 2 epochs", 2, 1e6),
            ("a trial of 9 epochs", 9, 0.0),
        ):
            config = base.replace(epochs=epochs)
            resources = Resources(checkpoint_every_s=every_s)
            start = time.monotonic()
            fields = config.non_default()
            list(train_trial(config.id, fields, store, "s-demo", 1, resources))
            seconds = time.monotonic() - start
            print(f"{name:26} {counted.since()}; {seconds:.1f} s")
    print(f"release of the driver      {counted.since()}")


def study(counted: Counted, num: int) -> None:
    """Prints the requests of a start of a small study, driver, processes of Ray and all, and those
    of the commands that follow. Two sizes show what a trial more costs.
    """
    script = ROOT / "tests" / "studies" / "tiny.py"
    root = f"s3://studies/{num}"
    start = [sys.executable, str(script), "--num", str(num), "--epochs", "2", "--store", root]
    vitscale = [sys.executable, "-m", "vitscale"]
    steps = {
        f"start of {2 * num + 1} trials": start,
        "the same, all done": start,
        "status": [*vitscale, "status", "--store", root],
        "report": [*vitscale, "report", "tiny-demo", "--store", root],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, command in steps.items():
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            print(f"{name:26} {counted.since()}")


if __name__ == "__main__":
    main()
