"""The trainer against hand-computed tables, second implementations and closed forms."""

from __future__ import annotations

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
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from search_spaces import demo
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Row
from vitscale.train.augment import augment, cross_entropy, mix
from vitscale.train.data import Batches, Split, load
from vitscale.train.ema import Ema
from vitscale.train.loop import TIMING, evaluate, seed_everything, train
from vitscale.train.model import build_model
from vitscale.train.optim import build_optimizer
from vitscale.train.schedule import lr_at

torch.set_num_threads(1)

TINY: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "patch_size": 4}
TINY_CONV: dict[str, Any] = {**TINY, "stem": "conv", "stem_channels": "4-8", "stem_strides": "2-2"}
QUICK: dict[str, Any] = {**TINY, "batch_size": 332, "epochs": 2, "warmup_epochs": 1.0}  # 3 steps an epoch


def rows_of(config: TrainConfig, path: Path, **options: Any) -> list[Row]:
    """The rows of a whole training, without the columns that two runs of one trial do not share."""
    path.mkdir(parents=True, exist_ok=True)
    return [{k: v for k, v in row.items() if k not in TIMING} for row in train(config, path, **options)]


def last_state(path: Path) -> dict[str, Any]:
    newest = max(path.glob("checkpoint-*"))
    return torch.load(newest, weights_only=True)


# --- schedule ---------------------------------------------------------------------------------------------------------

# 997 // 99 = 10 steps an epoch, 6 epochs: 60 steps, of which 20 warm up and 40 anneal.
SCHEDULE = [
    (0, 1 / 20),  # the first of 20 equal steps from 0 to the peak
    (9, 0.5),  # the tenth
    (19, 1.0),  # the last of the warm-up: the peak
    (20, 1.0),  # (1 + cos 0) / 2
    (30, 0.8535533905932737),  # a quarter: (1 + cos 45 deg) / 2 = (2 + sqrt 2) / 4
    (40, 0.5),  # half of the cosine: (1 + cos 90 deg) / 2
    (50, 0.14644660940672624),  # three quarters: (2 - sqrt 2) / 4
    (59, 0.0015413331334360182),  # the last, a fortieth of the cosine before 0: (1 - cos 4.5 deg) / 2
]


@pytest.mark.parametrize(("step", "share_of_peak"), SCHEDULE)
def test_schedule_is_the_table(step: int, share_of_peak: float) -> None:
    config = TrainConfig(batch_size=99, epochs=6, warmup_epochs=2.0, lr=0.3)
    assert lr_at(step, config) == pytest.approx(0.3 * share_of_peak, rel=1e-12)


def test_warmup_may_be_absent_or_a_fraction_of_an_epoch() -> None:
    none = TrainConfig(batch_size=99, epochs=2, warmup_epochs=0.0, lr=0.3)
    assert [lr_at(step, none) for step in (0, 10)] == pytest.approx([0.3, 0.15])
    fraction = none.replace(warmup_epochs=0.4)  # 4 of 20 steps
    assert [lr_at(s, fraction) for s in (0, 1, 2, 3, 4, 12)] == pytest.approx([0.075, 0.15, 0.225, 0.3, 0.3, 0.15])


def test_rows_show_the_rate_that_was_used(tmp_path: Path) -> None:
    config = TrainConfig(**QUICK, lr=0.3)  # 3 steps of warm-up, 3 of cosine: 60 deg before 180 deg at the last
    assert [row["lr_now"] for row in rows_of(config, tmp_path)] == pytest.approx([0.3, 0.3 * (1 - 0.5) / 2])


# --- optimizers -------------------------------------------------------------------------------------------------------


