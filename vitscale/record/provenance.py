"""Provenance of a result: commit, versions, machine."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from vitscale.plan.profile import processor_name


@functools.cache
def provenance() -> dict[str, str]:
    """Commit of the code, versions that affect results, and the machine; cached per process."""
    return {"commit": _commit(), "versions": _versions(), "machine": _machine()}


def _commit() -> str:
    """Short hash of this checkout, with "+changes" if dirty; the version outside a checkout."""
    try:
        # else the surrounding checkout is of another project
        _git("ls-files", "--error-unmatch", __file__)
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return f"vitscale {metadata.version('vitscale')}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()


def _versions() -> str:
    names = ("vitscale", "torch", "timm", "numpy", "ray")
    found = [f"{name} {version}" for name in names if (version := _version(name))]
    return ", ".join([f"python {platform.python_version()}", *found])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _machine() -> str:
    return (
        f"{processor_name()}, {os.cpu_count()} cores{_gpus()}, {platform.system()} "
        f"{platform.machine()}"
    )


def _gpus() -> str:
    """Names of the visible GPUs, if torch is loaded already: importing it would take seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return "".join(f", {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count()))
