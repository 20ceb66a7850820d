"""Versions, driver, limits of the operating system."""

from __future__ import annotations

import contextlib
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vitscale.doctor.check import Finding, Machine, judged, not_applicable, passed
from vitscale.plan.cores import num_cores
from vitscale.record.provenance import installed

SHOWN = ("torch", "torchvision", "timm", "ray", "mlflow")
# Of /dev/shm: at least 1 GiB, and two batches of 512 RGB images of 256 pixels per reader of one
# trial that has all cores (--num-loader-workers auto)
SHM_GIB, READER_GIB = 1.0, 2 * 512 * 3 * 256**2 / 2**30
OPEN_FILES = 4096  # Ray keeps some hundred connections per node, loaders one file per batch


def versions(machine: Machine) -> Finding:
    """Every package that vitscale and torchvision require is installed, in a version allowed."""
    unmet = [*unmet_requirements("vitscale"), *unmet_requirements("torchvision")]
    by_name = {name: installed(name) for name in SHOWN}
    listed = ", ".join(f"{name} {version or 'absent'}" for name, version in by_name.items())
    python = platform.python_version()
    return judged(not unmet, "; ".join([f"python {python}, {listed}", *unmet]), **by_name)


def unmet_requirements(package: str) -> Iterator[str]:
    """Requirements of an installed package, with those of training, that are not met."""
    from packaging.requirements import Requirement

    for text in metadata.requires(package) or () if installed(package) else ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": "train"}):
            continue
        version = installed(requirement.name)
        if not version or not requirement.specifier.contains(version, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            yield f"{package} requires {wanted}, but {version or 'nothing'} is installed"


def driver(machine: Machine) -> Finding:
    """torch sees the GPUs that the driver lists, and was built for them."""
    import torch

    listed, driver_version, trouble = nvidia_smi()
    built = torch.version.cuda or "no CUDA"
    if not torch.cuda.is_available():
        if (cards := nvidia_cards()) or trouble:
            return judged(
                False,
                f"torch {torch.__version__} (built for {built}) sees no GPU, but this machine has "
                f"{cards or 'some'}; nvidia-smi: {trouble or driver_version or 'not found'}",
            )
        if listed or machine.wants_gpu:
            return judged(
                False,
                f"torch {torch.__version__} (built for {built}) sees no GPU; "
                f"the driver ({driver_version or 'none found'}) lists {listed}",
            )
        return not_applicable("no GPU: neither the driver nor torch lists one")
    foreign = [
        f"{torch.cuda.get_device_name(i)} (sm_{major}{minor})"
        for i in range(torch.cuda.device_count())
        for major, minor in [torch.cuda.get_device_capability(i)]
        if not runs_on(major, minor, torch.cuda.get_arch_list())
    ]
    detail = (
        f"{torch.cuda.device_count()} GPUs, torch for CUDA {built}, "
        f"driver {driver_version or 'unknown'}"
    )
    if foreign:
        detail += f"; torch has no kernels for {', '.join(foreign)}"
    return judged(not foreign, detail, cuda=built, driver=driver_version)


def runs_on(major: int, minor: int, architectures: list[str]) -> bool:
    """Whether one of the architectures of a build of torch runs on a compute capability.

    Binaries (sm_80) run on later minor versions of the same major version, intermediate code
    (compute_80) on all later versions.
    """
    for name in architectures:
        kind, _, digits = name.rstrip("abcdefgh").partition("_")
        built = (int(digits[:-1]), int(digits[-1]))
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return False


def nvidia_smi() -> tuple[int, str, str]:
    """The number of GPUs that NVIDIA's own tool lists, the driver's version, and what it says if it
    fails; nothing of these without it.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0, "", ""
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0, "", "did not answer within 20 s"
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines() or ["nothing"]
        return 0, "", f"{said[0][:200]} (exit status {answer.returncode})"
    lines = answer.stdout.split()
    return len(lines), lines[0] if lines else "", ""


def nvidia_cards(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """How many of NVIDIA's display controllers (PCI class 3) this machine has, with or without a
    driver.
    """
    cards = 0
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            cards += vendor == "0x10de" and kind.startswith("0x03")
    return cards


def limits(machine: Machine) -> Finding:
    """Shared memory for loader processes, and files that a process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        gib = shutil.disk_usage("/dev/shm").total / 2**30
    except FileNotFoundError:
        return not_applicable("no /dev/shm")
    needed_gib = max(SHM_GIB, (num_cores() - 1) * READER_GIB)
    detail = f"/dev/shm {gib:.3g} GiB, {soft} open files (hard limit {hard})"
    wanting = [
        law
        for law, holds in (
            (f"/dev/shm >= {needed_gib:.3g} GiB", gib >= needed_gib),
            (f"open files >= {OPEN_FILES}", hard >= OPEN_FILES),
        )
        if not holds
    ]
    if wanting:
        return judged(False, f"{detail}; {' and '.join(wanting)} must hold")
    return passed(detail, shm_gib=gib, open_files=soft)
