"""`vitscale doctor`: the whole of it on this machine, and failures that are real: a kernel that
refuses hard links, a server that does not answer, a lower precision, processes that die.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, wait_for
from rich.console import Console

from vitscale.cli.doctor import Result
from vitscale.cli.doctor import _print as show
from vitscale.doctor import checks, device, scheduling, software, storage, tracking, training
from vitscale.doctor.check import Check, Finding, Machine, Verdict, failed, not_applicable, passed
from vitscale.doctor.checks import CHECKS, selected
from vitscale.doctor.process import Examination

CPU = Machine(device="cpu")
PASS, FAIL, NONE = (verdict.value for verdict in Verdict)
NOTHING = not_applicable("none here")


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitscale", "doctor", *arguments]
    kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return subprocess.run(
        command,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )


def results_of(finished: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Check -> result, of a run with --json."""
    checks = json.loads(finished.stdout)["checks"]
    return {check["check"]: check["result"] for check in checks}


def test_ctrl_c_ends_the_doctor_and_its_processes_with_one_line(tmp_path: Path) -> None:
    """While a check runs in a process of its own."""
    kept = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "vitscale", "doctor", "--device", "cpu", "--json"]
    process = subprocess.Popen(
        command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(psutil.Process(process.pid).children()) > 1, 60, "a check's process")
    children = psutil.Process(process.pid).children(recursive=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "\nvitscale: interrupted\n")
    assert not psutil.wait_procs(children, 20)[1] and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_check_runs_on_the_cpu_and_leaves_nothing(tmp_path: Path) -> None:
    """With a compiled model and trials through Ray; MLflow does not answer. What --quick runs, the
    null CUDA device tries (test_nullcuda.py).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{probe.getsockname()[1]}"
    store = str(tmp_path / "runs")
    finished = doctor("--device", "cpu", "--store", store, "--mlflow", server, "--json")
    expected = {check.name: PASS for check in CHECKS}
    expected |= {"driver": NONE, "fp32 as on the CPU": NONE, "deterministic": NONE}
    expected |= {"captured": NONE, "conditional writes": NONE}
    expected |= {"write and read": FAIL}
    assert results_of(finished) == expected, finished.stdout
    assert finished.returncode == 1 and finished.stderr == "" and not list(tmp_path.iterdir())


def test_quick_leaves_out_what_takes_long_and_each_device_has_its_rows() -> None:
    gpus = ["cuda:0", "cuda:1"]
    quick, whole = (
        {check.name: on for check, on in selected(gpus, quick=left_out)}
        for left_out in (True, False)
    )
    assert whole.keys() - quick.keys() == {"compiled", "four trials on a device"}
    assert whole["fp16"] == gpus and whole["locks"] == ["cuda:0"]


def test_the_table_says_what_failed_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    findings = {"locks": failed("HELD [afterwards]"), "fp16": passed("equal"), "driver": NOTHING}
    results = [Result(check_named(name), "", finding, 0.5) for name, finding in findings.items()]
    show(results, Console(width=150))
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "locks" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "store",
        "locks",
        "fail",
        "HELD [afterwards] (0.5 s)",
    ]
    assert f"store, locks: {check_named('locks').advice}\n" in printed
    assert printed.count("not applicable") == 1 and check_named("fp16").advice not in printed


def test_what_to_do_is_said_once_for_all_devices(capsys: pytest.CaptureFixture[str]) -> None:
    devices = [
        Result(check_named("fp16"), f"cuda:{i}", failed("a loss of 0"), 0.5) for i in range(4)
    ]
    show(
        [*devices, Result(check_named("bf16"), "cuda:0", failed("a loss of 0"), 0.5)],
        Console(width=150),
    )
    printed = capsys.readouterr().out
    assert printed.count("a loss of 0") == 5
    assert printed.count(f"trainer, fp16: {check_named('fp16').advice}\n") == 1
    assert printed.count(f"trainer, bf16: {check_named('bf16').advice}\n") == 1


# Failures, each for real


def test_another_precision_is_not_taken_for_fp32() -> None:
    """fp16 rounds as TF32 does, to 10 bits of mantissa: it is within its own bound, and not fp32's.
    So is a loss that is not there, or NaN.
    """
    reference = training.reference("cpu")
    whole = training.losses(training.SMALL, CPU, micro_batch=32)
    assert training.compared(reference, whole, "in parts").verdict == PASS
    for name in ("fp16", "bf16"):
        found = training.losses(training.SMALL.replace(precision=name), CPU)
        assert training.compared(reference, found, name).verdict == FAIL
        assert training.compared(reference, found, name, training.BOUNDS[name]).verdict == PASS
    assert training.compared(reference, whole[:-1], "too few").verdict == FAIL
    assert training.compared(reference, [*whole[:-1], float("nan")], "NaN").verdict == FAIL


def test_a_resumed_training_is_held_against_how_a_device_repeats_itself() -> None:
    """Losses of three trainings each: resumed, uninterrupted, and that one again."""
    whole, rounded, wrong = ([{"train_loss": loss}] for loss in (1.0, 1.000001, 1.1))
    for resumed, again, verdict in (
        (rounded, whole, FAIL),  # the device repeats itself, so the resume has lost something
        (rounded, rounded, PASS),
        (wrong, rounded, FAIL),
    ):
        assert training._unequal(resumed, whole, again).verdict == verdict


def test_a_device_on_which_a_training_diverges_fails() -> None:
    with pytest.raises(RuntimeError, match=r"a loss > 0 must hold, but got \(device='cpu'"):
        training.rows(training.SMALL.replace(lr=1e30, optimizer="sgd", clip_norm=0.0), CPU)


# Makes the kernel refuse linkat() and link() in this process and its children (seccomp), as a file
# system without hard links does; then runs the checks of a store.
REFUSE_LINKS = """
import ctypes, json, struct, sys
from vitscale.doctor.check import Machine
from vitscale.doctor.process import answer
from vitscale.doctor.checks import CHECKS
numbers = {"x86_64": (265, 86), "aarch64": (37, 37)}[sys.argv[2]]
code = [(0x20, 0, 0, 0)]  # load the number of the system call
code += [(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]  # it is one of these
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # else allow; EPERM
packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(packed))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
for check in CHECKS:
    if check.kind == "store":
        found = answer(check, Machine(store=sys.argv[1]))
        print(json.dumps([check.name, getattr(found, "verdict", "fail"), str(found)]))
