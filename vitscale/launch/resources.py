"""Where and how fast trials run, and the events that they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from vitscale.plan.profile import METRIC, ProfileConfig
from vitscale.plan.spelling import shown, shown_text
from vitscale.plan.study import Study
from vitscale.record.outcome import Outcome, Row, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged

MAX_AMOUNT = 10**7  # of cores, concurrent trials, images or seconds


@dataclass(frozen=True)
class Resources:
    """Where trials run and how fast: never part of a trial's identity.

    Raises ValueError for impossible amounts.
    """

    cpus_per_trial: float = 1.0  # per worker
    # cpus_per_trial was not given: where GPUs train from images on disk, a start takes the share of
    # a node's cores that belongs to the GPU (vitscale.launch.nodes.share_of_cores)
    cores_by_share: bool = False
    gpus_per_trial: float = 0.0  # per worker; a fraction packs several trials on one GPU
    # Ray's name of the only GPUs to use, such as "H100"; empty: any
    accelerator_type: str = ""
    workers_per_trial: int = 1  # data-parallel processes per trial
    # largest number of images in one forward pass; 0: the worker's whole part of the batch
    micro_batch: int = 0
    parallel_branches: bool = False  # compute the branches of a parallel ViT as one
    compiled: bool = False  # torch.compile
    # CUDA graphs of steps (vitscale.train.captured); None: for models that SEEN names
    capture: bool | None = None
    deterministic: bool = False  # as in vitscale.train.deterministic
    device: str = "auto"  # cuda if a trial has a GPU, else cpu
    max_concurrent: int = 0  # trials at once; 0: as many as fit
    address: str = ""  # of an existing Ray cluster; empty starts one on this machine
    # how long to wait for a first node on which a trial fits, where a cluster has none yet
    cluster_timeout_s: float = 3600.0
    data_root: str = ""
    # processes that read images; "auto": as vitscale.plan.cores.num_readers
    num_loader_workers: int | Literal["auto"] = 0
    checkpoint_every_s: float = 5.0
    keep_weights: bool | None = None  # the final ones; None: if they are small

    def __post_init__(self) -> None:
        for name, lower in (
            ("cpus_per_trial", 0.01),
            ("gpus_per_trial", 0.0),
            ("max_concurrent", 0),
            ("workers_per_trial", 1),
            ("micro_batch", 0),
            ("num_loader_workers", 0),
            ("checkpoint_every_s", 0.0),
            ("cluster_timeout_s", 0.0),
        ):
            if getattr(self, name) == "auto":
                continue
            if not getattr(self, name) >= lower:
                raise ValueError(
                    f"{name} >= {lower} must hold, but got ({name}={shown(getattr(self, name))})"
                )
            if not getattr(self, name) <= MAX_AMOUNT:
                raise ValueError(
                    f"{name} <= {MAX_AMOUNT} must hold, but got "
                    f"({name}={shown(getattr(self, name))})"
                )
        if self.workers_per_trial > 1 and self.gpus_per_trial % 1:
            raise ValueError(
                "gpus_per_trial a whole number must hold with several workers, but got "
                f"(gpus_per_trial={self.gpus_per_trial}, "
                f"workers_per_trial={self.workers_per_trial})"
            )
        if self.gpus_per_trial > 1:
            raise ValueError(
                "gpus_per_trial <= 1 must hold, for each worker trains on one GPU "
                f"(--workers-per-trial N takes N), but got (gpus_per_trial={self.gpus_per_trial}, "
                f"workers_per_trial={self.workers_per_trial})"
            )
        if self.device == "cuda" and not self.gpus_per_trial:
            raise ValueError(
                "gpus_per_trial > 0 must hold on the device cuda, or every trial would take the "
                f"first GPU, but got (gpus_per_trial={self.gpus_per_trial}, device='cuda')"
            )
        if self.capture and self.device_name() != "cuda":
            raise ValueError(
                "a GPU must train a trial whose steps are captured, but got "
                f"(capture=True, gpus_per_trial={self.gpus_per_trial}, device={self.device!r})"
            )
        if self.accelerator_type and not self.gpus_per_trial:
            raise ValueError(
                "gpus_per_trial > 0 must hold with an accelerator type, but got "
                f"(gpus_per_trial={self.gpus_per_trial:g}, "
                f"accelerator_type={shown_text(self.accelerator_type)})"
            )
        if self.address.startswith("ray://"):
            raise ValueError(
                f"a driver must run on a node of the cluster, but got (address={self.address!r}): "
                "start the command on a node with --address auto, or from outside with `ray job "
                "submit --working-dir . -- python studies/... --address auto`; the store must be a "
                "folder that all nodes see, or a bucket"
            )

    def alone(self) -> Resources:
        """The same resources, with a whole device for each trial that had a fraction of one."""
        return replace(self, gpus_per_trial=1.0) if 0 < self.gpus_per_trial < 1 else self

    def placement(self) -> dict[str, float]:
        """The resource in Ray that only nodes with the named accelerator have; empty for any."""
        return {f"accelerator_type:{self.accelerator_type}": 0.001} if self.accelerator_type else {}

    def device_name(self) -> str:
        if self.device == "auto":
            return "cuda" if self.gpus_per_trial > 0 else "cpu"
        return self.device


def resources_for(study: Study, given: Mapping[str, Any]) -> Resources:
    """Resources of a study, from command-line options in which None means not given.

    On a GPU, readers and cores that are not given are as many as the images on disk need.
    A profile has a device to itself, and its config decides everything that affects its speed.
    Raises ValueError for impossible amounts, and for options that would change what a profile
    measures.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    config = study.trials[0].config
    if not isinstance(config, ProfileConfig):
        resources = Resources(**chosen)
        if resources.device_name() != "cuda":
            return resources
        readers = chosen.get("num_loader_workers", "auto")
        by_share = "cpus_per_trial" not in chosen
        return replace(resources, num_loader_workers=readers, cores_by_share=by_share)
    alone: dict[str, Any] = {"gpus_per_trial": 1.0, "device": "cuda"}
    if config.threads:
        alone = {
            "cpus_per_trial": float(config.threads),
            "gpus_per_trial": 0.0,
            "max_concurrent": 1,
            "device": "cpu",
        }
    required = {f.name: f.default for f in fields(Resources) if f.name in TRAINING_ONLY} | alone
    for name, value in required.items():
        if chosen.get(name, value) not in (value, *UNSET.get(name, ())):
            raise ValueError(
                f"{name} == {value} must hold for a profile, which has a device to itself, but "
                f"got ({name}={chosen[name]}, hardware={config.hardware!r})"
            )
    return Resources(**{**chosen, **alone})


