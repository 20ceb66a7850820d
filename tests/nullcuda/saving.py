"""Checkpoints that a thread writes while the training goes on:
DATA_ROOT OUT.json, on the null CUDA device.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import torch
from device import counts

from vitscale.record.workdir import CHECKPOINT, CheckpointName, Workdir
from vitscale.train import checkpoint, loop
from vitscale.train.saver import Saver

SHORT = configs.VIT.replace(epochs=1, subset_images=192)  # 3 steps
MOST_KILLS = 60


def killed_at(k: int, folder: Path, data_root: Path) -> bool:
    """Trains in a process of its own, which dies before its k-th file operation, or ends."""
    child = os.fork()
    if child == 0:
        left = [k]

        def before(operation: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*arguments, **options)

            return counted

        for name in ("replace", "fsync"):
            setattr(os, name, before(getattr(os, name)))
        Path.unlink = before(Path.unlink)  # type: ignore[method-assign]
        list(loop.train(SHORT, folder, "cuda", data_root=data_root, checkpoint_every_s=0.0))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kills(data_root: Path) -> dict[str, Any]:
    """After a kill before each file operation: the steps of the checkpoints that load, and how many
    warnings of damaged ones there were.
    """
    steps, damaged = [], 0
    for k in range(1, MOST_KILLS):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if not killed_at(k, Path(folder), data_root):
                break
            state = checkpoint.load(Workdir(Path(folder)), torch.device("cpu"))
            steps.append(0 if state is None else state["step"])
            damaged += len(said)
    return {"steps": steps, "damaged": damaged}


def some_state() -> dict[str, Any]:
    """A state with all kinds of what a training keeps."""
    last = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    model = OrderedDict(conv=last, half=torch.randn(7).bfloat16(), num=torch.tensor(3))
    return {
        "step": 1,
        "rows": [{"epoch": 1.0}],
        "model": model,
        "moments": (torch.randn(2**20), [torch.tensor(2.0), torch.randn(9, 3)]),
        "none": torch.empty(0),
        "rng": torch.arange(5, dtype=torch.uint8),
    }


def on_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.dtype == torch.uint8 else value.cuda()
    if isinstance(value, dict):
        return type(value)((name, on_gpu(part)) for name, part in value.items())
    return type(value)(map(on_gpu, value)) if isinstance(value, (list, tuple)) else value


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return (
        [t for part in parts for t in tensors(part)]
        if isinstance(value, (dict, list, tuple))
        else []
    )


def a_saver(folder: Path) -> dict[str, Any]:
    """What a saver does with a state that changes as soon as `save` has returned."""
    on_cpu, go = some_state(), threading.Event()
    state = on_gpu(on_cpu)

    def slowly(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
        go.wait()
        checkpoint.save(workdir, step, state)

    def full(workdir: Workdir, step: int, state: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    workdir, found = Workdir(folder), dict[str, Any]()
    with Saver(workdir, torch.device("cuda", 0), 1e-9, 1e9) as saver:
        before = counts()
        saver.save(slowly, 1, lambda: state)
        asked = counts().since(before)
        found["syncs"], found["d2h"], found["blocks"] = asked.syncs, asked.d2h, asked.pinned
        found["due_while_writing"] = saver.is_due
        for tensor in tensors(state):
            tensor.copy_(torch.zeros_like(tensor, device="cpu"))
        state["rows"].append({"epoch": 2.0})
        go.set()
        saver.wait()
        found["due"], found["waits"] = saver.is_due, counts().since(before).event_syncs
        saved = checkpoint.load(workdir, torch.device("cpu"))
        assert saved is not None
        found["rows"] = saved["rows"]
        found["same"] = all(
            torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype
            for a, b in zip(tensors(saved), tensors(on_cpu), strict=True)
        )
        # torch.save writes whole storages: no tensor may drag the block along in which it lies
        found["storages"] = sum(t.untyped_storage().nbytes() for t in tensors(saved)) == sum(
            t.nbytes for t in tensors(on_cpu)
        )
        before = counts()
        saver.save(slowly, 2, lambda: state)
        found["blocks_again"] = counts().since(before).pinned
        saver.save(full, 3, lambda: state)  # waits for the second
        found["names"] = [CheckpointName.parse(n).step for n in workdir.names(CHECKPOINT)]
        try:
            saver.save(slowly, 4, lambda: state)
        except OSError as error:
            found["error"] = error.errno
        saver.save(slowly, 5, lambda: state)  # the error was raised once
        saver.wait()
        go.clear()
        saver.save(slowly, 6, lambda: state)
        threading.Timer(0.3, go.set).start()
    found["at_the_end"] = [CheckpointName.parse(n).step for n in workdir.names(CHECKPOINT)]
    return found


class Full(Workdir):
    """A folder on a disk that is full after two files."""

    def write(self, name: str, content: bytes) -> None:
        if len(self.names()) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, content)


def trainings(folder: Path, data_root: Path) -> dict[str, Any]:
    """The error of a full disk, and what is in the folder when the last row is reported."""
    found: dict[str, Any] = {}
    options: dict[str, Any] = {"data_root": data_root, "checkpoint_every_s": 0.0}
    try:
        list(loop.train(SHORT, Full(folder / "full"), "cuda", **options))
    except OSError as error:
        found["raised"] = error.errno
    training = loop.train(SHORT, folder / "whole", "cuda", **options)
    next(training)
    names = Workdir(folder / "whole").names(CHECKPOINT)
    found["when_reported"] = CheckpointName.parse(names[-1]).step
    training.close()
    # two checkpoints more, of which none may wait for the device; fp16 has a loss scale to keep
    asked = []
    for every_s in (0.0, 1e9):
        options["checkpoint_every_s"] = every_s
        before = counts()
        config = SHORT.replace(precision="fp16")
        list(loop.train(config, folder / f"fp16-{len(asked)}", "cuda", **options))
        asked.append(counts().since(before))
    found["syncs_of_two"] = asked[0].syncs - asked[1].syncs
    found["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("checkpoints")]
    return found


def main() -> None:
    data_root, out = sys.argv[1:]
    torch.set_num_threads(1)
    loop.CHECKPOINT_SHARE = float("inf")
    found: dict[str, Any] = {"kills": kills(Path(data_root))}  # forks before CUDA begins
    with tempfile.TemporaryDirectory() as folder:
        found["saver"] = a_saver(Path(folder) / "saver")
        found["trainings"] = trainings(Path(folder), Path(data_root))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # as in host.py
    os._exit(0)
