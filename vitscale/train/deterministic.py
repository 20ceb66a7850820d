"""Deterministic algorithms: a GPU of the same kind then repeats a training bit for bit.

Sums by atomic additions, in the backward passes of attention, convolutions and indexing, otherwise
have another order in each run. A CPU repeats a training with the same number of threads anyway, and
gives the same numbers with these algorithms as without.
"""

from __future__ import annotations

import os

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")  # workspaces of a fixed size, with which cuBLAS is deterministic


def set_deterministic(on: bool) -> None:
    """Restricts torch in this process to deterministic algorithms, or lets it use any.

    An operation that has none then raises RuntimeError. Raises OSError if cuBLAS has a workspace
    that does not allow it, or may have chosen one already: it does so once per process.
    """
    if on and os.environ.get(WORKSPACE) not in FIXED:
        if WORKSPACE in os.environ or torch.cuda.is_initialized():
            raise OSError(
                f"{WORKSPACE} in ({', '.join(FIXED)}) must hold before CUDA begins with "
                f"--deterministic, but got ({WORKSPACE}={os.environ.get(WORKSPACE, '')!r})"
            )
        os.environ[WORKSPACE] = FIXED[0]
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    # torch would fill whatever it allocates, to find programs that read it before they write it
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def is_deterministic() -> bool:
    """Whether torch is restricted to deterministic algorithms in this process."""
    return torch.are_deterministic_algorithms_enabled()
