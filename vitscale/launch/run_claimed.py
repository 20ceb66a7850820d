"""Training or measuring a trial that this process has claimed, up to its commit in the store.

Knows neither Ray nor other trials.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vitscale.launch.graceful_exit import saved_at_exit
from vitscale.launch.resources import Event, Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.study import config_of
from vitscale.record import sources
from vitscale.record.misclassified import WRONG, Misclassified, encode
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.provenance import CAPTURED, EVAL_IMAGES, LEFT_OUT, TRAIN_IMAGES, as_fact
from vitscale.record.store import Store
from vitscale.record.workdir import Left, NoStart, Workdir, read_json, step_saved

if TYPE_CHECKING:
    from vitscale.train.loop import Kept, Trained

# What CUDA keeps on a GPU for each process beside torch's tensors: code, cuBLAS' handles. Several
# hundred MiB, by card and driver; not measured here.
CONTEXT_BYTES = int(0.6 * 2**30)
REPORT_EVERY_S = 1.0
TEAM_REPORT_EVERY_S = 10.0  # in the end; a team's events wait until Ray Train polls them
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
KEPT_BYTES, HEAP_BYTES = 2**28, 2**25
_compiled_shape = ""  # of the last trial that this process compiled
# what the last checkpoint holds, by whether the weights shall be kept; None: if they are small
KEPT: dict[bool | None, Kept] = {None: "small", True: "weights", False: "rows"}


def train_claimed(
    config: TrainConfig,
    workdir: Workdir,
    store: Store,
    attempt: int,
    resources: Resources,
    pins: Collection[int] = (),
    is_leaving: Callable[[], bool] | None = None,
) -> Iterator[Event]:
    """Trains a claimed trial and commits its outcome; yields an Event about every second, and of a
    team after 1, 2, 4, 8 and then every 10 seconds: a search may stop it soon, too.

    `pins` are the steps at which it keeps its state for trials that start there.
    In a team, all processes yield the same events, and the process of rank 0 commits the outcome.
    If `is_leaving` says so in any process of its team, or without it at SIGTERM, a trial saves a
    checkpoint and ends by Left.
    """
    work = functools.partial(_train, config, workdir, store, attempt, resources, pins)
    yield from work(is_leaving) if is_leaving else saved_at_exit(work)


def _train(
    config: TrainConfig,
    workdir: Workdir,
    store: Store,
    attempt: int,
    resources: Resources,
    pins: Collection[int],
    is_leaving: Callable[[], bool],
) -> Iterator[Event]:
    import torch

    from vitscale.record.provenance import provenance
    from vitscale.train.captured import is_captured
    from vitscale.train.loop import train
    from vitscale.train.parallel import Team

    sources.fetch(config.asdict(), store)  # in each process of a team
    device, team = resources.device_name(), Team.join()
    reset_process(resources, config.others)
    rows: list[Row] = []
    facts = {"attempt": str(attempt), "device": device, "workers": str(team.size), **provenance()}
    # of this thread; the one that ends the process may be the next to go on here
    gpu = torch.cuda.current_device() if device == "cuda" else None
    yield Event(config.id, Status.RUNNING, from_step=step_saved(workdir))
    _go_on_with(gpu)
    if team.size == 1 and is_leaving():
        raise Left("the process was told to end before it had trained")
    reported, every_s = time.monotonic(), REPORT_EVERY_S
    training = train(
        config,
        workdir,
        device,
        data_root=Path(resources.data_root) if resources.data_root else None,
        num_loader_workers=resources.num_loader_workers,
        checkpoint_every_s=resources.checkpoint_every_s,
        micro_batch=resources.micro_batch,
        parallel_branches=resources.parallel_branches,
        compiled=resources.compiled,
        capture=is_captured(config, device, resources.capture),
        kept=KEPT[resources.keep_weights],
        trunk=store.trial(config.trunk) if config.trunk else None,
        parent=store.trial(config.init_from) if config.init_from else None,
        teacher=_teacher(config.teacher, store) if config.teacher else None,
        pins=pins,
        is_leaving=is_leaving,
    )
    ends: list[Trained] = []
    for row in _with_end(training, ends):
        rows.append(row)
        if team.share(time.monotonic() - reported > every_s):
            yield Event(config.id, Status.RUNNING, tuple(rows))
            _go_on_with(gpu)
            reported = time.monotonic()
            if team.size > 1:
                every_s = min(2 * every_s, TEAM_REPORT_EVERY_S)
    trained = ends[0]
    facts |= {TRAIN_IMAGES: trained.data, EVAL_IMAGES: as_fact(trained.images)}
    if trained.left_out:
        facts[LEFT_OUT] = trained.left_out
    if trained.deterministic:
        facts["deterministic"] = "yes"
    if trained.captured:
        facts[CAPTURED] = trained.captured
    beside = {}
    if trained.wrong:  # else it diverged, or an older version took it to its end
        facts[WRONG], content = encode(Misclassified(trained.wrong, trained.images))
        beside[facts[WRONG]] = content
    outcome = Outcome.from_rows(rows, facts)
    if team.rank == 0:
        store.finish(workdir, outcome, beside)
    yield Event.ended(config.id, outcome)


def _go_on_with(gpu: int | None) -> None:
    """CUDA's current device is one of each thread."""
    import torch

    if gpu is not None:
        torch.cuda.set_device(gpu)


