"""Matrix products of a device: right, and how fast; its memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from vitscale.doctor.check import Finding, Machine, judged

if TYPE_CHECKING:
    import torch

INNER = 256  # inner dimension of the product that is compared
UNIT = 2.0**-24  # rounding of one fp32 operation
# Errors of sums of rounded products grow with the root of their number; the factor leaves room for
# the largest of 65,536 entries. TF32 rounds factors by 2^-11, which exceeds this about ten times.
BOUND = 8 * math.sqrt(INNER) * UNIT
SIZES = {"cpu": 1024, "cuda": 8192}  # of the product that is timed
FREE = 0.9  # share of a GPU's memory that should be free


def products(machine: Machine) -> Finding:
    """fp32 products against float64 on the CPU; products per second in fp32, bf16 and fp16."""
    import torch

    device = torch.device(machine.device)
    a, b = torch.rand(2, INNER, INNER, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ b.double()
    found = (a.to(device) @ b.to(device)).cpu().double()
    gap = ((found - exact).abs() / exact).max().item()
    rates = {
        str(dtype).removeprefix("torch."): tera_flops(device, dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    speed = ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in rates.items())
    detail = (
        f"{describe(device)}: {speed}; fp32 differs from float64 by {gap:.1e} (bound {BOUND:.1e})"
    )
    return judged(gap <= BOUND, detail, gap=gap, **rates)


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
    """Memory that is free before anything is trained."""
    import torch

    if not machine.on_gpu:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        gib, total = (int(lines[n].split()[0]) / 2**20 for n in ("MemAvailable", "MemTotal"))
        return judged(gib >= 1.0, f"{gib:.1f} of {total:.1f} GiB free", free_gib=gib)
    free, total = (n / 2**30 for n in torch.cuda.mem_get_info(torch.device(machine.device)))
    detail = f"{free:.1f} of {total:.1f} GiB free"
    return judged(
        free >= FREE * total,
        detail if free >= FREE * total else f"{detail}: another process uses this GPU",
        free_gib=free,
    )
