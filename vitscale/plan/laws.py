"""The laws of a config: conditions that its fields satisfy together."""

from __future__ import annotations

import math
import re

from vitscale.catalog.datasets import DATASETS, dataset_facts
from vitscale.catalog.regnety import REGNETY
from vitscale.plan.fields import DEFAULTS, Fields, field_types, ints
from vitscale.plan.parts import digest_of, is_part, parts_of, takes

Law = tuple[str, bool, str]  # (condition, whether it holds, the fields concerned)
MODELS = ("vit", *REGNETY)  # and "timm:NAME"
# of 3augment; all three are the empty text
AUGMENT_OPS = ("gray", "solarize", "blur", "gray-solarize", "gray-blur", "solarize-blur")
MAX_MLP_RATIO = 1_000.0
OPEN = {
    "augment": ", file.py:Name",
    "loss": ", file.py:Name",
    "optimizer": ", timm:NAME, file.py:Name",
}
MAX_CONVOLUTIONS, MAX_CHANNELS = 32, 2**17  # of a conv stem
# Fields of which no law asks together with another field.
FREE = ("lr", "wd", "seed")
MAX_SEED = 2**63


def _is_open(name: str, c: Fields) -> bool:
    """Whether a field names a part, or an optimizer of timm."""
    value = getattr(c, name)
    return is_part(value) or (name == "optimizer" and value.startswith("timm:") and len(value) > 5)


def free_laws(c: Fields) -> list[Law]:
    """The conditions for FREE."""
    types = field_types(type(c))
    laws = [
        (bound.law.format(name), bound.holds(getattr(c, name)), name)
        for name in FREE
        for bound in types[name].bounds
    ]
    return [*laws, ("seed < 2**63", c.seed < MAX_SEED, "seed")]


def laws_of(c: Fields) -> list[Law]:
    """The conditions for every config."""
    types = field_types(type(c))
    laws = [
        (
            f"{name} in ({', '.join(field.choices)}{OPEN.get(name, '')})",
            getattr(c, name) in field.choices or (field.is_open and _is_open(name, c)),
            name,
        )
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
        laws
        + free_laws(c)
        + _data_laws(c)
        + _training_laws(c)
        + _trunk_laws(c)
        + _parent_laws(c)
        + _teacher_laws(c)
        + _model_laws(c)
        + _part_laws(c)
    )


