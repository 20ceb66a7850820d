"""Microsoft's emulator of Azure's blobs, on loopback: a second server with conditional writes."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

from conftest import free_port, wait_for

ACCOUNT, VERSION = "acct", "2021-12-02"
KEY = base64.b64encode(b"a key of no real account").decode()
OPTIONS = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")


@contextlib.contextmanager
def served(container: str) -> Iterator[int]:
    """The port of a server that has this container. Needs azurite-blob (npm's azurite)."""
    command = shutil.which("azurite-blob")
    assert command, "azurite-blob must be on the path: `make test-azure` installs it"
    port = free_port()
    process = subprocess.Popen(
        [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), *OPTIONS],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
    )

    def makes_the_container() -> bool:
        assert process.poll() is None, "azurite must run"
        try:
            _create(port, container)
        except OSError:
            return False
        return True

    try:
        wait_for(makes_the_container, 60, "azurite")
        yield port
    finally:
        process.kill()
        process.wait()


def _create(port: int, container: str) -> None:
    """Put a container, signed as Azure's "Authorize with Shared Key" says."""
    date = email.utils.formatdate(usegmt=True)
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    signed = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{VERSION}\n{resource}"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Type": "",
    }
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{container}?restype=container"
    request = urllib.request.Request(url, data=b"", headers=headers, method="PUT")
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 201
