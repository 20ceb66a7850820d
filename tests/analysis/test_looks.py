"""Looking at a growing study: boundaries, betting, the ledger, and claims where nothing differs."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import ROOT, load_script
from golden.capture import load as load_golden
from support.populations import skewed, studies
from support.refusals import refusing

import vitscale
from vitscale.analysis.distribution import anytime
from vitscale.analysis.distribution.edf import area_scores
from vitscale.analysis.report.draw import draw
from vitscale.analysis.report_look import look_of, place, sentences, with_claims
from vitscale.analysis.results import Results
from vitscale.analysis.scaling import tables
from vitscale.analysis.stats.betting import interval, log_capital
from vitscale.analysis.stats.sequential import Looks, boundaries, sequential_p, spending
from vitscale.cli.commands import status
from vitscale.cli.loading import StudyResults
from vitscale.cli.script import main
from vitscale.plan.study import Study, to_json
from vitscale.record.look_ledger import (
    FinalSize,
    Ledger,
    Look,
    add_look,
    declare,
    read_ledger,
)
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN

SEEDS = (5, 10, 15, 20)


def limit(share: float, sims: int) -> float:
    """Three Monte Carlo standard errors of a share."""
    return 3 * math.sqrt(share * (1 - share) / sims)


# ---- statistics


def test_boundaries_are_the_published_ones() -> None:
    """Lan & DeMets 1983 with O'Brien-Fleming type spending, as printed for alpha 5%."""
    published = {
        (0.2, 0.4, 0.6, 0.8, 1.0): [4.877, 3.357, 2.680, 2.290, 2.031],
        (0.25, 0.5, 0.75, 1.0): [4.333, 2.963, 2.359, 2.014],
        (1 / 3, 2 / 3, 1.0): [3.710, 2.511, 1.993],
        (0.5, 1.0): [2.963, 1.969],
    }
    for fractions, bounds in published.items():
        assert boundaries(fractions) == pytest.approx(bounds, abs=0.0006)
    assert boundaries((1.0,)) == pytest.approx([1.959964], abs=1e-6)


def test_unequal_looks_spend_what_they_may() -> None:
    """Paths of a Brownian motion cross up to each look as often as the spending function says."""
    sims, fractions = 200_000, np.array([0.3, 0.35, 0.8, 1.0])
    steps = np.sqrt(np.diff(fractions, prepend=0.0))
    paths = np.cumsum(steps * np.random.default_rng(0).normal(size=(sims, 4)), axis=1)
    z = np.abs(paths) / np.sqrt(fractions)
    crossed = np.logical_or.accumulate(z > boundaries(tuple(fractions)), axis=1).mean(axis=0)
    allowed = spending(fractions)
    assert allowed[-1] == pytest.approx(0.05)
    for found, expected in zip(crossed, allowed, strict=True):
        assert abs(found - expected) < limit(expected, sims) + 1e-5


def test_a_sequential_p_is_5_percent_on_the_boundary_and_grows_with_p() -> None:
    fractions = (0.25, 0.5, 0.75, 1.0)
    for last, bound in enumerate(boundaries(fractions), 1):
        on = 2 * scipy.stats.norm.sf(bound)
        assert sequential_p(np.array([on]), fractions[:last]) == pytest.approx([0.05], rel=1e-4)
    p = np.array([0.0, 1e-5, 1e-3, 0.01, 0.03, 0.2, 1.0])
    found = sequential_p(p, fractions)
    assert (np.diff(found) >= 0).all() and (found >= p).all()
    # for another level than those that were computed
    bound = scipy.stats.norm.sf(boundaries(fractions, 0.0123)[-1]) * 2
    assert sequential_p(np.array([bound]), fractions) == pytest.approx([0.0123], rel=0.01)
    assert np.isnan(sequential_p(np.array([np.nan]), fractions)).all()
    assert sequential_p(np.array([1e-9]), (0.5, 0.5)) == pytest.approx([1.0])  # nothing is new


def test_one_look_changes_no_p() -> None:
    p = [0.03, 0.01, np.nan, 0.2]
    for looks in (Looks(), Looks(1, (1.0,), 16)):
        assert looks.rule == "fixed"
        assert np.array_equal(looks.adjusted(p), p, equal_nan=True)


