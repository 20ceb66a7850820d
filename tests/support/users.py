"""Another user of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def another_user() -> Iterator[int]:
    """The id of a user for whom root acts; skips the test where there is no root."""
    if os.geteuid():
        pytest.skip("only root can act for another user")
    yield 54_321


def as_user(user: int, group: int, code: str, *arguments: object) -> str:
    """What a function prints in a process of a user, who may write what the group may."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            os.umask(0o002)
            said: list[str] = []
            exec(code, {"arguments": arguments, "say": said.append})
        except BaseException as error:
            said = [f"{type(error).__name__}: {error}"]
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()