"""


def test_a_store_without_hard_links_fails_where_a_trial_is_committed(tmp_path: Path) -> None:
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        pytest.skip(f"numbers of system calls of {machine} are not known here")
    command = [sys.executable, "-c", REFUSE_LINKS, str(tmp_path), machine]
    finished = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    found = {
        name: (verdict, text)
        for name, verdict, text in map(json.loads, finished.stdout.splitlines())
    }
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "conditional writes": NONE,
        "exclusive creation": FAIL,
        "atomic replacement": PASS,
        "locks": PASS,
        "clock": PASS,
        "speed": PASS,
    }
    assert "Operation not permitted" in found["exclusive creation"][1]
    assert not list(tmp_path.iterdir())


def check_named(name: str) -> Check:
    (check,) = [check for check in CHECKS if check.name == name]
    return check


def test_a_store_that_cannot_be_written_a_ray_and_an_mlflow_that_do_not_answer(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    machine = Machine(
        store=str(tmp_path / "file"), address="127.0.0.1:9", mlflow="http://127.0.0.1:9"
    )
    with Examination() as examination:
        for name, reason in {
            "locks": "NotADirectoryError",
            "nodes": "a Ray cluster must answer at (address='127.0.0.1:9')",
            "write and read": "Connection refused",
        }.items():
            here = (
                machine if name != "nodes" else Machine(store=str(tmp_path), address="127.0.0.1:9")
            )
            found = examination.find(check_named(name), here)
            assert found.verdict == FAIL and reason in found.detail and "\n" not in found.detail


def test_two_processes_that_cannot_meet_are_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with Examination() as examination:
        found = examination.find(check_named("team of two"), CPU)
    assert found.verdict == FAIL and "nowhere0" in found.detail


def test_shared_memory_that_is_too_small_is_named(tmp_path: Path) -> None:
    """In a mount namespace whose /dev/shm has 8 KiB: loader processes die of a bus error."""
    mount = "mount -t tmpfs -o size=8k none /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    code = (
        "from vitscale.doctor.check import Machine; from vitscale.doctor.checks import CHECKS\n"
        "from vitscale.doctor.process import Examination\n"
        "if __name__ == '__main__':\n"
        "    with Examination() as examination:\n"
        "        for check in CHECKS:\n"
        "            if check.name in ('limits', 'loader processes'):\n"
        "                print(examination.find(check, Machine()))\n"
    )
    (tmp_path / "two.py").write_text(code)
    inside = f'{mount} && exec "$0" "$1"'
    finished = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside, sys.executable, str(tmp_path / "two.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    limits, loaders = finished.stdout.splitlines()
    assert "FAIL" in limits and "/dev/shm >= 1 GiB" in limits
    assert "FAIL" in loaders, loaders


def dies(machine: Machine) -> Finding:
    print("a last word", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return passed("never")


def hangs(machine: Machine) -> Finding:
    time.sleep(60)
    return passed("never")


def leaves_files(machine: Machine) -> Finding:
    tempfile.mkdtemp()
    return hangs(machine)


def raises(machine: Machine) -> Finding:
    raise RuntimeError("one\ntwo")


def answers(machine: Machine) -> Finding:
    print("what a library prints")
    return passed(str(os.getpid()))


def test_a_check_that_crashes_hangs_or_raises_is_a_failed_check(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one answers, from another process; nothing is printed into the table, and a
    killed one leaves no file.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Examination() as examination:

        def find(run: Callable[[Machine], Finding], limit_s: float = 60.0) -> Finding:
            return examination.find(Check("store", "a", run, "advice", limit_s=limit_s), CPU)

        first = find(answers)
        assert first == find(answers) and first.verdict == PASS
        assert "SIGSEGV: a last word" in find(dies).detail
        second = find(answers)
        assert second.verdict == PASS and second != first
        late = find(leaves_files, 5.0)
        assert late.detail == "no answer within 5 s" and "hangs" in late.advice
        assert late.advice.endswith(": advice") and Result(check_named("locks"), "", late, 3).advice
        assert len(list(tmp_path.rglob("*"))) == 3  # the log, a folder, and the one in it
        assert find(raises).detail == "RuntimeError: one"
        last = find(answers)
    assert last.verdict == PASS and capfd.readouterr().out == ""
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(last.detail), 0)


def test_versions_that_do_not_fit_together_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the metadata of the packages, as pip reads them."""
    assert software.versions(CPU).verdict == PASS
    folder = tmp_path / "torchvision-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\nRequires-Dist: torch==1.0\n"
        "Requires-Dist: not-there; extra == 'other'\nRequires-Dist: absent>2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = software.versions(CPU)
    assert found.verdict == FAIL
    assert "torchvision requires torch==1.0, but " in found.detail
    assert "torchvision requires absent>2, but nothing is installed" in found.detail
    assert "vitscale requires torchvision>=" in found.detail and "not-there" not in found.detail


