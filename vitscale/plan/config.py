"""The config of one training: a flat frozen dataclass of scalars, validated and never repaired."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from vitscale.catalog.datasets import DATASETS, dataset_facts
from vitscale.catalog.regnety import REGNETY
from vitscale.plan.metrics import Column, columns_of

MODELS = ("vit", *REGNETY)  # and "timm:NAME"


class Bound(NamedTuple):
    """A condition on a single number; `law` contains {} for the name of the field."""

    law: str
    holds: Callable[[Any], bool]


class Max(NamedTuple):
    """The largest accepted value of a size.

    It is far above any paper's: a larger value is a typing error and would exhaust the machine.
    Sizes without one are bounded by others, such as crop_padding by resolution. The largest known:
    LAION-5B has 5.9e9 images (Schuhmann et al. 2022), ImageNet-21k 21,841 classes, a hyperspectral
    image about 200 channels, and ViT-22B a width of 6,144 (Dehghani et al. 2023).
    """

    value: int


Count = Annotated[int, Bound("{} >= 1", lambda value: value >= 1)]
Natural = Annotated[int, Bound("{} >= 0", lambda value: value >= 0)]
Positive = Annotated[float, Bound("{} > 0 and finite", lambda value: 0 < value < math.inf)]
NotNegative = Annotated[float, Bound("{} >= 0", lambda value: 0 <= value < math.inf)]
BelowOne = Annotated[float, Bound("0 <= {} < 1", lambda value: 0 <= value < 1)]
Fraction = Annotated[float, Bound("0 <= {} <= 1", lambda value: 0 <= value <= 1)]
PositiveFraction = Annotated[float, Bound("0 < {} <= 1", lambda value: 0 < value <= 1)]
MAX_MLP_RATIO = 1_000.0
MAX_CHARACTERS = 200  # of a text
MAX_CONVOLUTIONS, MAX_CHANNELS = 32, 2**17  # of a conv stem
# Other names of our fields in papers and libraries, too different to be matched by spelling.
ALIASES = {
    "wd": "weight_decay weightdecay decay_weight l2 l2_reg",
    "lr": "learning_rate learningrate base_lr max_lr peak_lr lr_peak blr",
    "resolution": "image_size img_size imgsize input_size crop_size size image_resolution",
    "batch_size": (
        "bs batch batchsize global_batch_size train_batch_size per_device_train_batch_size"
    ),
    "width": "hidden_dim hidden_size embed_dim embedding_dim dim d_model",
    "depth": "num_layers n_layers layers num_hidden_layers num_blocks blocks n_layer",
    "heads": "num_heads n_heads nhead n_head num_attention_heads",
    "branches": "num_branches parallel num_parallel",
    "mlp_ratio": "mlp_dim mlp_expansion expansion hidden_ratio",
    "epochs": "num_epochs max_epochs n_epochs num_train_epochs",
    "seed": "random_seed random_state rng_seed manual_seed",
    "optimizer": "opt optim optimiser",
    "decay": "scheduler lr_scheduler lr_schedule schedule sched annealing",
    "decay_floor": "min_lr lr_min final_lr",
    "warmup_epochs": "warmup num_warmup_epochs warm_up",
    "warmup_steps": "num_warmup_steps warmup_iters warmup_iterations",
    "epsilon": "eps adam_eps opt_eps",
    "beta1": "betas opt_betas adam_beta1",
    "beta2": "adam_beta2",
    "clip_norm": "clip_grad grad_clip max_grad_norm gradient_clip_val grad_norm clip",
    "label_smoothing": "smoothing ls label_smooth",
    "mixup_alpha": "mixup",
    "cutmix_alpha": "cutmix",
    "erasing_prob": "reprob random_erasing erasing random_erase",
    "flip_prob": "hflip flip horizontal_flip",
    "augment": "aa auto_augment augmentation rand_augment randaug ra",
    "drop_path": "drop_path_rate droppath stochastic_depth stochastic_depth_prob",
    "dropout": "drop drop_rate dropout_rate dropout_prob hidden_dropout_prob",
    "layerscale": "init_values layer_scale layer_scale_init ls_init",
    "ema_decay": "ema model_ema model_ema_decay",
    "num_classes": "nb_classes n_classes classes num_labels",
    "channels": "in_chans in_channels num_channels in_chan",
    "model": "arch architecture model_name backbone net",
    "dataset": "data data_set dataset_name data_path",
    "precision": "amp dtype mixed_precision",
    "pool": "pooling global_pool classifier",
    "patch_size": "patch patchsize",
    "weight_init": "init initialization",
    "eval_split": "split val_split test_split",
    "eval_every": "val_interval check_val_every_n_epoch eval_interval eval_freq",
    "loss": "criterion loss_fn",
    "repeats": "repeated_aug aug_repeats",
    "mix_groups": "mixup_groups num_mix_groups",
    "eval_crop_ratio": "crop_pct eval_crop",
}
_FIELD_OF = {alias: name for name, aliases in ALIASES.items() for alias in aliases.split()}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that determines a trial's outcome, and nothing about where it runs.

    Each field is an axis of a search space, a column of the table and an MLflow param, under the
    same name. Raises ValueError in one line, with the law and the values, for an unknown field or
    an impossible value.
    """

    # ---- data
    # digits, cifar10, cifar100, fashion_mnist or imagenet, "torchvision:CLASS", or a folder under
    # the data root, with `num_images`
    dataset: str = "digits"
    # images of the whole training set, of a dataset that is not in the catalog; 0 for those
    num_images: Annotated[Natural, Max(10**10)] = 0
    # images held out of the training set as "minival", for tuning; 0 for a dataset with its own
    minival_images: Annotated[Natural, Max(10**10)] = 0
    # which images are minival: the same fraction of each class at random, or the last ones
    minival_rule: Literal["stratified", "last"] = "stratified"
    # train on this many images, the same fraction of each class; 0: all images
    subset_images: Annotated[Natural, Max(10**10)] = 0
    # decides which images are held out and which a subset keeps; subsets of one seed are nested
    split_seed: Natural = 0
    # pixels per side of the image that the model sees
    resolution: Annotated[Count, Max(16_384)] = 8
    channels: Annotated[Count, Max(1_024)] = 1  # of the images: 1 grey, 3 RGB
    num_classes: Annotated[Count, Max(10**6)] = 10  # of the labels; must be the dataset's
    # samples per optimizer step, over all workers; an incomplete last batch of an epoch is dropped
    batch_size: Annotated[Count, Max(2**24)] = 64
    # repeated augmentation (Hoffer et al. 2020): how often an image is drawn in a row; an epoch
    # counts samples drawn
    repeats: Annotated[Count, Max(1_000)] = 1

    # ---- augmentation, in the order in which it is applied
    # pad: zero-pad by `crop_padding`, crop back; rrc: random resized crop; src: resize, reflect-pad
    # by 4, crop back (Touvron et al. 2022)
    crop: Literal["pad", "rrc", "src"] = "pad"
    # pad: pixels on each side; 0 leaves the image as it is
    crop_padding: Natural = 0
    crop_scale_min: PositiveFraction = 0.08  # rrc: least fraction of the image's area
    flip_prob: Fraction = 0.0  # of a horizontal flip
    # policy of random operations; 3augment as in DeiT III (Touvron et al. 2022)
    augment: Literal["none", "autoaugment", "randaugment", "trivialaugment", "3augment"] = "none"
    randaugment_ops: Annotated[Count, Max(1_000)] = 2  # randaugment: operations per image
    randaugment_magnitude: NotNegative = 9.0  # randaugment: strength of an operation, up to 10
    # randaugment: standard deviation of the strength, which each operation draws for itself
    randaugment_std: NotNegative = 0.5
    # brightness, contrast and saturation: random factors from 1 - x to 1 + x; 0 switches it off
    color_jitter: NotNegative = 0.0
    erasing_prob: Fraction = 0.0  # that a random rectangle of an image is replaced by noise
    # both parameters of the Beta distribution of the mixing weight; 0 switches mixup off
    mixup_alpha: NotNegative = 0.0
    # the same for CutMix; with mixup on too, each batch draws one of the two
    cutmix_alpha: NotNegative = 0.0
    mix_prob: Fraction = 1.0  # that a batch is mixed at all
    cutmix_share: Fraction = 0.5  # fraction of the mixed batches that CutMix gets, with both on
    # equal parts of a batch, each with its own draw of method and weight, as on each GPU of the
    # papers
    mix_groups: Annotated[Count, Max(2**24)] = 1

    # ---- model
    # vit: a pre-norm ViT shaped by the fields below; "regnety-1gf", ... and "timm:NAME" are shaped
    # by their name
    model: str = "vit"
    patch_size: Annotated[Count, Max(16_384)] = 2  # pixels per side; the stride of the whole stem
    width: Annotated[Count, Max(2**17)] = 64  # channels per token
    # blocks; each has `branches` attentions and `branches` MLPs
    depth: Annotated[Count, Max(10_000)] = 4
    # attentions and MLPs in parallel (Touvron et al. 2022, equation 2), each with norm, LayerScale
    # and drop path
    branches: Annotated[Count, Max(1_000)] = 1
    heads: Annotated[Count, Max(2**17)] = 4  # of each attention; a divisor of width
    mlp_ratio: Positive = 4.0  # hidden channels of an MLP, as a multiple of width
    # what makes tokens: one convolution (patchify, with batch norm and GELU as named), or several:
    # conv (Xiao et al. 2021), shaped by the fields below; graham (Graham et al. 2021); hmlp
    # (Touvron et al. 2022)
    stem: Literal[
        "patchify", "patchify_bn", "patchify_gelu", "patchify_bn_gelu", "conv", "graham", "hmlp"
    ] = "patchify"
    stem_norm: Literal["bn", "ln"] = "bn"  # norm of conv, graham and hmlp: batch or layer norm
    stem_channels: str = ""  # conv: output channels of its convolutions, "24-48-96-192"
    stem_strides: str = ""  # conv: their strides, "2-2-2-2"; product: patch_size
    stem_kernels: str = ""  # conv: their kernel sizes, "3-3-3-2"; "" for 3 everywhere
    # what the head sees: the class token, or the average of the patch tokens without one
    pool: Literal["token", "avg"] = "token"
    # position embedding: one learned vector per token, fixed 2-D sine-cosine, or none
    pos_embed: Literal["learned", "sincos", "none"] = "learned"
    embed_token: bool = True  # the class token has a position embedding, too
    # initial gain of each residual branch and channel; 0: no LayerScale
    layerscale: NotNegative = 0.0
    # jax: as the ViT authors' code, with a zero head; trunc_normal: as DeiT's
    weight_init: Literal["jax", "trunc_normal"] = "jax"

    # ---- optimization
    # its update rule; weight decay differs between them, see `wd`
    optimizer: Literal["adamw", "adam", "sgd", "lamb", "lion"] = "adamw"
    lr: Positive = 1e-3  # peak, after warm-up, quoted at a batch of `lr_batch`
    # batch at which `lr` is quoted: training uses lr * batch_size / lr_batch; 0: lr itself
    lr_batch: Annotated[Natural, Max(2**24)] = 0
    # weight decay; adamw, lamb, lion: decoupled; sgd, adam: L2 in the gradient; never on norm gains
    # and biases
    wd: NotNegative = 0.05
    decay_tokens: bool = True  # weight decay on the class token and the position embedding too
    # adamw, adam, lamb: decay of the average of gradients; lion: weight of that average in its step
    beta1: BelowOne = 0.9
    # adamw, adam, lamb: decay of the average of squared gradients; lion: of that of gradients, 0.99
    # in its paper
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8  # adamw, adam, lamb: added to the root in the denominator
    momentum: BelowOne = 0.9  # sgd: share of the previous step that is kept; 0: none
    nesterov: bool = False  # sgd: Nesterov's momentum
    # passes over the training images (samples drawn, with `repeats`)
    epochs: Annotated[Count, Max(10**6)] = 25
    warmup_epochs: NotNegative = 5.0  # of a linear warm-up; part of `epochs`
    # the same in optimizer steps, in place of warmup_epochs, which is then 0
    warmup_steps: Annotated[Natural, Max(10**12)] = 0
    warmup_start: Fraction = 0.0  # fraction of the peak at which the warm-up starts
    # after the warm-up: half a period of the cosine, a line, or none; cooldown: none, and then a
    # decay over the last `cooldown_share` of all steps (Hägele et al. 2024)
    decay: Literal["cosine", "linear", "constant", "cooldown"] = "cosine"
    cooldown_share: PositiveFraction = 0.2  # cooldown: its fraction of all steps
    # cooldown: a line, or 1 minus the root of its progress
    cooldown_shape: Literal["linear", "1-sqrt"] = "linear"
    decay_floor: Fraction = 0.0  # fraction of the peak at which the decay ends
    # largest global norm of the gradient, for every optimizer alike; 0 switches clipping off
    clip_norm: NotNegative = 0.0

    # ---- regularization
    # ce: cross entropy of the softmax; bce: binary cross entropy of each class, averaged over them
    loss: Literal["ce", "bce"] = "ce"
    # bce of mixed images: targets as mixed, or 1 for every class that is present
    bce_targets: Literal["soft", "present"] = "soft"
    label_smoothing: BelowOne = 0.0  # share of the target that is spread over all classes
    # probability; after the position embedding and every dense layer but the qkv projections
    dropout: BelowOne = 0.0
    # stochastic depth: fraction of samples for which a residual branch is skipped
    drop_path: BelowOne = 0.0
    # uniform: the same in all blocks; linear: from 0 in the first to drop_path in the last
    drop_path_rule: Literal["uniform", "linear"] = "uniform"

    # ---- averaged weights, and BatchNorm
    # weight of the old average at each update; 0 switches it off: the EMA error is the raw error
    ema_decay: BelowOne = 0.0
    # in place of ema_decay, as Xiao et al.'s code: a decay of
    # 1 - min(1, ema_alpha * batch_size / epochs * ema_every)
    ema_alpha: NotNegative = 0.0
    ema_every: Annotated[Count, Max(10**9)] = 1  # steps between two updates
    ema_after_warmup: bool = False  # until the end of the warm-up the average is a copy
    # images over which BatchNorm takes its statistics in training, as on each GPU of the papers; 0:
    # the batch
    norm_batch: Annotated[Natural, Max(2**24)] = 0
    # training images on which BatchNorm's statistics are estimated before each evaluation; 0: the
    # running averages of training
    precise_bn: Annotated[Natural, Max(10**10)] = 0

    # ---- evaluation
    eval_split: str = "val"  # the first evaluation set; the metric of a study begins with its name
    more_evals: str = ""  # further evaluation sets, each with metrics of its own: "test", "v2,real"
    # epochs between two evaluations, each of which is a row; the last epoch always has one
    eval_every: Annotated[Count, Max(10**6)] = 1
    # resize the shorter side to resolution / ratio, rounded down, then crop the centre
    eval_crop_ratio: PositiveFraction = 1.0

    # ---- arithmetic and randomness
    # bf16, fp16: autocast, weights stay fp32; fp16 has a dynamic loss scale
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    # of all that is random in a training: init, order, augmentation, mixup, dropout, drop path
    seed: Natural = 0

    # ---- start
    # id of another trial of the study, equal to this one up to `trunk_step`, from whose checkpoint
    # there it starts; "": from initial weights
    trunk: str = ""
    trunk_step: Annotated[Natural, Max(10**15)] = 0  # steps that are the trunk's

    def __new__(cls, *args: object, **fields: object) -> Self:
        _check_known_fields(cls, fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.others in _lawful:
            self._check_free()
            return
        for name, field in field_types(type(self)).items():
            _check_value(name, field, getattr(self, name))
        self._check_laws(self.laws())
        if self.others and len(_lawful) < MAX_LAWFUL:
            _lawful.add(self.others)

    def _check_free(self) -> None:
        types = field_types(type(self))
        values = {name: getattr(self, name) for name in FREE}
        for name, value in values.items():
            _check_value(name, types[name], value)
        bounds = [bound.holds(values[name]) for name in FREE for bound in types[name].bounds]
        if not all(bounds) or values["seed"] >= MAX_SEED:  # the laws in words take long
            self._check_laws(_free_laws(self))

    def _check_laws(self, laws: Iterable[Law]) -> None:
        for law, holds, names in laws:
            if not holds:
                values = ", ".join(f"{name}={shown(getattr(self, name))}" for name in names.split())
                raise ValueError(f"{law} must hold, but got ({values})")

    def laws(self) -> list[Law]:
        """The conditions that the fields must satisfy."""
        return _laws(self)

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
        known, others = defaults(type(self)), self.others
        names: Iterable[str] = _set.get(others, known)
        fields = {name: value for name in names if (value := getattr(self, name)) != known[name]}
        if others and others not in _set and len(_set) < MAX_LAWFUL:
            _set[others] = tuple(name for name in known if name in fields or name in FREE)
        return fields

    def replace(self, **fields: Any) -> Self:
        """A copy with other values of some fields."""
        if not self.others or not fields.keys() <= set(FREE):
            _check_known_fields(type(self), fields)
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

    @property
    def num_train(self) -> int:
        """Images of the training split."""
        facts = dataset_facts(self.dataset)
        whole = facts.num_train if facts else self.num_images
        return self.subset_images or whole - self.minival_images

    # What a training is to those who plan, schedule and show it; a profile overrides these.

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of its rows that a study may be about."""
        return columns_of(self.eval_split)

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

    @property
    def evals(self) -> tuple[str, ...]:
        """The evaluation sets, `eval_split` first."""
        return (self.eval_split, *(name for name in self.more_evals.split(",") if name))

    @property
    def peak_lr(self) -> float:
        """The lr used at the end of the warm-up."""
        return self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr

    @property
    def num_warmup_steps(self) -> int:
        return self.warmup_steps or round(self.warmup_epochs * self.steps_per_epoch)

    @property
    def steps_per_epoch(self) -> int:
        return self.num_train // self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    @property
    def cooldown_start(self) -> int:
        """Steps before a cooldown, which has at least one step."""
        return self.num_steps - max(1, round(self.cooldown_share * self.num_steps))

    @property
    def constant_until(self) -> int:
        """Steps before lr begins to depend on the length: up to there, lengths share a trunk."""
        match self.decay:
            case "constant":
                return self.num_steps
            case "cooldown":
                return self.cooldown_start
            case _:
                return 0

    @property
    def num_own_steps(self) -> int:
        """Optimizer steps without those of the trunk."""
        return self.num_steps - self.trunk_step

    def in_one_piece(self) -> Self:
        """The same training, from its initial weights."""
        return self.replace(trunk="", trunk_step=0) if self.trunk else self

    @property
    def last_row(self) -> int:
        """The epoch of the last row of a complete trial."""
        return self.epochs

    @property
    def num_samples(self) -> int:
        """Images drawn in the whole training."""
        return self.num_steps * self.batch_size

    @property
    def stem_layers(self) -> list[tuple[int, int, int]]:
        """(output channels, stride, kernel size) of a conv stem's convolutions but the last 1x1."""
        channels = _ints(self.stem_channels)
        kernels = _ints(self.stem_kernels) or [3] * len(channels)
        return list(zip(channels, _ints(self.stem_strides), kernels, strict=True))


class FieldType(NamedTuple):
    """Type, choices and bounds of a field, from its annotation."""

    kind: type  # int, float, str or bool
    choices: tuple[str, ...] = ()  # those of a Literal; any value otherwise
    bounds: tuple[Bound, ...] = ()
    upper: int | None = None


_defaults: dict[type, dict[str, Any]] = {}
_field_types: dict[type, dict[str, FieldType]] = {}
_getters: dict[type, Callable[[TrainConfig], tuple[Any, ...]]] = {}


def defaults(kind: type[TrainConfig]) -> dict[str, Any]:
    """Maps each field of a config class to its default, in the order of definition."""
    if kind not in _defaults:
        _defaults[kind] = {f.name: f.default for f in dataclasses.fields(kind)}
    return _defaults[kind]


def _values(config: TrainConfig) -> tuple[Any, ...]:
    """All fields, in the order of their definition."""
    kind = type(config)
    if kind not in _getters:
        _getters[kind] = operator.attrgetter(*defaults(kind))
    return _getters[kind](config)


def field_types(kind: type[TrainConfig]) -> dict[str, FieldType]:
    """Maps each field of a config class to its type, choices and bounds."""
    if kind not in _field_types:
        hints = get_type_hints(kind, include_extras=True)
        _field_types[kind] = {name: _field_type(hints[name]) for name in defaults(kind)}
    return _field_types[kind]


def _field_type(hint: Any) -> FieldType:
    hint, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(hint) is Literal:
        return FieldType(str, choices=get_args(hint))
    bounds = tuple(extra for extra in extras if isinstance(extra, Bound))
    return FieldType(
        hint, (), bounds, next((extra.value for extra in extras if isinstance(extra, Max)), None)
    )


def choices(kind: type[TrainConfig]) -> dict[str, tuple[str, ...]]:
    """Maps each field with a fixed set of values to these values."""
    return {name: field.choices for name, field in field_types(kind).items() if field.choices}


def limits(kind: type[TrainConfig]) -> dict[str, int]:
    """Maps each field with a largest value to that value."""
    return {
        name: field.upper for name, field in field_types(kind).items() if field.upper is not None
    }


DEFAULTS: dict[str, Any] = defaults(TrainConfig)
Law = tuple[str, bool, str]  # (condition, whether it holds, the fields concerned)


def _check_known_fields(kind: type[TrainConfig], fields: dict[str, Any]) -> None:
    known = defaults(kind)
    for name in fields:
        if name not in known:
            close = field_meant(name, known)
            hint = f"; did you mean {close!r}?" if close else "; `vitscale fields` lists them"
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
        raise ValueError(f"{name} must be of type {kind.__name__}, but got ({name}={shown(value)})")
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


def field_meant(name: str, known: Collection[str]) -> str | None:
    """The field that an unknown name most likely means: what
    others call it, or else how it is spelled.
    """
    meant = _FIELD_OF.get(name.lower().replace("-", "_"))
    if meant is not None:
        return meant
    close = difflib.get_close_matches(name[:MAX_CHARACTERS], known, n=1)
    return close[0] if close else None


def shown(value: object, limit: int = 100) -> str:
    """The repr of a value for a message, truncated to about `limit` characters."""
    try:
        return shown_text(repr(value), limit)
    except ValueError:  # Python prints at most 4,300 digits of an int
        return f"{type(value).__name__} too long to write"


def shown_text(text: str, limit: int = 100) -> str:
    """A text for a message: on one line, truncated to about `limit` characters."""
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[: limit - 3]}..."