# Options that affect the speed of a training; a profile is measured without them.
TRAINING_ONLY = (
    "workers_per_trial",
    "micro_batch",
    "parallel_branches",
    "compiled",
    "capture",
    "deterministic",
)
# values that mean "not given"
UNSET: dict[str, tuple[Any, ...]] = {"device": ("auto",), "max_concurrent": (0,)}


def check_alone(study: Study, store: Store) -> None:
    """Raises ValueError if a profile would share the machine with another running study.

    Only studies of the same store are known. Call it while holding the study's own lock: of two
    studies that start at once, at least one then sees the other.
    """
    others = [slug for slug in store.slugs() if slug != study.slug and store.driver_is_alive(slug)]
    conflicts = others if study.measures else [s for s in others if _plans_profiles(store, s)]
    if conflicts:
        raise ValueError(
            f"no other study of the store must run beside profiles, but got (study={study.slug}, "
            f"running={conflicts})"
        )


def _plans_profiles(store: Store, slug: str) -> bool:
    """Whether a study consists of profiles; False if its plan cannot be read."""
    try:
        return bool(store.plan(slug).get("metric") == METRIC)
    except Damaged:
        return False


# elsewhere: another study is training the trial. The others follow a machine failure: the trial is
# retried (again), retried later with a device to itself (crowded), or given up (lost).
News = Literal["elsewhere", "again", "crowded", "lost"]


@dataclass(frozen=True)
class Event:
    """News of a trial: its rows so far, or how it ended."""

    trial_id: str
    status: Status | News
    rows: Sequence[Row] = ()
    # provenance of a completed trial; "error" of a failed one
    facts: Mapping[str, str] = field(default_factory=dict)
    from_step: int = 0  # of one that begins: the optimizer steps behind it, at its checkpoint

    @classmethod
    def ended(cls, trial_id: str, outcome: Outcome) -> Event:
        return cls(trial_id, outcome.status, outcome.rows, outcome.facts)

    @property
    def outcome(self) -> Outcome:
        """The trial's outcome as of this event; `missing` after a failure of the machine."""
        status = self.status if isinstance(self.status, Status) else Status.MISSING
        return Outcome(status, self.rows, self.facts)
