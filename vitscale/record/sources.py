"""The sources of parts (vitscale.plan.parts) in a store, each in a file named by its digest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitscale.plan import parts
from vitscale.plan.config import TrainConfig
from vitscale.plan.paths import given, path_of
from vitscale.record.store_folder import StoreFolder
from vitscale.record.workdir import Damaged

SUFFIX = ".json"


def keep(configs: Iterable[TrainConfig], store: StoreFolder) -> None:
    """Writes the sources that the store does not have, and that this user has run the parts."""
    keys = set()
    for part in _named(configs):
        source = parts.source_of(digest := parts.digest_of(part))
        keys.add(source.sha256 if source else part)
        if source and not store.parts.exists(f"{digest}{SUFFIX}"):
            store.parts.create(f"{digest}{SUFFIX}", source.encoded())
    if keys and (new := keys - _run_before()):
        with contextlib.suppress(OSError):  # without it, `vitscale evaluate` asks
            _ledger().parent.mkdir(parents=True, exist_ok=True)
            with _ledger().open("a") as file:
                file.writelines(f"{key}\n" for key in sorted(new))


def _named(configs: Iterable[TrainConfig]) -> list[str]:
    """The parts of configs, each once."""
    return list(dict.fromkeys(part for c in configs for part in parts.parts_of(c).values()))


def _ledger() -> Path:
    """The file of this user with the parts that were run: digests of sources, names of packages."""
    state = path_of(given("", "XDG_STATE_HOME", "~/.local/state"))
    return state / "vitscale" / "own-parts"


def _run_before() -> set[str]:
    try:
        return set(_ledger().read_text().split())
    except (OSError, UnicodeDecodeError):
        return set()


def read(fields: Iterable[Mapping[str, Any]], store: StoreFolder) -> list[str]:
    """Reads the sources of the parts that fields of configs name, as far as the store has them;
    runs none. Returns their digests. Raises Damaged for one that is not as it was written.
    """
    digests = list(dict.fromkeys(_digests(fields)))
    for digest in digests:
        if parts.source_of(digest) is None:
            read_source(digest, store)
    return digests


def read_source(digest: str, store: StoreFolder) -> None:
    """Reads a source, if the store has it, as `read` does."""
    if not store.parts.exists(name := f"{digest}{SUFFIX}"):
        return
    try:
        parts.register(parts.decoded(store.parts.read(name), digest))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        where = store.parts.address(name)
        raise Damaged(
            f"the source of a part must be as it was written, but got ({where}: {error})"
        ) from error


def fetch(fields: Mapping[str, Any], store: StoreFolder) -> None:
    """Lets this process run the parts of a config, whose driver has checked that it may."""
    read([fields], store)
    named = (fields.get(field, "") for field in parts.PARTS)
    parts.trust(parts.digest_of(part) or part for part in named if parts.is_part(part))


def _digests(configs: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for fields in configs:
        for field in parts.PARTS:
            value = fields.get(field, "")
            if parts.is_part(value) and (digest := parts.digest_of(value)):
                yield digest


def check_trusted(
    configs: Iterable[TrainConfig], trusted: Iterable[str], store: StoreFolder
) -> None:
    """Raises ValueError unless each part is of the user's own files, now or in an earlier start, or
    is among those that the user trusts, by the 64 hex digits of its source; a part of a package by
    its name.
    """
    unknown = [p for p in _named(configs) if not parts.is_trusted(parts.digest_of(p) or p)]
    if not unknown:
        return
    read(({"model": part} for part in unknown), store)
    accepted, missing = {*trusted, *_run_before()}, dict[str, str]()
    for part in unknown:
        digest = parts.digest_of(part)
        source, where = parts.source_of(digest), store.parts.address(f"{digest}{SUFFIX}")
        if digest and source is None:
            raise ValueError(f"the store must have the source of a part, but got none ({where})")
        key = source.sha256 if source else part
        if key in accepted:
            parts.trust([digest or part])
        else:
            missing.setdefault(key, f"{part}, in {where}" if source else part)
    if missing:
        options = " ".join(f"--trust-parts {key}" for key in missing)
        raise ValueError(
            "a part of a store must be trusted before it runs, but got "
            f"({'; '.join(missing.values())}); read it, then give {options}"
        )
