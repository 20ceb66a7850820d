"""Parts of a user's own, as they are trained: by the bit what they are copies of, from the source
in their digest, refused before the first trial where they cannot be one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import timm.optim
import torch
from support.refusals import refusing
from support.trainings import QUICK, rows_of, timeless

from vitscale import Study, Trial
from vitscale.launch import costs, driver
from vitscale.launch.resources import Resources
from vitscale.plan import parts
from vitscale.plan.config import TrainConfig
from vitscale.record.store import Store
from vitscale.record.workdir import Left
from vitscale.train.complexity import measured_complexity
from vitscale.train.inherit import inherit
from vitscale.train.loop import train
from vitscale.train.model import build_model
from vitscale.train.optim import REFUSED, build_optimizer
from vitscale.train.parts import OwnImages, load
from vitscale.train.try_parts import check_parts, try_out

PARTS = """
import random
import timm
import torch
from torch import nn
from torch.nn import functional as F
import helper
from sklearn.datasets import load_digits
from vitscale import Metric, reports


def resnet(num_classes, channels, resolution):
    return timm.create_model("test_resnet", num_classes=num_classes, in_chans=channels)


class Perceptron(nn.Module):
    def __init__(self, num_classes, resolution, dim: int = 16, rate: float = 0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(resolution**2, dim), nn.BatchNorm1d(dim), nn.Dropout(rate),
            nn.GELU(), nn.Linear(dim, num_classes),
        )

    def forward(self, x):
        return self.layers(x)


def adamw(groups, lr, beta1, beta2, epsilon):
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=epsilon, fused=True)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


def unchanged(images, generator):
    return images


def noise(images, generator, size: float = 0.1):
    return images + size * torch.randn(images.shape, generator=generator)


@reports(Metric(name="wrong_pct", label="wrong", unit="%", worst=100.0, bounds=(0.0, 100.0),
                near=4.0, beyond=10.0))
def wrong(logits, labels):
    return {"wrong_pct": helper.HUNDRED * (logits.argmax(1) != labels)}


def digits(split):
    of = load_digits()
    rows = slice(0, 1397) if split == "train" else slice(1397, None)
    return of.images[rows].astype("uint8") * 16, of.target[rows]


# ---- what cannot be a part


class Counts(nn.Module):
    def __init__(self, num_classes, resolution):
        super().__init__()
        self.layer, self.num = nn.Linear(resolution**2, num_classes), 0

    def forward(self, x):
        self.num += 1
        return self.num * self.layer(x.flatten(1))


class Forgets(torch.optim.SGD):
    def __init__(self, groups, lr):
        super().__init__(groups, lr=lr)
        self.num = 0

    def step(self, closure=None):
        self.num += 1
        for group in self.param_groups:
            group["lr"] *= self.num
        super().step()


class TwoModes(torch.optim.SGD):
    def train(self): ...
    def eval(self): ...