def test_no_more_than_5_percent_claim_a_difference_that_is_not_there() -> None:
    """Paired t looked at after 5, 10, 15 and 20 seeds: 13% without a correction."""
    sims = 4000
    values = np.random.default_rng(1).normal(size=(sims, SEEDS[-1]))
    p = np.array([scipy.stats.ttest_1samp(values[:, :n], 0, axis=1).pvalue for n in SEEDS])
    assert ((p < 0.05).any(axis=0)).mean() > 0.11
    shares = tuple(n / SEEDS[-1] for n in SEEDS)
    declared = [Looks(k, shares[:k], n).adjusted(p[k - 1]) for k, n in enumerate(SEEDS, 1)]
    assert (np.array(declared) < 0.05).any(axis=0).mean() <= 0.05 + limit(0.05, sims)
    assert (p[0] < 0.05).mean() > 0.04  # all that a study may claim without a declared size


def test_a_growing_study_of_any_rule_spends_5_percent_in_all() -> None:
    """False claims at any of the looks, the first included, as the ledger places them."""
    sims = 4000
    values = np.random.default_rng(1).normal(size=(sims, SEEDS[-1]))
    p = [scipy.stats.ttest_1samp(values[:, :n], 0, axis=1).pvalue for n in SEEDS]
    grown = [a_look(str(n), n, planned=n) for n in SEEDS]
    interim = [a_look("5", 5, planned=10), *(a_look(str(n), n, planned=n) for n in SEEDS[1:])]
    rates = {}
    for name, looks, final in (
        ("undeclared", grown, None),
        ("after an interim look", interim, None),
        ("open", grown, FinalSize(0, {})),
        ("declared", grown, FinalSize(20, {"a": 20})),
    ):
        claims = [
            place(Ledger(tuple(looks[:k]), final), look).adjusted(p[k], p[0]) < 0.05
            for k, look in enumerate(looks)
        ]
        rates[name] = np.mean(np.any(claims, axis=0))
        assert rates[name] <= 0.05 + limit(0.05, sims), name
        if name == "undeclared":  # the first look has spent all, and some claims are given up
            assert claims[0].mean() > 0.04 and (np.any(claims, axis=0) == claims[0]).all()
            assert 0 < claims[-1].mean() < claims[0].mean()
    assert rates["open"] <= 0.04 + 0.01 and rates["after an interim look"] < rates["undeclared"]


def test_what_is_left_for_claims_follows_from_the_looks_before() -> None:
    p = np.array([0.0, 1e-12, 1e-4, 0.03, np.nan])
    whole, more = a_look("w", 16), a_look("m", 32, planned=32)
    spent = place(Ledger((whole,)), more)
    assert spent.budget == spent.threshold == 0.0
    assert spent.adjusted(p)[:4].tolist() == [1.0] * 4 and np.isnan(spent.adjusted(p)[4])
    assert spent.corrected(p, [1e-9] * 5)[:4].tolist() == [1.0] * 4
    # by Holm times 5, 4, 3 and 2, and not below what the look had that has spent the error
    kept = spent.corrected(p, None, [1e-20, 0.2, 0.0, 0.04, 0.01])
    assert kept[:4] == pytest.approx([1e-20, 0.2, 3e-4, 0.06]) and np.isnan(kept[4])
    part = place(Ledger((a_look("h", 8),)), more)  # 0.0031 is what Lan & DeMets spend at one half
    assert part.budget == pytest.approx(0.05 - 0.0031, abs=1e-4) and part.rule == "anytime"
    again = place(Ledger((a_look("h", 8), more)), a_look("x", 40, planned=40))
    assert again.budget == part.budget  # what anytime-valid looks share
    unending = Ledger((), FinalSize(0, {}))
    first, later = place(unending, whole), place(Ledger((whole,), unending.final), more)
    assert [first.adjusted(p)[3], first.threshold] == pytest.approx([0.03 / 0.8, 0.04])
    assert later.budget == pytest.approx(0.01)
    assert later.adjusted(p)[2] == pytest.approx(min(5 * Looks(2, (), 32).adjusted(p)[2], 1))
    assert later.corrected(p, [0.001] * 5)[0] == pytest.approx(0.025)  # 5 times, by Holm 5 times


