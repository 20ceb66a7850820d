"""Builds the null CUDA device beside the torch of this
environment: `python tests/nullcuda/build.py FOLDER`.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
API = r"(__cuda|cuda[A-Z]|cublas|cudnn|nccl)\w*$"
LIBRARIES = (
    "torch_cuda",
    "c10_cuda",
    "torch_python",
    "torch_cpu",
    "torch_cuda_linalg",
    "torch_nvshmem",
)
# What a stub counts as, by the first pattern that its name matches.
COUNTED = (
    ("gemm", r"cublas.*(gemm|Gemm|gemv|dot|Dot|trsm|Batched)|cublasLtMatmul$"),
    ("conv", r"cudnn(Convolution(Forward|Backward|Bias)|BatchNormalization(F|B)|PoolingForward)"),
    ("collective", r"nccl(All|Broad|Bcast|Reduce|Send|Recv|Gather)"),
)
A100 = {
    75: 8,
    76: 0,
    97: 166912,
    81: 166912,
    8: 166912,
    16: 132,
    12: 65536,
    82: 65536,
    10: 32,
    1: 1024,
    39: 2048,
    13: 1410000,
    36: 1215000,
    37: 5120,
}  # fmt: skip  CUdevice_attribute -> its value
MAKERS = (
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoad",
    "cuModuleGetFunction",
    "cuStreamCreate",
    "cuEventCreate",
)
DRIVER = {  # functions of libcuda.so.1 of which torch or triton reads an answer
    "cuDeviceGetAttribute": "int* v, int a, int d",
    "cuDriverGetVersion": "int* v",
    "cuGetErrorString": "int e, const char** s",
    "cuGetErrorName": "int e, const char** s",
    "cuDeviceGetCount": "int* v",
    "cuFuncGetAttribute": "int* v, int a, void* f",
    "cuCtxGetCurrent": "void** c",
    "cuDevicePrimaryCtxGetState": "int d, unsigned* flags, int* active",
}
CASES = " ".join(f"case {attribute}: *v = {value}; break;" for attribute, value in A100.items())
ANSWERS = {
    "cuDeviceGetAttribute": f"switch (a) {{ {CASES} default: *v = 1; }}",
    "cuDriverGetVersion": "*v = 13020;",
    "cuGetErrorString": '*s = "null";',
    "cuGetErrorName": '*s = "null";',
    "cuDeviceGetCount": "*v = 1;",
    "cuFuncGetAttribute": "*v = a == 0 ? 1024 : a == 3 ? 0 : 32;",
    "cuCtxGetCurrent": "static long it; *c = &it;",
    "cuDevicePrimaryCtxGetState": "*flags = 0; *active = 1;",
}


def build(folder: Path) -> dict[str, str]:
    """Compiles the device into a folder; the environment under which a Python process has it,
    libraries first.

    Needs gcc, binutils and a torch built for CUDA, whose wheels bring the headers. Raises
    CalledProcessError or FileNotFoundError where one is missing.
    """
    site = folder_of("torch").parent
    # triton has the crt folder
    headers = [site / "nvidia/cu13/include", site / "triton/backends/nvidia/include"]
    (folder / "stubs.c").write_text(stubs(site / "torch/lib"))
    (folder / "driver.c").write_text(driver((headers[0] / "cuda.h").read_text()))
    runtime, libcuda = folder / "libnullcuda.so", folder / "lib" / "libcuda.so.1"
    libcuda.parent.mkdir()
    gcc = ["gcc", "-shared", "-fPIC", "-O1", "-w"]
    sources = [str(HERE / "runtime.c"), str(HERE / "libraries.c"), str(folder / "stubs.c")]
    subprocess.run(
        [*gcc, *(f"-I{path}" for path in headers), *sources, "-o", str(runtime), "-lpthread"],
        check=True,
    )
    for source, library in (
        (folder / "driver.c", libcuda),
        (HERE / "nvml.c", libcuda.with_name("libnvidia-ml.so.1")),
    ):
        subprocess.run(
            [*gcc, f"-Wl,-soname,{library.name}", str(source), "-o", str(library)], check=True
        )
    # cuDNN's older interface: the newer one has its plans made by the library itself.
    return {
        "LD_PRELOAD": str(runtime),
        "LD_LIBRARY_PATH": str(libcuda.parent),
        "TORCH_CUDNN_V8_API_DISABLED": "1",
    }


def folder_of(package: str) -> Path:
    """Where a package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def stubs(libraries: Path) -> str:
    """C of every function of CUDA's libraries that torch
    wants and that the C files here do not have.
    """
    own = "".join((HERE / name).read_text() for name in ("runtime.c", "libraries.c"))
    paths = [path for name in LIBRARIES if (path := libraries / f"lib{name}.so").exists()]
    listed = said(["nm", "-D", "--undefined-only", *map(str, paths)])
    wanted = {line.split()[-1].split("@")[0] for line in listed.splitlines() if line.strip()}
    lines = ["#include <stdlib.h>", *(f"void nullcuda_{what}(void);" for what, _ in COUNTED)]
    for name in sorted(name for name in wanted if re.match(API, name)):
        if re.search(rf"\b{name}\b", own):
            continue
        what = next((what for what, pattern in COUNTED if re.match(pattern, name)), None)
        if name.startswith("cudnnCreate"):
            lines.append(f"int {name}(void** made) {{ *made = malloc(64); return 0; }}")
        else:
            lines.append(
                f"int {name}(void) {{ {f'nullcuda_{what}(); ' if what else ''}return 0; }}"
            )
    return "\n".join([*lines, ""])


def driver(header: str) -> str:
    """C of libcuda.so.1: every function that cuda.h declares, under its versions' names, too."""
    declared = re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", header)
    versions = re.findall(r"#define\s+cu[A-Z]\w+\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w+)", header)
    names = {*declared, *versions, *(f"{name}_v2" for name in declared)}
    lines = ["#include <stdlib.h>", "void nullcuda_gemm(void) __attribute__((weak));"]
    for name in sorted(names):
        if name in DRIVER:
            lines.append(f"int {name}({DRIVER[name]}) {{ {ANSWERS[name]} return 0; }}")
        elif name in MAKERS:
            lines.append(f"int {name}(void** made) {{ *made = malloc(64); return 0; }}")
        elif name in ("cuLaunchKernel", "cuLaunchKernelEx"):  # a kernel of triton
            lines.append(f"int {name}(void) {{ if (nullcuda_gemm) nullcuda_gemm(); return 0; }}")
        else:
            lines.append(f"int {name}(void) {{ return 0; }}")
    return "\n".join([*lines, ""])


def said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for variable, value in build(Path(sys.argv[1])).items():
        print(f"export {variable}={value}")
