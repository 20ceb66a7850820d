"""Which failure of a trial is a result, and which only says that a machine was not well.

A trial counts as `failed`, 100% of error in every figure, if its config is the cause. Everything
else is tried again in another process, and ends as `missing`, with its reason, if that does not
help.
"""

from __future__ import annotations

import traceback
from typing import Literal

from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import ProfileConfig
from vitscale.record.store import Damaged

Verdict = Literal["config", "again", "alone", "unfit"]
DOES_NOT_FIT = "a model must fit on a device that it has to itself"
# of device memory that no tensor of ours holds: contexts and libraries take less, a neighbour more
OTHERS_GIB = 2.0

# In what torch and its libraries raise as a plain RuntimeError when a device, driver, memory, disk
# or peer fails.
OF_THE_MACHINE = (
    "CUDA error",
    "CUDA driver",
    "CUDA initialization",
    "CUDA unknown error",
    "No CUDA GPUs",
    "NVIDIA driver",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "cuDNN error",
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
)
MEMORY_OF_LIBRARIES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def verdict(error: Exception, line: str, before: str, resources: Resources) -> Verdict:
    """What to do with a trial that died of `error`, described in one `line`; `before` is the line
    of the previous attempt.

    "config"  The config is the cause: the trial has failed.
    "again"   Retry in another process. An unknown RuntimeError is retried once; if the same one
              occurs in two processes, the config is the cause.
    "alone"   Out of memory on a device shared with other trials: retry with a device of its own.
    "unfit"   Out of memory on a device of its own, which nobody else uses: it is too small.
    """
    if ran_out(error):
        if resources.device_name() == "cuda" and resources.gpus_per_trial < 1:
            return "alone"
        return "unfit" if resources.device_name() == "cuda" and _nobody_else() else "again"
    if is_of_the_machine(error):
        return "again"
    return "again" if isinstance(error, RuntimeError) and line != before else "config"


def ran_out(error: Exception) -> bool:
    """Whether the memory of a device is what was missing,
    be it to torch or to one of its libraries.
    """
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_OF_LIBRARIES)
    )


def is_of_the_machine(error: Exception) -> bool:
    """Whether another try, elsewhere or later, may succeed with the same config.

    By type: what the system, the network, memory, an installation or a damaged file of the store
    raises. By its text: a RuntimeError of torch, also out of the process of a loader. By its place:
    the reading of a dataset, whose files may be others on another node; so may those that a
    checkpoint was trained on. An index out of range is no fault of a device.
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
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OF_THE_MACHINE)


def _while_reading(error: Exception) -> bool:
    """Whether an exception came out of the reading of a
    dataset, in this process or in that of a loader.
    """
    places = (
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return any(place.startswith("vitscale.train.sources") for place in places) or (
        str(error).startswith("Caught ") and "/vitscale/train/sources/" in str(error)
    )


def too_big(config: TrainConfig | ProfileConfig, line: str, resources: Resources) -> str:
    """The refusal of a model that does not fit, in one line, with what would help."""
    import torch

    total = torch.cuda.mem_get_info()[1] / 2**30
    advice = "" if isinstance(config, ProfileConfig) else "; a smaller --micro-batch takes less"
    return (
        f"{DOES_NOT_FIT}, but got (device_memory={total:.1f} GiB, batch_size={config.batch_size}, "
        f"micro_batch={resources.micro_batch}){advice}: {line}"
    )


def _nobody_else() -> bool:
    """Whether the device's memory that this process does not
    hold is too little to be that of a neighbour.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() < OTHERS_GIB * 2**30


def one_line(error: Exception) -> str:
    """Type and message; of an exception out of a loader's process, those that it had there."""
    lines = str(error).splitlines() or [""]
    return lines[-1] if lines[0].startswith("Caught ") else f"{type(error).__name__}: {lines[0]}"
