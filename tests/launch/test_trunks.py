"""Trials that start from a checkpoint of another trial: rows and weights are those of one piece."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Script, kill_family, load_script, wait_for
from support.mlflow_runs import runs_of_experiment
from support.refusals import refusing
from support.trainings import CONV, assert_same, every_step, final_tensors, timeless

from vitscale.cli import plans
from vitscale.launch.branching import pins, why_not
from vitscale.launch.resources import Resources
from vitscale.launch.worker import train_trial
from vitscale.plan.config import TrainConfig
from vitscale.plan.cost import own_training_flops, training_flops
from vitscale.plan.parents import branch_steps, next_wave, num_steps_saved, on_trunks
from vitscale.plan.study import Study, from_json, to_json
from vitscale.plan.trial import Trial
from vitscale.record.cleanup import clean, survey
from vitscale.record.outcome import Row, Status
from vitscale.record.store import Store
from vitscale.record.trial_info import describe, readable_plans
from vitscale.record.workdir import Damaged, Workdir, pinned
from vitscale.train.loop import train

# 3 steps per epoch; the trunk has 12 steps, of which 3 cool down
LONG = CONV.replace(decay="cooldown", cooldown_share=0.25, epochs=4)
CHILDREN = {
    "within an epoch": LONG.replace(epochs=3),  # 9 steps, 2 cool down
    "at the end of an epoch": LONG.replace(epochs=3, cooldown_share=1 / 3, cooldown_shape="1-sqrt"),
    "in the first epoch": LONG.replace(epochs=1, warmup_epochs=1 / 3, cooldown_share=1 / 3),
    "bf16": LONG.replace(epochs=3, precision="bf16"),
    "a row of every second epoch": LONG.replace(epochs=3, eval_every=2),
    "sgd": LONG.replace(epochs=3, optimizer="sgd", nesterov=True, lr=0.1, wd=1e-4),
}
EVERY_THIRD = CONV.replace(decay="constant", epochs=2, eval_every=3)


def branched(child: TrainConfig, trunk: TrainConfig) -> TrainConfig:
    return child.replace(trunk=trunk.id, trunk_step=child.cooldown_start)


def trunk_of(child: TrainConfig) -> TrainConfig:
    return child.replace(epochs=4, cooldown_share=0.25, cooldown_shape="linear")


@pytest.mark.parametrize("name", CHILDREN)
def test_a_child_has_the_rows_and_weights_of_one_piece(name: str, tmp_path: Path) -> None:
    """Bit for bit; also if it is interrupted after each row, without its trunk."""
    trunk, whole = trunk_of(CHILDREN[name]), CHILDREN[name]
    child = branched(whole, trunk)
    before = timeless(list(train(trunk, tmp_path / "alone")))
    path = tmp_path / trunk.id
    assert timeless(list(train(trunk, path, pins=(child.trunk_step,)))) == before
    expected = timeless(list(train(whole, tmp_path / "whole"))), final_tensors(tmp_path / "whole")
    assert len(expected[0]) == -(-whole.epochs // whole.eval_every)
    assert not expected[0][-1]["diverged"]

    rows = list(train(child, tmp_path / "child", trunk=path))
    assert_same(tmp_path / "child", rows, expected)
    own = tmp_path / "closed"
    for num in range(1, len(expected[0]) + 1):
        training = train(child, own, trunk=path, checkpoint_every_s=0.0)
        rows = [next(training) for _ in range(num)]
        training.close()
        if any(own.glob("checkpoint-*")):  # else it has replayed the rows of its trunk alone
            shutil.rmtree(path, ignore_errors=True)
    assert not path.exists()
    assert_same(own, rows, expected)


def test_a_trunk_may_end_where_a_child_begins(tmp_path: Path) -> None:
    """A trunk that never decays, and a child that stays at its lr, as a longer training does."""
    trunk = CONV.replace(decay="constant", epochs=2)
    whole = trunk.replace(epochs=3)
    child = whole.replace(trunk=trunk.id, trunk_step=6)
    list(train(trunk, tmp_path / trunk.id, pins=(6,), kept="rows"))
    expected = timeless(list(train(whole, tmp_path / "whole"))), final_tensors(tmp_path / "whole")
    rows = list(train(child, tmp_path / "child", trunk=tmp_path / trunk.id))
    assert_same(tmp_path / "child", rows, expected)


def test_an_interrupted_trunk_keeps_each_state_once(tmp_path: Path) -> None:
    steps = (2, 3, 7, 9)
    list(train(LONG, tmp_path / "whole", pins=steps))
    for num in range(1, 5):
        training = train(LONG, tmp_path / "closed", pins=steps, checkpoint_every_s=0.0)
        for _ in range(num):
            next(training)
        training.close()
    whole, closed = (
        {s: pinned(Workdir(tmp_path / n), s) for s in steps} for n in ("whole", "closed")
    )
    assert all(closed.values()) and closed.keys() == whole.keys()
    assert len(list((tmp_path / "closed").glob("pinned-*"))) == 4


def test_a_damaged_or_missing_state_is_one_line(tmp_path: Path) -> None:
    trunk, child = LONG, branched(CHILDREN["within an epoch"], LONG)
    with refusing(trunk.id, error=Damaged):
        next(train(child, tmp_path / "child", trunk=tmp_path / trunk.id))
    list(train(trunk, tmp_path / trunk.id, pins=(7,)))
    (path,) = (tmp_path / trunk.id).glob("pinned-*")
    path.write_bytes(path.read_bytes()[:-1])
    with refusing(path, error=Damaged):
        next(train(child, tmp_path / "child", trunk=tmp_path / trunk.id))
    assert (path.parent / f"damaged-{path.name}").exists() and not path.exists()


# --- studies --------------------------------------------------------------------------------------


def study(*configs: TrainConfig, name: str = "lengths", **changed: Any) -> Study:
    """One arm per length."""
    arms = [f"{config.epochs} epochs, {config.id}" for config in configs]
    return Study(
        kind="repeats",
        name=name,
        scale="demo",
        question="What do lengths share?",
        source="none",
        trials=tuple(Trial(arm, config, 0) for arm, config in zip(arms, configs, strict=True)),
        **changed,
    )


LENGTHS = study(*(LONG.replace(epochs=epochs, warmup_epochs=0.0) for epochs in (1, 2, 4, 8)))
SHARED = dataclasses.replace(LENGTHS, trials=on_trunks(LENGTHS.trials))


def put(store: Store, plan: Study) -> None:
    store.study(plan.slug).write("plan.json", json.dumps(to_json(plan)).encode())


def run(store: Store, plan: Study, config: TrainConfig) -> Any:
    """The last event of a trial, trained as a worker does."""
    kept = pins([config], store).get(config.id, ())
    fields = config.non_default()
    *_, event = train_trial(config.id, fields, store, plan.slug, 1, Resources(), kept)
    return event


def test_lengths_start_from_the_longest_at_their_cooldown() -> None:
    one, two, four, eight = (trial.config for trial in SHARED.trials)
    assert eight == LENGTHS.trials[-1].config and not eight.trunk
    # 3, 6 and 12 steps, a quarter of which cool down: 1, 2 (half to even) and 3
    assert [(c.trunk, c.trunk_step) for c in (one, two, four)] == [
        (eight.id, 2),
        (eight.id, 4),
        (eight.id, 9),
    ]
    assert [c.in_one_piece() for c in (one, two, four)] == [t.config for t in LENGTHS.trials[:3]]
    assert on_trunks(SHARED.trials) == SHARED.trials
    assert branch_steps(to_json(SHARED)["trials"], {eight.id}) == {eight.id: {2, 4, 9}}
    assert from_json(json.loads(json.dumps(to_json(SHARED)))).trials == SHARED.trials


def test_seeds_and_lr_have_trunks_of_their_own() -> None:
    """And an arm of several seeds is one arm, though its trials have different trunks."""
    trials = on_trunks(
        Trial(f"{epochs} epochs", LONG.replace(epochs=epochs, seed=seed), seed)
        for epochs in (3, 8)
        for seed in (0, 1)
    )
    assert [trial.config.trunk for trial in trials[:2]] == [t.config.id for t in trials[2:]]
    assert set(dataclasses.replace(LENGTHS, trials=trials).arms) == {"3 epochs", "8 epochs"}


def test_the_id_holds_trunk_and_step() -> None:
    child = SHARED.trials[0].config
    others = [child.in_one_piece(), child.replace(trunk="0" * 12), child.replace(trunk_step=1)]
    assert len({child.id, *(config.id for config in others)}) == 4


def test_trunks_are_counted_once() -> None:
    """The cost of a trial for a law is that of its whole path, that of the study its own steps."""
    steps = [trial.config.num_steps for trial in LENGTHS.trials]
    assert steps == [3, 6, 12, 24] and num_steps_saved(SHARED) == 2 + 4 + 9
    for alone, shared in zip(LENGTHS.trials, SHARED.trials, strict=True):
        assert training_flops(shared.config) == training_flops(alone.config)
    own = [own_training_flops(trial.config) for trial in SHARED.trials]
    assert sum(own) / training_flops(SHARED.trials[-1].config) == pytest.approx(
        (1 + 2 + 3 + 24) / 24
    )


def test_a_plan_says_what_is_saved(tmp_path: Path) -> None:
    import argparse

    options = argparse.Namespace(**dict.fromkeys(plans.OPTIONS), keep_weights=None)
    store = Store.open(tmp_path)
    summary = plans.summarize(SHARED, store, options)
    assert summary["samples"] == 30 * LONG.batch_size
    assert summary["trunks"] == {"trunks": 1, "branches": 3, "steps": 30, "steps_in_one_piece": 45}
    text = plans._as_text({**summary, "plan": ""})
    assert "trunks: 3 trials start from 1 other, which saves 15 of 45 steps (33%)" in text
    assert "trunks:" not in plans._as_text({**plans.summarize(LENGTHS, store, options), "plan": ""})


def test_trunks_come_first() -> None:
    configs = [trial.config for trial in SHARED.trials]
    assert next_wave(configs) == configs[-1:]
    assert next_wave(configs[:3]) == configs[:3]


@pytest.mark.parametrize(
    ("configs", "law"),
    [
        ((branched(LONG.replace(epochs=3), LONG),), "must be a training of the same study"),
        (
            (LONG.replace(seed=1), branched(LONG.replace(epochs=3), LONG.replace(seed=1))),
            "must differ only in length, decay and cooldown, but got .*seed=0 and 1",
        ),
        (
            (LONG.replace(epochs=2), branched(LONG.replace(epochs=3), LONG.replace(epochs=2))),
            r"before that decays or ends, but got .*trunk_step=7; .* constant until step 4\)",
        ),
        (
            (CONV, branched(LONG.replace(epochs=3), CONV)),
            "before that decays or ends, but got .* constant until step 0",
        ),
        (
            (EVERY_THIRD, EVERY_THIRD.replace(epochs=3, trunk=EVERY_THIRD.id, trunk_step=6)),
            "must be evaluated there, but got .*epochs=2, eval_every=3",
        ),
    ],
)
def test_impossible_trunks_are_refused(configs: tuple[TrainConfig, ...], law: str) -> None:
    with pytest.raises(ValueError, match=law):
        study(*configs)


# --- in a store -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "runs")


def test_a_store_keeps_what_planned_trials_start_from(store: Store) -> None:
    """For any study; `show` names both; `clean` deletes what nobody starts from any more."""
    one, two, four, eight = (trial.config for trial in SHARED.trials)
    put(store, study(eight, one))
    put(store, study(eight, four, name="others"))
    assert run(store, SHARED, eight).status is Status.FINISHED
    assert [path.split("-")[1] for path in store.trial(eight.id).names("pinned-")] == [
        "000000002",
        "000000009",
    ]
    assert survey(store).leftovers == ()
    assert run(store, SHARED, one).status is Status.FINISHED
    assert why_not(four, store) == ""
    assert f"its trunk {eight.id} must have its checkpoint at step 4" in why_not(two, store)

    shown, trunk = describe(store, readable_plans(store), [one.id, eight.id])
    assert shown["trunk"] == {"trial_id": eight.id, "step": 2, "status": "finished", "kept": True}
    assert trunk["trunk"] is None and {b["trial_id"] for b in trunk["branches"]} == {
        one.id,
        four.id,
    }

    put(store, study(eight, name="others"))
    (leftover,) = survey(store).leftovers
    assert leftover.kind == "of a trunk" and leftover.path.startswith(
        f"trials/{eight.id}/pinned-000000009-"
    )
    clean(store, survey(store))
    assert len(store.trial(eight.id).names("pinned-")) == 1 and survey(store).leftovers == ()


def test_a_diverged_trunk_makes_its_children_diverged(store: Store) -> None:
    """With the rows of one piece; a child that branched off before goes its own way."""
    wild = LONG.replace(
        optimizer="sgd", lr=1e20, clip_norm=0.0, mixup_alpha=0.0, cutmix_alpha=0.0, epochs=8
    )
    late = wild.replace(epochs=3, cooldown_share=1 / 9, trunk=wild.id, trunk_step=8)
    early = late.replace(trunk_step=1)
    plan = study(wild, late, early)
    put(store, plan)
    assert run(store, plan, wild).status is Status.DIVERGED
    assert run(store, plan, late).status is Status.DIVERGED
    outcome, alone = store.read(late.id), list(train(late.in_one_piece(), store.root / "alone"))
    assert timeless(list(outcome.rows)) == timeless(alone)
    assert len(alone) == 1 and alone[0]["diverged"] == 1
    step = int(alone[0]["diverged_step"])
    assert outcome.error == f"its trunk {wild.id} diverged at step {step}"
    assert outcome.final(plan.column) == 100.0
    assert step >= 1 and run(store, plan, early).status is Status.DIVERGED
    assert timeless(list(store.read(early.id).rows)) == timeless(alone)
    assert store.read(early.id).error == ""


@pytest.mark.parametrize("ending", ["failed", "missing"])
def test_a_child_without_its_trunk_is_missing_and_says_why(store: Store, ending: str) -> None:
    plan = study(*(trial.config for trial in SHARED.trials))
    child, *_, trunk = (trial.config for trial in plan.trials)
    assert why_not(child, store) == f"its trunk {trunk.id} is missing"
    workdir = store.claim(trunk.id, trunk.non_default(), plan.slug, 1)
    end = store.fail if ending == "failed" else store.lose
    end(workdir, "ValueError: no such layer", "a traceback")
    assert why_not(child, store) == f"its trunk {trunk.id} is {ending}: ValueError: no such layer"


def test_rows_of_a_study_do_not_depend_on_its_trunks(store: Store, tmp_path: Path) -> None:
    put(store, SHARED)
    for config in [SHARED.trials[-1].config, *(trial.config for trial in SHARED.trials[:3])]:
        assert run(store, SHARED, config).status is Status.FINISHED
    rows: dict[int, list[Row]] = {}
    for trial in LENGTHS.trials:
        rows[trial.config.epochs] = timeless(
            list(every_step(trial.config, tmp_path / trial.config.id))
        )
    assert rows == {
        t.config.epochs: timeless(list(store.read(t.config.id).rows)) for t in SHARED.trials
    }


# --- through Ray ----------------------------------------------------------------------------------


BRANCHING = ROOT / "tests" / "studies" / "branching.py"


@pytest.mark.slow
def test_a_failed_trunk_leaves_its_child_missing_until_both_are_trained(tmp_path: Path) -> None:
    """The trainer raises as tests/faulty/sitecustomize.py says, in a worker of Ray."""
    script = Script(tmp_path, BRANCHING, is_lean=True)
    script.environment["PYTHONPATH"] = f"{ROOT}/tests/faulty:{ROOT}"
    script.environment["FAULTS"] = str(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"1": (99, "value no such layer")}))
    short, long = (trial.config for trial in load_script(BRANCHING).study(seed=1).trials)
    result = script.run("--seed", "1")
    assert result.returncode == 1, result.stdout
    reason = f"its trunk {long.id} is failed: ValueError: no such layer"
    (warned,) = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert warned == f"warning: {short.id} is missing: {reason}"
    assert "0 finished, 0 diverged, 1 failed, 1 missing of 2" in result.stdout
    assert (tmp_path / "1.tries").read_text().count("\n") == 1  # of the trunk alone

    (tmp_path / "plan.json").write_text("{}")
    result = script.run("--seed", "1")
    assert result.returncode == 0, result.stdout
    for config in (long, short):
        alone = list(train(config.in_one_piece(), tmp_path / config.id))
        assert timeless(list(script.store().read(config.id).rows)) == timeless(alone)


@pytest.mark.slow
def test_a_diverged_trunk_is_two_diverged_trials(tmp_path: Path) -> None:
    script = Script(tmp_path, BRANCHING, is_lean=True)
    short, long = (trial.config for trial in load_script(BRANCHING).study(lr=1e20).trials)
    result = script.run("--lr", "1e20")
    assert result.returncode == 0, result.stdout
    assert "0 finished, 2 diverged, 0 failed, 0 missing of 2" in result.stdout
    outcome = script.store().read(short.id)
    assert outcome.error.startswith(f"its trunk {long.id} diverged at step ")
    alone = list(train(short.in_one_piece(), tmp_path / "alone"))
    assert timeless(list(outcome.rows)) == timeless(alone)


@pytest.mark.slow
def test_kills_of_trunk_and_cooldown_change_nothing(tmp_path: Path) -> None:
    """Nor does the loss of a trunk's state: it is one line, and the trunk's rows stay."""
    script = Script(tmp_path, BRANCHING, is_lean=True)
    short, long = (trial.config for trial in load_script(script.script).study().trials)
    assert short.trunk == long.id and short.trunk_step == 124
    store, often = script.store(), ("--checkpoint-every-s", "0.05")
    for config in (long, short):
        process = script.start(*often)
        trial = store.trial(config.id)
        wait_for(lambda trial=trial: trial.names("checkpoint-"), 200, f"{config.epochs} epochs")
        assert not store.is_done(config.id)
        assert config is short or not store.trial(short.id).exists()
        kill_family(process.pid)
        process.wait(60)
    assert store.is_done(long.id) and not store.is_done(short.id)
    result = script.run(*often)
    assert result.returncode == 0, result.stdout
    uri = script.environment["MLFLOW_TRACKING_URI"]
    tags = runs_of_experiment(uri, "branching-demo", "trial")[short.id].data.tags
    assert (tags["vitscale.trunk"], tags["vitscale.trunk_step"]) == (long.id, "124")
    for config in (long, short):
        alone = list(train(config.in_one_piece(), tmp_path / config.id))
        assert timeless(list(store.read(config.id).rows)) == timeless(alone)

    (state,) = store.trial(long.id).names("pinned-")
    store.trial(long.id).remove(state)
    store.set_trial_aside(short.id, "now")
    result = script.run()
    assert result.returncode == 1 and store.is_done(long.id)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: {short.id} is missing: its trunk {long.id} must have its")
    assert "1 finished, 0 diverged, 0 failed, 1 missing of 2" in result.stdout
    assert "its trunk" in store.fault(short.id)