def test_a_gpu_that_is_asked_for_and_not_there(tmp_path: Path, monkeypatch) -> None:
    """And one that NVIDIA's tool lists and torch does not see."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    monkeypatch.setattr(software, "nvidia_cards", lambda: 0)
    assert software.driver(CPU).verdict == NONE
    found = software.driver(Machine(wants_gpu=True))
    assert found.verdict == FAIL and "sees no GPU" in found.detail
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = software.driver(CPU)
    assert found.verdict == FAIL and "the driver (580.65.06) lists 2" in found.detail
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho Failed to initialize NVML: Driver/library version mismatch\nexit 18\n"
    )
    found = software.driver(CPU)
    assert found.verdict == FAIL and "Driver/library version mismatch (exit status 18)" in str(
        found
    )
    (tmp_path / "nvidia-smi").unlink()
    assert software.driver(CPU).verdict == NONE
    monkeypatch.setattr(software, "nvidia_cards", lambda: 2)  # of a container without `--gpus`
    found = software.driver(CPU)
    assert found.verdict == FAIL and "this machine has 2; nvidia-smi: not found" in found.detail


def test_cards_without_a_driver_are_seen(tmp_path: Path) -> None:
    devices = {
        "gpu": ("0x10de", "0x030200"),
        "vga": ("0x10de", "0x030000"),
        "sound": ("0x10de", "0x040300"),
        "other": ("0x1002", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "empty").mkdir()
    assert software.nvidia_cards(tmp_path) == 2


def test_a_resume_that_loses_something_fails_with_deterministic() -> None:
    """Also where a repetition would not show it: the interrupted training is another one."""
    one, other = ([{"train_loss": loss, "step": 4.0}] for loss in (1.0, 1.0 + 1e-7))
    assert training.as_found([(one, one, one), (other, other, other)]).verdict == PASS
    for wrong in ((one, one, other), (one, other, one)):
        assert training.as_found([(one, one, one), wrong]).verdict == FAIL
    loses = training.LONGER_EPOCHS.replace(seed=2)
    found = training.as_found(
        [(*[training.rows(training.LONGER_EPOCHS, CPU)] * 2, training.interrupted(loses, CPU)[1])]
    )
    assert found.verdict == FAIL and "repeated equal by the bit, resumed differ" in found.detail


def test_a_precision_that_is_not_used_is_noticed(monkeypatch) -> None:
    exact = {config: training.reference("cpu", config) for config, _ in training.MODELS}
    monkeypatch.setattr(
        training, "losses", lambda config, *_: exact[config.replace(precision="fp32")]
    )
    found = training.bf16(CPU)
    assert found.verdict == FAIL and "bf16 was not used" in found.detail


def test_convolutions_in_tf32_are_not_taken_for_fp32(monkeypatch) -> None:
    """Factors rounded to 10 bits, as TF32's are."""
    import torch
    from torch.nn import functional

    assert device.convolutions(CPU).verdict == PASS
    real = functional.conv2d

    def rounded(images: torch.Tensor, kernel: torch.Tensor, **options: Any) -> torch.Tensor:
        if images.dtype == torch.float64:
            return real(images, kernel, **options)
        return real(images.half().float(), kernel.half().float(), **options)

    monkeypatch.setattr(functional, "conv2d", rounded)
    assert device.convolutions(CPU).verdict == FAIL


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_that_gives_nan_at_one_stride_fails(monkeypatch, stride: int) -> None:
    """Of two numbers of which one is NaN, Python's max returns the other or NaN, by their order."""
    import torch
    from torch.nn import functional

    real = functional.conv2d

    def broken(images: torch.Tensor, kernel: torch.Tensor, **options: Any) -> torch.Tensor:
        out = real(images, kernel, **options)
        wrong = images.dtype == torch.float32 and options["stride"] == stride
        return out + (torch.tensor(torch.nan) if wrong else 0)

    monkeypatch.setattr(functional, "conv2d", broken)
    found = device.convolutions(CPU)
    assert found.verdict == FAIL and "convolution nan" in found.detail


