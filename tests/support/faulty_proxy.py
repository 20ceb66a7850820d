"""A proxy between a client and a server of objects that counts requests and injects faults."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSAL = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"
# what may happen to a request; the server has done what was asked in "lost reply" and "half"
FAULTS = ("lost reply", "503", "slow", "cut", "half", "expired")


class Proxy:
    """Passes requests on. `fault` chooses what happens to one: a name of FAULTS, an HTTP status
    with a code such as "403 AccessDenied" and perhaps a text, "without NAME" to drop a header, or
    "" for nothing.
    """

    def __init__(self, port: int, own_port: int = 0, address: str = "127.0.0.1") -> None:
        self.upstream = port
        self.fault: Callable[[str, str], str] = lambda method, path: ""
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self.lock = threading.Lock()
        # moto looks at a condition and then writes, without a lock of its own
        self.writing = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def handle_any(self) -> None:
                proxy.pass_on(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

        self.server = ThreadingHTTPServer((address, own_port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{address}:{self.server.server_port}"

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self.fault(request.command, urllib.parse.unquote(request.path))
        kind = "LIST" if "list-type" in request.path else request.command
        with self.lock:
            self.requests[kind] += 1
            self.num_bytes["up"] += len(body)
            if fault:
                self.faults[fault] += 1
        if fault == "cut":
            return self.cut(request)
        if fault == "slow":
            time.sleep(0.3)
        if fault in ("503", "expired") or fault[:3].isdigit():
            name = {"503": "503 SlowDown", "expired": "400 ExpiredToken"}.get(fault, fault)
            status, code, *text = name.split(maxsplit=2)
            refusal = REFUSAL.format(code, *text or ("no",))
            return self.answer(request, int(status), {}, refusal.encode())
        headers = dict(request.headers)
        if fault.startswith("without "):
            headers.pop(fault.removeprefix("without "), None)
            headers.pop(fault.removeprefix("without ").lower(), None)
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        writing = self.writing if request.command == "PUT" else contextlib.nullcontext()
        with contextlib.closing(connection), writing:
            connection.request(request.command, request.path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
        if fault == "lost reply":
            return self.cut(request)
        with self.lock:
            self.num_bytes["down"] += len(content)
        self.answer(request, reply.status, dict(reply.getheaders()), content, fault == "half")

    def answer(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        content: bytes,
        half: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            request.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    request.send_header(name, value)
            length = headers.get("Content-Length") if request.command == "HEAD" else None
            request.send_header("Content-Length", length or str(len(content)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(content[: len(content) // 2] if half else content)
            if half:
                self.cut(request)

    def cut(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)


def serve(port: int, upstream: int, log: str, address: str = "127.0.0.1") -> None:
    """Passes requests on without faults, in a process of its own that may be killed."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)  # of connections that break
    Proxy(upstream, port, address).server.serve_forever()


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    with serving(proxy.server):
        yield proxy


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """A server answers, in a thread, for the time of a block."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def at_random(rate: float, seed: int, most: int) -> Callable[[str, str], str]:
    """Faults at random, at most so many in all."""
    draws, left, lock = random.Random(seed), most, threading.Lock()

    def fault(method: str, path: str) -> str:
        nonlocal left
        with lock:
            if left and draws.random() < rate:
                left -= 1
                return draws.choice(FAULTS)
        return ""

    return fault