def _ints(text: str) -> list[int]:
    """The integers of "2-2-1"; none for the empty text.

    Raises ValueError for any other format.
    """
    numbers = [int(part) for part in text.split("-")] if text else []
    if "-".join(map(str, numbers)) != text:
        raise ValueError(f"numbers must be written like '24-48', but got ({text!r})")
    return numbers


# Fields of which no law asks together with another field: all others together are checked once,
# which took a quarter of the time of a plan of 100,000 trials (n = 1).
FREE = ("lr", "wd", "seed")
MAX_SEED = 2**63
MAX_LAWFUL = 10_000
_lawful: set[str] = set()  # all other fields, as they passed the checks
# the same -> names of those that are not at their default, and of FREE, in order of definition
_set: dict[str, tuple[str, ...]] = {}
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_get_others = operator.attrgetter(*(name for name in DEFAULTS if name not in FREE))


def _free_laws(c: TrainConfig) -> list[Law]:
    """The conditions for FREE."""
    types = field_types(type(c))
    laws = [
        (bound.law.format(name), bound.holds(getattr(c, name)), name)
        for name in FREE
        for bound in types[name].bounds
    ]
    return [*laws, ("seed < 2**63", c.seed < MAX_SEED, "seed")]


def _laws(c: TrainConfig) -> list[Law]:
    """The conditions for every config."""
    types = field_types(type(c))
    laws = [
        (f"{name} in ({', '.join(field.choices)})", getattr(c, name) in field.choices, name)
        for name, field in types.items()
        if field.choices
    ]
    laws += [
        (bound.law.format(name), bound.holds(getattr(c, name)), name)
        for name, field in types.items()
        for bound in field.bounds
        if name not in FREE
    ]
    return (
        laws + _free_laws(c) + _data_laws(c) + _training_laws(c) + _trunk_laws(c) + _model_laws(c)
    )