@pytest.mark.parametrize("name", ["rare", "even", "scores", "constant"])
def test_an_interval_by_betting_covers_at_every_look(name: str) -> None:
    sims, n, rng = 2000, 64, np.random.default_rng(2)
    values, mean = {
        "rare": ((rng.random((sims, n)) < 0.95) * 1.0, 0.95),
        "even": ((rng.random((sims, n)) < 0.5) * 1.0, 0.5),
        "scores": (rng.beta(5, 1, (sims, n)), 5 / 6),
        "constant": (np.full((1, n), 0.3), 0.3),
    }[name]
    rejected = log_capital(values, np.array(mean), 0.05).max(axis=(1, 2)) >= np.log(20)
    assert rejected.mean() <= 0.05 + limit(0.05, sims)
    for row in values[:20]:
        ends = np.array([interval(row[:k]) for k in (4, 16, n)])
        assert (np.diff(ends[:, 0]) >= 0).all() and (np.diff(ends[:, 1]) <= 0).all()
    assert np.diff(interval(values[0]))[0] < 0.45


def test_areas_of_growing_studies_claim_nothing_and_cover() -> None:
    """16, 32 and 64 draws of two equal arms with three references; then b twice as far above."""
    sims = 60
    for worse, truth in ((None, 0.0), (lambda u: 2 * skewed(u), _area(1) - _area(2))):
        pairs = studies(skewed, 64, 3, 0.6, sims, seed=5, worse=worse)
        missed = claimed = 0
        for a, b in pairs:
            _, low, high, p = anytime.area_difference(a, b, is_paired=True)
            missed += not low <= truth <= high
            claimed += p < 0.05
            assert (p < 0.05) == (low > 0 or high < 0)
        assert missed / sims <= 0.05 + limit(0.05, sims)
        if worse is None:
            assert claimed <= 2


def _area(factor: float) -> float:
    u = (np.arange(100_000) + 0.5) / 100_000
    return float(area_scores(factor * skewed(u), 10.0).mean())


def test_every_p_is_corrected_in_one_place() -> None:
    """No table corrects p by itself, which would leave out the looks."""
    sources = {path: path.read_text() for path in (ROOT / "vitscale").rglob("*.py")}
    corrects = [path.name for path, text in sources.items() if re.search(r"\bholm\(", text)]
    assert sorted(corrects) == ["correction.py", "sequential.py"]
    asks = [path for path, text in sources.items() if "results.corrected(" in text]
    assert {path.parent.name for path in asks} == {"distribution", "analysis", "profile"}


# ---- the ledger


def a_look(digest: str, num: int, planned: int = 16, tested: int = 1) -> Look:
    return Look(digest, {"a": num}, {"a": planned}, {"area_p": tested}, {"area_p": 0})


def _append(root: Path, start: int) -> None:
    for i in range(start, start + 10):
        add_look(Store(root), "made-demo", a_look(f"row {i}", i))


def test_two_processes_lose_no_look(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_append, args=(tmp_path, start)) for start in (0, 5)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    ledger = read_ledger(Store(tmp_path), "made-demo")
    assert sorted(look.digest for look in ledger.looks) == sorted(f"row {i}" for i in range(15))
    assert not add_look(Store(tmp_path), "made-demo", a_look("row 3", 3))


def test_a_damaged_look_is_left_out_and_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for i in range(2):
        add_look(store, "made-demo", a_look(str(i), i))
    folder = store.study("made-demo").within("looks")
    whole = asdict(a_look("0", 0)) | {"p": {"area_p": {"a / b": 7.0}}}
    for content in (
        b"{",
        b"[]",
        b'{"digest": 1}',
        b'{"digest": "x", "seen": 3, "planned": {}}',
        json.dumps(whole).encode(),
        json.dumps(asdict(a_look("0", 0)) | {"digest": []}).encode(),
    ):
        folder.write("000001.json", content)
        with pytest.warns(UserWarning, match="000001.json"):
            assert [look.digest for look in read_ledger(store, "made-demo").looks] == ["1"]


def test_tables_with_the_same_column_keep_the_larger_p_of_a_test() -> None:
    results = Results(of_size(4), pd.DataFrame())
    for p in (0.2, 0.01, 0.1):
        results.corrected("gap_p", [("ViT_P", 10)], [p])
    assert results.p == {f"{results.study.metric}/gap_p": {"ViT_P / 10": 0.2}}


