"""Joins a Ray cluster, or starts one here, and notices that its head is lost."""

from __future__ import annotations

import vitscale.launch.ray_settings  # isort: skip  # noqa: F401

import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TextIO, TypeVar

import ray
from ray._private import ray_constants
from ray._private.services import get_ray_address_from_environment

from vitscale.launch.preflight import check_answers, check_ray_folder, has_token
from vitscale.launch.resources import Resources
from vitscale.plan.cores import num_cores

T = TypeVar("T")
Log = Callable[[], contextlib.AbstractContextManager[TextIO]]  # opens the log for appending


class HeadLost(OSError):
    """The head of the cluster, or the only node of a local one, does not answer: this process must
    not call Ray any more.
    """


def watched(ask: Callable[[], T], resources: Resources) -> T:
    """Calls a function that asks Ray, in a thread of its own, since Ray may never answer.

    Raises what the function raises, or HeadLost after a while without the head, or without the only
    node of a cluster that was started for the study: Tune would wait for another one.
    """
    patience_s, is_local = 60.0 if resources.address else 10.0, not resources.address
    node = ray._private.worker._global_node
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    silence = f"the head of the Ray cluster (GCS at {host}:{port}) does not answer"
    thread = threading.Thread(target=run, name="asks Ray", daemon=True)
    thread.start()
    answered_s = time.monotonic()
    while thread.is_alive():
        thread.join(1)
        if not _answers(host, int(port)):
            loss = silence
        elif is_local and node and any(name == "raylet" for name, _ in node.dead_processes()):
            loss = "the only node of the Ray cluster (its raylet) has ended"
        else:
            answered_s = time.monotonic()
        if time.monotonic() - answered_s > patience_s:
            raise HeadLost(loss)
    error = answer.exception()
    # without a head, that is the cause of what Ray raised, and Ray must not be asked any more
    is_of_ray = isinstance(error, Exception) and not isinstance(error, ValueError)
    if is_of_ray and not _answers(host, int(port)):
        raise HeadLost(silence) from error
    return answer.result()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=2).close()
    except OSError:
        return False
    return True


def check_cluster(address: str) -> None:
    """Raises ValueError if no Ray answers at host:port or, for auto, where Ray would look."""
    if address == "auto":
        try:
            address = get_ray_address_from_environment(address, None)
        except ConnectionError as error:
            raise ValueError(
                "a Ray cluster must run on this machine, but got none (address='auto'): start one "
                "by `ray start --head`, name another one's, or leave --address out"
            ) from error
    check_answers(address)


@contextlib.contextmanager
def cluster(resources: Resources, log: Log) -> Iterator[None]:
    """Joins the Ray cluster at `resources.address`, or starts one that only listens on loopback.

    The output of Ray goes to `log`. Raises ValueError if the cluster cannot be joined.
    """
    if resources.address:
        check_cluster(resources.address)
    joining = _library_errors() if resources.address else contextlib.nullcontext(str)
    with quiet(log), _own_handler(), joining as written:
        try:
            options = {"address": resources.address} if resources.address else _local()
            # Ray replaces the loopback address unless it believes that there can be no other node.
            ray_constants.ENABLE_RAY_CLUSTER = bool(resources.address)
            ray.init(log_to_driver=False, configure_logging=False, **options)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            if not resources.address:  # no other command would help
                raise
            raise ValueError(_not_joined(resources.address, error, written())) from error
    try:
        yield
    except HeadLost:
        node = ray._private.worker._global_node
        if not resources.address and node:  # its processes would keep training without their head
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        raise
    except BaseException:
        _shut_down(log)
        raise
    else:
        _shut_down(log)


def _local() -> dict[str, Any]:
    """Arguments of ray.init for a cluster here. Without a token it gets one of its own: Ray would
    write one to the home of the user, which may be read-only, or missing.
    """
    if not has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": 256 * 2**20,
        "num_cpus": num_cores(),
        "_temp_dir": str(check_ray_folder()),
    }


@contextlib.contextmanager
def _library_errors() -> Iterator[Callable[[], str]]:
    """Collects what C++ libraries write to stderr, and sends it to Python's stderr at the end of
    the block. Yields a function that returns the text so far.
    """
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:

        def written() -> str:
            return os.pread(file.fileno(), 2**20, 0).decode(errors="replace")

        with contextlib.suppress(OSError):  # this process may have no stderr
            stderr = os.dup(2)
            stack.callback(lambda: sys.stderr.write(written()))
            stack.callback(os.close, stderr)
            stack.callback(os.dup2, stderr, 2)
            os.dup2(file.fileno(), 2)
        yield written


def _not_joined(address: str, error: Exception, written: str) -> str:
    """Why this process could not join a cluster. `written`: what Ray wrote to stderr meanwhile."""
    text = " ".join(str(error).split())
    if text.startswith("Version mismatch: "):
        law = "a driver must have the versions of Ray and Python that its cluster has"
    elif isinstance(error, ray.exceptions.AuthenticationError) or "AuthToken" in written:
        law = "a driver must have the token of its cluster (RAY_AUTH_TOKEN, ~/.ray/auth_token)"
    else:
        law = "a Ray cluster must answer"
    return f"{law}, but got (address={address!r}): {text}"


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Keeps this process's handler of SIGTERM, which ray.init replaces in the main thread."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _shut_down(log: Log) -> None:
    """Ends the connection, without garbage collection meanwhile: Ray ends the process with status 1
    if a reference to a Ray object is dropped, in any thread, while Ray shuts down.
    """
    gc.collect()
    gc.disable()
    try:
        with quiet(log):
            ray.shutdown()
    finally:
        gc.enable()


@contextlib.contextmanager
def quiet(log: Log) -> Iterator[None]:
    """Redirects what Ray and Tune print and log in this process to a log."""
    logger = logging.getLogger("ray")
    handlers = logger.handlers
    with log() as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        logger.handlers, logger.propagate = [logging.StreamHandler(file)], False
        try:
            yield
        finally:
            logger.handlers = handlers
