"""The fields of a config: names, types, bounds, defaults, and numbers derived from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from vitscale.catalog.datasets import dataset_facts
from vitscale.plan.parts import Scalar, read_own


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
Part = Annotated[str, "a part: file.py:Name or package:Name"]  # beside the choices of a Literal


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Everything that determines a trial's outcome, and nothing about where it runs.

    The laws of these fields are in vitscale.plan.laws; TrainConfig checks them.
    """

    # ---- data
    # digits, cifar10, cifar100, fashion_mnist or imagenet, "torchvision:CLASS", or a folder under
    # the data root or a part, with `num_images`
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
    # policy of random operations; 3augment as in DeiT III (Touvron et al. 2022); or a part
    augment: Literal["none", "autoaugment", "randaugment", "trivialaugment", "3augment"] | Part = (
        "none"
    )
    # 3augment: the operations of which each image gets one, "gray", "solarize" or "gray-blur"; "":
    # all three
    augment_ops: str = ""
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
    # by their name; or a part, shaped by the fields that it asks for and by `own`
    model: str = "vit"
    # arguments of the parts, {"dim": 64}: each is an axis "own.dim"
    own: str | Mapping[str, Scalar] = ""
    # timm:NAME: arguments of the model, in alphabetical order, which replace those of the name:
    # "depth=12,embed_dim=768"
    timm_args: str = ""
    patch_size: Annotated[Count, Max(16_384)] = 2  # pixels per side; the stride of the whole stem
    width: Annotated[Count, Max(2**17)] = 64  # channels per token
    # blocks; each has `branches` attentions and `branches` MLPs
    depth: Annotated[Count, Max(10_000)] = 4
    # attentions and MLPs in parallel (Touvron et al. 2022, equation 2), each with norm, LayerScale
    # and drop path
    branches: Annotated[Count, Max(1_000)] = 1
    heads: Annotated[Count, Max(2**17)] = 4  # of each attention; a divisor of width
    mlp_ratio: Positive = 4.0  # hidden channels of an MLP, as a multiple of width
    # what makes tokens: one convolution (patchify, with batch norm, GELU and ReLU as named), or
    # several: conv (Xiao et al. 2021), shaped by the fields below; graham (Graham et al. 2021);
    # hmlp (Touvron et al. 2022)
    stem: Literal[
        "patchify",
        "patchify_bn",
        "patchify_gelu",
        "patchify_bn_gelu",
        "patchify_bn_relu",
        "conv",
        "graham",
        "hmlp",
    ] = "patchify"
    stem_norm: Literal["bn", "ln"] = "bn"  # norm of conv, graham and hmlp: batch or layer norm
    stem_channels: str = ""  # conv: output channels of its convolutions, "24-48-96-192"
    stem_strides: str = ""  # conv: their strides, "2-2-2-2"; product: patch_size
    stem_kernels: str = ""  # conv: their kernel sizes, "3-3-3-2"; "" for 3 everywhere
    # what the head sees: the class token, or the average of the patch tokens without one
    pool: Literal["token", "avg"] = "token"
    # position embedding: one learned vector per token; half of one per column and half per row
    # (learned2d), or one per offset of two patches, in attention (relative; Dosovitskiy et al.
    # 2021, appendix D.4); fixed 2-D sine-cosine; or none
    pos_embed: Literal["learned", "learned2d", "relative", "sincos", "none"] = "learned"
    # where learned ones are added: after the stem, or before each of the `depth` blocks, which have
    # their own (layer) or the same (shared)
    pos_at: Literal["stem", "layer", "shared"] = "stem"
    # the class token has a position embedding, too; one that enters later has none
    embed_token: bool = True
    # the class token enters before this block, counted from 0; or before `class_blocks`
    token_layer: Annotated[Natural, Max(10_000)] = 0
    # blocks after the others that update the class token alone (CaiT, Touvron et al. 2021)
    class_blocks: Annotated[Natural, Max(10_000)] = 0
    # initial gain of each residual branch and channel; 0: no LayerScale
    layerscale: NotNegative = 0.0
    # a gain for each channel of a branch, or one for all of them, as in ReZero and SkipInit
    branch_gain: Literal["channel", "scalar"] = "channel"
    # gains start at `layerscale`, at random values from 0 to twice that, or at 0, with layerscale 1
    gain_init: Literal["constant", "uniform", "zero"] = "constant"
    # jax: as the ViT authors' code, with a zero head; trunc_normal: as DeiT's
    weight_init: Literal["jax", "trunc_normal"] = "jax"

    # ---- optimization
    # its update rule; weight decay differs between them, see `wd`; "timm:NAME", as "timm:muon", or
    # a part
    optimizer: Literal["adamw", "adam", "sgd", "lamb", "lion"] | Part = "adamw"
    lr: Positive = 1e-3  # peak, after warm-up, quoted at a batch of `lr_batch`
    # batch at which `lr` is quoted: training uses lr * batch_size / lr_batch; 0: lr itself
    lr_batch: Annotated[Natural, Max(2**24)] = 0
    # weight decay; adamw, lamb, lion: decoupled; sgd, adam: L2 in the gradient
    wd: NotNegative = 0.05
    # timm's Muon: peak lr of what AdamW updates in its place, such as biases and norms; 0: lr
    fallback_lr: NotNegative = 0.0
    decay_gains: bool = False  # weight decay on norm gains and biases too; never on LayerScale
    # weight decay on the class and distillation tokens and the position embedding too
    decay_tokens: bool = True
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
    # ce: cross entropy of the softmax; bce: binary cross entropy of each class, averaged over them;
    # or a part
    loss: Literal["ce", "bce"] | Part = "ce"
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
    metrics: str = ""  # a part that adds columns to those of every evaluation; "": none

    # ---- arithmetic and randomness
    # bf16, fp16: autocast, weights stay fp32; fp16 has a dynamic loss scale. tf32: as fp32, but
    # matrix products and convolutions round what they multiply to 10 bits; on GPUs of compute
    # capability 8.0 or more
    precision: Literal["fp32", "bf16", "fp16", "tf32"] = "fp32"
    # of all that is random in a training: init, order, augmentation, mixup, dropout, drop path
    seed: Natural = 0

    # ---- start
    # id of another trial of the study, equal to this one up to `trunk_step`, from whose checkpoint
    # there it starts; "": from initial weights
    trunk: str = ""
    trunk_step: Annotated[Natural, Max(10**15)] = 0  # steps that are the trunk's
    # id of a parent of the study, whose final weights are the initial ones of this training; "":
    # from initial weights
    init_from: str = ""
    init_weights: Literal["raw", "ema"] = "raw"  # of the parent: trained, or averaged ones
    # the head: the parent's, zeros, or the initial one of this training
    init_head: Literal["keep", "zero", "random"] = "keep"
    # what is trained beside the head: all; attention or the MLPs, with the position embedding; or
    # nothing. What is not trained stays as the parent left it.
    trainable: Literal["all", "attn", "ffn", "head"] = "all"
    # what the parent gives: all weights, or the gains of LayerScale alone
    init_parts: Literal["all", "layerscale"] = "all"
    # the gains of LayerScale stay as the parent left them, while all else is trained
    frozen: Literal["none", "layerscale"] = "none"

    # ---- distillation
    # id of a parent of the study whose predictions, on the same augmented images, are part of the
    # loss, with its raw weights; "": no teacher
    teacher: str = ""
    # hard: half of the loss is the cross entropy with the teacher's class (Touvron et al. 2021);
    # soft: `distill_share` of it is the divergence from its probabilities (Hinton et al. 2015);
    # token: as hard, with a second token and head of the ViT that learn the teacher's class, while
    # the class token learns the label; a prediction is the mean of both heads' probabilities
    distill: Literal["none", "soft", "hard", "token"] = "none"
    distill_tau: Positive = 3.0  # soft: temperature of both softmaxes
    distill_share: PositiveFraction = 0.1  # soft: share of the loss that is about the teacher

    @property
    def num_train(self) -> int:
        """Images of the training split."""
        facts = dataset_facts(self.dataset)
        whole = facts.num_train if facts else self.num_images
        return self.subset_images or whole - self.minival_images

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
    def needs(self) -> tuple[str, ...]:
        """Ids of the trainings that must be done before this one begins."""
        return tuple(filter(None, (self.trunk, *self.parents)))

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the trainings whose final weights this one needs."""
        return tuple(filter(None, (self.init_from, self.teacher)))

    @property
    def num_own_steps(self) -> int:
        """Optimizer steps without those of the trunk."""
        return self.num_steps - self.trunk_step

    @property
    def last_row(self) -> int:
        """The epoch of the last row of a complete trial."""
        return self.epochs

    @property
    def num_samples(self) -> int:
        """Images drawn in the whole training."""
        return self.num_steps * self.batch_size

    @property
    def num_tokens(self) -> int:
        """Tokens of a ViT beside those of patches: the class token and the distillation token."""
        return (self.pool == "token") + (self.distill == "token")

    @property
    def has_late_token(self) -> bool:
        """Whether the class token enters after the first block."""
        return self.token_layer > 0 or self.class_blocks > 0

    @property
    def own_arguments(self) -> dict[str, Scalar]:
        """The arguments of the parts."""
        return read_own(self.own) if isinstance(self.own, str) else dict(self.own)

    @property
    def timm_kwargs(self) -> dict[str, Any]:
        """The arguments of a timm model.

        Raises ValueError for a text that is not the only one of its arguments.
        """
        parts = [part.partition("=") for part in self.timm_args.split(",") if part]
        values = {name: float(text) for name, _, text in sorted(parts)}
        arguments = {name: int(v) if v.is_integer() else v for name, v in values.items()}
        text = ",".join(f"{name}={value!r}" for name, value in arguments.items())
        if text != self.timm_args or not all(map(math.isfinite, arguments.values())):
            raise ValueError(f"arguments must be written like 'depth=12', but got {self.timm_args}")
        return arguments

    @property
    def stem_layers(self) -> list[tuple[int, int, int]]:
        """(output channels, stride, kernel size) of a conv stem's convolutions but the last 1x1."""
        channels = ints(self.stem_channels)
        kernels = ints(self.stem_kernels) or [3] * len(channels)
        return list(zip(channels, ints(self.stem_strides), kernels, strict=True))