def end_with_start(
    config: TrainConfig,
    workdir: Workdir,
    store: Store,
    attempt: int,
    start_id: str,
    start: Outcome,
) -> Iterator[Event]:
    """Commits the outcome of a claimed trial whose parent diverged, or whose trunk did before it
    branched off.

    Its rows are those of the trunk, as they are of the same training in one piece; with a parent,
    it has diverged at its first step.
    """
    from vitscale.record.provenance import provenance

    names = ("device", "workers", TRAIN_IMAGES, EVAL_IMAGES, LEFT_OUT, "deterministic")
    facts, rows, who = {}, start.rows, f"parent {start_id}"
    if config.trunk:
        facts = {name: start.facts[name] for name in names if name in start.facts}
        who = f"trunk {config.trunk}"
    else:
        from vitscale.train.loop import diverged_row

        rows = ({**diverged_row(config, 0), "train_s": 0.0, "eval_s": 0.0, "unix_s": time.time()},)
    reason = f"its {who} diverged at step {int(start.rows[-1]['diverged_step'])}"
    outcome = Outcome.from_rows(
        rows, {"attempt": str(attempt), **facts, **provenance(), "error": reason}
    )
    store.finish(workdir, outcome)
    yield Event.ended(config.id, outcome)


def _teacher(trial_id: str, store: Store) -> tuple[TrainConfig, Workdir]:
    """The config and the folder of a teacher. Raises NoStart if the config is not its own."""
    folder = store.trial(trial_id)
    fields = read_json(folder, "config.json")
    sources.fetch(fields, store)
    config = config_of(fields)
    if config.id != trial_id:
        raise NoStart(
            "the config of a teacher must be in its folder, but got another "
            f"({folder.address('config.json')}: {config.id})"
        )
    return config, folder


def _with_end(training: Generator[Row, None, Trained], ends: list[Trained]) -> Iterator[Row]:
    """The rows of a training; once it has ended, `ends` has what it left beside them."""
    ends.append((yield from training))


def profile_claimed(
    config: ProfileConfig, workdir: Workdir, store: Store, attempt: int, resources: Resources
) -> Iterator[Event]:
    """Measures a claimed profile, always from its first run.

    No events are sent between runs, since they would disturb the timing.
    """
    from vitscale.record.provenance import provenance
    from vitscale.train.profile import profile

    device = resources.device_name()
    reset_process(resources)
    yield Event(config.id, Status.RUNNING)
    rows = list(profile(config, device))
    outcome = Outcome.from_rows(
        rows, {"attempt": str(attempt), "device": device, "workers": "1", **provenance()}
    )
    store.finish(workdir, outcome)
    yield Event.ended(config.id, outcome)


def reset_process(resources: Resources, shape: str = "") -> None:
    """Resets the process state that one trial of a reused worker could leave to the next.

    Trials of one `shape`, such as TrainConfig.others, share what torch.compile has compiled for
    them. The trainer seeds all generators itself. Raises OSError if a GPU is wanted and none is
    visible, and as `set_deterministic`.
    """
    import torch

    from vitscale.train.deterministic import set_deterministic

    global _compiled_shape

    torch.set_num_threads(max(1, int(resources.cpus_per_trial)))
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    # it chooses by timing, so that a training would resume with other rounding (docs/gpu.md)
    torch.backends.cudnn.benchmark = False
    set_deterministic(resources.deterministic)
    keep_freed_memory()
    if resources.compiled and (not shape or shape != _compiled_shape):
        # earlier shapes count toward the cache limit, and sizes that differ would become dynamic
        torch.compiler.reset()
        _compiled_shape = shape
    if resources.device_name() == "cuda":
        if not torch.cuda.is_available():
            raise OSError(
                "a GPU must be visible to torch for (device='cuda'); use --device cpu to train "
                "without"
            )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(memory_share(resources.gpus_per_trial, total))


def memory_share(gpu_share: float, total_bytes: int) -> float:
    """The fraction of a GPU's memory that the tensors of a trial may take, with a share in (0, 1]
    of the GPU: the same share of it, less what CUDA keeps for the process itself.

    A trial alone is only limited by the memory. A card of a few contexts gives half of the share.
    """
    if not 0 < gpu_share < 1:
        return 1.0
    return max(gpu_share - CONTEXT_BYTES / total_bytes, gpu_share / 2)


def keep_freed_memory() -> None:
    """Lets the process keep up to KEPT_BYTES that it has freed, where glibc allocates.

    At its own thresholds, glibc returns the activations of a small model to the kernel in each step
    and gets them back page by page: hundreds of page faults per step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, HEAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
