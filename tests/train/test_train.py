"""The trainer against hand-computed tables, second implementations and closed forms."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from support.at_once import augment, crop_pixels
from support.refusals import refusing
from support.trainings import QUICK, TINY, rows_of
from torch import Tensor, nn

from search_spaces import demo
from vitscale.plan.config import TrainConfig
from vitscale.train.augment import mix
from vitscale.train.data import CROP, Batches, generator
from vitscale.train.device import seed_everything
from vitscale.train.loop import train
from vitscale.train.model import build_model
from vitscale.train.sources import Images, load_split

torch.set_num_threads(1)

TINY_CONV: dict[str, Any] = {**TINY, "stem": "conv", "stem_channels": "4-8", "stem_strides": "2-2"}
CIFAR: dict[str, Any] = {"dataset": "cifar10", "channels": 3}


def last_state(path: Path) -> dict[str, Any]:
    newest = max(path.glob("checkpoint-*"))
    return torch.load(newest, weights_only=True)


# --- schedule -------------------------------------------------------------------------------------

# 997 // 99 = 10 steps per epoch, 6 epochs: 60 steps, of which 20 warm up and 40 anneal.
SCHEDULE = [
    (0, 1 / 20),  # the first of 20 equal steps from 0 to the peak
    (9, 0.5),  # the tenth
    (19, 1.0),  # the last of the warm-up: the peak
    (20, 1.0),  # (1 + cos 0) / 2
    (30, 0.8535533905932737),  # a quarter: (1 + cos 45 deg) / 2 = (2 + sqrt 2) / 4
    (40, 0.5),  # half of the cosine: (1 + cos 90 deg) / 2
    (50, 0.14644660940672624),  # three quarters: (2 - sqrt 2) / 4
    # the last, a fortieth of the cosine before 0: (1 - cos 4.5 deg) / 2
    (59, 0.0015413331334360182),
]


def test_rows_show_the_rate_that_was_used(tmp_path: Path) -> None:
    # 3 steps of warm-up, 3 of cosine: 60 deg before 180 deg at the last
    config = TrainConfig(**QUICK, lr=0.3)
    assert [row["lr_now"] for row in rows_of(config, tmp_path)] == pytest.approx(
        [0.3, 0.3 * (1 - 0.5) / 2]
    )


# --- optimizers -----------------------------------------------------------------------------------


def numpy_adamw(
    weights: list[np.ndarray], grads: list[np.ndarray], lrs: list[float], wd: float
) -> np.ndarray:
    """Loshchilov and Hutter 2019, algorithm 2, with the
    decay scaled by the rate; betas 0.8 and 0.95.
    """
    w, m, v = weights[0], np.zeros_like(weights[0]), np.zeros_like(weights[0])
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        update = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        w = w - lr * (update + wd * w)
    return w


def numpy_sgd(nesterov: bool) -> Any:
    """Sutskever et al. 2013 in the form that takes the rate
    outside the momentum, 0.7; L2 in the gradient.
    """

    def run(
        weights: list[np.ndarray], grads: list[np.ndarray], lrs: list[float], wd: float
    ) -> np.ndarray:
        w, velocity = weights[0], np.zeros_like(weights[0])
        for g, lr in zip(grads, lrs, strict=True):
            g = g + wd * w
            velocity = 0.7 * velocity + g
            w = w - lr * (g + 0.7 * velocity if nesterov else velocity)
        return w

    return run


def decayed_by_hand(model: nn.Module, tokens: bool) -> set[str]:
    """Names of the weights of convolutions and linear layers,
    and of class token and positions if asked.
    """
    names = {
        f"{prefix}.weight"
        for prefix, layer in model.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.Linear))
    }
    return names | ({"cls_token", "pos_embed"} if tokens else set())


@pytest.mark.parametrize("clip_norm", [0.01, 0.0, 1e6])
def test_clipping_bounds_the_gradient_alike_for_both_optimizers(
    clip_norm: float, tmp_path: Path
) -> None:
    """One step with the whole training set: AdamW's first moment
    and SGD's buffer then hold the gradient it saw.
    """
    config = TrainConfig(
        **TINY, batch_size=997, epochs=1, warmup_epochs=0.0, wd=0.0, clip_norm=clip_norm, beta1=0.75
    )
    seed_everything(config.seed)
    model = build_model(config)
    images, labels = next(training_batches(config).iterate(0))
    nn.functional.cross_entropy(model(images), labels).backward()
    gradient = np.concatenate(
        [p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None]
    )
    norm = np.linalg.norm(gradient)
    assert 0.01 < norm < 1e6
    expected = min(norm, clip_norm or math.inf)

    for optimizer, key, scale in [("adamw", "exp_avg", 1 - 0.75), ("sgd", "momentum_buffer", 1.0)]:
        rows_of(config.replace(optimizer=optimizer), tmp_path / optimizer)
        moments = last_state(tmp_path / optimizer)["optimizer"]["state"].values()
        seen = torch.cat([moment[key].flatten() for moment in moments]).double() / scale
        assert seen.norm().item() == pytest.approx(expected, rel=1e-4)


# --- averages, losses, augmentation ---------------------------------------------------------------


def test_ema_off_reports_the_raw_error(tmp_path: Path) -> None:
    off = rows_of(TrainConfig(**QUICK), tmp_path / "off")
    assert all(
        r["val_ema_error_pct"] == r["val_error_pct"] and r["val_ema_loss"] == r["val_loss"]
        for r in off
    )
    on = rows_of(TrainConfig(**QUICK, ema_decay=0.9), tmp_path / "on")
    assert all(row["val_ema_loss"] != row["val_loss"] for row in on)
    # the average is not trained on
    assert [row["val_loss"] for row in on] == [row["val_loss"] for row in off]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(
    "alphas", [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)], ids=["mixup", "cutmix", "either"]
)
def test_mixed_targets_agree_with_the_mixed_pixels(
    alphas: tuple[float, float], smoothing: float
) -> None:
    """Image i is mixed with image B - 1 - i; lambda read off
    the targets must be the share of its own pixels.
    """
    config = TrainConfig(
        mixup_alpha=alphas[0], cutmix_alpha=alphas[1], label_smoothing=smoothing, batch_size=10
    )
    images, labels = torch.rand(10, 1, 8, 8, dtype=torch.float64), torch.arange(10)
    kinds, lambdas = set(), []
    for draw in range(60):
        mixed, targets = mix(images, labels, config, np.arange(10), np.random.default_rng(draw))
        torch.testing.assert_close(targets.sum(1), torch.ones(10), rtol=1e-6, atol=1e-6)
        off = smoothing / 10
        lam = (
            ((targets[0, 0].item() - off) / (1 - smoothing)) if smoothing else targets[0, 0].item()
        )
        one_hot = torch.eye(10)
        expected = (1 - smoothing) * (lam * one_hot + (1 - lam) * one_hot.flip(0)) + off
        torch.testing.assert_close(targets, expected, rtol=0, atol=1e-6)
        own = mixed == images
        if (own | (mixed == images.flip(0))).all():  # CutMix pastes whole pixels
            kinds.add("cutmix")
            assert own.double().mean((1, 2, 3)).tolist() == pytest.approx([lam] * 10, abs=1e-6)
            pasted = ~own[0, 0]
            rows, columns = pasted.any(1).sum(), pasted.any(0).sum()
            assert pasted.sum() == rows * columns  # a rectangle
        else:
            kinds.add("mixup")
            blend = lam * images + (1 - lam) * images.flip(0)
            torch.testing.assert_close(mixed, blend, rtol=0, atol=1e-6)
            lambdas.append(lam)
    assert kinds == {kind for kind, alpha in zip(("mixup", "cutmix"), alphas, strict=True) if alpha}
    if alphas == (0.8, 0.0):
        assert scipy.stats.kstest(lambdas, scipy.stats.beta(0.8, 0.8).cdf).pvalue > 0.01


def test_mixing_is_off_without_alphas_and_leaves_the_global_generator_alone() -> None:
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    everyone = np.arange(4)
    same_images, same_labels = mix(
        images, labels, TrainConfig(batch_size=4), everyone, np.random.default_rng(0)
    )
    assert same_images is images and same_labels is labels
    np.random.seed(3)
    before, copy = np.random.get_state(), images.clone()
    config = TrainConfig(mixup_alpha=0.8, cutmix_alpha=1.0, batch_size=4)
    mix(images, labels, config, everyone, np.random.default_rng(0))
    after = np.random.get_state()
    assert (before[1] == after[1]).all() and before[2:] == after[2:]
    assert torch.equal(images, copy)


def test_every_crop_is_a_window_of_the_padded_image_and_all_offsets_are_equally_likely() -> None:
    num, padding = 4000, 2
    images = torch.rand(num, 3, 6, 6)
    config = TrainConfig(**CIFAR, batch_size=num, resolution=6, crop_padding=padding)
    cropped = crop_pixels(images, config, np.arange(num), np.random.default_rng(1))
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    counts = np.zeros((5, 5))
    found = np.zeros(num, int)
    for top, left in itertools.product(range(5), range(5)):
        same = (padded[:, :, top : top + 6, left : left + 6] == cropped.numpy()).all((1, 2, 3))
        counts[top, left] += same.sum()
        found += same
    assert (found == 1).all()
    assert scipy.stats.chisquare(counts.ravel()).pvalue > 0.01


def test_flips_are_mirror_images_at_the_asked_frequency() -> None:
    images = torch.rand(4000, 2, 5, 5)
    out = flipped_at(images, 0.3)
    flipped = (out == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(out[~flipped], images[~flipped])
    assert scipy.stats.binomtest(int(flipped.sum()), 4000, 0.3).pvalue > 0.01
    assert torch.equal(flipped_at(images, 0.0), images)
    assert torch.equal(flipped_at(images, 1.0), images.flip(-1))


def flipped_at(images: Tensor, prob: float) -> Tensor:
    config = TrainConfig(**CIFAR, batch_size=len(images), flip_prob=prob)
    return augment(images, config, np.arange(len(images)), np.random.default_rng(1))


# --- data -----------------------------------------------------------------------------------------

SIZES = {"train": 997, "minival": 200, "val": 400, "test": 200}
GOLDEN_SPLITS = {
    "train": "01fe59929c95ea61",
    "minival": "bdd5e088bf38522c",
    "val": "e2aa022a249aaeb4",
    "test": "da4a79b61acd9b48",
}


@pytest.fixture(scope="module")
def splits() -> dict[str, Images]:
    return {name: load_split(TrainConfig(), name, None) for name in SIZES}


def pixels_of(split: Images) -> Tensor:
    """In [0, 1]."""
    assert isinstance(split.pixels, Tensor)
    return split.pixels.float() / split.white


def contents(split: Images) -> list[bytes]:
    return [image.numpy().tobytes() for image in pixels_of(split)]


def training_batches(config: TrainConfig) -> Batches:
    return Batches(load_split(config, "train", None), config)


def test_digits_splits_are_disjoint_and_together_everything(splits: dict[str, Images]) -> None:
    """All 1,797 images differ, so an image is known by its content."""
    assert {name: len(split.labels) for name, split in splits.items()} == SIZES
    images, labels = load_digits(return_X_y=True)
    source = {
        (x / 16).astype(np.float32).tobytes(): int(y) for x, y in zip(images, labels, strict=True)
    }
    seen = {name: set(contents(split)) for name, split in splits.items()}
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == len(source) == 1797
    assert not seen["train"] & (seen["val"] | seen["minival"] | seen["test"])
    for split in splits.values():
        assert [source[content] for content in contents(split)] == split.labels.tolist()
        images = pixels_of(split)
        assert images.shape[1:] == (1, 8, 8) and images.min() == 0 and images.max() == 1


def test_digits_splits_are_stratified(splits: dict[str, Images]) -> None:
    share = np.bincount(load_digits().target) / 1797
    for name, split in splits.items():
        assert np.abs(np.bincount(split.labels, minlength=10) - SIZES[name] * share).max() < 1.5


@pytest.mark.parametrize("name", SIZES)
def test_digits_splits_are_fixed(splits: dict[str, Images], name: str) -> None:
    """Whatever changes a split makes new numbers incomparable with old ones."""
    content = b"".join(contents(splits[name])) + splits[name].labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == GOLDEN_SPLITS[name]


def test_images_are_normalised_by_the_training_split_alone(splits: dict[str, Images]) -> None:
    batches = Batches(splits["train"], TrainConfig())
    pixels = pixels_of(splits["train"]).double().numpy()
    assert batches.mean.item() == pytest.approx(pixels.mean(), rel=1e-5)
    assert batches.std.item() == pytest.approx(pixels.std(ddof=1), rel=1e-5)
    everything = np.concatenate([pixels_of(split).numpy().ravel() for split in splits.values()])
    assert abs(batches.mean.item() - everything.mean(dtype=np.float64)) > 1e-4
    images, _ = next(training_batches(TrainConfig(batch_size=997)).iterate(0))
    assert images.mean().item() == pytest.approx(
        0, abs=1e-5
    ) and images.std().item() == pytest.approx(1, abs=1e-5)


BUSY = TrainConfig(
    batch_size=300,
    epochs=2,
    warmup_epochs=1.0,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    crop_padding=1,
    flip_prob=0.5,
)


def all_batches(
    config: TrainConfig, first_step: int = 0, num_workers: int = 0
) -> list[tuple[Tensor, Tensor]]:
    return list(training_batches(config).iterate(first_step, num_workers))


def equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    """Bitwise."""
    return len(a) == len(b) and all(
        torch.equal(x, y)
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )


# on purpose, on any machine
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_batches_do_not_depend_on_the_number_of_loader_workers(num_workers: int) -> None:
    assert equal(all_batches(BUSY, num_workers=num_workers), all_batches(BUSY))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_from_the_middle_of_an_epoch_are_the_same(num_workers: int) -> None:
    whole = all_batches(BUSY)
    assert len(whole) == 6
    for first_step in (1, 2, 4, 6):
        assert equal(all_batches(BUSY, first_step, num_workers), whole[first_step:])


@pytest.mark.parametrize("crop", ["rrc", "src"])
def test_images_are_cropped_alike_one_by_one_and_all_at_once(crop: str) -> None:
    """On a CPU and on a GPU: the same windows, and pixels that
    differ by less than the rounding to 256 levels.
    """
    config = TrainConfig(
        dataset="zoo",
        num_images=40,
        num_classes=2,
        channels=3,
        resolution=16,
        batch_size=20,
        epochs=1,
        warmup_epochs=0.0,
        crop=crop,
    )
    coarse = torch.rand(40, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    pixels = (nn.functional.interpolate(coarse, 24, mode="bicubic").clamp(0.1, 0.9) * 255).to(
        torch.uint8
    )
    batches = Batches(Images(torch.zeros(40, dtype=torch.int64), pixels), config)
    assert not batches.crops_in_batch
    one_by_one, _ = batches[1]
    rng = generator(config.seed, CROP, 1)
    whole = pixels[batches.indices(1)].float() / 255
    at_once = crop_pixels(whole, config, np.arange(20), rng)
    assert one_by_one.shape == at_once.shape == (20, 3, 16, 16)
    assert (one_by_one.float() / 255 - at_once).abs().max() < 1.5 / 255
    assert len({image.numpy().tobytes() for image in one_by_one}) == 20


def test_two_seeds_give_different_batches_and_one_seed_the_same() -> None:
    for one, other in zip(all_batches(BUSY), all_batches(BUSY.replace(seed=1)), strict=True):
        assert not torch.equal(one[0], other[0]) and not torch.equal(one[1], other[1])
    assert equal(all_batches(BUSY), all_batches(BUSY))


def test_seed_reaches_order_crop_flip_and_mixing_each() -> None:
    """A training set of one image over and over has no
    order, so that crop and flip show by themselves.
    """
    digits = load_split(TrainConfig(), "train", None)
    one_image = dataclasses.replace(digits, pixels=digits.pixels[:1].expand(997, -1, -1, -1))

    def pixels(split: Images, **fields: Any) -> Tensor:
        return next(Batches(split, TrainConfig(batch_size=996, **fields)).iterate(0))[0]

    def weaker_share(**fields: Any) -> Tensor:
        """Of the two images of a mixed pair: the same in any order."""
        return (
            next(Batches(digits, TrainConfig(batch_size=996, **fields)).iterate(0))[1].amax(1).min()
        )

    assert torch.equal(pixels(one_image, seed=0), pixels(one_image, seed=1))
    for part in (
        lambda seed: pixels(digits, seed=seed),
        lambda seed: pixels(one_image, seed=seed, flip_prob=0.5),
        lambda seed: pixels(one_image, seed=seed, crop_padding=1),
        lambda seed: weaker_share(seed=seed, mixup_alpha=0.8),
    ):
        assert torch.equal(part(0), part(0)) and not torch.equal(part(0), part(1))


def test_each_epoch_is_a_permutation_of_its_own() -> None:
    config = TrainConfig(batch_size=100, epochs=6)
    batches = training_batches(config)
    epochs = [
        np.concatenate([batches.indices(9 * epoch + k) for k in range(9)]) for epoch in range(3)
    ]
    for order in epochs:
        assert len(set(order)) == 900 and order.min() >= 0 and order.max() < 997
    assert not (epochs[0] == epochs[1]).all() and not (epochs[1] == epochs[2]).all()
    left_out = [set(range(997)) - set(order) for order in epochs]
    assert left_out[0] != left_out[1]  # no image is dropped in every epoch


def test_repeated_augmentation_counts_samples_drawn() -> None:
    """Three draws of each image in a row: an epoch of 990
    draws sees 330 images, another epoch others.
    """
    config = TrainConfig(batch_size=99, repeats=3, epochs=6, crop_padding=1)
    batches = training_batches(config)
    assert config.steps_per_epoch == 10 and config.num_steps == 60
    epochs = [
        np.concatenate([batches.indices(10 * epoch + k) for k in range(10)]) for epoch in range(2)
    ]
    for drawn in epochs:
        assert (drawn == np.repeat(drawn[::3], 3)).all() and len(set(drawn)) == 330
    assert set(epochs[0]) != set(epochs[1])
    images, _ = next(batches.iterate(0))
    # copies are augmented each on its own
    assert len({image.numpy().tobytes() for image in images}) > 80
    # 64 is no multiple of 3: one straddles
    whole = training_batches(config.replace(batch_size=64, crop_padding=0))
    assert (np.concatenate([whole.indices(0), whole.indices(1)])[63:66] == whole.order[21]).all()


def test_batches_neither_read_nor_move_the_global_generators() -> None:
    runs = []
    for seed in (0, 99):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        before = (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        )
        runs.append(all_batches(BUSY))
        assert before == (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        )
    assert equal(*runs)


# --- evaluation and whole trainings ---------------------------------------------------------------


def test_evaluation_does_not_depend_on_the_split_it_reads(tmp_path: Path) -> None:
    """The split that is scored is named in the columns, and scoring does not touch the training."""
    val = rows_of(TrainConfig(**QUICK), tmp_path / "val")
    minival = rows_of(TrainConfig(**QUICK, eval_split="minival"), tmp_path / "minival")
    assert {"minival_error_pct", "minival_ema_loss"} <= set(
        minival[0]
    ) and "val_error_pct" not in minival[0]
    assert [row["train_loss"] for row in val] == [row["train_loss"] for row in minival]


def test_rows_count_epochs_steps_and_samples(tmp_path: Path) -> None:
    rows = rows_of(TrainConfig(**QUICK), tmp_path)
    assert [(r["epoch"], r["step"], r["samples"], r["diverged"]) for r in rows] == [
        (1, 3, 996, 0),
        (2, 6, 1992, 0),
    ]
    assert all(type(value) is float for row in rows for value in row.values())


def test_rows_between_evaluations_are_left_out_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a stop between them; the loss is the mean of all steps since the last row."""
    monkeypatch.setattr("vitscale.train.loop.OFTEN_SHARE", math.inf)
    each = TrainConfig(**{**QUICK, "epochs": 8}, ema_decay=0.5)
    every_third = each.replace(eval_every=3)
    rows, few = rows_of(each, tmp_path / "each"), rows_of(every_third, tmp_path / "third")
    assert [row["epoch"] for row in few] == [3, 6, 8]
    for row, first in zip(few, (1, 4, 7), strict=True):
        last = int(row["epoch"])
        mean = sum(other["train_loss"] for other in rows[first - 1 : last]) / (last - first + 1)
        assert row.pop("train_loss") == pytest.approx(mean, rel=1e-12)
        assert row == {k: v for k, v in rows[last - 1].items() if k != "train_loss"}

    for closed_after in (0, 1, 2):  # rows
        (path := tmp_path / str(closed_after)).mkdir()
        training = train(every_third, path, checkpoint_every_s=0.0)
        for _ in range(closed_after + 1):
            next(training)
        training.close()
        again = rows_of(every_third, path)
        assert again == rows_of(every_third, tmp_path / "third")