def test_which_gpus_a_build_of_torch_runs_on() -> None:
    """By NVIDIA's rules of compatibility: binaries within a major version, PTX onward."""
    built = ["sm_75", "sm_80", "sm_90a"]
    runs = {
        c: software.runs_on(*c, built) for c in [(7, 0), (7, 5), (8, 9), (9, 0), (10, 0), (12, 0)]
    }
    assert runs == {
        (7, 0): False,
        (7, 5): True,
        (8, 9): True,
        (9, 0): True,
        (10, 0): False,
        (12, 0): False,
    }
    assert software.runs_on(12, 0, [*built, "compute_90"])


def test_few_open_files_are_named() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from vitscale.doctor.software import limits; from vitscale.doctor.check import Machine\n"
        "print(limits(Machine()))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "open files >= 4096" in finished.stdout and "FAIL" in finished.stdout


def test_the_checks_of_a_store_remove_what_they_made(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    machine = Machine(store=str(tmp_path / "kept"))
    (tmp_path / "kept" / "file").write_text("x")
    for check in (storage.creation, storage.replacement):
        assert check(machine).verdict == PASS
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["file"]


def test_a_node_that_answers_wrongly_is_named() -> None:
    wrong = dict(
        scheduling._wrong(
            {
                "good": ("torch 2", True),
                "older": ("torch 1", True),
                "blind": ("torch 2", False),
                "without": RuntimeError(
                    "Traceback\nModuleNotFoundError: No module named 'vitscale'"
                ),
            },
            "torch 2",
        )
    )
    assert wrong == {
        "older": "other versions (torch 1; here: torch 2)",
        "blind": "does not see the store",
        "without": "ModuleNotFoundError: No module named 'vitscale'",
    }


def test_every_failure_has_advice_and_no_option_is_made_up() -> None:
    script = ROOT.joinpath("vitscale/cli/script.py").read_text()
    named = {
        name
        for check in CHECKS
        for name in re.findall(r"train with(?:out)? (--[\w-]+)", check.advice)
    }
    assert len(named) == 5 and all(f'"{name}"' in script for name in named)
    assert all(len(check.advice.split()) > 5 for check in CHECKS)


def test_mlflow_is_read_back_from_a_temporary_database(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking.write_and_read(CPU).verdict == PASS
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cores", [2, 8])
def test_what_needs_no_device_runs_beside_and_is_shown_in_order(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, of which none is left."""
    monkeypatch.setattr(checks, "num_cores", lambda: cores)
    machine = Machine(device="cpu", store=str(tmp_path / "runs"))
    chosen = tuple(c for c in CHECKS if c.name in ("versions", "memory", "locks", "speed"))
    monkeypatch.setattr(checks, "CHECKS", chosen)
    processes: set[str] = set()
    real = Examination.find

    def find(self: Examination, check: Check, machine: Machine) -> Finding:
        processes.add(f"{id(self)} {check.is_beside}")
        return real(self, check, machine)

    monkeypatch.setattr(Examination, "find", find)
    found = list(checks.examine(machine, quick=True))
    assert [check.name for check, *_ in found] == [check.name for check in chosen]
    assert {finding.verdict for *_, finding, _ in found} == {PASS}
    assert len({name.split()[0] for name in processes}) == (2 if cores == 8 else 1)
    left = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "spawn_main" in line]