def _data_laws(c: TrainConfig) -> list[Law]:
    facts = dataset_facts(c.dataset)
    whole = facts.num_train if facts else c.num_images
    held_out = facts is None or not facts.own_minival
    laws = [
        (
            "dataset a name of a folder under the data root, or torchvision:CLASS,",
            is_dataset_name(c.dataset),
            "dataset",
        ),
        (
            f"num_images >= 1 for a dataset other than {', '.join(DATASETS)}",
            whole >= 1,
            "dataset num_images",
        ),
        (
            "num_images == 0 for a known dataset",
            facts is None or c.num_images == 0,
            "dataset num_images",
        ),
        (
            "minival_images == 0 for a dataset with a minival of its own",
            held_out or not c.minival_images,
            "dataset minival_images",
        ),
        (
            "minival_images >= 1 to evaluate on minival",
            bool(c.minival_images) or not held_out or "minival" not in c.evals,
            "dataset minival_images eval_split",
        ),
        (
            f"minival_images + subset_images <= {whole} training images",
            c.minival_images + c.subset_images <= whole,
            "dataset minival_images subset_images",
        ),
        (
            f"batch_size <= {c.num_train} training images",
            c.batch_size <= c.num_train,
            "dataset batch_size",
        ),
        ("crop_padding < resolution", c.crop_padding < c.resolution, "crop_padding resolution"),
        (
            "crop_padding == 0 unless crop is pad",
            c.crop == "pad" or not c.crop_padding,
            "crop crop_padding",
        ),
        # reflection padding by 4 needs 5 pixels
        (
            "resolution >= 5 with the crop src",
            c.crop != "src" or c.resolution >= 5,
            "crop resolution",
        ),
        (
            "channels == 3 for a policy or color jitter",
            c.channels == 3 or (c.augment == "none" and not c.color_jitter),
            "channels augment color_jitter",
        ),
        ("randaugment_magnitude <= 10", c.randaugment_magnitude <= 10, "randaugment_magnitude"),
        (
            "batch_size % 2 == 0 with mixup or CutMix",
            c.batch_size % 2 == 0 or not (c.mixup_alpha or c.cutmix_alpha),
            "batch_size mixup_alpha cutmix_alpha",
        ),  # they mix pairs
        (
            "batch_size % (2 * mix_groups) == 0 with more than one group",
            c.mix_groups <= 1 or c.batch_size % (2 * c.mix_groups) == 0,
            "batch_size mix_groups",
        ),
        ("distinct evaluation sets, named like 'v2,real'", _are_names(c), "eval_split more_evals"),
    ]
    if facts is not None:
        unknown = [name for name in c.evals if name not in (*facts.evals, "minival")]
        laws += [
            (
                f"num_classes == {facts.num_classes} for {c.dataset}",
                c.num_classes == facts.num_classes,
                "dataset num_classes",
            ),
            (
                f"channels == {facts.channels} for {c.dataset}",
                c.channels == facts.channels,
                "dataset channels",
            ),
            (
                f"evaluation sets of {c.dataset} in (minival, {', '.join(facts.evals)})",
                not unknown,
                "eval_split more_evals",
            ),
        ]
    return laws