def numpy_adamw(weights: list[np.ndarray], grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
    """Loshchilov and Hutter 2019, algorithm 2, with the decay scaled by the rate; betas 0.8 and 0.95."""
    w, m, v = weights[0], np.zeros_like(weights[0]), np.zeros_like(weights[0])
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        update = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        w = w - lr * (update + wd * w)
    return w


def numpy_sgd(nesterov: bool) -> Any:
    """Sutskever et al. 2013 in the form that takes the rate outside the momentum, 0.7; L2 in the gradient."""

    def run(weights: list[np.ndarray], grads: list[np.ndarray], lrs: list[float], wd: float) -> np.ndarray:
        w, velocity = weights[0], np.zeros_like(weights[0])
        for g, lr in zip(grads, lrs, strict=True):
            g = g + wd * w
            velocity = 0.7 * velocity + g
            w = w - lr * (g + 0.7 * velocity if nesterov else velocity)
        return w

    return run


@pytest.mark.parametrize(
    ("fields", "implementation"),
    [
        ({"optimizer": "adamw", "beta1": 0.8, "beta2": 0.95, "wd": 0.3}, numpy_adamw),
        ({"optimizer": "sgd", "momentum": 0.7, "wd": 0.3}, numpy_sgd(nesterov=False)),
        ({"optimizer": "sgd", "momentum": 0.7, "nesterov": True, "wd": 0.3}, numpy_sgd(nesterov=True)),
    ],
    ids=["adamw", "sgd", "nesterov"],
)
def test_optimizer_steps_are_those_of_numpy(fields: dict[str, Any], implementation: Any) -> None:
    config = TrainConfig(**TINY_CONV, **fields)
    torch.manual_seed(0)
    model = build_model(config)
    optimizer = build_optimizer(model, config)
    before = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    lrs = [0.02, 0.05, 0.1, 0.03]
    grads = [{name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in lrs]
    for lr, grad in zip(lrs, grads, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, p in model.named_parameters():
            p.grad = grad[name].clone()
        optimizer.step()
    for name, p in model.named_parameters():
        wd = 0.3 if name in decayed_by_hand(model, tokens=True) else 0.0
        expected = implementation([before[name]], [grad[name].double().numpy() for grad in grads], lrs, wd)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-4, atol=1e-6, err_msg=name)


def decayed_by_hand(model: nn.Module, tokens: bool) -> set[str]:
    """Names of the weights of convolutions and linear layers, and of class token and positions if asked."""
    names = {f"{prefix}.weight" for prefix, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    return names | ({"cls_token", "pos_embed"} if tokens else set())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("decay_tokens", [True, False])
@pytest.mark.parametrize(
    "fields", [TINY, TINY_CONV, {"model": "regnety-1gf"}], ids=["ViT_P", "ViT_C", "RegNetY"]
)  # fmt: skip
def test_norms_and_biases_are_never_decayed(fields: dict[str, Any], decay_tokens: bool, optimizer: str) -> None:
    config = TrainConfig(**fields, wd=0.3, decay_tokens=decay_tokens, optimizer=optimizer)
    model = build_model(config)
    groups = build_optimizer(model, config).param_groups
    wd_of = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    wds = {name: wd_of[id(p)] for name, p in model.named_parameters()}
    assert len(wds) == sum(len(group["params"]) for group in groups)
    assert {name for name, wd in wds.items() if wd == 0.3} == decayed_by_hand(
        model, tokens=decay_tokens and config.model == "vit"
    )
    assert set(wds.values()) == {0.0, 0.3}


@pytest.mark.parametrize("clip_norm", [0.01, 0.0, 1e6])
def test_clipping_bounds_the_gradient_alike_for_both_optimizers(clip_norm: float, tmp_path: Path) -> None:
    """One step with the whole training set: AdamW's first moment and SGD's buffer then hold the gradient it saw."""
    config = TrainConfig(**TINY, batch_size=997, epochs=1, warmup_epochs=0.0, wd=0.0, clip_norm=clip_norm, beta1=0.75)
    seed_everything(config.seed)
    model = build_model(config)
    images, labels = Batches(load(config, "train"), config)[0]
    cross_entropy(model(images), labels, 0.0).backward()
    gradient = np.concatenate([p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None])
    norm = np.linalg.norm(gradient)
    assert 0.01 < norm < 1e6
    expected = min(norm, clip_norm or math.inf)

    for optimizer, key, scale in [("adamw", "exp_avg", 1 - 0.75), ("sgd", "momentum_buffer", 1.0)]:
        rows_of(config.replace(optimizer=optimizer), tmp_path / optimizer)
        moments = last_state(tmp_path / optimizer)["optimizer"]["state"].values()
        seen = torch.cat([moment[key].flatten() for moment in moments]).double() / scale
        assert seen.norm().item() == pytest.approx(expected, rel=1e-4)


# --- averages, losses, augmentation -----------------------------------------------------------------------------------


def test_ema_is_the_closed_form_with_the_statistics_of_batchnorm() -> None:
    """After n steps: decay^n x_0 + (1 - decay) sum_k decay^(n-k) x_k."""
    config, decay = TrainConfig(**TINY_CONV), 0.8
    model = build_model(config)
    ema = Ema(model, decay)
    history = [{k: v.double().clone() for k, v in model.state_dict().items()}]
    for step in range(4):
        model(torch.randn(6, 1, 8, 8))  # moves the running statistics
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        ema.update(model)
        history.append({k: v.double().clone() for k, v in model.state_dict().items()})
        assert step or not torch.equal(
            history[0]["patch_embed.backbone.0.bn.running_mean"], history[1]["patch_embed.backbone.0.bn.running_mean"]
        )
    for name, value in ema.module.state_dict().items():
        if value.is_floating_point():
            expected = decay**4 * history[0][name]
            expected += sum((1 - decay) * decay ** (4 - k) * history[k][name] for k in range(1, 5))
        else:
            expected = history[4][name]  # num_batches_tracked is a count
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_ema_off_reports_the_raw_error(tmp_path: Path) -> None:
    off = rows_of(TrainConfig(**QUICK), tmp_path / "off")
    assert all(r["val_ema_error_pct"] == r["val_error_pct"] and r["val_ema_loss"] == r["val_loss"] for r in off)
    on = rows_of(TrainConfig(**QUICK, ema_decay=0.9), tmp_path / "on")
    assert all(row["val_ema_loss"] != row["val_loss"] for row in on)
    assert [row["val_loss"] for row in on] == [row["val_loss"] for row in off]  # the average is not trained on


def test_label_smoothing_is_the_closed_form() -> None:
    """Target (1 - s) on the label plus s / K on every class; loss = - sum target log softmax."""
    rng = np.random.default_rng(0)
    logits, labels, smoothing = rng.normal(size=(7, 10)) * 3, rng.integers(0, 10, 7), 0.3
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    targets = (1 - smoothing) * np.eye(10)[labels] + smoothing / 10
    expected = -(targets * log_p).sum(1).mean()
    assert cross_entropy(torch.tensor(logits), torch.tensor(labels), smoothing).item() == pytest.approx(expected)
    assert cross_entropy(torch.tensor(logits), torch.tensor(targets), smoothing).item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("alphas", [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)], ids=["mixup", "cutmix", "either"])
def test_mixed_targets_agree_with_the_mixed_pixels(alphas: tuple[float, float], smoothing: float) -> None:
    """Image i is mixed with image B - 1 - i; lambda read off the targets must be the share of its own pixels."""
    config = TrainConfig(mixup_alpha=alphas[0], cutmix_alpha=alphas[1], label_smoothing=smoothing, batch_size=10)
    images, labels = torch.rand(10, 1, 8, 8, dtype=torch.float64), torch.arange(10)
    kinds, lambdas = set(), []
    for draw in range(60):
        mixed, targets = mix(images, labels, config, np.random.default_rng(draw))
        torch.testing.assert_close(targets.sum(1), torch.ones(10), rtol=1e-6, atol=1e-6)
        off = smoothing / 10
        lam = ((targets[0, 0].item() - off) / (1 - smoothing)) if smoothing else targets[0, 0].item()
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
    same_images, same_labels = mix(images, labels, TrainConfig(), np.random.default_rng(0))
    assert same_images is images and same_labels is labels
    np.random.seed(3)
    before, copy = np.random.get_state(), images.clone()
    mix(images, labels, TrainConfig(mixup_alpha=0.8, cutmix_alpha=1.0), np.random.default_rng(0))
    after = np.random.get_state()
    assert (before[1] == after[1]).all() and before[2:] == after[2:]
    assert torch.equal(images, copy)


def test_every_crop_is_a_window_of_the_padded_image_and_all_offsets_are_equally_likely() -> None:
    num, padding = 4000, 2
    images = torch.rand(num, 3, 6, 6)
    cropped = augment(images, TrainConfig(crop_padding=padding), np.random.default_rng(1))
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
    out = augment(images, TrainConfig(flip_prob=0.3), np.random.default_rng(1))
    flipped = (out == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(out[~flipped], images[~flipped])
    assert scipy.stats.binomtest(int(flipped.sum()), 4000, 0.3).pvalue > 0.01
    assert torch.equal(augment(images, TrainConfig(), np.random.default_rng(1)), images)
    assert torch.equal(augment(images, TrainConfig(flip_prob=1.0), np.random.default_rng(1)), images.flip(-1))


# --- data -------------------------------------------------------------------------------------------------------------

SIZES = {"train": 997, "minival": 200, "val": 400, "test": 200}
GOLDEN_SPLITS = {
    "train": "01fe59929c95ea61",
    "minival": "bdd5e088bf38522c",
    "val": "e2aa022a249aaeb4",
    "test": "da4a79b61acd9b48",
}


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    return {name: load(TrainConfig(), name) for name in SIZES}


def contents(split: Split) -> list[bytes]:
    return [image.numpy().tobytes() for image in split.images]


def test_digits_splits_are_disjoint_and_together_everything(splits: dict[str, Split]) -> None:
    """All 1,797 images differ, so an image is known by its content."""
    assert {name: len(split.labels) for name, split in splits.items()} == SIZES
    images, labels = load_digits(return_X_y=True)
    source = {(x / 16).astype(np.float32).tobytes(): int(y) for x, y in zip(images, labels, strict=True)}
    seen = {name: set(contents(split)) for name, split in splits.items()}
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == len(source) == 1797
    assert not seen["train"] & (seen["val"] | seen["minival"] | seen["test"])
    for split in splits.values():
        assert [source[content] for content in contents(split)] == split.labels.tolist()
        assert split.images.shape[1:] == (1, 8, 8) and split.images.min() == 0 and split.images.max() == 1


def test_digits_splits_are_stratified(splits: dict[str, Split]) -> None:
    share = np.bincount(load_digits().target) / 1797
    for name, split in splits.items():
        assert np.abs(np.bincount(split.labels, minlength=10) - SIZES[name] * share).max() < 1.5


@pytest.mark.parametrize("name", SIZES)
def test_digits_splits_are_fixed(splits: dict[str, Split], name: str) -> None:
    """Whatever changes a split makes new numbers incomparable with old ones."""
    content = b"".join(contents(splits[name])) + splits[name].labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == GOLDEN_SPLITS[name]


def test_images_are_normalised_by_the_training_split_alone(splits: dict[str, Split]) -> None:
    batches = Batches(splits["train"], TrainConfig())
    pixels = splits["train"].images.double().numpy()
    assert batches.mean.item() == pytest.approx(pixels.mean(), rel=1e-5)
    assert batches.std.item() == pytest.approx(pixels.std(ddof=1), rel=1e-5)
    everything = np.concatenate([split.images.numpy().ravel() for split in splits.values()])
    assert abs(batches.mean.item() - everything.mean(dtype=np.float64)) > 1e-4
    images, _ = Batches(splits["train"], TrainConfig(batch_size=997))[0]
    assert images.mean().item() == pytest.approx(0, abs=1e-5) and images.std().item() == pytest.approx(1, abs=1e-5)


BUSY = TrainConfig(batch_size=300, epochs=2, warmup_epochs=1.0, mixup_alpha=0.8, cutmix_alpha=1.0, crop_padding=1,
                   flip_prob=0.5)  # fmt: skip


def all_batches(config: TrainConfig, first_step: int = 0, num_workers: int = 0) -> list[tuple[Tensor, Tensor]]:
    return list(Batches(load(config, "train"), config).iterate(first_step, num_workers))


def equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    """Bitwise."""
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True)
    )


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")  # on purpose, on any machine
@pytest.mark.parametrize("num_workers", [1, 3])
def test_batches_do_not_depend_on_the_number_of_loader_workers(num_workers: int) -> None:
    assert equal(all_batches(BUSY, num_workers=num_workers), all_batches(BUSY))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_from_the_middle_of_an_epoch_are_the_same(num_workers: int) -> None:
    whole = all_batches(BUSY)
    assert len(whole) == 6
    for first_step in (1, 2, 4, 6):
        assert equal(all_batches(BUSY, first_step, num_workers), whole[first_step:])


def test_two_seeds_give_different_batches_and_one_seed_the_same() -> None:
    for one, other in zip(all_batches(BUSY), all_batches(BUSY.replace(seed=1)), strict=True):
        assert not torch.equal(one[0], other[0]) and not torch.equal(one[1], other[1])
    assert equal(all_batches(BUSY), all_batches(BUSY))


def test_seed_reaches_order_crop_flip_and_mixing_each() -> None:
    """A training set of one image over and over has no order, so that crop and flip show by themselves."""
    digits = load(TrainConfig(), "train")
    one_image = Split(digits.images[:1].expand(997, -1, -1, -1), digits.labels)

    def pixels(split: Split, **fields: Any) -> Tensor:
        return Batches(split, TrainConfig(batch_size=996, **fields))[0][0]

    def weaker_share(**fields: Any) -> Tensor:
        """Of the two images of a mixed pair: the same in any order."""
        return Batches(digits, TrainConfig(batch_size=996, **fields))[0][1].amax(1).min()

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
    batches = Batches(load(config, "train"), config)
    epochs = [np.concatenate([batches.indices(9 * epoch + k) for k in range(9)]) for epoch in range(3)]
    for order in epochs:
        assert len(set(order)) == 900 and order.min() >= 0 and order.max() < 997
    assert not (epochs[0] == epochs[1]).all() and not (epochs[1] == epochs[2]).all()
    left_out = [set(range(997)) - set(order) for order in epochs]
    assert left_out[0] != left_out[1]  # no image is dropped in every epoch


def test_batches_neither_read_nor_move_the_global_generators() -> None:
    runs = []
    for seed in (0, 99):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        runs.append(all_batches(BUSY))
        assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert equal(*runs)


# --- evaluation and whole trainings -----------------------------------------------------------------------------------


def test_evaluation_is_that_of_sklearn(splits: dict[str, Split]) -> None:
    """600 images, so more than one batch of an evaluation and an incomplete last one; a model with BatchNorm."""
    config = TrainConfig(**TINY_CONV)
    torch.manual_seed(1)
    model = build_model(config)
    nn.init.normal_(model.head.weight)  # it starts at zero, where all classes tie
    batches = Batches(splits["train"], config)
    data = Split(splits["train"].images[:600], splits["train"].labels[:600])
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    loss, error_pct = evaluate(model, data, batches, config)
    pixels = splits["train"].images.numpy()
    images = torch.tensor((data.images.numpy() - pixels.mean()) / pixels.std(ddof=1))
    model.eval()
    with torch.no_grad():
        probabilities = model(images).double().softmax(1).numpy()
    assert error_pct == pytest.approx(100 * (1 - accuracy_score(data.labels, probabilities.argmax(1))))
    assert loss == pytest.approx(log_loss(data.labels, probabilities, labels=range(10)), rel=1e-5)
    assert 50 < error_pct < 100
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_evaluation_does_not_depend_on_the_split_it_reads(tmp_path: Path) -> None:
    """The split that is scored is named in the columns, and scoring does not touch the training."""
    val = rows_of(TrainConfig(**QUICK), tmp_path / "val")
    minival = rows_of(TrainConfig(**QUICK, eval_split="minival"), tmp_path / "minival")
    assert {"minival_error_pct", "minival_ema_loss"} <= set(minival[0]) and "val_error_pct" not in minival[0]
    assert [row["train_loss"] for row in val] == [row["train_loss"] for row in minival]


def test_rows_count_epochs_steps_and_samples(tmp_path: Path) -> None:
    rows = rows_of(TrainConfig(**QUICK), tmp_path)
    assert [(r["epoch"], r["step"], r["samples"], r["diverged"]) for r in rows] == [(1, 3, 996, 0), (2, 6, 1992, 0)]
    assert all(type(value) is float for row in rows for value in row.values())


def test_training_is_plain_gradient_descent(tmp_path: Path) -> None:
    """SGD written out by hand, without momentum, decay, mixing: the same losses and the same weights."""
    config = TrainConfig(**QUICK, optimizer="sgd", momentum=0.0, wd=0.0, lr=0.2)
    rows = rows_of(config, tmp_path)
    seed_everything(0)
    model, batches = build_model(config), Batches(load(config, "train"), config)
    losses = []
    for step in range(6):
        images, labels = batches[step]
        loss = nn.functional.cross_entropy(model(images), labels)
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        rate = 0.2 * (step + 1) / 3 if step < 3 else 0.1 * (1 + math.cos(math.pi * (step - 3) / 3))
        with torch.no_grad():
            for p, grad in zip(model.parameters(), grads, strict=True):
                if grad is not None:
                    p -= rate * grad
        losses.append(loss.item())
    assert [row["train_loss"] for row in rows] == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3], rel=1e-5)
    trained = last_state(tmp_path)["model"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, {"optimizer": "sgd", "lr": 0.1, "wd": 1e-4}], ids=["adamw", "sgd"])
