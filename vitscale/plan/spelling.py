"""What names and values are called: aliases of fields, near misses, values in messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import NoReturn, TypeVar

T = TypeVar("T")

MAX_CHARACTERS = 200  # of a text
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


def field_meant(name: str, names: Collection[str]) -> str | None:
    """The field that an unknown name most likely means: what
    others call it, or else how it is spelled.
    """
    meant = _FIELD_OF.get(name.lower().replace("-", "_"))
    if meant is not None:
        return meant
    close = difflib.get_close_matches(name[:MAX_CHARACTERS], names, n=1)
    return close[0] if close else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """A question about the nearest of these names, behind "; "; empty if none is near."""
    close = difflib.get_close_matches(name[:MAX_CHARACTERS], names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class Named(dict[str, T]):
    """Values by name, which refuse an unknown name by a ValueError, as everything that a study
    reports in one line.
    """

    def __init__(self, values: Mapping[str, T], what: str) -> None:
        super().__init__(values)
        self.what = what

    def __missing__(self, name: object) -> NoReturn:
        raise ValueError(
            f"{self.what} must be among ({', '.join(self)}), but got "
            f"({shown(name)}){did_you_mean(str(name), self)}"
        )


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
