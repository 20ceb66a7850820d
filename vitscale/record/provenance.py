"""Provenance of a result: commit, versions, machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from vitscale.plan.profile import processor_name
from vitscale.record.outcome import Outcome

CHANGES = "+changes"  # after a commit: files that git knows had been edited
MACHINE = re.compile(
    r"(?P<processor>.+?), \d+ cores(?P<gpus>(, .+)?), [^,]+"
)  # as _machine says it


@functools.cache
def provenance() -> dict[str, str]:
    """Commit of the code and a digest of its sources, versions that affect results, and the
    machine; cached per process.
    """
    return {
        "commit": _commit(),
        "sources": sources(),
        "versions": _versions(),
        "machine": _machine(),
    }


@functools.cache
def sources() -> str:
    """A digest of the package's sources, the same in every clone, copy and installation."""
    package, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _commit() -> str:
    """Short hash of this checkout, with "+changes" if dirty; `_release` outside a checkout."""
    try:
        # else the surrounding checkout is of another project
        _git("ls-files", "--error-unmatch", __file__)
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + (CHANGES if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return _release()


def _release() -> str:
    """The version of an installed package; of files that were copied or shipped, as Ray ships a
    working directory without .git, a digest of the package's sources.
    """
    here = Path(__file__).resolve()
    try:
        installed = metadata.distribution("vitscale")
        if Path(str(installed.locate_file("vitscale/record/provenance.py"))).resolve() == here:
            return f"vitscale {installed.version}"
    except metadata.PackageNotFoundError:
        pass
    return f"sources {sources()}"


def _git(*arguments: str) -> str:
    # a clone may belong to another user, and variables may name another repository
    command = ["git", "-c", "safe.directory=*", "-C", str(Path(__file__).parent), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    said = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL, env=environment)
    return said.strip()


def _versions() -> str:
    names = ("vitscale", "torch", "timm", "numpy", "ray")
    versions = [f"{name} {version}" for name in names if (version := installed(name))]
    return ", ".join([f"python {platform.python_version()}", *versions])


def installed(name: str) -> str:
    """The version of an installed package; empty if it is not installed."""
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


def hardware(machine: str, device: str) -> str:
    """The kind of device that a trial ran on, by its recorded machine and device: the name of its
    GPU, or that of the processor; empty if none was recorded.
    """
    parts = MACHINE.fullmatch(machine)
    if parts is None:
        return machine
    gpus = sorted(set(parts["gpus"].split(", ")) - {""})
    return " and ".join(gpus) if device.startswith("cuda") and gpus else parts["processor"]


def describe_commit(commit: str) -> str:
    """A recorded commit in words."""
    name, changed, _ = commit.partition(CHANGES)
    return f"{name} with uncommitted changes" if changed else name


def counted(commits: Iterable[str]) -> str:
    """How many trials by which commit, the most first: "8 by 1a2b, 4 by 3c4d"."""
    return ", ".join(
        f"{num} by {describe_commit(commit)}" for commit, num in Counter(commits).most_common()
    )


def commits_of(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Trial id -> the commit that trained it, of those that recorded one.

    Equal sources have one name, which is this process's where they are its own: a clone without git
    knows no commit.
    """
    own = provenance()
    names = {own["sources"]: own["commit"]}
    commits = {}
    for trial_id, outcome in outcomes.items():
        commit, digest = outcome.facts.get("commit", ""), outcome.facts.get("sources", "")
        commits[trial_id] = names.setdefault(digest, commit) if digest else commit
    return {trial_id: commit for trial_id, commit in commits.items() if commit}


# facts of a trial
TRAIN_IMAGES, EVAL_IMAGES, LEFT_OUT = "data_digest", "eval_digests", "left_out"
# whether a GPU's steps were CUDA graphs: "yes", or "no" and why
CAPTURED = "captured"


def as_fact(digests: Mapping[str, str]) -> str:
    """Digests of evaluation sets as a fact: "minival=..., val=..."."""
    return ", ".join(f"{name}={digest}" for name, digest in sorted(digests.items()))


def from_fact(text: str) -> dict[str, str]:
    """The same back; empty for a trial that does not say it."""
    pairs = (part.partition("=") for part in text.split(", ") if part)
    return {name: digest for name, _, digest in pairs}


def images_of(outcome: Outcome) -> dict[str, str]:
    """Set -> digest of the images on which a trial was trained ("train") and evaluated."""
    digests = from_fact(outcome.facts.get(EVAL_IMAGES, ""))
    if train := outcome.facts.get(TRAIN_IMAGES):
        digests["train"] = train
    return digests


def mixed_images(facts: Iterable[str]) -> str:
    """A sentence where trials with these facts were evaluated on different images of one set."""
    by_set: dict[str, Counter[str]] = {}
    for text in facts:
        for name, digest in from_fact(text).items():
            by_set.setdefault(name, Counter())[digest] += 1
    mixed = [
        f"{name} ({', '.join(f'{num} on {digest:.8}' for digest, num in digests.most_common())})"
        for name, digests in by_set.items()
        if len(digests) > 1
    ]
    if not mixed:
        return ""
    return (
        f"TRIALS WERE EVALUATED ON DIFFERENT IMAGES of {'; '.join(mixed)}: their values must not "
        "be compared."
    )


def mixed_code(outcomes: Mapping[str, Outcome]) -> str:
    """One line where trials were trained by several commits; empty where by one."""
    commits = commits_of(outcomes)
    if len(set(commits.values())) < 2:
        return ""
    return (
        f"trials were trained by different code: {counted(commits.values())}; the study's command "
        "with --retrain-other-code trains those again that its own commit did not train"
    )