def of_metric(study: Study, name: str, ledger: Ledger) -> tuple[Look, Results]:
    """A look at the same errors under the name of a metric, and its results."""
    named = replace(study, metric=name)
    trials = pd.DataFrame(
        {
            "trial_id": [trial.config.id for trial in study.trials],
            "status": "finished",
            "value": 1.0,
        }
    )
    look = look_of(named, trials)
    return look, Results(named, trials, looks=place(ledger, look))


def test_no_p_of_one_metric_serves_another() -> None:
    """Four metrics of the same rows, the first with an effect: at most 5% of studies claim one of
    the others."""
    study = of_size(4)
    look, first = of_metric(study, "val_ema_error_pct", Ledger())
    assert first.corrected("area_p", [("a", "b")], [0.004]) == [0.004]
    ledger = Ledger((with_claims(look, first),))
    _, second = of_metric(study, "val_ema_loss", ledger)
    assert second.looks.budget == 0
    assert second.corrected("area_p", [("a", "b")], [0.03]) == [1.0]


def test_tests_that_a_report_of_the_same_rows_lacked_claim_nothing() -> None:
    """Six pairs, one in each report of the same rows: 5% of studies claim one, as with one pair."""
    study = of_size(4)
    p, claimed = np.random.default_rng(0).uniform(size=(2000, 6)), 0
    for of_pairs in p[:, :, None]:
        ledger = Ledger()
        for number, of_pair in enumerate(of_pairs):
            look, results = of_metric(study, study.metric, ledger)
            corrected = results.corrected("area_p", [("a", number)], of_pair)
            if number == 0:
                ledger = Ledger((with_claims(look, results),))
                assert corrected == of_pair
            else:
                assert results.late == 1 and "so their corrected p is 1" in sentences(results)[0]
            if (corrected < 0.05).any():
                claimed += 1
                break
    assert claimed == (p[:, 0] < 0.05).sum() and abs(claimed / 2000 - 0.05) < limit(0.05, 2000)
    # the tests of the first report keep their p, whichever of them a later one has
    look, results = of_metric(study, study.metric, Ledger())
    both = results.corrected("area_p", [("a", 0), ("a", 1)], [0.02, 0.03])
    _, again = of_metric(study, study.metric, Ledger((with_claims(look, results),)))
    assert again.corrected("area_p", [("a", 1)], [0.03]) == both[1] == 0.04


def test_tests_of_earlier_looks_count_at_later_ones() -> None:
    """With another pair at each look, Holm's number is that of all pairs so far."""
    study = of_size(4)
    first = replace(
        a_look("before", 2, 4),
        seen=dict.fromkeys(study.arms, 2),
        planned=dict.fromkeys(study.arms, 4),
        p={f"{study.metric}/area_p": {"a / 0": 0.5}},
    )
    _, results = of_metric(study, study.metric, Ledger((first,)))
    alone = results.corrected("area_p", [("a", 0)], [0.01])
    _, other = of_metric(study, study.metric, Ledger((first,)))
    assert other.corrected("area_p", [("a", 1)], [0.01]) == pytest.approx(2 * alone)


def test_tests_of_any_report_of_earlier_rows_count_at_later_looks(tmp_path: Path) -> None:
    """Of a pair or metric that was added to a report of the same rows and had the least p there."""
    study, store = of_size(4), Store(tmp_path)
    seen, planned = (dict.fromkeys(study.arms, num) for num in (2, 4))

    def report(digest: str, metric: str, pairs: Sequence[int]) -> bool:
        p = {f"{metric}/area_p": {f"a / {i}": 0.5 for i in pairs}}
        return add_look(store, study.slug, Look(digest, seen, planned, {"area_p": 1}, {}, p))

    def corrected(pair: int) -> float:
        _, results = of_metric(study, study.metric, read_ledger(store, study.slug))
        return float(results.corrected("area_p", [("a", pair)], [0.001])[0])

    assert report("half", study.metric, [0])
    alone = corrected(0)
    assert report("half", study.metric, range(6)) and not report("half", study.metric, range(3))
    assert len(read_ledger(store, study.slug).looks) == 1
    assert corrected(3) == corrected(0) == pytest.approx(6 * alone)
    assert report("half of another metric", "val_loss", [0])
    assert corrected(3) == pytest.approx(7 * alone)


