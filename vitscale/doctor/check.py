"""What a check is, what it is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """What a check found, in one line, and the numbers behind it."""

    verdict: Verdict
    detail: str
    values: Mapping[str, float | str] = field(default_factory=dict)
    advice: str = ""  # about this failure, instead of the check's


def passed(detail: str, **values: float | str) -> Finding:
    return Finding(Verdict.PASS, detail, values)


def failed(detail: str, **values: float | str) -> Finding:
    return Finding(Verdict.FAIL, detail, values)


def not_applicable(reason: str) -> Finding:
    return Finding(Verdict.NOT_APPLICABLE, reason)


def judged(holds: bool, detail: str, **values: float | str) -> Finding:
    """Passed if the condition holds, else failed."""
    return passed(detail, **values) if holds else failed(detail, **values)


@dataclass(frozen=True)
class Machine:
    """What to check: the options of the command, and one device."""

    device: str = "cpu"  # "cpu", or "cuda:0"
    num_gpus: int = 0  # that torch sees
    wants_gpu: bool = False  # whether the user asked for one
    store: str = ""
    address: str = ""  # of a Ray cluster; empty: one is started and stopped
    mlflow: str = ""  # tracking URI; empty: a temporary database

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


Kind = Literal["software", "device", "trainer", "store", "ray", "mlflow"]


@dataclass(frozen=True)
class Check:
    """One row of the table, or one row per device."""

    kind: Kind
    name: str
    run: Callable[[Machine], Finding]
    advice: str  # what to do about a failure
    on_each_device: bool = False
    takes_long: bool = False  # left out by --quick
    is_beside: bool = False  # needs no device, so it may run beside those that do
    limit_s: float = 60.0  # a check that takes longer has failed
