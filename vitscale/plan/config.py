"""The config of one training: a flat frozen dataclass of scalars, validated and never repaired."""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from vitscale.plan.fields import DEFAULTS, Fields, FieldType, defaults, field_types
from vitscale.plan.laws import FREE, MAX_SEED, Law, free_laws, laws_of
from vitscale.plan.metrics import Column, columns_of
from vitscale.plan.own import arguments, settled
from vitscale.plan.parts import PARTS, is_part, metrics_of, named, parts_of, read_own
from vitscale.plan.spelling import MAX_CHARACTERS, field_meant, shown, shown_text

# All fields but FREE are checked once, which took a quarter of the time of a plan of 100,000 trials
# (n = 1).
MAX_LAWFUL = 10_000
_lawful: set[str] = set()  # all other fields, as they passed the checks
# the same -> names of those that are not at their default, and of FREE, in order of definition
_set: dict[str, tuple[str, ...]] = {}
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_get_others = operator.attrgetter(*(name for name in DEFAULTS if name not in FREE))
_getters: dict[type, Callable[[TrainConfig], tuple[Any, ...]]] = {}
OWN = "own."  # before the name of an argument of a part, where it is an axis


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Fields):
    """Everything that determines a trial's outcome, and nothing about where it runs.

    Each field is an axis of a search space, a column of the table and an MLflow param, under the
    same name. Raises ValueError in one line, with the law and the values, for an unknown field or
    an impossible value.
    """

    def __new__(cls, *args: object, **fields: object) -> Self:
        _check_known_fields(cls, fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        parts = {name: part for name in PARTS if is_part(part := getattr(self, name))}
        if parts or self.own:
            self._settle(parts)
        if self.others in _lawful:
            self._check_free()
            return
        for name, field in field_types(type(self)).items():
            _check_value(name, field, getattr(self, name))
        self._check_laws(self.laws())
        if self.others and len(_lawful) < MAX_LAWFUL:
            _lawful.add(self.others)

    def _settle(self, parts: dict[str, str]) -> None:
        """Names the sources of the parts, and gives their arguments as text."""
        parts = {name: named(name, part) for name, part in parts.items()}
        for name, value in {**parts, "own": settled(self.own, parts)}.items():
            object.__setattr__(self, name, value)

    def _check_free(self) -> None:
        types = field_types(type(self))
        values = {name: getattr(self, name) for name in FREE}
        for name, value in values.items():
            _check_value(name, types[name], value)
        bounds = [bound.holds(values[name]) for name in FREE for bound in types[name].bounds]
        if not all(bounds) or values["seed"] >= MAX_SEED:  # the laws in words take long
            self._check_laws(free_laws(self))

    def _check_laws(self, laws: Iterable[Law]) -> None:
        for law, holds, names in laws:
            if not holds:
                values = ", ".join(f"{name}={shown(getattr(self, name))}" for name in names.split())
                raise ValueError(f"{law} must hold, but got ({values})")

    def laws(self) -> list[Law]:
        """The conditions that the fields must satisfy."""
        return laws_of(self)

    @cached_property
    def others(self) -> str:
        """All fields but those of FREE in one text, of which there is one copy; "" for a profile,
        whose laws ask for lr as well.

        Written out, as 1, 1.0 and True are equal, and 0.0 and -0.0.
        """
        if type(self) is not TrainConfig:
            return ""
        try:
            return sys.intern(repr(_get_others(self)))
        except ValueError:  # Python prints at most 4,300 digits of an int
            return ""

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of a hash of the non-default fields; the same on every machine."""
        canonical = _canonical(self.non_default())
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def non_default(self) -> dict[str, Any]:
        """The fields that differ from their defaults.

        A new field with a default therefore changes no trial's id.
        """
        default_of, others = defaults(type(self)), self.others
        names: Iterable[str] = _set.get(others, default_of)
        fields = {
            name: value for name in names if (value := getattr(self, name)) != default_of[name]
        }
        if others and others not in _set and len(_set) < MAX_LAWFUL:
            _set[others] = tuple(name for name in default_of if name in fields or name in FREE)
        return fields

    def replace(self, **fields: Any) -> Self:
        """A copy with other values of some fields; "own.dim" is that argument of a part."""
        if mine := {name: argument for name, argument in fields.items() if name.startswith(OWN)}:
            fields = {name: value for name, value in fields.items() if name not in mine}
            own = fields.get("own", self.own)
            given = {name.removeprefix(OWN): value for name, value in mine.items()}
            fields["own"] = {**(read_own(own) if isinstance(own, str) else own), **given}
        if not self.others or not fields.keys() <= set(FREE):
            _check_known_fields(type(self), fields, bool(parts_of(self)))
            return type(self)(**{**self.asdict(), **fields})  # half the time of dataclasses.replace
        # a fifth of the time of that: no law of the other fields must be checked again
        config = object.__new__(type(self))
        config.__dict__.update(self.__dict__, **fields)
        config.__dict__.pop("id", None)
        config._check_free()
        return config

    def asdict(self) -> dict[str, Any]:
        """All fields, in the order of their definition."""
        return dict(zip(defaults(type(self)), _values(self), strict=True))

    def axes(self) -> dict[str, Any]:
        """All fields, and the arguments of the parts as "own.dim"."""
        parts = parts_of(self)
        own = arguments(str(self.own), parts) if parts else {}
        return {**self.asdict(), **{f"{OWN}{name}": value for name, value in own.items()}}

    def axis(self, name: str) -> Any:
        """The value of a field, or of an argument "own.dim" of a part; None without it."""
        return self.axes().get(name) if name.startswith(OWN) else getattr(self, name)

    # What a training is to those who plan, schedule and show it; a profile overrides these.

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of its rows that a study may be about."""
        return columns_of(self.eval_split, metrics_of(self.metrics))

    @property
    def reads_images(self) -> bool:
        return True

    @property
    def is_divisible(self) -> bool:
        """Whether a batch that does not fit on a device can be computed in parts."""
        return True

    @property
    def bearing(self) -> Collection[str]:
        """The fields that affect its rows."""
        return defaults(type(self))

    @property
    def also_charted(self) -> tuple[str, ...]:
        """Columns of its rows that are worth a chart beside the study's metric."""
        return ("train_loss",)

    @property
    def row_unit(self) -> str:
        """What a row is after."""
        return "epoch"

    @property
    def shown(self) -> dict[str, str]:
        """Title -> value, of the two fields that tell running trials of an arm apart."""
        return {"lr": f"{self.lr:.2e}", "wd": f"{self.wd:.2e}"}

    def in_one_piece(self) -> Self:
        """The same training, from its initial weights."""
        return self.replace(trunk="", trunk_step=0) if self.trunk else self


def _values(config: TrainConfig) -> tuple[Any, ...]:
    """All fields, in the order of their definition."""
    kind = type(config)
    if kind not in _getters:
        _getters[kind] = operator.attrgetter(*defaults(kind))
    return _getters[kind](config)


def _check_known_fields(
    kind: type[Fields], fields: dict[str, Any], with_parts: bool = False
) -> None:
    default_of = defaults(kind)
    for name in fields:
        if name not in default_of:
            close = field_meant(name, default_of)
            hint = f"; did you mean {close!r}?" if close else "; `vitscale fields` lists them"
            if with_parts or any(map(is_part, fields.values())):
                hint = f"; an argument of a part is own={{{name!r}: ...}}"
            raise ValueError(
                f"a field of {kind.__name__} must be known, but got "
                f"({shown_text(name)}={shown(fields[name])}){hint}"
            )


def _check_value(name: str, field: FieldType, value: Any) -> None:
    """Raises ValueError for a value of the wrong type or above the limits.

    Runs before the laws are checked, since their messages print values.
    """
    kind = field.kind
    is_kind = type(value) is kind or (kind is float and isinstance(value, float))
    if not is_kind:
        hint = "; a part is named by its file, as in 'file.py:Name'" if callable(value) else ""
        raise ValueError(
            f"{name} must be of type {kind.__name__}, but got ({name}={shown(value)}){hint}"
        )
    # it equals 0.0, but would give the same training another id
    if kind is float and str(value) == "-0.0":
        raise ValueError(f"{name} must not be a negative zero, but got ({name}={value!r})")
    if kind is str and len(value) > MAX_CHARACTERS:
        law = f"{name} of at most {MAX_CHARACTERS} characters"
        raise ValueError(
            f"{law} must hold, but got ({name}={shown(value)}, {len(value)} characters)"
        )
    if field.upper is not None and value > field.upper:
        raise ValueError(f"{name} <= {field.upper} must hold, but got ({name}={shown(value)})")
