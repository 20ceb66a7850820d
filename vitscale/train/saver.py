"""Writes the checkpoints of a training: on a GPU while it goes on, on a CPU while it waits."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import torch
from torch import Tensor

from vitscale.record.workdir import Workdir

Write = Callable[[Workdir, int, dict[str, Any]], None]
BLOCK_BYTES = 2**25  # of page-locked memory; torch rounds a block up to a power of two
ALIGNMENT = 64  # bytes, of each tensor in a block


class Saver:
    """Writes checkpoints one after another, at most `share` of the training's time.

    On a GPU, `save` asks for copies of the state in page-locked memory and returns; a thread waits
    for the copies, serializes and writes them. On a CPU, `save` writes: a thread would take the
    core on which the training runs. What the thread raises, the next `save` or `wait` raises. A
    context: at its end, however it ends, what has been begun is written.
    """

    def __init__(self, workdir: Workdir, device: torch.device, every_s: float, share: float):
        self.workdir, self.every_s, self.share = workdir, every_s, share
        self.copies = PinnedCopies(device) if device.type == "cuda" else None
        self.thread = ThreadPoolExecutor(1, "checkpoints")  # started by the first submission
        self.pending: Future[None] | None = None
        self.ended_s = time.perf_counter()  # when the training went on after the last checkpoint
        # What the training lost by it: its waits; the device's time of the copies, and at most the
        # CPU time of the thread, which takes Python's lock, and a core, from the training.
        self.wait_s = self.beside_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # the training has its own reason to end
            self.wait()
        self.thread.shutdown()

    @property
    def is_due(self) -> bool:
        """Whether to begin the next checkpoint.

        Not while the one before is being written, unless there is to be one after each step.
        """
        if self.every_s and self.pending is not None and not self.pending.done():
            return False
        lost_s = self.wait_s + self.beside_s
        return time.perf_counter() > self.ended_s + max(self.every_s, lost_s / self.share)

    def save(self, write: Write, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Begins to write the state at a step by `write`, after what has been begun before.

        Raises OSError or Fenced of that one, and of this one on a CPU or while Python ends.
        """
        began, self.beside_s = time.perf_counter(), 0.0
        self.wait()
        if self.copies is None:
            write(self.workdir, step, state())
        else:
            copied, events = self.copies.take(state())
            try:
                self.pending = self.thread.submit(self._write, write, step, copied, events)
            except RuntimeError:  # Python ends, and gives nothing to threads any more
                self._write(write, step, copied, events)
        self.ended_s = time.perf_counter()
        self.wait_s = self.ended_s - began

    def wait(self) -> None:
        """Waits until what has been begun is written. Raises what that raised, once."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def _write(
        self, write: Write, step: int, state: dict[str, Any], events: tuple[Any, Any]
    ) -> None:
        """Waits for the copies, and writes; in the thread, as long as Python gives it work."""
        began, (before, after) = time.thread_time(), events
        after.synchronize()
        write(self.workdir, step, state)
        self.beside_s = before.elapsed_time(after) / 1e3 + time.thread_time() - began


class PinnedCopies:
    """Copies of a GPU's tensors in page-locked memory, allocated for the first copy and kept.

    Such copies are asynchronous, and in order with the steps before and after them.
    torch.distributed.checkpoint.staging copies in a thread and a stream of its own, for optimizers
    that wait for it, or waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kind: list[Any] = []  # of the tensors that were copied last
        self.places: list[Tensor] = []

    def take(self, state: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, Any]]:
        """The state on the CPU, and events before and after the copies: valid when these are done.

        It is overwritten by the next call.
        """
        before, after = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        tensors = _gpu_tensors(state)
        kind = [(t.dtype, t.shape, t.stride()) for t in tensors]
        if kind != self.kind:
            self.places, self.kind = pinned_like(tensors), kind
        stream = torch.cuda.current_stream(self.device)
        before.record(stream)
        for place, tensor in zip(self.places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        after.record(stream)
        places = iter(self.places)
        return _copied(state, lambda _: next(places)), (before, after)


def pinned_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the CPU with the types, shapes and strides of others, in page-locked memory.

    Each has a storage of its own, since torch.save writes whole storages.
    """
    sizes = [-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in tensors]
    block, used, left = torch.empty(0, dtype=torch.uint8), 0, sum(sizes)
    places = []
    for tensor, size in zip(tensors, sizes, strict=True):
        if used + size > len(block):
            num_bytes = max(size, min(BLOCK_BYTES, left))
            block, used = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True), 0
        flat = torch.frombuffer(
            block.numpy(), dtype=tensor.dtype, count=tensor.numel(), offset=used
        )
        dense = torch.empty_like(tensor, device="meta")
        places.append(flat.as_strided(dense.shape, dense.stride()))
        used, left = used + size, left - size
    return places


def _gpu_tensors(state: dict[str, Any]) -> list[Tensor]:
    """The tensors of a state that are on a GPU and have elements, in a fixed order."""
    tensors: list[Tensor] = []

    def seen(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _copied(state, seen)
    return tensors


def _copied(value: Any, of_gpu: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a state, in which `of_gpu` gives what takes the place of a tensor on a GPU."""
    if isinstance(value, Tensor):
        if not value.numel():
            return value.cpu()
        return of_gpu(value) if value.is_cuda else value.clone()
    if isinstance(value, dict):
        copied = copy.copy(value)  # of the same class: state dicts carry versions
        copied.update((name, _copied(part, of_gpu)) for name, part in value.items())
        return copied
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(part, of_gpu) for part in value)
    return value
