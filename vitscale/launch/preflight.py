"""Checks data, cores and GPUs before Ray starts and before anything is written."""

from __future__ import annotations

import operator
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitscale.launch.resources import Resources
from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_cores
from vitscale.plan.data import EMBEDDED, check_embedded, check_readable
from vitscale.plan.paths import given, path_of
from vitscale.plan.study import Study
from vitscale.record.bucket import LEASE_S, off
from vitscale.record.outcome import Outcome
from vitscale.record.provenance import images_of

# The fields that decide which images a training reads.
READ = (
    "dataset",
    "num_images",
    "num_classes",
    "channels",
    "minival_images",
    "minival_rule",
    "subset_images",
    "split_seed",
)
ANSWER_S = 30.0  # for a cluster that is reached to say what it is
MAX_SOCKET_BYTES = 107  # of a path, on Linux
SOCKET = "session_2000-01-01_00-00-00_000000_{}/sockets/plasma_store"  # as Ray names them
LISTENER = "pymp-00000000/listener-00000000"  # as multiprocessing does
SETTINGS = 4  # a type of frame of HTTP/2
ANY_CLOCK = "VITSCALE_ANY_CLOCK"


def check_fits(resources: Resources) -> None:
    """Raises ValueError if this machine has fewer cores or GPUs than one trial needs.

    Asks before Ray starts and anything is written. What a cluster has only Ray knows.
    """
    machine = {"CPU": num_cores(), "GPU": 0}
    if resources.gpus_per_trial:
        import torch

        machine["GPU"] = torch.cuda.device_count()
    needed = {"CPU": resources.cpus_per_trial, "GPU": resources.gpus_per_trial}
    if any(resources.workers_per_trial * needed[name] > machine[name] for name in machine):
        hint = "; leave --gpus-per-trial out to train on the CPU" * (
            bool(resources.gpus_per_trial) and not machine["GPU"]
        )
        raise ValueError(
            f"a trial must fit on a node, but got (cpus_per_trial={resources.cpus_per_trial:g}, "
            f"gpus_per_trial={resources.gpus_per_trial:g}, "
            f"workers_per_trial={resources.workers_per_trial}; this process may use "
            f"{machine['CPU']} cores, and {machine['GPU']} GPUs that torch sees){hint}"
        )


def check_precision(study: Study, resources: Resources) -> None:
    """Raises ValueError for a precision that only a GPU computes, on a CPU."""
    if resources.device_name() != "cuda" and any(
        trial.config.precision == "tf32" for trial in study.trained
    ):
        raise ValueError(
            "precision != 'tf32' must hold on a CPU, which has no such arithmetic, but got "
            f"(precision='tf32', device='cpu', gpus_per_trial={resources.gpus_per_trial:g})"
        )


def check_ray_folder() -> Path:
    """The folder in which Ray keeps the files and sockets of a cluster that it starts here.

    Raises ValueError if the path of a socket would be too long, or no file can be made there.
    """
    folder = path_of(given(os.environ.get("RAY_TMPDIR", ""), "TMPDIR", "/tmp")) / "ray"
    hint = "set RAY_TMPDIR or TMPDIR to a folder for which that holds"
    _check_socket(folder / SOCKET.format(os.getpid()), hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"Ray must be able to write to its folder, but got ({folder}: {error.strerror}); {hint}"
        ) from error
    return folder


def check_loaders(resources: Resources) -> None:
    """Raises ValueError if processes that load images could not send them: the trial would wait
    forever.
    """
    if resources.num_loader_workers:
        _check_socket(Path(tempfile.gettempdir(), LISTENER), "set TMPDIR to a shorter folder")


def _check_socket(path: Path, hint: str) -> None:
    if (num_bytes := len(os.fsencode(path))) > MAX_SOCKET_BYTES:
        raise ValueError(
            f"the path of a socket must have at most {MAX_SOCKET_BYTES} bytes, but got "
            f"({num_bytes}: {path}); {hint}"
        )


