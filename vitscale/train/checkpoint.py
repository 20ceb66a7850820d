"""Checkpoints that verify themselves: the name carries a digest of the content, and the newest whole one counts."""

from __future__ import annotations

import hashlib
import io
import random
import warnings
from typing import Any

import numpy as np
import torch

from vitscale.record.store import Workdir

KEPT = 2  # if the newest is damaged, the one before it serves


def save(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
    """Writes the state at a step atomically, then removes all but the newest two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    workdir.write(f"checkpoint-{step:09d}-{_digest(content)}.pt", content)
    for name in workdir.names("checkpoint-")[:-KEPT]:
        workdir.remove(name)


def load(workdir: Workdir, device: torch.device) -> dict[str, Any] | None:
    """The state of the newest whole checkpoint; None if there is none. Damaged ones are renamed, with a warning."""
    for name in reversed(workdir.names("checkpoint-")):
        content = workdir.read(name)
        if name.split("-")[2].removesuffix(".pt") == _digest(content):
            return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        workdir.rename(name, f"damaged-{name}")  # out of the way: it must not pass for the newest again
        warnings.warn(f"checkpoint is damaged, using the one before it: {workdir.path / name}", stacklevel=2)
    return None


def rng_state(device: torch.device) -> dict[str, Any]:
    """State of every global generator that a layer or a library may draw from, those of GPUs if the device is one."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, list(internal), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if device.type == "cuda" else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
