"""Which parts of a store may run, and the sources that it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refusals import refusing

from vitscale import TrainConfig
from vitscale.plan import parts
from vitscale.record.sources import check_trusted, keep
from vitscale.record.store import Store

PACKAGE = "no_such_package.net:Net@1.0"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(parts, "_trusted", set())
    return Store.open(tmp_path / "runs")


def of_a_stranger(store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainConfig, str]:
    """A config with a part whose source the store has and this process does not; its SHA-256."""
    source = parts.Source("net", {"net": (False, "def make(num_classes): ...\n")})
    store.parts.create(f"{source.sha256[:16]}.json", source.encoded())
    monkeypatch.setattr(parts, "_sources", {})
    return TrainConfig(model=f"net.py:make@{source.sha256[:16]}"), source.sha256


def test_trust_is_asked_for_once_in_a_process_for_files_and_packages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_file, sha256 = of_a_stranger(store, monkeypatch)
    configs = [of_file, TrainConfig(model=PACKAGE)]
    with pytest.raises(ValueError) as refused:
        check_trusted(configs, (), store)
    assert f"--trust-parts {sha256} --trust-parts {PACKAGE}" in str(refused.value)
    with refusing(sha256[:16], "--trust-parts " + sha256):  # sixteen digits can collide
        check_trusted([of_file], [sha256[:16]], store)
    with pytest.raises(ValueError, match=f"then give --trust-parts {PACKAGE}$"):
        check_trusted(configs, [sha256], store)
    check_trusted(configs, [sha256, PACKAGE], store)
    check_trusted(configs, (), store)  # as a driver does after its script


def test_what_a_user_has_run_is_not_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_file, sha256 = of_a_stranger(store, monkeypatch)
    configs = [of_file, TrainConfig(model=PACKAGE)]
    check_trusted(configs, [sha256, PACKAGE], store)
    keep(configs, store)
    monkeypatch.setattr(parts, "_trusted", set())  # another process of this user
    check_trusted(configs, (), store)
    monkeypatch.setattr(parts, "_trusted", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(store.root) + "/elsewhere")  # another user
    with refusing(sha256, PACKAGE):
        check_trusted(configs, (), store)


def test_a_source_that_is_absent_or_changed_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_file, sha256 = of_a_stranger(store, monkeypatch)
    name = f"{sha256[:16]}.json"
    store.parts.remove(name)
    with refusing("none", name):
        check_trusted([of_file], [sha256], store)
    store.parts.create(name, b"{}")
    with refusing(f"{name}: ", sha256[:16]):
        check_trusted([of_file], [sha256], store)
