"""Distinguishes failures that the config causes from failures of the machine.

A trial counts as `failed`, with an error of 100% in every figure, only if its config is the cause.
After any other failure it is retried in another process, and if that does not help it ends as
`missing`, with the reason.
"""

from __future__ import annotations

import re
import traceback
from typing import Literal

from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.record.workdir import Damaged, NoStart

Verdict = Literal["config", "again", "alone", "unfit", "refused", "orphan"]
DOES_NOT_FIT = "a model must fit on a device that it has to itself"
REFUSED = "an operation must have a deterministic algorithm with --deterministic"
NO_START = f"{NoStart.__name__}: "  # begins its line
# device memory outside our allocator: contexts and libraries take less, another process takes more
OTHERS_GIB = 2.0

# Parts of the messages of plain RuntimeErrors that torch and its libraries raise when a device,
# driver, memory, disk or peer fails.
OF_THE_MACHINE = (
    "CUDA error",
    "CUDA driver",
    "CUDA initialization",
    "CUDA unknown error",
    "No CUDA GPUs",
    "NVIDIA driver",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "cuDNN",
    "unable to find an engine",
    "Triton Error",
    "C compiler",
    "C++ compiler",
    "ECC error",
    "unspecified launch failure",
    "Socket Timeout",
    "CUSOLVER_STATUS",
    "CUSPARSE_STATUS",
    "CUFFT",
    "NCCL",
    "nvrtc",
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "INTERNAL ASSERT FAILED",
    "Pin memory thread",
    "DataLoader worker",
    "shared memory",
    "/dev/shm",
    "shm_open",
    "mmap",
    "torch_shm",
    "ancdata",
    "Too many open files",
    "No space left",
    "Input/output error",
    "PytorchStreamWriter",
    "failed writing",
    "Bus error",
    "gloo",
    "Gloo",
    "Connection reset",
    "Connection closed",
    "Connection refused",
    "Broken pipe",
    "timed out",
    "Timed out",
    "can't start new thread",
    "at interpreter shutdown",  # Python ends, and starts no thread or process
    "after interpreter shutdown",
)
# the message of torch for an operation that has none
NOT_DETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
MEMORY_OF_LIBRARIES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def verdict(error: Exception, line: str, before: str, resources: Resources) -> Verdict:
    """What to do with a trial that raised `error`.

    `line` describes the error in one line, and `before` is the line of the previous attempt.

    "config"  The config is the cause: the trial has failed.
    "again"   Retry in another process. An unknown RuntimeError is retried once; if the same one
              occurs in two processes, on two nodes where there are two, the config is the cause.
    "alone"   Out of memory on a device shared with other trials: retry with a device of its own.
    "unfit"   Out of memory on a device that no other process uses: the device is too small.
    "refused" An operation of the model is not deterministic, and `resources` ask for it.
    "orphan"  Its trunk, parent or teacher has lost what it starts from.
    """
    if isinstance(error, NoStart):
        return "orphan"
    if resources.deterministic and NOT_DETERMINISTIC.search(str(error)):
        return "refused"
    if is_out_of_memory(error):
        if resources.device_name() == "cuda" and resources.gpus_per_trial < 1:
            return "alone"
        return "unfit" if resources.device_name() == "cuda" and _is_only_user() else "again"
    if is_of_the_machine(error):
        return "again"
    return "again" if isinstance(error, RuntimeError) and line != before else "config"


def is_of_unknown_cause(line: str) -> bool:
    """Whether a description of an error in one line is that of an unknown RuntimeError."""
    return line.startswith("RuntimeError:") and not _names_the_machine(line)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or one of its libraries ran out of device memory."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_OF_LIBRARIES)
    )


def is_of_the_machine(error: Exception) -> bool:
    """Whether the same config may succeed when it is tried again, elsewhere or later.

    Judged by type: errors of the operating system, network, memory, installation, or of a damaged
    file in the store. By message: a RuntimeError of torch, also one raised in a loader process. By
    place: reading a dataset, since another node may hold other files; for the same reason, a
    checkpoint that was trained on other images. A device-side assert (an index out of range) is no
    fault of the device.
    """
    import torch

    from vitscale.train.checkpoint import OtherImages

    if "device-side assert" in str(error):
        return False
    if _while_reading(error) or isinstance(
        error,
        (OSError, MemoryError, EOFError, ImportError, Damaged, OtherImages, torch.AcceleratorError),
    ):
        return True
    return isinstance(error, RuntimeError) and _names_the_machine(str(error))


def _names_the_machine(message: str) -> bool:
    return any(text in message for text in OF_THE_MACHINE)


def _while_reading(error: Exception) -> bool:
    """Whether an exception was raised while reading a dataset, here or in a loader process."""
    places = (
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return any(place.startswith("vitscale.train.sources") for place in places) or (
        str(error).startswith("Caught ") and "/vitscale/train/sources/" in str(error)
    )


def too_big(config: TrainConfig, line: str, resources: Resources) -> str:
    """The error message for a model that does not fit on its device, in one line, with advice."""
    import torch

    total = torch.cuda.mem_get_info()[1] / 2**30
    advice = "; a smaller --micro-batch takes less" if config.is_divisible else ""
    return (
        f"{DOES_NOT_FIT}, but got (device_memory={total:.1f} GiB, batch_size={config.batch_size}, "
        f"micro_batch={resources.micro_batch}){advice}: {line}"
    )


def not_deterministic(config: TrainConfig, line: str) -> str:
    """The error message for an operation that --deterministic refuses, in one line."""
    match = NOT_DETERMINISTIC.search(line)
    operation = match[1] if match else line
    return (
        f"{REFUSED}, but got (operation={operation}, model={config.model!r}); train all trials of "
        "the study without it"
    )


def _is_only_user() -> bool:
    """Whether no other process seems to use the device.

    True if less than OTHERS_GIB of its memory is in use outside of this process' allocator.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() < OTHERS_GIB * 2**30


def one_line(error: Exception) -> str:
    """Type and message of an exception in one line.

    For an exception that a loader process raised, these are the original ones.
    """
    lines = str(error).splitlines() or [""]
    return lines[-1] if lines[0].startswith("Caught ") else f"{type(error).__name__}: {lines[0]}"
