"""The field `own`: arguments of the parts of a config, as one text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitscale.plan.fields import DEFAULTS
from vitscale.plan.parts import REQUIRED, UNREAD, Scalar, name_of, read_own, signature
from vitscale.plan.spelling import shown


def own_text(values: Mapping[str, Scalar]) -> str:
    """Arguments as the text of the field `own`, sorted by name."""
    return ",".join(f"{name}={values[name]!r}" for name in sorted(values))


def settled(own: str | Mapping[str, Scalar], parts: Mapping[str, str]) -> str:
    """The field `own` for these parts: each set of arguments has one text. An argument at its
    default is left out, and an int for a float becomes one.

    Raises ValueError for an argument that no part has, that has another type, or that is absent.
    """
    if not isinstance(own, str | Mapping):
        raise ValueError(f"own must map names to values, but got (own={shown(own)})")
    values = read_own(own) if isinstance(own, str) else dict(own)
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a name in own must be an identifier, but got ({shown(name)})")
        if type(value) not in (int, float, bool, str) or (
            type(value) is float and not math.isfinite(value)
        ):
            law = "an argument in own must be an int, a finite float, a bool or a str"
            raise ValueError(f"{law}, but got ({shown(name)}={shown(value)})")
    signatures = {field: signature(field, part) for field, part in parts.items()}
    accepted: dict[str, list[Any]] = {}
    for params in signatures.values():
        for name, default in (params or {}).items():
            accepted.setdefault(name, []).append(default)
    if values and not parts:
        raise ValueError(f"own must come with a part, but got (own={shown(own)})")
    if any(params is None for params in signatures.values()):
        return own_text(values)  # checked where the source is
    takers = ", ".join(map(name_of, parts.values()))
    mine = _mine(accepted)
    fields = accepted.keys() - mine.keys() - {"data_root"}
    for name, default in [(field, default) for field in fields for default in accepted[field]]:
        if default is not REQUIRED and default is not UNREAD and default != DEFAULTS[name]:
            raise ValueError(
                f"{name} of {takers} must have no default, or that of the config's field of this "
                f"name, but got ({name}={shown(default)}, and {shown(DEFAULTS[name])} there)"
            )
    for name, value in values.items():
        if name not in mine:
            raise ValueError(
                f"an argument in own must be one of ({', '.join(mine) or 'none'}) of {takers}, but "
                f"got ({shown(name)}={shown(value)})"
            )
        for default in mine[name]:
            if type(default) is float and type(value) is int:
                values[name] = value = float(value)
            elif type(default) in (int, float, bool, str) and type(value) is not type(default):
                law = f"{name} of {takers} must be of type {type(default).__name__}"
                raise ValueError(f"{law}, but got ({name}={shown(value)})")
    for name, defaults in mine.items():
        texts = ["none" if d is REQUIRED else shown(d) for d in defaults if d is not UNREAD]
        if name not in values and len(set(texts)) > 1:
            law = "an argument of two parts with different defaults must be set in own"
            raise ValueError(f"{law}, but got ({takers}: {name}={' and '.join(texts)})")
    absent = [name for name, defaults in mine.items() if REQUIRED in defaults]
    absent = [name for name in absent if name not in values]
    if absent:
        raise ValueError(
            f"each argument without a default must be a field or in own, but got ({takers}: no "
            f"{absent[0]})"
        )
    return own_text(
        {
            name: value
            for name, value in values.items()
            if any((type(value), value) != (type(default), default) for default in mine[name])
        }
    )


def _mine(accepted: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that are no fields of the config, nor where the data are."""
    return {n: default for n, default in accepted.items() if n not in (*DEFAULTS, "data_root")}


def arguments(own: str, parts: Mapping[str, str]) -> dict[str, Scalar]:
    """All arguments of the parts, by name: those in `own`, and defaults where they are known."""
    accepted: dict[str, Any] = {}
    for field, part in parts.items():
        accepted.update(signature(field, part) or {})
    defaults = {n: x for n, x in _mine(accepted).items() if type(x) in (int, float, bool, str)}
    return {**defaults, **read_own(own)}
