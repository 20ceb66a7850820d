"""Memory of the graphs of a training in parts, and captures of draws and with an earlier torch:
DATA_ROOT OUT.json, on the null CUDA device.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import numpy as np
import torch
from torch import Tensor

from vitscale.train import captured, loop
from vitscale.train.captured import Graph
from vitscale.train.device import seed_everything

LAST = 5  # step before which a training ends; all of its graphs are captured by then
Span = tuple[int, int]  # addresses


def span(tensor: Tensor) -> Span:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def allocations() -> list[dict[str, Any]]:
    """Those of this process so far, in order."""
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    return [event for event in events if event["action"] == "alloc"]


class Enough(Exception):
    """All is captured."""


def overwritten(data_root: Path) -> dict[str, int]:
    """Gradients and losses of parts of a batch, and how many of them lie in memory that the graph
    of the images uses, which is launched between the parts.
    """
    torch.cuda.memory._record_memory_history(context=None)
    true_capture, true_lr = captured.capture, loop.lr_at
    used: list[Span] = []  # by graphs of images
    results: list[Tensor] = []

    def capture(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], pool: Any) -> Graph:
        before = len(allocations())
        graph = true_capture(function, inputs, pool)
        if function.__name__ == "transform":
            used.extend((a["addr"], a["addr"] + a["size"]) for a in allocations()[before:])
        if function.__name__ == "compute":
            results.append(graph.output)
            if len(results) == 1:
                model = function.__self__.model  # type: ignore[attr-defined]
                results.extend(parameter.grad for parameter in model.parameters())
        return graph

    def at_a_step(step: int, *config: Any) -> float:
        if step == LAST:
            raise Enough
        return true_lr(step, *config)

    captured.capture, loop.lr_at = capture, at_a_step
    with tempfile.TemporaryDirectory() as folder:
        try:
            config, options = configs.RESUMED["recipe deit"], {"data_root": data_root}
            list(loop.train(config, Path(folder), "cuda", micro_batch=32, capture=True, **options))
        except Enough:
            pass
    captured.capture, loop.lr_at = true_capture, true_lr
    torch.cuda.memory._record_memory_history(enabled=None)
    hit = [
        r for r in results if any(span(r)[0] < end and start < span(r)[1] for start, end in used)
    ]
    return {"results": len(results), "used": len(used), "overwritten": len(hit)}


class EarlierContext(torch.cuda.graph):
    """As in torch 2.11 and 2.12: without later arguments; stays on its stream if its end fails."""

    def __init__(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> None:
        super().__init__(cuda_graph, pool, stream, capture_error_mode)

    def __exit__(self, *error: Any) -> None:
        self.cuda_graph.capture_end()
        if error[0] is not None:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.stream_ctx.__exit__(*error)


def of_draws() -> dict[str, Any]:
    """What is not captured of functions that draw on the host, and of those whether the same
    numbers come next as without the attempt.
    """
    draws: dict[str, Callable[[], float]] = {
        "python": random.random,
        "numpy": np.random.normal,
        "torch": lambda: torch.rand(()).item(),
        "none": lambda: 1.0,
    }
    captures, x, again = captured.Captures(), torch.zeros(4, device="cuda"), {}
    for name, draw in draws.items():
        seed_everything(1)
        expected = draw()
        seed_everything(1)
        graph = captures.graph(name, lambda x, draw=draw: x * draw(), x)
        again[name] = graph is None and draw() == expected
    return {"again": again, "left_out": captures.left_out}


def of_earlier_torch() -> dict[str, Any]:
    """What is captured and why not, and whether the stream is the one from before."""
    torch.cuda.graph, stream = EarlierContext, torch.cuda.current_stream()  # type: ignore[misc]
    captures, x = captured.Captures(), torch.zeros(4, device="cuda")
    graph = captures.graph("sums", lambda x: x + 1, x)
    captures.graph("waits", lambda x: x + x.sum().item(), x)
    same = torch.cuda.current_stream() == stream
    return {"captured": graph is not None, "left_out": captures.left_out, "same_stream": same}


def main() -> None:
    data_root, out = sys.argv[1:]
    torch.set_num_threads(1)
    torch.cuda.init()
    found = {
        "memory": overwritten(Path(data_root)),
        "draws": of_draws(),
        "earlier": of_earlier_torch(),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # torch's threads of a device end with its driver, which this one has not: C++ may abort on them
    os._exit(0)