def is_dataset_name(name: str) -> bool:
    """Whether a text can name a dataset: "flowers-64", "sets/flowers" or "torchvision:SVHN"."""
    if name.startswith("torchvision:"):
        return re.fullmatch(r"torchvision:[A-Za-z][A-Za-z0-9_]*", name) is not None
    parts = name.split("/")
    return name.isprintable() and all(
        part.strip() == part != "" and not part.startswith(".") for part in parts
    )


def _are_names(c: TrainConfig) -> bool:
    names = c.evals
    distinct = len(set(names)) == len(names) and all(
        re.fullmatch("[a-z0-9_]+", name) for name in names
    )
    return distinct and ",".join(names[1:]) == c.more_evals


def _training_laws(c: TrainConfig) -> list[Law]:
    return [
        ("split_seed < 2**32", c.split_seed < 2**32, "split_seed"),
        ("warmup_epochs < epochs", c.warmup_epochs < c.epochs, "warmup_epochs epochs"),
        (
            "warmup_epochs == 0 with warmup_steps",
            not c.warmup_steps or c.warmup_epochs == 0,
            "warmup_epochs warmup_steps",
        ),
        (
            f"warmup_steps < {c.num_steps if c.batch_size >= 1 else 0} steps",
            c.batch_size < 1 or c.warmup_steps < max(1, c.num_steps),
            "warmup_steps epochs",
        ),
        (
            "decay_floor == 0 with a constant decay",
            c.decay != "constant" or c.decay_floor == 0,
            "decay decay_floor",
        ),
        *_cooldown_laws(c),
        (
            "drop_path_rule == 'uniform' unless drop_path > 0",
            c.drop_path > 0 or c.drop_path_rule == "uniform",
            "drop_path drop_path_rule",
        ),
        (
            "bce_targets == 'soft' unless the loss is bce and images are mixed",
            c.bce_targets == "soft" or (c.loss == "bce" and bool(c.mixup_alpha or c.cutmix_alpha)),
            "bce_targets loss mixup_alpha cutmix_alpha",
        ),
        (
            "label_smoothing == 0 with bce_targets present",
            c.bce_targets == "soft" or c.label_smoothing == 0,
            "bce_targets label_smoothing",
        ),
        ("momentum > 0 with nesterov", c.momentum > 0 or not c.nesterov, "momentum nesterov"),
        (
            "ema_decay == 0 with ema_alpha",
            not c.ema_alpha or not c.ema_decay,
            "ema_decay ema_alpha",
        ),
        (
            "norm_batch even and a divisor of batch_size",
            not c.norm_batch or (c.batch_size % c.norm_batch == 0 and c.norm_batch % 2 == 0),
            "norm_batch batch_size",
        ),
    ]