def test_a_training_that_diverges_between_evaluations_ends_there(tmp_path: Path) -> None:
    config = TrainConfig(**{**QUICK, "epochs": 8}, optimizer="sgd", lr=1e30)
    rows, few = (
        rows_of(config, tmp_path / "1"),
        rows_of(config.replace(eval_every=5), tmp_path / "5"),
    )
    assert few == rows[-1:] and few[0]["diverged"] and few[0]["epoch"] < 5


def test_training_is_plain_gradient_descent(tmp_path: Path) -> None:
    """SGD written out by hand, without momentum, decay,
    mixing: the same losses and the same weights.
    """
    config = TrainConfig(**QUICK, optimizer="sgd", momentum=0.0, wd=0.0, lr=0.2)
    rows = rows_of(config, tmp_path)
    seed_everything(0)
    model, batches = build_model(config), training_batches(config)
    losses = []
    for step, (images, labels) in enumerate(batches.iterate(0)):
        loss = nn.functional.cross_entropy(model(images), labels)
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        rate = 0.2 * (step + 1) / 3 if step < 3 else 0.1 * (1 + math.cos(math.pi * (step - 3) / 3))
        with torch.no_grad():
            for p, grad in zip(model.parameters(), grads, strict=True):
                if grad is not None:
                    p -= rate * grad
        losses.append(loss.item())
    assert [row["train_loss"] for row in rows] == pytest.approx(
        [sum(losses[:3]) / 3, sum(losses[3:]) / 3], rel=1e-5
    )
    trained = last_state(tmp_path)["model"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": "sgd", "lr": 0.1, "wd": 1e-4}], ids=["adamw", "sgd"]
)
def test_a_training_repeats_itself_and_another_seed_is_another_training(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    config = TrainConfig(
        **{**TINY_CONV, **QUICK, **fields, "ema_decay": 0.5, "mixup_alpha": 0.8, "batch_size": 332}
    )
    first = rows_of(config, tmp_path / "first")
    random.seed(5), np.random.seed(5), torch.manual_seed(5)  # whatever the process did before
    assert rows_of(config, tmp_path / "again") == first
    assert rows_of(config, tmp_path / "workers", num_loader_workers=2) == first
    other = rows_of(config.replace(seed=1), tmp_path / "other")
    assert all(a["train_loss"] != b["train_loss"] for a, b in zip(first, other, strict=True))


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(tmp_path: Path) -> None:
    config = TrainConfig(**QUICK, ema_decay=0.5)
    fp32, bf16 = (rows_of(config.replace(precision=p), tmp_path / p) for p in ("fp32", "bf16"))
    assert all(math.isfinite(row["train_loss"]) and row["diverged"] == 0 for row in bf16)
    assert bf16[-1]["train_loss"] == pytest.approx(fp32[-1]["train_loss"], rel=0.02)
    assert bf16[-1]["train_loss"] != fp32[-1]["train_loss"]
    state = last_state(tmp_path / "bf16")
    tensors = [*state["model"].values(), *state["ema"].values()]
    tensors += [t for moments in state["optimizer"]["state"].values() for t in moments.values()]
    assert {t.dtype for t in tensors} == {torch.float32}


def first_bad_step(config: TrainConfig) -> int:
    """The first step with a non-finite loss, by plain SGD written out."""
    seed_everything(config.seed)
    model, batches = build_model(config), training_batches(config)
    velocity, decayed = (
        [torch.zeros_like(p) for p in model.parameters()],
        decayed_by_hand(model, tokens=True),
    )
    for step, (images, labels) in enumerate(batches.iterate(0)):
        loss = nn.functional.cross_entropy(model(images), labels)
        if not math.isfinite(loss.item()):
            return step
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for (name, p), v in zip(model.named_parameters(), velocity, strict=True):
                v.mul_(config.momentum).add_(p.grad + (config.wd if name in decayed else 0.0) * p)
                p.add_(
                    v,
                    alpha=-config.lr
                    * (step + 1)
                    / round(config.warmup_epochs * config.steps_per_epoch),
                )
    raise AssertionError("did not diverge")


@pytest.mark.parametrize(
    ("batch_size", "lr", "checked_at"),
    [(332, 1e15, 3), (8, 1e15, 50), (8, 1e30, 50)],
    ids=["at the end of an epoch", "in the middle of an epoch", "at once"],
)
def test_divergence_is_a_last_row_at_the_step_where_it_arose(
    batch_size: int, lr: float, checked_at: int, tmp_path: Path
) -> None:
    config = TrainConfig(
        **{**QUICK, "batch_size": batch_size, "ema_decay": 0.9},
        optimizer="sgd",
        lr=lr,
        wd=0.0,
        clip_norm=0.0,
    )
    expected = first_bad_step(config)
    assert 0 < expected < checked_at
    rows = rows_of(config, tmp_path)
    assert len(rows) == 1  # none before, none after
    row = rows[0]
    assert row["diverged"] == 1 and row["diverged_step"] == row["step"] - 1 == expected
    assert row["val_error_pct"] == row["val_ema_error_pct"] == 100
    assert row["epoch"] == 1 and row["samples"] == (expected + 1) * batch_size
    assert all(math.isfinite(value) for value in row.values())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert rows_of(config, tmp_path) == rows  # a second call only replays
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_divergence_after_good_epochs_keeps_their_rows(tmp_path: Path) -> None:
    """L2 with lr * wd far above 2 blows the weights up at every
    step: by 83, 166, 249 ... through the warm-up.
    """
    # 4 steps per epoch, 12 of warm-up
    slow = {**TINY, "batch_size": 249, "epochs": 4, "warmup_epochs": 3.0}
    config = TrainConfig(**slow, optimizer="sgd", lr=1.0, wd=1e3, momentum=0.0)
    rows = rows_of(config, tmp_path)
    assert [row["diverged"] for row in rows] == [0, 1]
    assert rows[1]["diverged_step"] == first_bad_step(config) >= 4 and rows[1]["epoch"] == 2


def test_weights_lost_at_the_last_step_are_a_divergence(tmp_path: Path) -> None:
    """One step in all: its loss is ln 10 and finite, and no later loss could tell."""
    config = TrainConfig(
        **TINY, batch_size=997, epochs=1, warmup_epochs=0.0, optimizer="sgd", lr=1e300, wd=0.0
    )
    rows = rows_of(config, tmp_path)
    assert len(rows) == 1 and rows[0]["diverged"] == 1 and rows[0]["diverged_step"] == 0
    assert rows[0]["val_error_pct"] == 100 and rows_of(config, tmp_path) == rows
    harmless = rows_of(config.replace(lr=0.1), tmp_path / "harmless")
    assert harmless[0]["diverged"] == 0 and harmless[0]["train_loss"] == pytest.approx(math.log(10))


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        (
            {"dataset": "cifar10", "channels": 3, "resolution": 32},
            "dataset='cifar10'",
        ),
        (
            {"resolution": 16},
            "resolution=16, height=8, width=8",
        ),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_one_line(
    fields: dict[str, Any], values: str, tmp_path: Path
) -> None:
    with refusing(values) as error:
        next(train(TrainConfig(**fields), tmp_path))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def linear_error_pct(splits: dict[str, Images]) -> float:
    """Of scikit-learn's logistic regression on the same pixels."""
    train_split, val = splits["train"], splits["val"]
    classifier = LogisticRegression(max_iter=2000).fit(
        pixels_of(train_split).flatten(1).numpy(), train_split.labels
    )
    return 100 * (1 - classifier.score(pixels_of(val).flatten(1).numpy(), val.labels))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_demo_learns_more_than_a_linear_classifier(
    optimizer: str, linear_error_pct: float, tmp_path: Path
) -> None:
    lr, wd = demo.OPTIMA["ViT_C", optimizer]
    fields = {**demo.RECIPE, **demo.MODELS["ViT_C"]}
    rows = rows_of(TrainConfig(**fields, optimizer=optimizer, lr=lr, wd=wd), tmp_path)
    assert rows[-1]["val_ema_error_pct"] < linear_error_pct < 5
    assert rows[-1]["train_loss"] < 0.1 < rows[0]["train_loss"]