def test_a_report_without_tests_spends_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_look(store, "made-demo", a_look("row", 8, tested=0))
    assert add_look(store, "made-demo", a_look("row", 8))
    assert not add_look(store, "made-demo", a_look("row", 8))
    assert [look.tested for look in read_ledger(store, "made-demo").looks] == [{"area_p": 1}]


@pytest.mark.parametrize(
    ("schedule", "size"),
    [([(20, n) for n in range(4, 21)], (20, 20)), ([(5, 1), (15, 3), (30, 6)], (30, 6))],
    ids=["one arm is complete", "unequal arms"],
)
def test_information_is_that_of_the_pair(
    schedule: list[tuple[int, int]], size: tuple[int, int]
) -> None:
    """z tests of two arms without an effect, which are complete at different times: 5%."""
    sims, arms = 4000, "ab"
    runs = [
        np.random.default_rng([8, i]).standard_normal((sims, num)) for i, num in enumerate(size)
    ]
    looks = [
        Look(str(n), dict(zip(arms, n, strict=True)), dict(zip(arms, size, strict=True)), {"p": 1})
        for n in schedule
    ]
    claimed = np.zeros(sims, dtype=bool)
    for i, n in enumerate(schedule):
        means = [values[:, :num].mean(1) for values, num in zip(runs, n, strict=True)]
        z = (means[0] - means[1]) / np.sqrt(sum(1 / num for num in n))
        p = 2 * scipy.stats.norm.sf(abs(z))
        placed = replace(place(Ledger(tuple(looks[:i])), looks[i]), n=1e6)  # no allowance for t
        claimed |= placed.adjusted(p) < 0.05
    assert claimed.mean() <= 0.05 + limit(0.05, sims)


def test_the_runs_of_a_look_are_those_of_the_pair_with_fewest() -> None:
    size = {"a": 20, "b": 20, "c": 20}
    assert place(Ledger(), Look("x", {"a": 20, "b": 20, "c": 5}, size, {"p": 1})).n == 8
    assert place(Ledger(), Look("x", {"a": 7, "b": 7, "c": 0}, size, {"p": 1})).n == 7


def test_looks_without_runs_of_an_arm_spend_nothing() -> None:
    size = {"a": 20, "b": 20}
    none = [Look(str(n), {"a": n, "b": 0}, size, {"p": 1}) for n in (5, 20)]
    whole = Look("whole", size, size, {"p": 1})
    for i, look in enumerate(none):
        looks = place(Ledger(tuple(none[:i])), look)
        assert (looks.rule, looks.spent, looks.adjusted([1e-9])) == ("spending", 0.0, [1.0])
    looks = place(Ledger(tuple(none)), whole)
    assert looks.adjusted([0.04])[0] == pytest.approx(0.04, rel=1e-2)


def test_a_final_size_does_not_change_after_a_look(tmp_path: Path) -> None:
    store = Store(tmp_path)
    declare(store, "made-demo", FinalSize(16, {"a": 16}))
    declare(store, "made-demo", FinalSize(32, {"a": 32}))  # nobody has looked
    add_look(store, "made-demo", a_look("x", 8))
    declare(store, "made-demo", FinalSize(32, {"a": 32}))
    with refusing("--final-num 64", "--final-num 32"):
        declare(store, "made-demo", FinalSize(64, {"a": 64}))
    other = Store(tmp_path / "other")
    add_look(other, "made-demo", a_look("x", 8))
    with refusing("--final-num 16", "1 look: none"):
        declare(other, "made-demo", FinalSize(16, {"a": 16}))
    assert read_ledger(other, "made-demo").final is None


def test_rules_follow_from_sizes() -> None:
    """Of a look: the rule that holds for it, by what came before."""
    small, half, whole = (
        a_look("s", 4, planned=4),
        a_look("h", 8),
        a_look("w", 16),
    )
    final = FinalSize(32, {"a": 32})
    for before, look, declared, fractions in (
        ([], whole, None, (1.0,)),
        ([], half, None, (0.5,)),
        ([half], whole, None, (0.5, 1.0)),
        ([small], whole, None, ()),  # it grew
        ([a_look("s", 4, planned=4, tested=0)], whole, None, (1.0,)),  # nothing was tested
        ([small], whole, final, (0.125, 0.5)),
        ([whole], a_look("trained again", 16), None, ()),
        ([whole], a_look("trained again", 16), final, ()),
        ([small, whole], small, None, (1.0,)),  # drawn again
    ):
        looks = place(Ledger(tuple(before), declared), look)
        assert looks.fractions == fractions, (before, look)
        assert (looks.rule == "anytime") == (not fractions)