def _cooldown_laws(c: TrainConfig) -> list[Law]:
    if c.decay != "cooldown":
        names = ("cooldown_share", "cooldown_shape")
        return [
            (
                f"{name} == {DEFAULTS[name]!r} unless the decay is cooldown",
                getattr(c, name) == DEFAULTS[name],
                f"decay {name}",
            )
            for name in names
        ]
    if c.batch_size < 1 or not 0 < c.cooldown_share <= 1:
        return []  # violates a bound
    return [
        (
            f"a cooldown after the warm-up of {c.num_warmup_steps} of {c.num_steps} steps",
            c.num_warmup_steps <= c.cooldown_start,
            "epochs warmup_epochs warmup_steps cooldown_share",
        )
    ]


def _trunk_laws(c: TrainConfig) -> list[Law]:
    laws = [
        (
            "trunk an id of twelve hex digits and trunk_step >= 1, or neither,",
            bool(re.fullmatch("([0-9a-f]{12})?", c.trunk)) and bool(c.trunk) == (c.trunk_step != 0),
            "trunk trunk_step",
        )
    ]
    if not c.trunk or c.batch_size < 1 or not 0 < c.cooldown_share <= 1:
        return laws
    return [
        *laws,
        (
            "decay in (constant, cooldown) with a trunk",
            c.decay in ("constant", "cooldown"),
            "decay trunk",
        ),
        (
            f"trunk_step <= {c.constant_until}, before a cooldown, and < {c.num_steps} steps",
            c.trunk_step <= c.constant_until and c.trunk_step < c.num_steps,
            "trunk_step epochs cooldown_share",
        ),
        # both depend on the length of the training, which is not the trunk's
        ("ema_alpha == 0 with a trunk", not c.ema_alpha, "ema_alpha trunk"),
        (
            "precise_bn <= trunk_step * batch_size with a trunk",
            c.precise_bn <= c.trunk_step * c.batch_size,
            "precise_bn trunk_step batch_size",
        ),
    ]


