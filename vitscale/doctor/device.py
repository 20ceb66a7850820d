"""Matrix products of a device: right, and how fast; its memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitscale.doctor.check import Finding, Machine, judged
from vitscale.launch.faults import OTHERS_GIB

if TYPE_CHECKING:
    import torch

INNER = 256  # inner dimension of the product that is compared
UNIT = 2.0**-24  # rounding of one fp32 operation
# Errors of sums of rounded products grow with the root of their number; the factor leaves room for
# the largest of 65,536 entries. TF32 rounds factors by 2^-11, which exceeds this about ten times.
BOUND = 8 * math.sqrt(INNER) * UNIT
# Of the mean magnitude of a result: seven times what a CPU gave; factors of TF32's 10 bits give
# 1.1e-4.
CONVOLUTIONS_BOUND = 2e-5
SIZES = {"cpu": 1024, "cuda": 8192}  # of the product that is timed
SIDE, CHANNELS = 14, 32  # of the images of the convolutions that are compared


def products(machine: Machine) -> Finding:
    """fp32 products against float64 on the CPU; products per second in fp32, bf16 and fp16."""
    import torch

    device = torch.device(machine.device)
    a, b = torch.rand(2, INNER, INNER, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ b.double()
    product = (a.to(device) @ b.to(device)).cpu().double()
    gap = ((product - exact).abs() / exact).max().item()
    rates = {
        str(dtype).removeprefix("torch."): tera_flops(device, dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    speed = ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in rates.items())
    detail = (
        f"{describe(device)}: {speed}; fp32 differs from float64 by {gap:.1e} (bound {BOUND:.1e})"
    )
    return judged(gap <= BOUND, detail, gap=gap, **rates)


def convolutions(machine: Machine) -> Finding:
    """fp32 convolutions, their gradients and BatchNorm's, as trainings use them, against float64 on
    the CPU.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = False  # as the trainer sets it for fp32
    device = torch.device(machine.device)
    gaps: dict[str, list[float]] = {}
    for stride in (1, 2):
        reference, other = (
            _convolved(stride, *where)
            for where in (("cpu", torch.float64), (device, torch.float32))
        )
        for name, exact in reference.items():
            gap = ((other[name] - exact).abs() / exact.abs().mean()).max().item()
            gaps.setdefault(name, []).append(gap)
    largest = {name: float(np.max(both)) for name, both in gaps.items()}  # NaN if one is
    worst = float(np.max(list(largest.values())))
    listed = ", ".join(f"{name} {gap:.1e}" for name, gap in largest.items())
    return judged(
        worst <= CONVOLUTIONS_BOUND,
        f"fp32 differs from float64, of the mean: {listed} (bound {CONVOLUTIONS_BOUND:.0e})",
        gap=worst,
    )


def _convolved(stride: int, device: torch.device | str, dtype: torch.dtype) -> dict[str, Any]:
    """A convolution of positive numbers, BatchNorm, and their gradients, as float64 on the CPU."""
    import torch
    from torch.nn import functional as F

    draws = torch.Generator().manual_seed(0)
    images = torch.rand(8, CHANNELS, SIDE, SIDE, generator=draws)
    kernel = torch.rand(2 * CHANNELS, CHANNELS, 3, 3, generator=draws)
    images, kernel = (x.to(device, dtype).requires_grad_() for x in (images, kernel))
    out = F.conv2d(images, kernel, stride=stride, padding=1)
    normed = F.batch_norm(images, None, None, training=True)
    weights = torch.rand(out.shape, generator=draws).to(device, dtype)
    of_normed = torch.rand(images.shape, generator=draws).to(device, dtype)
    # positive: sums of both signs may cancel, and have no relative error
    gradients = torch.autograd.grad((out * weights).sum(), (images, kernel), retain_graph=True)
    of_norm = torch.autograd.grad((normed * of_normed).sum(), images)
    names = (
        "convolution",
        "its gradient",
        "that of the kernel",
        "BatchNorm",
        "gradient of that",
    )
    results = (out.detach(), *gradients, normed.detach(), *of_norm)
    return {name: x.detach().cpu().double() for name, x in zip(names, results, strict=True)}


def tera_flops(device: torch.device, dtype: torch.dtype) -> float:
    """10^12 floating-point operations per second of a square matrix product."""
    import torch

    from vitscale.train.profile import timed, warm_up

    size = SIZES[device.type]
    a, b = torch.rand(2, size, size, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(a, b)

    passes = warm_up(product, device)
    return 2 * size**3 * passes / timed(product, passes, device) / 1e12


def describe(device: torch.device) -> str:
    import torch

    from vitscale.plan.profile import processor

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor(torch.get_num_threads())


def memory(machine: Machine) -> Finding:
    """Memory that is free, or used by this process, which has a context of CUDA's."""
    import torch

    if not machine.on_gpu:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        gib, total = (int(lines[n].split()[0]) / 2**20 for n in ("MemAvailable", "MemTotal"))
        return judged(gib >= 1.0, f"{gib:.1f} of {total:.1f} GiB free", free_gib=gib)
    device = torch.device(machine.device)
    torch.cuda.empty_cache()
    free, total = (n / 2**30 for n in torch.cuda.mem_get_info(device))
    others = total - free - torch.cuda.memory_reserved(device) / 2**30
    detail = f"{free:.1f} of {total:.1f} GiB free"
    alone = others < OTHERS_GIB
    return judged(
        alone, detail if alone else f"{detail}: another process uses this GPU", free_gib=free
    )