def five(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def raises(num_classes):
    return no_such_name


def no_module(num_classes):
    return "a model"


def mean(logits, targets):
    return logits.mean()


def shorter(images, generator):
    return images[:-1]


def double(images, generator):
    return images.double()


class Counting:
    def __init__(self):
        self.num = 0

    def __call__(self, images, generator):
        self.num += 1
        return images * self.num


def leaves(num_classes):
    raise SystemExit


class Global(torch.optim.SGD):
    def __init__(self, groups, lr):
        super().__init__(groups, lr=lr)
        self.state["num"] = 0

    def step(self, closure=None):
        self.state["num"] += 1
        super().step()


@reports(Metric(name="a", label="a", unit="%", worst=0.0, bounds=(0.0, 1.0), near=1.0, beyond=2.0))
def other_name(logits, labels):
    return {"b": labels}


@reports(Metric(name="a", label="a", unit="%", worst=0.0, bounds=(0.0, 1.0), near=1.0, beyond=2.0))
def beyond(logits, labels):
    return {"a": 0 * labels + 7}


class Misspelt(Perceptron):
    def forward(self, x):
        return self.layer(x)


class Draws(Perceptron):
    def __init__(self, num_classes, resolution, by="torch"):
        super().__init__(num_classes, resolution)
        self.by = by

    def forward(self, x):
        if self.by == "torch":
            return self.layers(nn.functional.dropout(x, 0.5, self.training))
        return self.layers(x) * (random.random() if self.by == "random" else 1.0)
"""
OF_PERCEPTRON: dict[str, Any] = {
    "model": "mine.py:Perceptron",
    "batch_size": 332,
    "epochs": 2,
    "warmup_epochs": 1.0,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PARTS)
    (tmp_path / "helper.py").write_text("HUNDRED = 100.0\n")
    return tmp_path


@pytest.mark.parametrize(
    ("part", "same"),
    [
        ({"optimizer": "mine.py:adamw"}, {}),
        ({"loss": "mine.py:cross_entropy"}, {}),
        ({"augment": "mine.py:unchanged"}, {}),
        ({"optimizer": "torch.optim:SGD", "own": {"momentum": 0.9}}, {"optimizer": "sgd"}),
        ({"model": "mine.py:resnet", "patch_size": 2}, {"model": "timm:test_resnet"}),
    ],
    ids=lambda fields: next(iter(fields.values()), ""),
)
def test_a_part_trains_as_what_it_is_a_copy_of(
    folder: Path, part: dict[str, Any], same: dict[str, Any]
) -> None:
    shape = {} if "model" in part else QUICK
    common = {**shape, "batch_size": 332, "epochs": 2, "warmup_epochs": 1.0}
    config, twin = TrainConfig(**{**common, **part}), TrainConfig(**{**common, **same})
    check_parts(config)
    assert not try_out(config) or "augment" in part
    rows, expected = rows_of(config, folder / "part"), rows_of(twin, folder / "twin")
    if config.loss != "ce" or "SGD" in config.optimizer:  # the order of additions is another one
        losses = [[row["train_loss"] for row in epochs] for epochs in (rows, expected)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    else:
        assert rows == expected


def test_a_metric_and_a_dataset_of_ones_own_agree_with_ours(folder: Path) -> None:
    given = {"metrics": "mine.py:wrong", "dataset": "mine.py:digits", "num_images": 1397}
    config = TrainConfig(**{**OF_PERCEPTRON, **given}, ema_decay=0.5)
    for row in rows_of(config, folder / "run"):
        assert row["val_wrong_pct"] == pytest.approx(row["val_error_pct"])
        assert row["val_ema_wrong_pct"] == pytest.approx(row["val_ema_error_pct"])
    images = OwnImages(config, None).read("val")
    assert images.pixels is not None and tuple(images.pixels.shape) == (400, 1, 8, 8)


def test_a_part_is_told_to_end_anywhere_and_goes_on_by_the_bit(folder: Path) -> None:
    config = TrainConfig(
        **OF_PERCEPTRON,
        own={"rate": 0.2, "size": 0.2},
        augment="mine.py:noise",
        optimizer="timm:muon",
        fallback_lr=3e-4,
        ema_decay=0.5,
    )
    expected = rows_of(config, folder / "whole")
    for when in range(2, 8):
        path, asked = folder / f"{when}", iter(range(1, 1_000))
        path.mkdir()
        with pytest.raises(Left):
            list(train(config, path, is_leaving=lambda asked=asked, n=when: next(asked) == n))
        assert timeless(list(train(config, path))) == expected


def test_an_optimizer_with_a_state_of_its_own_goes_on(folder: Path) -> None:
    config = TrainConfig(**OF_PERCEPTRON, optimizer="mine.py:Global")
    check_parts(config)
    assert not try_out(config)
    expected, asked = rows_of(config, folder / "whole"), iter(range(1_000))
    (path := folder / "left").mkdir()
    with pytest.raises(Left):
        list(train(config, path, is_leaving=lambda: next(asked) == 4))
    assert timeless(list(train(config, path))) == expected


def test_a_child_has_the_weights_of_a_model_that_is_a_part(folder: Path) -> None:
    """Which needs no method that names its head: it is kept."""
    parent = TrainConfig(**OF_PERCEPTRON)
    model, child = build_model(parent), build_model(parent.replace(init_from="0" * 12))
    inherit(child, parent.replace(init_from="0" * 12), model.state_dict())
    assert all(map(torch.equal, child.state_dict().values(), model.state_dict().values()))


def test_arguments_go_to_the_part_that_names_them(folder: Path) -> None:
    """And to `**kwargs` only those that no other part names."""
    given = {"zero_init_residual": True, "momentum_decay": 0.01}
    config = TrainConfig(
        dataset="cifar10",
        channels=3,
        resolution=32,
        patch_size=2,
        model="torchvision.models:resnet18",
        optimizer="torch.optim:NAdam",
        own=given,
    )
    check_parts(config)
    last = build_model(config).get_parameter("layer4.1.bn2.weight")
    assert not last.any()  # of the first argument
    assert build_optimizer(torch.nn.Linear(2, 2), config).defaults["momentum_decay"] == 0.01


@pytest.mark.parametrize("momenta", [(-1.0, 0.9), (0.9, -1.0)])
def test_equal_parts_are_tried_with_each_set_of_arguments(
    folder: Path, momenta: tuple[float, float]
) -> None:
    given = {**OF_PERCEPTRON, "optimizer": "torch.optim:SGD"}
    study = Study(
        kind="repeats",
        name="own",
        scale="demo",
        question="Which momentum?",
        source="ours",
        trials=tuple(
            Trial(f"{momentum}", TrainConfig(**given, own={"momentum": momentum}))
            for momentum in momenta
        ),
        metric="val_error_pct",
        tables=("arm_means",),
    )
    store = Store.open(folder / "runs")
    with refusing("torch.optim:SGD@", "momentum=-1.0"):
        costs.check_parts(study, (), store)
    with refusing("torch.optim:SGD@", "momentum=-1.0"):  # at the start: also whether it resumes
        driver._try_parts(study, store, Resources())


def test_a_process_can_have_two_sources_of_one_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("helper", "mine"):  # of other tests
        monkeypatch.delitem(sys.modules, name, raising=False)
    first = TrainConfig(**OF_PERCEPTRON, metrics="mine.py:wrong")
    (folder / "helper.py").write_text("HUNDRED = 1.0\n")
    second = TrainConfig(**OF_PERCEPTRON, metrics="mine.py:wrong")
    (folder / "mine.py").unlink()  # the source is that of the digest, whatever lies there now
    logits, labels = torch.eye(2), torch.tensor([1, 1])
    values = [load(c.metrics)(logits, labels)["wrong_pct"].tolist() for c in (first, second)]
    assert values == [[100.0, 0.0], [1.0, 0.0]]
    assert "helper" not in sys.modules and "mine" not in sys.modules


def test_a_source_that_is_not_trusted_does_not_run(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(num_classes): ...\n"
    digest = parts.register(parts.Source("planted", {"planted": (False, text)}))
    config = TrainConfig(model=f"planted.py:make@{digest}")
    with refusing("planted.py:make@"):
        measured_complexity(config)
    assert not (tmp_path / "ran").exists()
    # nor what a store names of a package, always with a version
    with refusing("pandas:read_pickle@", "--trust-parts"):
        load(f"pandas:read_pickle@{pandas.__version__}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "mine.py:Counts"}, ["continue from a saved state", "model=mine.py:Counts@"]),
        ({"optimizer": "mine.py:Forgets"}, ["saved state", "optimizer=mine.py:Forgets@"]),
        ({"optimizer": "mine.py:TwoModes"}, ["same weights", "two modes"]),
        ({"model": "mine.py:five"}, ["logits of the shape (B, 10)", "(1, 5)"]),
        ({"model": "mine.py:raises"}, ["NameError: name 'no_such_name'", "line "]),
        ({"model": "mine.py:no_module"}, ["a torch.nn.Module with parameters", "str"]),
        ({"loss": "mine.py:mean"}, ["one value per sample", "()"]),
        ({"loss": "torch.nn:CrossEntropyLoss"}, ["one value per sample"]),
        (
            {"augment": "mine.py:shorter"},
            ["keep shape, type", "(3, 1, 8, 8) float32 cpu for (4, 1, 8, 8) float32"],
        ),
        (
            {"augment": "mine.py:double"},
            ["keep shape, type", "float64 cpu for (4, 1, 8, 8) float32"],
        ),
        (
            {"augment": "mine.py:Counting"},
            ["its images and its generator alone", "mine.py:Counting"],
        ),
        ({"model": "mine.py:leaves"}, ["work with its arguments", "SystemExit"]),
        (
            {"model": "mine.py:five", "optimizer": "torch.optim:NAdam", "own": {"dimm": 3}},
            ["an argument in own must be one of mine.py:five, torch.optim:NAdam", "(dimm)"],
        ),
        ({"metrics": "mine.py:other_name"}, ["metrics must give (a)", "'b'"]),
        ({"metrics": "mine.py:beyond"}, ["0 <= a <= 1 must hold, as declared", "7"]),
        ({"model": "mine.py:Misspelt"}, ["images of the shape (1, 1, 8, 8)", "'layer'", "line "]),
        ({"optimizer": "timm:muom"}, ["an optimizer of timm", "close are muon"]),
        ({"optimizer": "timm:kron"}, ["resumes by the bit"]),
        ({"optimizer": "timm:sgd", "beta1": 0.8}, ["must be at their defaults", "no betas"]),
        ({"optimizer": "torch.optim:Muon"}, ["work with its arguments", "2D"]),
        ({"model": "torchvision.models:no_such"}, ["must be importable", "no_such"]),
    ],
)
def test_what_cannot_be_trained_with_is_refused_before_the_first_trial(
    folder: Path, fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as refused:
        config = TrainConfig(patch_size=2, **fields)
        check_parts(config)
        if "model" in fields:
            measured_complexity(config)
        try_out(config)
    message = str(refused.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_a_part_may_diverge(folder: Path) -> None:
    """A diverged training is a result, so NaN after a saved state is no other weight than NaN."""
    (folder / "nan.py").write_text(
        "from mine import Perceptron\n"
        "class Nan(Perceptron):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * float('nan')\n"
    )
    config = TrainConfig(**{**OF_PERCEPTRON, "model": "nan.py:Nan"})
    assert not try_out(config)
    assert rows_of(config, folder / "trial")[-1]["diverged"] == 1


def test_a_model_that_draws_for_the_batch_is_noticed(folder: Path) -> None:
    for by in ("torch", "random"):
        assert try_out(TrainConfig(model="mine.py:Draws", own={"by": by}))
    assert not try_out(TrainConfig(model="mine.py:Draws", own={"by": "nothing"}))
    assert not try_out(TrainConfig(model="mine.py:Perceptron", own={"rate": 0.5}))


# --- timm's optimizers ----------------------------------------------------------------------------

NAMES = [name for o in timm.optim.list_optimizers() if not REFUSED.fullmatch(name := str(o))]


def stepped(name: str, scale: float = 1.0, bad: float = 0.0, saved: bool = False) -> list[Any]:
    """Weights after three steps: the first one's gradients do not depend on `scale`."""

    def begun() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        return model, build_optimizer(model, TrainConfig(optimizer=f"timm:{name}"))

    model, optimizer = begun()
    for step in range(3):
        if saved and step == 2:
            states = model.state_dict(), optimizer.state_dict()
            model, optimizer = begun()
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        torch.manual_seed(step)
        for number, weight in enumerate(model.parameters()):
            weight.grad = torch.randn_like(weight) * (scale if number else 1.0) + bad
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_of_timm_resumes_sees_what_is_not_finite_and_does_not_clip(name: str) -> None:
    expected = stepped(name)
    resumed = stepped(name, saved=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, resumed, strict=True))
    assert not any(weight.isfinite().any() for weight in stepped(name, bad=float("inf")))
    # a norm over all gradients would make one weight depend on the gradients of others
    assert torch.equal(stepped(name, scale=1e4)[0], expected[0])


def test_fallback_lr_is_that_of_what_muon_does_not_orthogonalize() -> None:
    def moved(fallback_lr: float) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        config = TrainConfig(
            optimizer="timm:muon", lr=0.01, fallback_lr=fallback_lr, wd=0.0, width=8, heads=2
        )
        model = build_model(config)
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        optimizer = build_optimizer(model, config)
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        return {name: p.detach() - before[name] for name, p in model.named_parameters()}

    once, twice = moved(0.002), moved(0.004)
    ratio = {name: (twice[name].norm() / change.norm()).item() for name, change in once.items()}
    for name, change in once.items():
        if name != "patch_embed.proj.weight":  # of one channel, which timm counts as no matrix
            is_left = change.ndim < 2 or name in ("pos_embed", "cls_token")
            assert ratio[name] == pytest.approx(1 + is_left, rel=1e-3), name
    # without the field it is lr, at which a first step of AdamW moves each weight
    assert moved(0.0)["norm.bias"].abs().median() == pytest.approx(0.01, rel=1e-3)
