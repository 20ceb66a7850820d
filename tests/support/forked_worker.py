"""Ray's workers as forks of a process that has imported what a worker imports.

A worker spends five CPU seconds on the imports of torch, torchvision and timm, more than most
trials of the tests take. So a driver that the tests start forks a process that waits, and lets its
raylet run this file where it would run Ray's default_worker.py. This file sends its arguments,
environment, folder, signal mask and open files to the waiting process, a fork of which becomes the
worker: it runs Ray's file, registers under its own process id, and ends when Ray ends it. Until
then, the process that the raylet has started waits as well. Nodes of a cluster can do the same by
lean_ray.py. README, guide, cluster page and the installed wheel are tested with workers as Ray
starts them.

As it is run, it imports only what costs milliseconds. Of the waiting process all is imported but
Ray, which reads at its import whose worker it is.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import sys
from types import ModuleType

ADDRESS = "VITSCALE_TEST_WORKERS"  # the variable with the abstract address of the waiting process


LEAN = "VITSCALE_TEST_LEAN_RAY"  # the variable that leaves out what a study does not use of Ray
AGENT = "--dashboard_agent_command="  # the option of a raylet


def ask() -> None:
    """Has the waiting process fork, and ends when the worker has."""
    mask = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    message = marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd(), mask))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + os.environ[ADDRESS])
        socket.send_fds(connection, [message], [0, 1, 2])
        connection.recv(1)


def fork_workers_of_ray() -> None:
    """From now on, workers of a Ray that this process starts are forks of it as it is now."""
    driver = os.getpid()
    address = f"vitscale-workers-{driver}"
    listener = listen(address)
    if os.fork() == 0:
        wait_and_fork(listener, parent=driver)
        os._exit(0)
    listener.close()
    os.environ[ADDRESS] = address
    change_ray()


def listen(address: str) -> socket.socket:
    """For `wait_and_fork`."""
    assert "ray" not in sys.modules, "Ray reads the environment of a worker when it is imported"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + address)
    listener.listen()
    return listener


def fork_workers_at(address: str) -> None:
    """Waits, and forks workers of all nodes whose ADDRESS this is, until it is killed."""
    wait_and_fork(listen(address), parent=os.getppid())


def change_ray() -> None:
    """Has the Ray that this process starts run this file, if there is an ADDRESS to ask, and leave
    out what a study does not use, if it is to be LEAN.
    """
    from support.patched import change_on_import

    change_on_import({"ray._private.services": start_this_file})
    if os.environ.get(LEAN):
        change_on_import({"ray._private.node": leave_out_what_a_study_does_not_use})


def start_this_file(services: ModuleType) -> None:
    """Makes a raylet run this file where it would run Ray's."""
    start = services.start_ray_process

    def start_with_this_file(command: list[str], *arguments: object, **options: object) -> object:
        own = __file__ if ADDRESS in os.environ else file_of_ray()
        parts = [part.replace(file_of_ray(), own) for part in command]
        if os.environ.get(LEAN):
            parts = [idle_agent(part) for part in parts]
        return start(parts, *arguments, **options)

    services.start_ray_process = start_with_this_file


def idle_agent(option: str) -> str:
    """The option of a raylet for its dashboard's agent, with a command that costs nothing."""
    if not option.startswith(AGENT):
        return option
    session, node = (
        next(word.removeprefix(key) for word in option.split() if word.startswith(key))
        for key in ("--session-dir=", "--node-id=")
    )
    folder = os.path.dirname(os.path.abspath(__file__))
    return f"{AGENT}sh {folder}/idle_agent.sh {session} {node}"


def leave_out_what_a_study_does_not_use(node: ModuleType) -> None:
    """No dashboard with its agent, no autoscaler and no log monitor: most of the CPU time of a
    start. Where an agent needs 15 s for its imports, on a busy machine, Ray does not start.
    """
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        setattr(node.Node, name, lambda *_, **__: None)


def file_of_ray() -> str:
    """The script that a worker of Ray runs."""
    import ray._private.node as node

    folder = os.path.dirname(os.path.abspath(node.__file__))
    return os.path.join(folder, "workers", "default_worker.py")


def wait_and_fork(listener: socket.socket, parent: int) -> None:
    """Forks a worker at each request, until `parent` ends."""
    import ctypes
    import gc

    gc.freeze()  # what is imported stays, and its pages stay shared
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # the kernel forgets each worker that has ended; what stops a driver ends this process with it
    names = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, signal.SIG_IGN) for name in names}
    while True:
        connection, _ = listener.accept()
        message, files, *_ = socket.recv_fds(connection, 2**20, 3)
        if os.fork() == 0:
            listener.close()
            for name, handler in before.items():
                signal.signal(name, handler or signal.SIG_DFL)
            become(*marshal.loads(message), files)
        for file in files:
            os.close(file)
        connection.close()


def become(
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    mask: list[int],
    files: list[int],
) -> None:
    """What Python does for a script. Ends this process; its connection ends with it."""
    import atexit
    import runpy
    import threading
    import traceback

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    file = file_of_ray()
    sys.argv, sys.path = [file, *arguments], [os.path.dirname(file), *sys.path]
    status = 0
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        threading._shutdown()  # waits for threads that are no daemons, until a signal ends that
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    ask()
