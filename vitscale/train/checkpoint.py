"""Checkpoints that verify themselves: the file name contains a digest of the content."""

from __future__ import annotations

import hashlib
import io
import random
import warnings
from typing import Any

import numpy as np
import torch

from vitscale.record.workdir import (
    CHECKPOINT,
    FINAL,
    PINNED,
    CheckpointName,
    Damaged,
    NoStart,
    Workdir,
    pinned,
)

ADVICE = "remove this folder to train it again"
KEPT = 2  # if the newest is damaged, the one before it is used


class OtherImages(ValueError):
    """A checkpoint was trained on other images than those that now have the dataset's name."""


def save(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
    """Writes the state at a step atomically, then removes all checkpoints but those of the newest
    two steps; of this step, too, where a training has a state before and one after an evaluation.
    """
    content = _serialized(state)
    newest = CheckpointName(step, _digest(content))
    workdir.write(str(newest), content)
    others = [name for name in workdir.names(CHECKPOINT) if name != str(newest)]
    same = [name for name in others if (saved := CheckpointName.parse(name)) and saved.step == step]
    earlier = [name for name in others if name not in same]
    for name in same + earlier[: 1 - KEPT]:
        workdir.remove(name)


def pin(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
    """Writes the state at a step from which other trials start; it stays when the training ends."""
    content = _serialized(state)
    workdir.write(str(CheckpointName(step, _digest(content), PINNED)), content)


def keep_final(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
    """Writes the final weights with which other trials start; they stay."""
    content = _serialized(state)
    workdir.write(str(CheckpointName(step, _digest(content), FINAL)), content)


def load_final(workdir: Workdir, trial_id: str) -> dict[str, Any]:
    """The final weights of a parent: "model", and "ema" of one that averages. A trial that was not
    planned as a parent may have them in its last checkpoint.

    Raises Damaged if they are damaged, and NoStart if they are not there, or nothing is left to try
    next. A damaged file is renamed, unless it is another user's.
    """
    names = workdir.names(FINAL) or workdir.names(CHECKPOINT)
    try:
        state = (
            _whole(names[-1], workdir.read(names[-1]), torch.device("cpu"), trial_id)
            if names
            else {}
        )
        if "model" not in state or "optimizer" in state:  # rows alone, or an unfinished training
            where = workdir.address()
            raise NoStart(f"a parent must have its final weights, but got none ({where}); {ADVICE}")
        return state
    except _Unusable as unusable:
        left = _renamed(workdir, names[-1]) and workdir.names(CHECKPOINT)
        law = (
            f"the final weights of a parent must be whole, but got some that are {unusable} "
            f"({workdir.address(names[-1])})"
        )
        raise (Damaged(law) if left else NoStart(f"{law}; {ADVICE}")) from unusable


def load_pinned(workdir: Workdir, step: int, device: torch.device) -> dict[str, Any]:
    """The state of a trunk at a step.

    Raises NoStart if it is not there, or is damaged. A damaged file is renamed, unless it is
    another user's.
    """
    name = pinned(workdir, step)
    if not name:
        raise NoStart(
            f"a trunk must have its checkpoint at step {step}, but got none ({workdir.address()}); "
            f"{ADVICE}"
        )
    try:
        state = _whole(name, workdir.read(name), device, workdir.name)
    except _Unusable as unusable:
        _renamed(workdir, name)
        raise NoStart(
            f"the checkpoint of a trunk must be whole, but got one that is {unusable} "
            f"({workdir.address(name)}); {ADVICE}"
        ) from unusable
    assert state["step"] == step
    return state


def _renamed(workdir: Workdir, name: str) -> bool:
    """Whether a damaged file of a trunk or parent could be renamed."""
    try:
        workdir.rename(name, f"damaged-{name}")
    except OSError:
        return False
    return True


def _serialized(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def load(workdir: Workdir, device: torch.device, trial_id: str = "") -> dict[str, Any] | None:
    """The state of a trial's newest valid checkpoint, or None.

    Invalid ones are renamed with a warning: those that are damaged, that torch refuses (only arrays
    and plain values are loaded, never code), and those of another trial. A state without "trial",
    as written by older versions, is accepted.
    """
    for name in reversed(workdir.names(CHECKPOINT)):
        content = workdir.read(name)
        try:
            return _whole(name, content, device, trial_id)
        except _Unusable as unusable:
            # renamed, so that it is not taken for the newest again
            workdir.rename(name, f"damaged-{name}")
            warnings.warn(
                f"checkpoint is {unusable}, using the one before it: {workdir.address(name)}",
                stacklevel=2,
            )
    return None


class _Unusable(ValueError):
    """A checkpoint from which a training cannot resume."""


def _whole(name: str, content: bytes, device: torch.device, trial_id: str) -> dict[str, Any]:
    """The state in a file. Raises _Unusable with the reason."""
    named = CheckpointName.parse(name)
    if named is None or named.digest != _digest(content):
        raise _Unusable("damaged")
    try:
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except MemoryError:
        raise  # the machine's fault, not the file's
    except Exception as error:
        if isinstance(error, RuntimeError) and "alloc" in str(error):
            raise
        raise _Unusable(f"refused by torch ({type(error).__name__})") from error
    if not isinstance(state, dict) or "step" not in state:
        raise _Unusable("no state of a training")
    if trial_id and state.get("trial", trial_id) != trial_id:
        raise _Unusable(f"of another trial ({state['trial']!r:.60})")
    return state


def rng_state(device: torch.device) -> dict[str, Any]:
    """The state of all global random generators, including those of GPUs if `device` is one."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, list(internal), gauss),
        "numpy": (
            name,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            cached,
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if device.type == "cuda" else [],
    }


def same_rng(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states of the generators of the host are the same."""
    (_, keys, *rest), (_, other_keys, *other_rest) = state["numpy"], other["numpy"]
    return bool(
        state["python"] == other["python"]
        and torch.equal(state["torch"], other["torch"])
        and torch.equal(keys, other_keys)
        and rest == other_rest
    )


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores the state given by rng_state."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