def test_a_training_repeats_itself_and_another_seed_is_another_training(fields: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig(**{**TINY_CONV, **QUICK, **fields, "ema_decay": 0.5, "mixup_alpha": 0.8, "batch_size": 332})
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
    model, batches = build_model(config), Batches(load(config, "train"), config)
    velocity, decayed = [torch.zeros_like(p) for p in model.parameters()], decayed_by_hand(model, tokens=True)
    for step in range(config.num_steps):
        images, labels = batches[step]
        loss = nn.functional.cross_entropy(model(images), labels)
        if not math.isfinite(loss.item()):
            return step
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for (name, p), v in zip(model.named_parameters(), velocity, strict=True):
                v.mul_(config.momentum).add_(p.grad + (config.wd if name in decayed else 0.0) * p)
                p.add_(v, alpha=-config.lr * (step + 1) / round(config.warmup_epochs * config.steps_per_epoch))
    raise AssertionError("did not diverge")


@pytest.mark.parametrize(
    ("batch_size", "lr", "checked_at"),
    [(332, 1e15, 3), (8, 1e15, 50), (8, 1e30, 50)],
    ids=["at the end of an epoch", "in the middle of an epoch", "at once"],
)
def test_divergence_is_a_last_row_at_the_step_where_it_arose(
    batch_size: int, lr: float, checked_at: int, tmp_path: Path
) -> None:
    config = TrainConfig(**{**QUICK, "batch_size": batch_size, "ema_decay": 0.9}, optimizer="sgd", lr=lr, wd=0.0,
                         clip_norm=0.0)  # fmt: skip
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
    """L2 with lr * wd far above 2 blows the weights up at every step: by 83, 166, 249 ... through the warm-up."""
    slow = {**TINY, "batch_size": 249, "epochs": 4, "warmup_epochs": 3.0}  # 4 steps an epoch, 12 of warm-up
    config = TrainConfig(**slow, optimizer="sgd", lr=1.0, wd=1e3, momentum=0.0)
    rows = rows_of(config, tmp_path)
    assert [row["diverged"] for row in rows] == [0, 1]
    assert rows[1]["diverged_step"] == first_bad_step(config) >= 4 and rows[1]["epoch"] == 2


def test_weights_lost_at_the_last_step_are_a_divergence(tmp_path: Path) -> None:
    """One step in all: its loss is ln 10 and finite, and no later loss could tell."""
    config = TrainConfig(**TINY, batch_size=997, epochs=1, warmup_epochs=0.0, optimizer="sgd", lr=1e300, wd=0.0)
    rows = rows_of(config, tmp_path)
    assert len(rows) == 1 and rows[0]["diverged"] == 1 and rows[0]["diverged_step"] == 0
    assert rows[0]["val_error_pct"] == 100 and rows_of(config, tmp_path) == rows
    harmless = rows_of(config.replace(lr=0.1), tmp_path / "harmless")
    assert harmless[0]["diverged"] == 0 and harmless[0]["train_loss"] == pytest.approx(math.log(10))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dataset": "cifar10", "channels": 3, "resolution": 32}, "a dataset must be one of digits"),
        ({"resolution": 16}, r"resolution == 8 must hold for digits, but got \(resolution=16\)"),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_one_line(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as error:
        next(train(TrainConfig(**fields), tmp_path))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def linear_error_pct(splits: dict[str, Split]) -> float:
    """Of scikit-learn's logistic regression on the same pixels."""
    train_split, val = splits["train"], splits["val"]
    classifier = LogisticRegression(max_iter=2000).fit(train_split.images.flatten(1).numpy(), train_split.labels)
    return 100 * (1 - classifier.score(val.images.flatten(1).numpy(), val.labels))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_demo_learns_more_than_a_linear_classifier(optimizer: str, linear_error_pct: float, tmp_path: Path) -> None:
    lr, wd = demo.OPTIMA["ViT_C", optimizer]
    fields = {**demo.RECIPE, **demo.MODELS["ViT_C"]}
    rows = rows_of(TrainConfig(**fields, optimizer=optimizer, lr=lr, wd=wd), tmp_path)
    assert rows[-1]["val_ema_error_pct"] < linear_error_pct < 5
    assert rows[-1]["train_loss"] < 0.1 < rows[0]["train_loss"]