class FieldType(NamedTuple):
    """Type, choices and bounds of a field, from its annotation."""

    kind: type  # int, float, str or bool
    choices: tuple[str, ...] = ()  # those of a Literal; any value otherwise
    bounds: tuple[Bound, ...] = ()
    upper: int | None = None
    is_open: bool = False  # whether a part may stand in place of a choice


_defaults: dict[type, dict[str, Any]] = {}
_field_types: dict[type, dict[str, FieldType]] = {}


def defaults(kind: type[Fields]) -> dict[str, Any]:
    """Maps each field of a config class to its default, in the order of definition."""
    if kind not in _defaults:
        _defaults[kind] = {f.name: f.default for f in dataclasses.fields(kind)}
    return _defaults[kind]


def field_types(kind: type[Fields]) -> dict[str, FieldType]:
    """Maps each field of a config class to its type, choices and bounds."""
    if kind not in _field_types:
        hints = get_type_hints(kind, include_extras=True)
        _field_types[kind] = {name: _field_type(hints[name]) for name in defaults(kind)}
    return _field_types[kind]


def _field_type(hint: Any) -> FieldType:
    hint, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(hint) is Literal:
        return FieldType(str, choices=get_args(hint))
    if get_origin(hint) in (UnionType, Union):  # with a part, or with the arguments of parts
        first = get_args(hint)[0]
        return FieldType(str, get_args(first), is_open=get_origin(first) is Literal)
    bounds = tuple(extra for extra in extras if isinstance(extra, Bound))
    return FieldType(
        hint, (), bounds, next((extra.value for extra in extras if isinstance(extra, Max)), None)
    )


def choices(kind: type[Fields]) -> dict[str, tuple[str, ...]]:
    """Maps each field with a fixed set of values to these values."""
    return {name: field.choices for name, field in field_types(kind).items() if field.choices}


def limits(kind: type[Fields]) -> dict[str, int]:
    """Maps each field with a largest value to that value."""
    return {
        name: field.upper for name, field in field_types(kind).items() if field.upper is not None
    }


DEFAULTS: dict[str, Any] = defaults(Fields)


def ints(text: str) -> list[int]:
    """The integers of "2-2-1"; none for the empty text.

    Raises ValueError for any other format.
    """
    numbers = [int(part) for part in text.split("-")] if text else []
    if "-".join(map(str, numbers)) != text:
        raise ValueError(f"numbers must be written like '24-48', but got ({text!r})")
    return numbers