# ---- a real study that grows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Outcome]]:
    """A store with the trials of the demo as they were trained."""
    study, read, _ = load_golden("lr_wd_edf-demo")
    store = Store.open(tmp_path_factory.mktemp("looks") / "runs")
    for trial in study.trials:
        workdir = store.claim(trial.config.id, trial.config.non_default(), study.slug, 1)
        store.finish(workdir, read[trial.config.id])
    return store, read


@pytest.fixture
def store(trained: tuple[Store, dict[str, Outcome]]) -> Store:
    """The same without any look."""
    trained[0].studies.discard("lr_wd_edf-demo")
    return trained[0]


@pytest.fixture
def read(trained: tuple[Store, dict[str, Outcome]]) -> dict[str, Outcome]:
    return trained[1]


def of_size(num: int) -> Study:
    return load_script(ROOT / "studies/lr_wd_edf.py").study(num=num)


def report(store: Store, read: Mapping[str, Outcome], study: Study) -> list[str]:
    """The headline; as `vitscale report --format parquet`."""
    store.study(study.slug).write(PLAN, json.dumps(to_json(study)).encode())
    known = {trial.config.id: read[trial.config.id] for trial in study.trials}
    return draw(study, store, known, ("parquet",))[1]


def draw_all(store: Store, read: Mapping[str, Outcome], study: Study) -> StudyResults:
    """The study loaded from its whole report."""
    draw(study, store, {trial.config.id: read[trial.config.id] for trial in study.trials})
    return vitscale.load(study.slug, store.root)


def num_looks(store: Store, slug: str = "lr_wd_edf-demo") -> int:
    return len(read_ledger(store, slug).looks)


