"""Trials that start from the final weights of a parent: what they inherit, and when they begin."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import ROOT, Script, kill_family, load_script, wait_for
from support.refusals import refusing
from support.trainings import assert_same, final_tensors, timeless

from vitscale.analysis import power
from vitscale.analysis.cells import cells
from vitscale.analysis.comparisons import pair_differences
from vitscale.analysis.results import Results
from vitscale.cli import plans
from vitscale.launch.branching import pins, why_not
from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.comparisons import is_paired
from vitscale.plan.config import TrainConfig
from vitscale.plan.laws import VIT_ONLY
from vitscale.plan.parents import AT_END, followers, next_wave
from vitscale.plan.questions import COMPARED
from vitscale.plan.study import Study, from_json, to_json
from vitscale.plan.trial import Trial
from vitscale.record.cleanup import clean, survey
from vitscale.record.outcome import Status
from vitscale.record.overview import overview
from vitscale.record.store import Store
from vitscale.record.table import outcomes, read_trials
from vitscale.record.trial_info import describe, readable_plans
from vitscale.record.workdir import Damaged
from vitscale.train.data import Batches, HeldOut
from vitscale.train.inherit import freeze, inherit
from vitscale.train.loop import train
from vitscale.train.model import build_model
from vitscale.train.parallel import Team
from vitscale.train.sources import load_split

SCRIPT = ROOT / "tests" / "studies" / "children.py"
MADE = load_script(SCRIPT)
CHILD, PARENT = MADE.CHILD, MADE.PARENT.replace(ema_decay=0.9)
OF_PARENT = CHILD.replace(init_from=PARENT.id)
RELATIVE = PARENT.replace(pos_embed="relative")
MIXER = TrainConfig(model="timm:resmlp_12_224", resolution=16)
GAINS: dict[str, Any] = {"init_from": "0" * 12, "layerscale": 0.1}
OTHER_CLASSES: dict[str, Any] = {"dataset": "own", "num_images": 640, "num_classes": 5}


def kept(folder: Path) -> dict[str, Any]:
    """The file with the final weights of a parent, trained here."""
    (path,) = folder.glob("weights-*")
    return dict(torch.load(path, weights_only=True))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    rows = list(train(PARENT, folder, pins=(AT_END,)))
    assert not rows[-1]["diverged"]
    return folder


# --- what a child inherits


@pytest.mark.parametrize("weights", ["raw", "ema"])
@pytest.mark.parametrize("head", ["keep", "zero", "random"])
def test_a_child_has_the_weights_of_its_parent(parent: Path, weights: str, head: str) -> None:
    """Positions by torch's own bicubic interpolation of the 2 x 2 grid to 4 x 4."""
    config = OF_PARENT.replace(init_weights=weights, init_head=head)
    torch.manual_seed(0)
    model = build_model(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    theirs = kept(parent)["ema" if weights == "ema" else "model"]
    inherit(model, config, theirs)
    for name, value in model.state_dict().items():
        if name.startswith("head."):
            expected = {"keep": theirs[name], "zero": 0 * value, "random": before[name]}[head]
        elif name == "pos_embed":
            grid = theirs[name][:, 1:].reshape(1, 2, 2, -1).permute(0, 3, 1, 2)
            larger = torch.nn.functional.interpolate(grid, (4, 4), mode="bicubic")
            patches = larger.permute(0, 2, 3, 1).reshape(1, 16, -1)
            expected = torch.cat([theirs[name][:, :1], patches], dim=1)
        else:
            expected = theirs[name]
        assert torch.equal(value, expected), name
    assert not torch.equal(kept(parent)["model"]["pos_embed"], kept(parent)["ema"]["pos_embed"])


@pytest.mark.parametrize("name", ["cait_xxs24_224", "regnety_002", "resnet10t"])
def test_a_child_of_a_timm_model_may_have_another_resolution(name: str) -> None:
    """Positions by torch's own bicubic interpolation of the 2 x 2 grid to 4 x 4."""
    args = {"timm_args": "depth=1"} if name.startswith("cait") else {}
    own = {name: TrainConfig().asdict()[name] for name in VIT_ONLY}
    first = PARENT.replace(**own, model=f"timm:{name}", resolution=32, **args)
    config = first.replace(resolution=64, init_from=first.id)
    study(config, parents=(first,))
    theirs, model = build_model(first).state_dict(), build_model(config)
    inherit(model, config, theirs)
    for key, value in model.state_dict().items():
        expected = theirs[key]
        if key == "pos_embed":
            grid = expected.reshape(1, 2, 2, -1).permute(0, 3, 1, 2)
            larger = torch.nn.functional.interpolate(grid, (4, 4), mode="bicubic")
            expected = larger.permute(0, 2, 3, 1).reshape(1, 16, -1)
        assert torch.equal(value, expected), key
    assert ("pos_embed" in theirs) == name.startswith("cait")


@pytest.mark.parametrize(
    ("trainable", "part"), [("attn", ".attn."), ("ffn", ".mlp."), ("head", "")]
)
def test_what_is_not_trained_stays_as_the_parent_left_it(
    parent: Path, tmp_path: Path, trainable: str, part: str
) -> None:
    config = OF_PARENT.replace(trainable=trainable, branches=1, wd=0.5)
    rows = list(train(config, tmp_path, parent=parent))
    state = torch.load(max(tmp_path.glob("checkpoint-*")), weights_only=True)["model"]
    for name, value in kept(parent)["model"].items():
        ours = state[name]
        is_part = bool(part) and (part in name or name == "pos_embed")
        if name == "pos_embed" and not is_part:
            assert ours.shape != value.shape  # resized, and then left
        elif is_part or name.startswith("head."):
            assert ours.shape != value.shape or not torch.equal(ours, value), name
        else:
            assert torch.equal(ours, value), name
    assert len(rows) == 2 and "test_error_pct" in rows[-1]


def test_a_frozen_batchnorm_keeps_its_statistics() -> None:
    config = TrainConfig(
        width=16, heads=2, depth=1, stem="conv", stem_channels="8-16", stem_strides="1-2",
        init_from="0" * 12, trainable="attn",
    )  # fmt: skip
    model = freeze(build_model(config), config).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert any("running_mean" in name for name in before)
    model(torch.randn(8, 1, 8, 8) + 3)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("gain", ["channel", "scalar"])
def test_kept_gains_stay_by_the_bit_and_all_else_begins_anew(
    tmp_path: Path, gain: str, branches: int
) -> None:
    first = PARENT.replace(layerscale=0.1, branch_gain=gain, branches=branches, wd=0.5)
    list(train(first, tmp_path / "first", pins=(AT_END,)))
    again = first.replace(init_from=first.id, init_parts="layerscale", frozen="layerscale")
    rows = list(train(again, tmp_path / "again", parent=tmp_path / "first"))
    theirs = kept(tmp_path / "first")["model"]
    ours = torch.load(max((tmp_path / "again").glob("checkpoint-*")), weights_only=True)["model"]
    torch.manual_seed(again.seed)
    model = build_model(again)
    inherit(model, again, theirs)
    torch.manual_seed(again.seed)
    fresh = build_model(first).state_dict()
    names = {name for name in theirs if name.endswith(".gamma")}
    assert len(names) == 2 * first.depth * branches
    assert {theirs[name].numel() for name in names} == {first.width if gain == "channel" else 1}
    for name, value in model.state_dict().items():
        assert torch.equal(value, (theirs if name in names else fresh)[name]), name
        assert torch.equal(ours[name], theirs[name]) == (name in names), name
    assert any((theirs[name] != 0.1).any() for name in names) and not rows[-1]["diverged"]


def test_a_child_that_is_killed_at_any_step_is_the_same(parent: Path, tmp_path: Path) -> None:
    """It does not need its parent once it has begun."""
    config = OF_PARENT.replace(trainable="attn", batch_size=498, ema_decay=0.9)
    rows = list(train(config, tmp_path / "whole", parent=parent))
    whole = timeless(rows), final_tensors(tmp_path / "whole")
    folder = tmp_path / "killed"
    for _ in range(config.num_steps):
        training = train(config, folder, parent=parent, checkpoint_every_s=0.0)
        next(training, None)
        training.close()
    assert_same(folder, list(every_step_of(config, folder, parent)), whole)
    gone = tmp_path / "gone"
    gone.mkdir()
    assert timeless(list(train(config, folder, parent=gone))) == timeless(rows)
    with refusing(gone, error=Damaged):
        list(train(config, tmp_path / "new", parent=gone))


def every_step_of(config: TrainConfig, folder: Path, parent: Path) -> Any:
    return train(config, folder, parent=parent, checkpoint_every_s=0.0)


def test_damaged_weights_are_one_line(parent: Path, tmp_path: Path) -> None:
    (path,) = parent.glob("weights-*")
    (tmp_path / path.name).write_bytes(path.read_bytes()[:-1])
    with refusing(tmp_path / path.name, error=Damaged):
        list(train(OF_PARENT, tmp_path / "child", parent=tmp_path))
    assert [p.name for p in tmp_path.glob("*weights-*")] == [f"damaged-{path.name}"]


# --- what a student learns

TEACHER = CHILD.replace(seed=5)
STUDENT = CHILD.replace(teacher=TEACHER.id, distill="hard", weight_init="trunc_normal")
TOKEN = STUDENT.replace(distill="token")
TAUGHT: dict[str, Any] = {"teacher": "0" * 12, "distill": "token"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    assert not list(train(TEACHER, folder, pins=(AT_END,)))[-1]["diverged"]
    return folder


@pytest.mark.parametrize("distill", ["soft", "hard", "token"])
@pytest.mark.parametrize("micro_batch", [0, 300])
def test_a_step_of_a_student_is_the_printed_one(
    teacher: Path, tmp_path: Path, distill: str, micro_batch: int
) -> None:
    """One step on all images, by equations 3.2 and 3.3 of H. Touvron's thesis written out.

    A student with a distillation token predicts by the sum of the softmaxes of both heads.
    """
    soft = {"distill_tau": 2.0, "distill_share": 0.3} if distill == "soft" else {}
    config = STUDENT.replace(
        distill=distill, **soft, batch_size=996, epochs=1, optimizer="sgd", momentum=0.0, wd=0.0,
        decay="constant", lr=0.5,
    )  # fmt: skip
    torch.manual_seed(config.seed)
    model, theirs = build_model(config), build_model(TEACHER)
    theirs.load_state_dict(kept(teacher)["model"])
    parts = [np.arange(996)]
    images, y = next(
        Batches(load_split(config, "train", None), config, torch.device("cpu"), parts).iterate(0, 0)
    )
    z, z_teacher = model(images), theirs.eval()(images).detach()
    z, z_taught = z if distill == "token" else (z, z)

    def psi(logits: torch.Tensor) -> torch.Tensor:
        return logits.exp() / logits.exp().sum(1, keepdim=True)

    def cross_entropy(z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -psi(z)[range(len(z)), labels].log().mean()

    if distill == "soft":
        ours, target = psi(z / 2), psi(z_teacher / 2)
        divergence = (target * (target / ours).log()).sum(1).mean()
        loss = 0.7 * cross_entropy(z, y) + 0.3 * 2**2 * divergence
    else:
        loss = (cross_entropy(z, y) + cross_entropy(z_taught, z_teacher.argmax(1))) / 2
    loss.backward()
    (row,) = train(config, tmp_path, teacher=(TEACHER, teacher), micro_batch=micro_batch)
    assert row["train_loss"] == pytest.approx(float(loss), rel=1e-5)
    state = torch.load(max(tmp_path.glob("checkpoint-*")), weights_only=True)["model"]
    for name, weight in model.named_parameters():
        torch.testing.assert_close(state[name], weight - 0.5 * weight.grad, rtol=1e-4, atol=1e-6)
    model.load_state_dict(state)  # in training mode, to have the logits of both heads
    val = HeldOut(load_split(config, "val", None), config, torch.device("cpu"), Team(), 1000)
    ((images, labels, _),) = val.iterate(0)
    z = model(images)
    probs = (psi(z[0]) + psi(z[1])) / 2 if distill == "token" else psi(z)
    right = probs.argmax(1) == labels
    assert row["val_loss"] == pytest.approx(float(cross_entropy(probs.log(), labels)), rel=1e-5)
    assert row["val_error_pct"] == pytest.approx(100 * float((~right).double().mean()))
    bins = (probs.max(1).values * 15).ceil()
    gaps = [(probs.max(1).values - right.float())[bins == index].sum() for index in range(1, 16)]
    gap = sum(map(abs, map(float, gaps)))
    assert row["val_ece_pct"] == pytest.approx(100 * gap / len(labels), rel=1e-4)


def test_a_student_that_is_killed_at_any_step_is_the_same(teacher: Path, tmp_path: Path) -> None:
    """It needs its teacher to go on."""
    config = STUDENT.replace(batch_size=498, dropout=0.1, distill="token")
    taught = {"teacher": (TEACHER, teacher)}
    rows = list(train(config, tmp_path / "whole", **taught))
    whole = timeless(rows), final_tensors(tmp_path / "whole")
    folder = tmp_path / "killed"
    for _ in range(config.num_steps):
        training = train(config, folder, checkpoint_every_s=0.0, **taught)
        next(training, None)
        training.close()
    assert_same(folder, list(train(config, folder, checkpoint_every_s=0.0, **taught)), whole)
    with refusing(tmp_path / "none", error=Damaged):
        list(train(config, tmp_path / "new", teacher=(TEACHER, tmp_path / "none")))


# --- the plan


def study(*children: TrainConfig, parents: tuple[TrainConfig, ...] = (PARENT,)) -> Study:
    made = MADE.study()
    trials = tuple(Trial(f"arm {i}", config, 0) for i, config in enumerate(children))
    return dataclasses.replace(
        made, trials=trials, parents=parents, pairs=(), tables=("arm_means",), figures=()
    )


@pytest.mark.parametrize(
    ("children", "parents", "law"),
    [
        ((OF_PARENT,), (), "init_from must be the id of a parent or a trial of the study"),
        ((CHILD,), (PARENT,), "a parent must be the init_from or the teacher"),
        ((OF_PARENT.replace(depth=2),), (PARENT,), "one model.*: depth=2 and 1"),
        ((OF_PARENT.replace(class_blocks=1),), (PARENT,), "one model.*: class_blocks=1 and 0"),
        ((OF_PARENT.replace(init_from=TOKEN.id),), (TEACHER, TOKEN), "distill='none' and 'token'"),
        ((TOKEN.replace(init_from=PARENT.id),), (PARENT, TEACHER), "distill='token' and 'none'"),
        # offsets in raster order have no other resolution; that of the child is twice the parent's
        (
            (OF_PARENT.replace(init_from=RELATIVE.id, pos_embed="relative"),),
            (RELATIVE,),
            "one model.*: resolution=8 and 4",
        ),
        # its layers across patches are of a number of patches
        (
            (MIXER.replace(resolution=32, init_from=MIXER.id),),
            (MIXER,),
            "one model.*: resolution=32 and 16",
        ),
        ((OF_PARENT.replace(**OTHER_CLASSES),), (PARENT,), "num_classes=5 and 10"),
        (
            (CHILD.replace(init_from=MADE.PARENT.id, init_weights="ema"),),
            (MADE.PARENT,),
            "a parent that averages its weights",
        ),
        ((OF_PARENT,), (PARENT, PARENT), f"parent={PARENT.id}"),
        ((OF_PARENT, PARENT), (PARENT,), f"parent={PARENT.id}"),
        ((STUDENT,), (), "teacher must be the id of a parent or a trial of the study"),
        ((STUDENT.replace(teacher=PARENT.id),), (PARENT,), "same images.*resolution=8 and 4"),
    ],
)
def test_impossible_parents_are_refused(
    children: tuple[TrainConfig, ...], parents: tuple[TrainConfig, ...], law: str
) -> None:
    with pytest.raises(ValueError, match=law):
        study(*children, parents=parents)


@pytest.mark.parametrize(
    ("fields", "law"),
    [
        ({"trainable": "attn"}, "trainable all, init_parts all, frozen none without init_from"),
        ({"init_from": "no"}, "init_from an id of twelve hex digits"),
        ({"init_from": "0" * 12, "trunk": "1" * 12, "trunk_step": 3}, "no trunk with init_from"),
        ({"init_from": "0" * 12, "trainable": "ffn", "model": "regnety-1gf"}, "model == vit"),
        ({"init_from": "0" * 12, "frozen": "layerscale"}, "layerscale > 0 and trainable == 'all'"),
        ({**GAINS, "frozen": "layerscale", "trainable": "attn"}, "trainable == 'all' with the"),
        ({**GAINS, "init_parts": "layerscale", "init_head": "zero"}, "init_head == 'keep' unless"),
        ({"teacher": "0" * 12}, "distill != 'none' with a teacher"),
        ({**TAUGHT, "model": "regnety-1gf"}, "model == 'vit' and pool == 'token' with distill"),
        ({**TAUGHT, "pool": "avg"}, "model == 'vit' and pool == 'token' with distill token"),
        ({**TAUGHT, "distill_tau": 2.0}, "distill_tau == 3.0 unless distill is soft"),
        ({"distill": "token"}, "distill == 'none' without a teacher"),
        ({"distill": "soft"}, "distill == 'none' without a teacher"),
        ({"teacher": "0" * 12, "distill": "hard", "distill_tau": 2.0}, "unless distill is soft"),
        ({"teacher": "0" * 12, "distill": "hard", "loss": "bce"}, "loss == 'ce'"),
    ],
)
def test_fields_of_a_start_have_laws(fields: dict[str, Any], law: str) -> None:
    with pytest.raises(ValueError, match=law):
        TrainConfig(**{"decay": "constant", **fields})


def test_a_plan_keeps_its_parents_and_says_what_they_cost(tmp_path: Path) -> None:
    made = MADE.study(num=3)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    options = argparse.Namespace(**dict.fromkeys(plans.OPTIONS), keep_weights=None)
    summary = plans.summarize(made, Store.open(tmp_path), options)
    assert summary["parents"] == {"parents": 3, "to_do": 3, "training_flops": pytest.approx(
        sum(3 * made.cost(c).flops * c.num_samples for c in made.parents)
    )}  # fmt: skip
    grand = PARENT.replace(seed=9)
    older = PARENT.replace(init_from=grand.id)
    chain = study(CHILD.replace(init_from=older.id), parents=(grand, older))
    todo = [*chain.parents, *(t.config for t in chain.trials)]
    assert next_wave(todo) == [grand] and followers([grand], todo) == todo[1:]


def test_children_of_equal_parents_are_paired_and_a_plan_says_so() -> None:
    made = MADE.study(num=10)
    (said,) = power.sentences(made)
    assert "paired t by parent; equal sds and a correlation of 0.5 are assumed" in said
    assert COMPARED["pair_differences"].families(made) == {("", True): (2, (1, -1))}
    assert f"a margin of {power.smallest_margin(10, 2, (1.0,)):.1f} sd" in said  # two sets
    # by another simulation, of 20,000 draws
    for n, margin in ((5, 1.60), (10, 1.01), (15, 0.80)):
        assert power.smallest_margin(n, 1, (1.0,)) == pytest.approx(margin, rel=0.02)
    fewer = dataclasses.replace(made, trials=made.trials[:-1])
    assert COMPARED["pair_differences"].families(fewer) == {("", False): (2, (1, -1))}


# --- in a store


def put(store: Store, plan: Study) -> None:
    store.study(plan.slug).write("plan.json", json.dumps(to_json(plan)).encode())


def run(store: Store, plan: Study, config: TrainConfig) -> Any:
    """The last event of a training, as a worker does it."""
    steps = pins([config], store, plan.parents).get(config.id, ())
    *_, event = train_trial(
        config.id, config.non_default(), store, plan.slug, 1, Resources(), steps
    )
    return event


def test_a_store_keeps_the_weights_from_which_planned_trials_start(tmp_path: Path) -> None:
    """Another study trains its children of the same parent; nothing is trained twice."""
    store, made = Store.open(tmp_path / "runs"), MADE.study(num=1)
    (parent,), (one, other) = made.parents, (trial.config for trial in made.trials)
    put(store, made)
    assert why_not(one, store) == f"its parent {parent.id} is missing"
    assert run(store, made, parent).status is Status.FINISHED
    assert len(store.trial(parent.id).names("weights-")) == 1
    assert survey(store).leftovers == () and survey(store).orphans == ()
    assert run(store, made, one).status is Status.FINISHED
    by_hand = list(train(one, tmp_path / "hand", parent=store.trial(parent.id)))
    assert timeless(list(store.read(one.id).rows)) == timeless(by_hand)

    shown, of_parent = describe(store, readable_plans(store), [one.id, parent.id])
    assert shown["parent"] == {"trial_id": parent.id, "status": "finished"}
    assert {branch["trial_id"] for branch in of_parent["branches"]} == {one.id, other.id}
    assert of_parent["parent_in"] == [made.slug] and of_parent["planned_by"] == []

    (state,), _ = overview(store)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    of_study = [f for f in files if not f.is_symlink() and {"trials", made.slug} & {*f.parts}]
    assert state.num_bytes == sum(path.stat().st_size for path in of_study)
    assert state.checkpoint_bytes > 0

    put(store, dataclasses.replace(study(CHILD, parents=()), name="children"))
    waste = survey(store)
    assert {orphan.trial_id for orphan in waste.orphans} == {parent.id, one.id}
    clean(store, waste)
    assert why_not(other, store) == f"its parent {parent.id} is missing"


def test_a_trial_of_the_study_is_what_another_one_starts_from(tmp_path: Path) -> None:
    """Its weights are kept, however large, and the other one waits for it."""
    first = PARENT.replace(layerscale=0.1)
    again = first.replace(init_from=first.id, init_parts="layerscale", frozen="layerscale")
    store, made = Store.open(tmp_path), study(first, again, parents=())
    assert next_wave([again, first]) == [first] and followers([first], [again, first]) == [again]
    assert pins([again, first], store) == {first.id: {AT_END}}
    put(store, made)
    assert [run(store, made, config).status for config in (first, again)] == [Status.FINISHED] * 2
    assert read_trials(made, store)  # no parent stands in its tables
    longer = study(
        first.replace(seed=1), first.replace(seed=1, init_from=first.id), parents=(first,)
    )
    assert len(longer.arms) == 2


def test_a_trial_of_the_study_may_be_a_teacher(tmp_path: Path) -> None:
    made = study(TEACHER, STUDENT, parents=())
    options = argparse.Namespace(**dict.fromkeys(plans.OPTIONS), keep_weights=None)
    shown = plans.summarize(made, Store.open(tmp_path), options)["parents"]
    assert shown["parents"] == shown["training_flops"] == 0
    assert shown["teacher_flops"] == made.cost(TEACHER).flops * STUDENT.num_samples


def test_a_student_is_trained_in_a_store_and_needs_its_teacher(tmp_path: Path) -> None:
    store, made = Store.open(tmp_path / "runs"), study(STUDENT, parents=(TEACHER,))
    put(store, made)
    assert run(store, made, TEACHER).status is Status.FINISHED
    shown = plans.summarize(
        made, store, argparse.Namespace(**dict.fromkeys(plans.OPTIONS), keep_weights=None)
    )
    assert shown["parents"]["teacher_flops"] == made.cost(TEACHER).flops * STUDENT.num_samples
    assert run(store, made, STUDENT).status is Status.FINISHED
    by_hand = list(train(STUDENT, tmp_path / "hand", teacher=(TEACHER, store.trial(TEACHER.id))))
    assert timeless(list(store.read(STUDENT.id).rows)) == timeless(by_hand)
    student, of_parent = describe(store, readable_plans(store), [STUDENT.id, TEACHER.id])
    assert student["teacher"] == {"trial_id": TEACHER.id, "status": "finished"}
    assert {branch["trial_id"] for branch in of_parent["branches"]} == {STUDENT.id}
    assert survey(store).orphans == ()

    other = STUDENT.replace(seed=3)
    (store.trial(other.id)).write("checkpoint-0000000001-0000000000000000.pt", b"begun")
    for name in store.trial(TEACHER.id).names("weights-"):
        store.trial(TEACHER.id).remove(name)
    for name in store.trial(TEACHER.id).names("checkpoint-"):
        store.trial(TEACHER.id).remove(name)
    assert f"its parent {TEACHER.id} must have its final weights, but got none" in why_not(
        other, store
    )


def test_the_child_of_a_diverged_parent_has_diverged(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    made = MADE.study(num=1, lr=1e20)
    put(store, made)
    (parent,), child = made.parents, made.trials[0].config
    assert run(store, made, parent).status is Status.DIVERGED
    assert store.trial(parent.id).names("weights-") == []
    assert run(store, made, child).status is Status.DIVERGED
    outcome = store.read(child.id)
    step = int(store.read(parent.id).rows[-1]["diverged_step"])
    assert outcome.error == f"its parent {parent.id} diverged at step {step}"
    assert outcome.final(made.column) == 100.0
    assert store.trial(child.id).names("checkpoint-") == []  # it was never trained


@pytest.mark.parametrize("keeps", [None, False])
def test_a_trial_of_another_study_is_a_parent_if_it_kept_its_weights(
    tmp_path: Path, keeps: bool | None
) -> None:
    """In its last checkpoint; without them, it is one line, and nothing is trained."""
    store, made = Store.open(tmp_path), MADE.study(num=1)
    (parent,), child = made.parents, made.trials[0].config
    where = Resources(keep_weights=keeps)
    *_, event = train_trial(parent.id, parent.non_default(), store, "other", 1, where)
    assert event.status is Status.FINISHED and store.trial(parent.id).names("weights-") == []
    assert why_not(child, store) == ""
    if keeps is None:
        assert run(store, made, child).status is Status.FINISHED
        return
    assert child.init_from in lost(run(store, made, child)) and not store.is_done(child.id)


def lost(event: Any) -> str:
    """The line of a trial that is not tried again, as no retry helps."""
    assert event.status == "lost", event
    return str(event.facts["error"])


def test_a_child_of_damaged_weights_takes_those_of_the_checkpoint_or_ends(tmp_path: Path) -> None:
    store, made = Store.open(tmp_path), MADE.study(num=1)
    put(store, made)
    (parent,), (child, other) = made.parents, (trial.config for trial in made.trials)
    run(store, made, parent)
    folder = tmp_path / "trials" / parent.id
    (weights,) = folder.glob("weights-*")
    weights.write_bytes(weights.read_bytes()[:1000])
    with refusing(weights, error=Damaged):  # to try again in another process
        run(store, made, child)
    assert run(store, made, child).status is Status.FINISHED
    for path in folder.glob("checkpoint-*"):
        path.unlink()
    weights.write_bytes(b"")
    line = lost(run(store, made, other))
    assert str(weights) in line and "remove this folder" in line
    assert str(folder) in why_not(other, store)


def test_pairs_of_children_are_compared_within_parents(tmp_path: Path) -> None:
    made, rng = MADE.study(num=4), np.random.default_rng(0)
    made_up = {
        t.config.id: 20 + 3 * t.config.seed + (t.arm.name == "attn") + rng.normal(0, 0.1)
        for t in made.trials
    }
    trials = outcomes(made, read_trials(made, Store.open(tmp_path))).assign(status="finished")
    trials["value"] = trials["trial_id"].map(made_up)
    for name in ("val_error_pct", "test_error_pct"):
        trials[name] = trials["value"]
    trials.loc[(trials["arm"] == "all") & (trials["seed"] == 3), "status"] = "diverged"
    (row, *_) = pair_differences(Results(made, trials)).itertuples()
    errors = {
        arm: [made_up[t.config.id] for t in made.trials if t.arm.name == arm][:3]
        for arm in ("attn", "all")
    }
    paired = scipy.stats.ttest_rel(errors["attn"], errors["all"])
    assert row.difference_p == pytest.approx(paired.pvalue)
    assert (row.n_a, row.n_b, row.diverged_b) == (3, 3, 1)
    assert row.method == "paired t by parent"


def test_runs_that_share_a_parent_count_as_one(tmp_path: Path) -> None:
    """By scipy's tests of the means of each parent; also in an arm with parents of its own."""
    base, rng = MADE.study(num=4), np.random.default_rng(0)
    made = dataclasses.replace(
        base,
        trials=tuple(
            Trial(t.arm, t.config.replace(seed=10 * k + t.config.seed), 10 * (t.point or 0) + k)
            for t in base.trials
            for k in range(1 + (t.arm.name == "attn"))
        ),
    )
    assert is_paired(made, ("attn", "all")) and "4 seeds per cell" in power.sentences(made)[0]
    trials = outcomes(made, read_trials(made, Store.open(tmp_path))).assign(status="finished")
    drawn = rng.normal(20, 1, len(trials))
    for name in ("value", "val_error_pct", "test_error_pct"):
        trials[name] = drawn
    of_arm = {
        arm: frame.groupby("init_from")["value"].mean() for arm, frame in trials.groupby("arm")
    }
    results = Results(made, trials)
    (row, *_) = pair_differences(results).itertuples()
    paired = scipy.stats.ttest_rel(of_arm["attn"], of_arm["all"])
    assert row.difference_p == pytest.approx(paired.pvalue) and (row.n_a, row.n_b) == (8, 4)
    (_, low, high) = cells(results)["attn"].interval("value", results.metric)
    expected = scipy.stats.ttest_1samp(of_arm["attn"], 0).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high))
    trials.loc[trials["init_from"] != made.parents[0].id, "status"] = "diverged"
    (row, *_) = pair_differences(Results(made, trials)).itertuples()
    assert np.isnan(row.difference_p) and (row.n_a, row.n_b) == (2, 1)


# --- through Ray


@pytest.mark.slow
def test_a_child_begins_when_its_own_parent_is_done_and_kills_change_nothing(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path, SCRIPT, is_lean=True)
    arguments = ("--num", "2", "--longest", "200", "--max-concurrent", "2")
    made = load_script(SCRIPT).study(num=2, longest=200)
    first, last = made.parents
    store, often = script.store(), ("--checkpoint-every-s", "0.05")
    process = script.start(*arguments, *often)
    of_first = [t.config.id for t in made.trials if t.config.init_from == first.id]
    wait_for(lambda: all(map(store.is_done, of_first)), 200, "the children of the first parent")
    assert not store.is_done(last.id)  # they did not wait for the other one
    kill_family(process.pid)
    result = script.run(*arguments)
    assert result.returncode == 0, result.stdout
    assert "4 finished, 0 diverged, 0 failed, 0 missing of 4" in result.stdout
    folders = {}
    for config in made.parents:
        folders[config.id] = tmp_path / config.id
        list(train(config, folders[config.id], pins=(AT_END,)))
    for trial in made.trials:
        by_hand = train(
            trial.config, tmp_path / trial.config.id, parent=folders[trial.config.init_from]
        )
        assert timeless(list(store.read(trial.config.id).rows)) == timeless(list(by_hand))
    (plan,) = readable_plans(store).values()
    assert [entry["id"] for entry in plan["parents"]] == [first.id, last.id]


@pytest.mark.slow
def test_children_of_a_failed_parent_are_missing_and_the_others_are_trained(
    tmp_path: Path,
) -> None:
    """The trainer raises as tests/faulty/sitecustomize.py says, in a worker of Ray."""
    script = Script(tmp_path, SCRIPT, is_lean=True)
    script.environment["PYTHONPATH"] = f"{ROOT}/tests/faulty:{ROOT}"
    script.environment["FAULTS"] = str(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"0": (99, "value no such layer")}))
    made = load_script(SCRIPT).study()
    result = script.run()
    assert result.returncode == 1, result.stdout
    reason = f"its parent {made.parents[0].id} is failed: ValueError: no such layer"
    warned = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert sum(reason in line for line in warned) == 2
    assert "2 finished, 0 diverged, 0 failed, 2 missing of 4" in result.stdout
    (tmp_path / "plan.json").write_text("{}")
    assert script.run().returncode == 0
    store, trials = script.store(), tmp_path / "runs/trials"
    parent = trials / made.parents[0].id
    before, child = store.outcome(made.parents[0].id), made.trials[0].config.id
    rows = timeless(store.read(child).rows)
    shutil.rmtree(trials / child)
    (parent / "rows.parquet").write_bytes(b"damaged")
    result = script.run()
    assert result.returncode == 0 and result.stdout.count("is restored") == 1, result.stdout
    assert timeless(store.read(child).rows) == rows
    assert timeless(store.outcome(parent.name).rows) == timeless(before.rows)
    shutil.rmtree(trials / child)
    for path in parent.glob("checkpoint-*"):
        path.unlink()
    for path in parent.glob("weights-*"):
        path.write_bytes(b"damaged")
    result = script.run()
    assert result.returncode == 1 and "tried again" not in result.stdout, result.stdout
    assert "1 missing of 4" in result.stdout and "the same command tries" not in result.stdout