def _model_laws(c: TrainConfig) -> list[Law]:
    known = c.model in MODELS or (c.model.startswith("timm:") and len(c.model) > 5)
    laws = [(f"model in ({', '.join(MODELS)}, timm:NAME)", known, "model")]
    if c.model == "vit":
        return laws + _vit_laws(c)
    # ViT's fields have no effect on other models: one training would have two ids
    return laws + [
        (
            f"{name} == {DEFAULTS[name]!r} unless the model is vit",
            getattr(c, name) == DEFAULTS[name],
            f"model {name}",
        )
        for name in VIT_ONLY
    ]


VIT_ONLY = (
    "patch_size",
    "width",
    "depth",
    "branches",
    "heads",
    "mlp_ratio",
    "stem",
    "stem_norm",
    "stem_channels",
    "stem_strides",
    "stem_kernels",
    "pool",
    "pos_embed",
    "embed_token",
    "layerscale",
    "weight_init",
    "dropout",
)


def _vit_laws(c: TrainConfig) -> list[Law]:
    power = c.patch_size >= 4 and c.patch_size & (c.patch_size - 1) == 0
    laws = [
        ("width % heads == 0", c.heads >= 1 and c.width % c.heads == 0, "width heads"),
        (
            "resolution % patch_size == 0",
            c.patch_size >= 1 and c.resolution % c.patch_size == 0,
            "resolution patch_size",
        ),
        (f"mlp_ratio <= {MAX_MLP_RATIO:g}", c.mlp_ratio <= MAX_MLP_RATIO, "mlp_ratio"),
        # otherwise timm would use a ratio of 1
        ("width * mlp_ratio >= 1", c.width * c.mlp_ratio >= 1, "width mlp_ratio"),
        (
            "patch_size a power of 2 from 4 for the stems graham and hmlp",
            power or c.stem not in ("graham", "hmlp"),
            "stem patch_size",
        ),
        (
            "width % (patch_size / 2) == 0 for the stem graham",
            c.stem != "graham" or c.patch_size < 1 or c.width % (c.patch_size // 2 or 1) == 0,
            "stem width patch_size",
        ),
        ("width % 4 == 0 for the stem hmlp", c.stem != "hmlp" or c.width % 4 == 0, "stem width"),
        # a field without effect would give the same training another id
        (
            "stem_norm == 'bn' unless the stem is conv, graham or hmlp",
            c.stem_norm == "bn" or c.stem in ("conv", "graham", "hmlp"),
            "stem stem_norm",
        ),
        (
            "embed_token unless a class token has a learned position",
            c.embed_token or (c.pool == "token" and c.pos_embed == "learned"),
            "embed_token pool pos_embed",
        ),
        (
            "width % 4 == 0 for sincos positions",
            c.pos_embed != "sincos" or c.width % 4 == 0,
            "width pos_embed",
        ),
    ]
    if c.stem != "conv":
        empty = not (c.stem_channels or c.stem_strides or c.stem_kernels)
        return [
            *laws,
            (
                "stem_channels, stem_strides and stem_kernels empty without a conv stem",
                empty,
                "stem stem_channels stem_strides stem_kernels",
            ),
        ]
    return laws + _stem_laws(c)


def _stem_laws(c: TrainConfig) -> list[Law]:
    fields = "stem_channels stem_strides stem_kernels"
    try:
        channels, strides, kernels = (
            _ints(c.stem_channels),
            _ints(c.stem_strides),
            _ints(c.stem_kernels),
        )
    except ValueError:
        return [('stem_channels, stem_strides and stem_kernels like "24-48"', False, fields)]
    positive = all(n >= 1 for n in channels + strides + kernels)
    law = f"{MAX_CONVOLUTIONS} convolutions at most in the stem, of {MAX_CHANNELS} channels at most"
    if len(channels) > MAX_CONVOLUTIONS or max([0, *channels, *strides, *kernels]) > MAX_CHANNELS:
        return [(law, False, fields)]
    counts = len(channels) == len(strides) >= 1 and len(kernels) in (0, len(channels))
    return [
        ("one stride and one kernel for each convolution of the stem", counts, fields),
        ("stem_channels >= 1, stem_strides >= 1 and stem_kernels >= 1", positive, fields),
        (
            "stem_kernels empty if all are 3",
            not kernels or any(k != 3 for k in kernels),
            "stem_kernels",
        ),
        (
            "a kernel of 3 or equal to its stride",
            not counts or all(k in (3, s) for k, s in zip(kernels, strides, strict=False)),
            "stem_strides stem_kernels",
        ),
        (
            "product of stem_strides == patch_size",
            math.prod(strides) == c.patch_size,
            "stem_strides patch_size",
        ),
    ]