def command(store: Store, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(
            load_script(ROOT / "studies/lr_wd_edf.py").study,
            [*arguments, "--store", str(store.root)],
        )
    return int(ended.value.code or 0)


def test_after_a_whole_plan_claims_are_kept_or_given_up_and_none_is_new(
    store: Store, read: dict[str, Outcome]
) -> None:
    first = report(store, read, of_size(4))
    assert num_looks(store) == 1 and not any("look" in line for line in first)
    assert any("more forgiving than ViT_P SGD" in line for line in first)
    of_first = draw_all(store, read, of_size(4))
    assert of_first._results.looks.rule == "fixed"
    second = report(store, read, of_size(8))
    assert "look 2" in second[-1] and "--final-num" in second[-1]
    assert "there are no new claims" in second[-1]
    assert report(store, read, of_size(8)) == second and num_looks(store) == 2
    names = [name for name in of_first.table("arm_comparison") if name.endswith("_p_holm")]
    then, now = (
        each.table("arm_comparison")[names].fillna(1).to_numpy()
        for each in (of_first, vitscale.load("lr_wd_edf-demo", store.root))
    )
    assert len(names) >= 3 and (now >= then).all() and ((now == then) & (then < 0.05)).any()
    assert any("more forgiving than ViT_P SGD" in line for line in second)  # as at first
    arms = vitscale.load("lr_wd_edf-demo", store.root).table("edf_summary")
    for name in ("within_quarter_near", "within_half_near", "within_near", "within_1.5_times"):
        known = arms[arms[f"{name}_pct"].notna()]
        assert (known[f"{name}_anytime_pct"] == known[f"{name}_pct"]).all(), name
        assert (known[f"{name}_anytime_pct_low"] <= known[f"{name}_pct_low"] + 5).all(), name
        assert (known[f"{name}_anytime_pct_high"] >= known[f"{name}_pct_high"] - 5).all(), name
    table = vitscale.load("lr_wd_edf-demo", store.root).table("arm_comparison")
    low, high = table["area_anytime_difference_low"], table["area_anytime_difference_high"]
    assert (low <= table["area_difference_low"]).all()
    assert (high >= table["area_difference_high"]).all()
    for name in ("prob_a_lower", "within_near_anytime_difference_pct"):
        base = name.removesuffix("_pct").replace("_anytime", "")
        suffix = "_pct" if name.endswith("pct") else ""
        estimate = table[name if suffix else f"{name}_anytime"]
        assert estimate.to_numpy() == pytest.approx(table[f"{base}{suffix}"].to_numpy()), name
    assert report(store, read, of_size(4)) == first and num_looks(store) == 2


def test_a_plan_that_was_interrupted_spends_error_without_an_option(
    store: Store, read: dict[str, Outcome]
) -> None:
    study = of_size(14)
    missing = {t.config.id: Outcome(Status.MISSING) for t in study.trials if (t.point or 0) >= 7}
    half = report(store, read | missing, study)
    assert "look 1, at 50% of the final size (its plan)" in half[-1]
    whole = report(store, read, study)
    assert "look 2, at 100% of the final size (its plan)" in whole[-1]
    # |z| > 1.969, p < 0.049, is printed for two equal looks; 6% less for a first look at 7 draws
    assert "p < 0.046 for its n" in whole[-1]
    assert any("more forgiving than ViT_P SGD" in line for line in whole)


def test_the_command_line_declares_a_size_and_keeps_to_it(
    store: Store, read: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(store, "--report", "--num", "7", "--final-num", "14") == 0
    assert "look 1, at 50% of the final size (--final-num 14)" in capsys.readouterr().out
    refusals = {
        ("--report", "--num", "7", "--final-num", "28"): r"--final-num 28.*--final-num 14\)$",
        ("--report", "--num", "7", "--final-num", "open"): r"--final-num open, declared before",
        ("--report", "--num", "7", "--final-num", "shut"): r"number or 'open', but got 'shut'",
        ("--report", "--num", "28"): r"28 planned in arm.*14 with --final-num 14\)$",
        ("--plan", "--num", "14", "--final-num", "7"): r"--final-num 7: 28 of 72 planned",
    }
    for arguments, line in refusals.items():
        assert command(store, *arguments) == 2
        captured = capsys.readouterr()
        assert re.search(line, captured.err.strip()) and captured.err.count("\n") == 1, arguments
    assert command(store, "--plan", "--num", "14") == 0
    store.study("lr_wd_edf-demo").write(PLAN, json.dumps(to_json(of_size(7))).encode())
    for option in (False, True):
        status(argparse.Namespace(store=str(store.root), orphans=False, json=option))
    shown, machine = capsys.readouterr().out.split("\n{", 1)
    line = "lr_wd_edf-demo: 1 look with p values (at up to 7 per arm); --final-num 14"
    assert line in shown.splitlines()
    state = json.loads("{" + machine)["studies"][0]
    assert (state["looks"], state["final_num"]) == ([7], 14)
    assert command(store, "--plan", "--num", "14") == 0
    plan = capsys.readouterr().out
    assert "looks: 1 so far (at up to 7 per arm); the next, number 2, at 14 per arm" in plan
    assert "p < 0.046" in plan
    assert command(store, "--report", "--num", "14") == 0
    captured = capsys.readouterr()
    assert "look 2, at 100%" in captured.out and num_looks(store) == 2
    assert captured.err.endswith("is not that of the last start: 28 trials more\n")


def test_a_look_that_cannot_be_recorded_loses_no_report(
    store: Store, read: dict[str, Outcome]
) -> None:
    store.study("lr_wd_edf-demo").write("looks", b"a file where the folder should be")
    lines = report(store, read, of_size(4))
    assert lines[-1].startswith("This look was not recorded")
    assert store.report("lr_wd_edf-demo").exists("arm_comparison.parquet")
    assert num_looks(store) == 0


def test_what_rests_on_no_p_is_said_to_be_for_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forecasts, frontiers and crossings of a scaling study, at a second report of other rows."""
    monkeypatch.setattr(tables, "NUM_ROUNDS", 20)
    study, read, _ = load_golden("scaling-demo")
    store = Store(tmp_path)
    last = study.trials[-1].config.id
    for seen in (read | {last: Outcome(Status.MISSING)}, read):
        lines = report(store, seen, study)
    assert num_looks(store, "scaling-demo") == 2
    assert "report 2" in lines[-1] and "crossings are each for one look" in lines[-1]
    first = report(Store(tmp_path / "other"), read, study)
    assert first == lines[:-1]