def _data_laws(c: Fields) -> list[Law]:
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
            c.channels == 3 or ((c.augment == "none" or is_part(c.augment)) and not c.color_jitter),
            "channels augment color_jitter",
        ),
        (
            f"augment_ops empty, or with the augment 3augment in ({', '.join(AUGMENT_OPS)}),",
            not c.augment_ops or (c.augment == "3augment" and c.augment_ops in AUGMENT_OPS),
            "augment augment_ops",
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
    if is_part(name):
        return True
    if name.startswith("torchvision:"):
        return re.fullmatch(r"torchvision:[A-Za-z][A-Za-z0-9_]*", name) is not None
    parts = name.split("/")
    return name.isprintable() and all(
        part.strip() == part != "" and not part.startswith(".") for part in parts
    )


def _are_names(c: Fields) -> bool:
    names = c.evals
    distinct = len(set(names)) == len(names) and all(
        re.fullmatch("[a-z0-9_]+", name) for name in names
    )
    return distinct and ",".join(names[1:]) == c.more_evals


def _training_laws(c: Fields) -> list[Law]:
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


def _cooldown_laws(c: Fields) -> list[Law]:
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


def _trunk_laws(c: Fields) -> list[Law]:
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


OF_START = ("init_weights", "init_head", "trainable", "init_parts", "frozen")  # with init_from


def _parent_laws(c: Fields) -> list[Law]:
    if not c.init_from:
        given = ", ".join(f"{name} {DEFAULTS[name]}" for name in OF_START)
        plain = all(getattr(c, name) == DEFAULTS[name] for name in OF_START)
        return [(f"{given} without init_from", plain, f"init_from {' '.join(OF_START)}")]
    of_gains = "layerscale" in (c.init_parts, c.frozen)
    return [
        (
            "layerscale > 0 and trainable == 'all' with the part layerscale",
            not of_gains or (c.layerscale > 0 and c.trainable == "all"),
            "layerscale trainable init_parts frozen",
        ),
        (
            "init_head == 'keep' unless init_parts is all",
            c.init_parts == "all" or c.init_head == "keep",
            "init_head init_parts",
        ),
        (
            "init_from an id of twelve hex digits",
            bool(re.fullmatch("[0-9a-f]{12}", c.init_from)),
            "init_from",
        ),
        ("no trunk with init_from", not c.trunk, "trunk init_from"),
        (
            "model == vit with trainable attn or ffn",
            c.model == "vit" or c.trainable in ("all", "head"),
            "model trainable",
        ),
    ]


def _teacher_laws(c: Fields) -> list[Law]:
    laws = [
        (
            f"{name} == {DEFAULTS[name]} unless distill is soft",
            c.distill == "soft" or getattr(c, name) == DEFAULTS[name],
            f"distill {name}",
        )
        for name in ("distill_tau", "distill_share")
    ]
    if not c.teacher:
        return [
            *laws,
            ("distill == 'none' without a teacher", c.distill == "none", "distill teacher"),
        ]
    return [
        *laws,
        ("distill != 'none' with a teacher", c.distill != "none", "distill teacher"),
        (
            "teacher an id of twelve hex digits",
            bool(re.fullmatch("[0-9a-f]{12}", c.teacher)),
            "teacher",
        ),
        ("no trunk with a teacher", not c.trunk, "trunk teacher"),
        ("loss == 'ce' with a teacher", c.loss == "ce", "loss teacher"),
        (
            "model == 'vit' and pool == 'token' with distill token",
            c.distill != "token" or (c.model == "vit" and c.pool == "token"),
            "distill model pool",
        ),
    ]


def _part_laws(c: Fields) -> list[Law]:
    laws: list[Law] = [
        (
            "metrics empty or a part of a file, file.py:Name,",
            not c.metrics or bool(digest_of(c.metrics)),
            "metrics",
        ),
        (
            "fallback_lr == 0 unless the optimizer is timm's Muon or a part that takes it",
            not c.fallback_lr
            or c.optimizer in WITH_FALLBACK
            or (is_part(c.optimizer) and takes("optimizer", c.optimizer, "fallback_lr")),
            "optimizer fallback_lr",
        ),
    ]
    parts = parts_of(c)
    if "model" in parts:
        # in one line, since a base with a shape of ViT has several
        given = [
            name
            for name in (*VIT_ONLY, "drop_path")
            if getattr(c, name) != DEFAULTS[name] and not takes("model", c.model, name)
        ]
        defaults = ", ".join(f"{name} == {DEFAULTS[name]!r}" for name in given)
        laws += [
            (f"{defaults} unless the model takes it", not given, " ".join(("model", *given))),
            (
                "trainable all and init_head keep with a model that is a part",
                c.trainable == "all" and c.init_head == "keep",
                "model trainable init_head",
            ),
        ]
    if "loss" in parts:
        mixed = bool(c.mixup_alpha or c.cutmix_alpha)
        laws.append(
            (
                "label_smoothing == 0 unless the loss takes it, or images are mixed",
                not c.label_smoothing or mixed or takes("loss", c.loss, "label_smoothing"),
                "loss label_smoothing",
            )
        )
    return laws


# those of timm that update what is no matrix by AdamW or NAdamW
WITH_FALLBACK = ("timm:muon", "timm:nmuon", "timm:adamuon", "timm:nadamuon")


def _model_laws(c: Fields) -> list[Law]:
    if is_part(c.model):
        return _timm_laws(c)
    is_model = c.model in MODELS or (c.model.startswith("timm:") and len(c.model) > 5)
    names = f"{', '.join(MODELS)}, timm:NAME, file.py:Name"
    laws = [(f"model in ({names})", is_model, "model"), *_timm_laws(c)]
    if c.model == "vit":
        return laws + _vit_laws(c)
    # ViT's fields have no effect on other models: one training would have two ids. All of them in
    # one line, since a base with a shape of ViT has several
    given = [name for name in VIT_ONLY if getattr(c, name) != DEFAULTS[name]]
    defaults = ", ".join(f"{name} == {DEFAULTS[name]!r}" for name in given)
    return [*laws, (f"{defaults} unless the model is vit", not given, " ".join(("model", *given)))]


# arguments of timm.create_model that other fields give, or that are no part of the model
NOT_OF_MODEL = re.compile(
    "img_size|in_chans|num_classes|drop_rate|drop_path_rate|pretrained.*|checkpoint_path|"
    "scriptable|exportable|no_jit|cache_dir|features_only|out_indices|model_name"
)


def _timm_laws(c: Fields) -> list[Law]:
    try:
        names = list(c.timm_kwargs)
    except (ValueError, OverflowError):
        return [("timm_args like 'depth=12,embed_dim=768', sorted by name", False, "timm_args")]
    return [
        (
            "timm_args empty unless the model is timm:NAME",
            not names or c.model.startswith("timm:"),
            "model timm_args",
        ),
        (
            "timm_args of the model alone, which no other field gives,",
            all(n.isidentifier() and not NOT_OF_MODEL.fullmatch(n) for n in names),
            "timm_args",
        ),
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
    "pos_at",
    "embed_token",
    "token_layer",
    "class_blocks",
    "layerscale",
    "branch_gain",
    "gain_init",
    "weight_init",
    "dropout",
)


def _vit_laws(c: Fields) -> list[Law]:
    late = c.has_late_token
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
            "patch_size a power of 2 from 4 for the stem graham",
            power or c.stem != "graham",
            "stem patch_size",
        ),
        # at 4 it is one convolution with a norm: patchify_bn, the same training with another id
        (
            "patch_size a power of 2 from 8 for the stem hmlp",
            (power and c.patch_size >= 8) or c.stem != "hmlp",
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
            "branch_gain channel and gain_init constant without layerscale",
            c.layerscale > 0 or (c.branch_gain, c.gain_init) == ("channel", "constant"),
            "layerscale branch_gain gain_init",
        ),
        (
            "layerscale == 1 with gain_init zero",
            c.gain_init != "zero" or c.layerscale == 1,
            "layerscale gain_init",
        ),
        (
            "stem_norm == 'bn' unless the stem is conv, graham or hmlp",
            c.stem_norm == "bn" or c.stem in ("conv", "graham", "hmlp"),
            "stem stem_norm",
        ),
        (
            "embed_token unless a class token has a learned position",
            c.embed_token or (c.pos_embed == "learned" and c.pool == "token" and not late),
            "embed_token pool pos_embed token_layer class_blocks",
        ),
        (
            "pos_at == 'stem' unless positions are learned or learned2d, and depth > 1",
            c.pos_at == "stem" or (c.pos_embed in ("learned", "learned2d") and c.depth > 1),
            "pos_at pos_embed depth",
        ),
        (
            "token_layer < depth, token_layer or class_blocks 0, and both without a class token,",
            (c.pool == "token" or not late)
            and c.token_layer < (1 if c.class_blocks else max(1, c.depth)),
            "token_layer depth pool class_blocks",
        ),
        (
            "branches == 1 with relative positions or class_blocks",
            c.branches == 1 or not (c.class_blocks or c.pos_embed == "relative"),
            "branches pos_embed class_blocks",
        ),
        (
            "width % 2 == 0 for learned2d positions",
            c.pos_embed != "learned2d" or c.width % 2 == 0,
            "width pos_embed",
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


def _stem_laws(c: Fields) -> list[Law]:
    fields = "stem_channels stem_strides stem_kernels"
    try:
        channels, strides, kernels = (
            ints(c.stem_channels),
            ints(c.stem_strides),
            ints(c.stem_kernels),
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
