"""What one training is: a flat frozen dataclass of scalars, refused when wrong and never repaired."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, get_type_hints

from search_spaces.datasets import DATASETS
from search_spaces.regnety import REGNETY

MODELS = ("vit", *REGNETY)
STEMS = ("patchify", "conv")
OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("fp32", "bf16")
SPLITS = ("minival", "val", "test")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a trial's outcome, and nothing else: where it runs is not part of it.

    Each field is an axis of a search space, a column of the table and an MLflow param, under the same name.
    Raises ValueError with one line, the law and the values, for an unknown field or an impossible value.
    """

    # data
    dataset: str = "digits"
    resolution: int = 8  # pixels a side of the image that the model sees
    channels: int = 1
    num_classes: int = 10
    batch_size: int = 64  # samples an optimizer step; an incomplete last batch of an epoch is dropped
    crop_padding: int = 0  # zero-pad by this many pixels, then crop back to `resolution` at random
    flip_prob: float = 0.0  # horizontal
    mixup_alpha: float = 0.0  # 0 switches it off
    cutmix_alpha: float = 0.0  # 0 switches it off; with mixup on too, each batch draws one of the two
    # model: "vit" is a pre-norm ViT with a class token, shaped by the fields below; others are shaped by name
    model: str = "vit"
    patch_size: int = 2  # pixels a side; the stride of the whole stem
    width: int = 64  # channels a token
    depth: int = 4  # blocks
    heads: int = 4
    mlp_ratio: float = 4.0
    stem: str = "patchify"
    stem_channels: str = ""  # conv stem: output channels of its 3x3 convolutions, "24-48-96-192"
    stem_strides: str = ""  # conv stem: their strides, "2-2-2-2"
    # optimization
    optimizer: str = "adamw"
    lr: float = 1e-3  # peak, after warm-up
    wd: float = 0.05  # adamw: decoupled; sgd: L2 in the gradient; never on norm gains and biases
    decay_tokens: bool = True  # weight decay on the class token and the position embedding too
    beta1: float = 0.9  # adamw
    beta2: float = 0.999  # adamw
    momentum: float = 0.9  # sgd
    nesterov: bool = False  # sgd
    epochs: int = 25
    warmup_epochs: float = 5.0  # linear from 0; then half a cosine to 0
    clip_norm: float = 0.0  # global gradient norm; 0 switches it off
    # regularization
    label_smoothing: float = 0.0
    ema_decay: float = 0.0  # per step; 0 switches it off, and the EMA error is the raw error
    # evaluation
    eval_split: str = "val"
    # arithmetic and randomness
    precision: str = "fp32"  # bf16: autocast, weights stay fp32
    seed: int = 0  # init, order of samples, augmentation, mixup

    def __new__(cls, *args: object, **fields: object) -> TrainConfig:
        _refuse_unknown(fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, kind in FIELD_TYPES.items():
            value = getattr(self, name)
            if type(value) is not kind and not (kind is float and isinstance(value, float)):
                raise ValueError(f"{name} must be of type {kind.__name__}, but got ({name}={value!r})")
            if str(value) == "-0.0":  # it equals 0.0, but would give the same training another id
                raise ValueError(f"{name} must not be a negative zero, but got ({name}={value!r})")
        for law, holds, names in _laws(self):
            if not holds:
                values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names.split())
                raise ValueError(f"{law} must hold, but got ({values})")

    @property
    def id(self) -> str:
        """Twelve hex digits of a hash of the fields that differ from their defaults; the same everywhere."""
        canonical = json.dumps(self.non_default(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def non_default(self) -> dict[str, Any]:
        """The fields that differ from their defaults. A new field with a default re-addresses no trial."""
        return {name: getattr(self, name) for name in DEFAULTS if getattr(self, name) != DEFAULTS[name]}

    def replace(self, **fields: Any) -> TrainConfig:
        """A copy with other values."""
        _refuse_unknown(fields)
        return dataclasses.replace(self, **fields)

    def asdict(self) -> dict[str, Any]:
        """All fields, in the order of their definition."""
        return {name: getattr(self, name) for name in DEFAULTS}

    @property
    def num_train(self) -> int:
        """Images of the training split."""
        return DATASETS[self.dataset].num_train

    @property
    def steps_per_epoch(self) -> int:
        return self.num_train // self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    @property
    def stem_layers(self) -> list[tuple[int, int]]:
        """(output channels, stride) of each 3x3 convolution of a conv stem."""
        return list(zip(_ints(self.stem_channels), _ints(self.stem_strides), strict=True))


DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(TrainConfig)}
FIELD_TYPES: dict[str, type] = {name: get_type_hints(TrainConfig)[name] for name in DEFAULTS}


def _refuse_unknown(fields: dict[str, Any]) -> None:
    for name in fields:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, DEFAULTS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; the fields are {', '.join(DEFAULTS)}"
            raise ValueError(f"a field of TrainConfig must be known, but got ({name}={fields[name]!r}){hint}")


def _ints(text: str) -> list[int]:
    """The numbers of "2-2-1"; none for the empty text. Raises ValueError for any other way of writing them."""
    numbers = [int(part) for part in text.split("-")] if text else []
    if "-".join(map(str, numbers)) != text:
        raise ValueError(f"numbers must be written like '24-48', but got ({text!r})")
    return numbers


def _laws(c: TrainConfig) -> list[tuple[str, bool, str]]:
    """(law, whether it holds, the fields it speaks of)."""
    facts = DATASETS.get(c.dataset)
    choices = [("model", MODELS), ("stem", STEMS), ("optimizer", OPTIMIZERS), ("precision", PRECISIONS)]
    choices += [("eval_split", SPLITS), ("dataset", tuple(DATASETS))]
    laws = [(f"{name} in ({', '.join(known)})", getattr(c, name) in known, name) for name, known in choices]
    positive = "resolution channels num_classes batch_size patch_size width depth heads epochs"
    laws += [(f"{name} >= 1", getattr(c, name) >= 1, name) for name in positive.split()]
    finite_positive = "lr mlp_ratio"
    laws += [(f"{n} > 0 and finite", 0 < getattr(c, n) < math.inf, n) for n in finite_positive.split()]
    not_negative = "wd crop_padding mixup_alpha cutmix_alpha warmup_epochs clip_norm seed"
    laws += [(f"{n} >= 0", 0 <= getattr(c, n) < math.inf, n) for n in not_negative.split()]
    below_one = "beta1 beta2 momentum label_smoothing ema_decay"
    laws += [(f"0 <= {n} < 1", 0 <= getattr(c, n) < 1, n) for n in below_one.split()]
    laws += [
        ("seed < 2**63", c.seed < 2**63, "seed"),
        ("0 <= flip_prob <= 1", 0 <= c.flip_prob <= 1, "flip_prob"),
        ("crop_padding < resolution", c.crop_padding < c.resolution, "crop_padding resolution"),
        ("warmup_epochs < epochs", c.warmup_epochs < c.epochs, "warmup_epochs epochs"),
        ("momentum > 0 with nesterov", c.momentum > 0 or not c.nesterov, "momentum nesterov"),
        (
            "batch_size % 2 == 0 with mixup or CutMix",
            c.batch_size % 2 == 0 or not (c.mixup_alpha or c.cutmix_alpha),
            "batch_size mixup_alpha cutmix_alpha",
        ),  # they mix pairs
    ]
    if facts is not None:
        laws += [
            (f"num_classes == {facts.num_classes} for {c.dataset}", c.num_classes == facts.num_classes,
             "dataset num_classes"),
            (f"channels == {facts.channels} for {c.dataset}", c.channels == facts.channels, "dataset channels"),
            (f"batch_size <= {facts.num_train} training images", c.batch_size <= facts.num_train,
             "dataset batch_size"),
        ]  # fmt: skip
    return laws + (_vit_laws(c) if c.model == "vit" else [])


def _vit_laws(c: TrainConfig) -> list[tuple[str, bool, str]]:
    laws = [
        ("width % heads == 0", c.heads >= 1 and c.width % c.heads == 0, "width heads"),
        ("resolution % patch_size == 0", c.patch_size >= 1 and c.resolution % c.patch_size == 0,
         "resolution patch_size"),
        ("width * mlp_ratio >= 1", c.width * c.mlp_ratio >= 1, "width mlp_ratio"),  # else timm takes a ratio of 1
    ]  # fmt: skip
    if c.stem != "conv":
        empty = c.stem_channels == "" and c.stem_strides == ""
        return [*laws, ("stem_channels and stem_strides empty without a conv stem", empty,
                        "stem stem_channels stem_strides")]  # fmt: skip
    return laws + _stem_laws(c)


def _stem_laws(c: TrainConfig) -> list[tuple[str, bool, str]]:
    fields = "stem_channels stem_strides"
    try:
        channels, strides = _ints(c.stem_channels), _ints(c.stem_strides)
    except ValueError:
        return [('stem_channels and stem_strides like "24-48"', False, fields)]
    positive = all(n >= 1 for n in channels + strides)
    return [
        ("one stride for each convolution of the stem", len(channels) == len(strides) >= 1, fields),
        ("stem_channels >= 1 and stem_strides >= 1", positive, fields),
        ("product of stem_strides == patch_size", math.prod(strides) == c.patch_size,
         "stem_strides patch_size"),
    ]  # fmt: skip
