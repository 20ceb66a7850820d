"""`vitscale doctor`: a table of what works on this machine."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitscale.cli.process import is_live
from vitscale.cli.stores import add_store
from vitscale.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vitscale.doctor.check import Check, Finding

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
STYLES = {"pass": "green", "fail": "bold red", "not applicable": "bright_black"}
EXIT_FAILED = 1


def add_doctor(parsers: Any) -> None:
    """The arguments of `vitscale doctor`."""
    parser = parsers.add_parser(
        "doctor",
        help="try on this machine what studies need: devices, trainer, store, Ray, MLflow",
        description=(
            "Tries each part with the code that studies use, in a minute or two: "
            "devices against the CPU, resume, teams, packing, the store's guarantees, Ray, MLflow. "
            "Exit status: 0 if nothing failed, else 1. Each failure says what to do."
        ),
    )
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        metavar="DEVICE",
        help="cpu, cuda or cuda:1 (default: all GPUs, without one the CPU)",
    )
    add_store(parser)
    parser.add_argument(
        "--address", default="", help="Ray cluster to check (default: one is started and stopped)"
    )
    parser.add_argument(
        "--mlflow",
        default="",
        metavar="URI",
        help="server or database (default: $MLFLOW_TRACKING_URI, else a temporary database)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="without compiling and without trials through Ray"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=doctor)


def _device(text: str) -> str:
    if not DEVICES.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"a device must be auto, cpu, cuda or cuda:N, but got ({text})"
        )
    return text


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    check: Check
    device: str  # empty for a check that no device is part of
    finding: Finding
    spent_s: float

    @property
    def advice(self) -> str:
        """What to do; empty unless the check failed."""
        if self.finding.verdict != "fail":
            return ""
        return self.finding.advice or self.check.advice

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.check.kind,
            "check": self.check.name,
            "device": self.device,
            "result": self.finding.verdict.value,
            "detail": self.finding.detail,
            "values": dict(self.finding.values),
            "advice": self.advice,
            "seconds": round(self.spent_s, 2),
        }


def doctor(options: argparse.Namespace) -> None:
    """Runs all checks and exits with status 1 if one failed."""
    results: list[Result] = []
    with _shown(results) if not options.json else contextlib.nullcontext():
        for result in _results(options):
            results.append(result)
    counts = Counter(result.finding.verdict.value for result in results)
    if options.json:
        checks = [result.as_json() for result in results]
        print_json({"counts": {name: counts[name] for name in STYLES}, "checks": checks})
    else:
        print(", ".join(f"{counts[name]} {word}" for name, word in _WORDS.items()))
    sys.exit(EXIT_FAILED if counts["fail"] else 0)


_WORDS = {"pass": "passed", "fail": "failed", "not applicable": "not applicable"}


def _results(options: argparse.Namespace) -> Iterator[Result]:
    from vitscale.doctor.check import Machine
    from vitscale.doctor.checks import examine
    from vitscale.record.mlflow.place import given_uri

    machine = Machine(
        device=options.device,
        wants_gpu=options.device.startswith("cuda"),
        store=options.store,
        address=options.address,
        mlflow=given_uri(options.mlflow),
    )
    for check, device, finding, spent_s in examine(machine, options.quick):
        yield Result(check, device, finding, spent_s)


@contextlib.contextmanager
def _shown(results: list[Result]) -> Iterator[None]:
    """Shows the results as a table: it grows on a terminal, and is printed at the end elsewhere."""
    from rich.console import Console
    from rich.live import Live

    console = Console(width=None if sys.stdout.isatty() else 150)
    if not is_live(console):
        yield
        _print(results, console)
        return
    with Live(console=console, get_renderable=lambda: table(results), transient=True):
        yield
    _print(results, console)


def _print(results: list[Result], console: Console) -> None:
    from rich.text import Text

    console.print(table(results))
    of_checks = (
        (f"{result.check.kind}, {result.check.name}", result.advice)
        for result in results
        if result.advice
    )
    for name, advice in dict.fromkeys(of_checks):  # once for all devices
        console.print(Text(f"{name}: {advice}"), soft_wrap=True)


def table(results: list[Result]) -> Table:
    """One row per check, or per check and device."""
    from rich.table import Table
    from rich.text import Text

    shown = Table("part", "check", "result", "found", pad_edge=False)
    for result in results:
        name = f"{result.check.name}{f', {result.device}' if result.device else ''}"
        verdict = result.finding.verdict.value
        shown.add_row(
            result.check.kind,
            name,
            Text(verdict, STYLES[verdict]),
            Text(f"{result.finding.detail} ({result.spent_s:.1f} s)"),
        )
    return shown