def has_token() -> bool:
    """Whether the user has a token of Ray."""
    given = any(map(os.environ.get, ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")))
    return given or os.path.exists(os.path.expanduser("~/.ray/auth_token"))  # perhaps without home


def check_answers(address: str) -> None:
    """Raises ValueError if no Ray answers at host:port; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"an address of a Ray cluster must be host:port or auto, but got (address={address!r})"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
            connection.settimeout(ANSWER_S)
            # behind TLS nothing is answered before a handshake
            speaks = bool(int(os.environ.get("RAY_USE_TLS") or 0)) or _speaks_grpc(connection)
    except (OSError, OverflowError) as error:
        raise ValueError(f"a Ray cluster must answer at (address={address!r}): {error}") from error
    if not speaks:
        raise ValueError(
            f"a Ray cluster must answer at (address={address!r}): what listens there is no Ray"
        )


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether a server begins with settings of HTTP/2, as all of gRPC do (RFC 9113, 3.4)."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS)) + bytes(5))
    header = b""
    while len(header) < 9 and (part := connection.recv(9 - len(header))):
        header += part
    return len(header) == 9 and header[3] == SETTINGS


def clock_apart(place: str, ahead_s: float, in_bucket: bool) -> str:
    """A warning if a clock differs from the store's by more than a lease; empty if it does not.

    Raises ValueError instead for a store in a bucket, whose clock is right, unless ANY_CLOCK is
    set in the environment: no lease is judged by the time of day.
    """
    if abs(ahead_s) <= LEASE_S:
        return ""
    depends = "nothing in a study depends on it, but times in MLflow and in logs are wrong by that"
    if in_bucket and not os.environ.get(ANY_CLOCK):
        raise ValueError(
            f"the clock {place} must be as the store's within a lease ({LEASE_S:g} s), but is "
            f"{off(ahead_s)} it; set it by the network (timedatectl set-ntp true), or set "
            f"{ANY_CLOCK}=1: {depends}"
        )
    return f"the clock {place} is {off(ahead_s)} the store's; {depends}"


class Data:
    """The datasets at a data root, as far as a study reads them.

    A check lists the images of a dataset, reads their labels and decodes ten images. It takes
    milliseconds for a prepared set, a second for CIFAR, and as long as reading the label column for
    Parquet shards. Class folders need a listing of all files: for ImageNet about ten seconds on a
    local disk, and minutes on a slow network file system.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.digests: dict[tuple[Any, ...], dict[str, str]] = {}
        self.is_on_disk, self.batch_bytes = False, 0  # as in vitscale.train.data.Examined

    def look(self, study: Study) -> None:
        """Raises ValueError if data are missing or do not fit a config of the study.

        Examples are another number of images, other classes or channels, a missing split, or image
        sizes that the crop cannot take.
        """
        for key, configs in self._by_images(trial.config for trial in study.trained):
            check_readable(configs[0].dataset, self.root)
            if configs[0].dataset in EMBEDDED:
                check_embedded(configs)
                continue
            from vitscale.train.data import examine  # imports torch

            examined = examine(configs, Path(self.root) if self.root else None)
            self.digests[key] = examined.digests
            self.is_on_disk |= examined.is_on_disk
            self.batch_bytes = max(self.batch_bytes, examined.batch_bytes)

    def compare(self, study: Study, outcomes: Mapping[str, Outcome]) -> None:
        """Raises ValueError if completed trials of the study were trained or evaluated on other
        images than those that are there now.
        """
        seen = {trial_id: images_of(outcome) for trial_id, outcome in outcomes.items()}
        done = [trial.config for trial in study.trials if trial.config.id in seen]
        for key, configs in self._by_images(done):
            for name, current in self.digests.get(key, {}).items():
                others = [c for c in configs if seen[c.id].get(name, current) != current]
                if not others:
                    continue
                did = "trained" if name == "train" else "evaluated"
                raise ValueError(
                    f"the {name} images of {others[0].dataset} must be those that the trials of "
                    f"this study were {did} on, but got others (digest {current:.8}; of "
                    f"{len(others)} done trials {seen[others[0].id][name]:.8}; "
                    f"data_root={self.root!r}); name the root of those trials, or give these "
                    "images a name of their own"
                )

    def _by_images(
        self, configs: Iterable[TrainConfig]
    ) -> Iterator[tuple[tuple[Any, ...], list[TrainConfig]]]:
        """Groups configs by the training images that they read, skipping profiles, which read none.

        Yields (key, configs); the key holds the values of the fields named in READ.
        """
        groups: dict[tuple[Any, ...], list[TrainConfig]] = {}
        for config in configs:
            if config.reads_images:
                groups.setdefault(operator.attrgetter(*READ)(config), []).append(config)
        yield from groups.items()
