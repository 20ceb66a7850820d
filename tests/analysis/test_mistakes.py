"""What single images say of a spread over seeds: loops, closed forms, scikit-learn, simulation; and
from a store to the report.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score
from support import known
from support.final_weights import TINY, train_all
from support.seed_outcomes import make_study, make_tables

from vitscale.analysis.questions import agreement, mistakes
from vitscale.analysis.report.draw import draw
from vitscale.analysis.report.report import caveats, headline, write_report
from vitscale.analysis.report.save import as_files
from vitscale.analysis.results import Results
from vitscale.analysis.stats import images
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.misclassified import Misclassified
from vitscale.record.store import Store
from vitscale.record.table import read_trials
from vitscale.record.workdir import Workdir

TABLES = ("seed_statistics", "seed_spread", "agreement")


# ---- estimators


def hard_and_easy(
    rng: np.random.Generator, n: int, num: int, moved: float, classes: int = 0
) -> np.ndarray:
    """(n, num) bool. Three in ten images are hard: 1/2 of seeds get one wrong, moved up or down for
    a whole seed, or for a class of images in a seed. No seed gets another image wrong.
    """
    hard, group = rng.random(num) < 0.3, rng.integers(0, max(classes, 1), num)
    signs = rng.choice([-1, 1], (n, max(classes, 1)))
    return (rng.random((n, num)) < 0.5 + moved * signs[:, group]) & hard


def truth(moved: float, classes: int, num: int) -> dict[str, float]:
    """Of the above, by hand: variances in points squared, percent, kappa."""
    of_seed = 1e4 * (0.3 * moved) ** 2 / max(classes, 1)
    mean = 0.15
    agree, chance = 0.7 + 0.3 * 0.5, mean**2 + (1 - mean) ** 2
    return {
        "seed": of_seed,
        "mean_over_images": 1e4 * 0.25 * 0.3 * 0.7 / num,
        "seed_sd": of_seed**0.5,
        "seed_share_pct": 100 * of_seed / (of_seed + (1e4 * 0.3 * 0.25 - of_seed) / num),
        "mean": 100 * mean,
        "agreement_pct": 100 * agree,
        "kappa": (agree - chance) / (1 - chance),
    }


def test_the_seeds_part_is_the_mean_covariance_of_two_images() -> None:
    rng = np.random.default_rng(0)
    wrong = hard_and_easy(rng, 6, 15, 0.3)
    between = np.cov(wrong.T.astype(float))
    pairs = ~np.eye(15, dtype=bool)
    parts = images.parts(wrong)
    assert parts.seed == pytest.approx(1e4 * between[pairs].mean())
    assert parts.chance == pytest.approx(1e4 * np.diag(between).sum() / 15**2)
    # over_images: an analysis of variance of the cells, images against images x seeds
    cells = wrong.astype(float)
    rest = cells - cells.mean(0) - cells.mean(1, keepdims=True) + cells.mean()
    within, among = (rest**2).sum() / (5 * 14), 6 * cells.mean(0).var(ddof=1)
    assert parts.mean_over_images == pytest.approx(1e4 * (among - within) / 6 / 15)


@pytest.mark.parametrize(("moved", "classes"), [(0.0, 0), (0.15, 0), (0.3, 10)])
@pytest.mark.parametrize(("n", "num"), [(5, 200), (20, 200)])
def test_variances_are_unbiased_and_intervals_cover(
    n: int, num: int, moved: float, classes: int
) -> None:
    """Within three standard errors of 400 samples: unbiased, and covers 93% or more."""
    rng, expected = np.random.default_rng([n, num, classes]), truth(moved, classes, num)
    parts, covered = [], []
    for _ in range(400):
        wrong = hard_and_easy(rng, n, num, moved, classes)
        parts.append(images.parts(wrong))
        row, pair = mistakes._spread(wrong), images.agreement(wrong)
        ends = {name: (row[f"{name}_low"], row[f"{name}_high"]) for name in COVERED}
        ends |= {"agreement_pct": tuple(100 * np.array(pair.share[1:])), "kappa": pair.kappa[1:]}
        covered.append(
            [low - 1e-9 <= expected[k] <= high + 1e-9 for k, (low, high) in ends.items()]
        )
    for name in ("seed", "mean_over_images"):
        values = np.array([getattr(part, name) for part in parts])
        assert values.mean() == pytest.approx(expected[name], abs=3 * values.std() / 20), name
    assert (np.mean(covered, 0) > 0.93 - 3 * (0.93 * 0.07 / 400) ** 0.5).all()


COVERED = ("seed_sd", "seed_share_pct", "mean")


def test_the_variance_of_the_seeds_part_over_images_is_that_of_other_images() -> None:
    """200 seeds, so that images are what varies."""
    rng = np.random.default_rng(3)
    signs, found = rng.choice([-1, 1], (200, 1)), []
    for _ in range(300):
        hard = rng.random(150) < 0.3
        found.append(images.parts((rng.random((200, 150)) < 0.5 + 0.3 * signs) & hard))
    values = np.array([part.seed for part in found])
    mean = np.mean([part.seed_over_images for part in found])
    assert mean == pytest.approx(values.var(), rel=0.2)


def test_agreement_of_two_runs_is_that_of_scikit_learn_and_of_loops() -> None:
    rng = np.random.default_rng(0)
    a, b = hard_and_easy(rng, 2, 80, 0.0)
    twice = images.agreement(np.stack([a, a]), np.stack([b, b]))
    assert twice.kappa[0] == pytest.approx(cohen_kappa_score(a, b))
    assert twice.share[0] == pytest.approx((a == b).mean())
    many, others = hard_and_easy(rng, 5, 80, 0.2), hard_and_easy(rng, 4, 80, 0.2)
    same = images.agreement(many).share[0]
    assert same == pytest.approx(
        np.mean([(x == y).mean() for i, x in enumerate(many) for y in many[:i]])
    )
    other = images.agreement(many, others).share[0]
    assert other == pytest.approx(np.mean([(x == y).mean() for x in many for y in others]))


def test_intervals_of_agreement_are_jackknives_over_seeds_and_over_images() -> None:
    rng = np.random.default_rng(1)
    a, b = hard_and_easy(rng, 5, 30, 0.2), hard_and_easy(rng, 4, 30, 0.2)

    def both(x: np.ndarray, y: np.ndarray | None) -> tuple[float, float]:
        found = images.agreement(x, y)
        return found.share[0], found.kappa[0]

    def variance(left: list[tuple[float, float]]) -> np.ndarray:
        return (len(left) - 1) * np.array(left).var(0)

    for second in (None, b):
        without = [
            [both(np.delete(a, s, 0), second) for s in range(5)],
            [
                both(np.delete(a, i, 1), None if second is None else np.delete(b, i, 1))
                for i in range(30)
            ],
        ]
        if second is not None:
            without.append([both(a, np.delete(b, s, 0)) for s in range(4)])
        error = np.sqrt(sum(variance(left) for left in without))
        found = images.agreement(a, second)
        for (value, low, _), se in zip((found.share, found.kappa), error, strict=True):
            assert (value - low) / 1.959964 == pytest.approx(se, rel=1e-6)


def test_too_few_runs_or_no_mistakes_have_no_interval_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wrong in (np.zeros((0, 0), bool), np.ones((1, 9), bool), np.zeros((2, 9), bool)):
            assert np.isnan(images.agreement(wrong).kappa[1])
        assert np.isnan(images.parts(np.ones((1, 9), bool))).all()
        row = mistakes._spread(np.zeros((3, 9), bool))
        assert row["mean"] == 0 and np.isnan(row["seed_share_pct"])
        assert np.isnan(images.agreement(np.zeros((4, 9), bool)).kappa[0])


# ---- tables, sentences, report


def reader(study: Study, lacking: Iterator[int] | range, other: range = range(0)):  # type: ignore[no-untyped-def]
    """Reads made-up bits of a study's seeds; None of those lacking, other images of `other`."""
    rng = np.random.default_rng(0)
    bits = {t.config.id: (t.config.seed, hard_and_easy(rng, 1, 90, 0.0)[0]) for t in study.trials}

    def read(trial_id: str) -> Misclassified | None:
        seed, wrong = bits[trial_id]
        if seed in lacking:
            return None
        digest = "other" if seed in other else "these"
        return Misclassified({"val_wrong": ~wrong, "val_ema_wrong": wrong}, {"val": digest})

    return read


def test_tables_use_the_bits_of_the_metrics_weights_and_count_what_has_none(tmp_path: Path) -> None:
    study = make_study(12, more="", tables=TABLES, figures=("agreement",))
    outcomes, rows = make_tables(study, {7: "diverged"})
    read = reader(study, range(1, 4), range(4, 6))
    results = Results(study, outcomes, rows, misclassified=read)
    (row,) = results.once(mistakes.seed_spread).to_dict("records")
    stacked = np.stack(
        [
            record.bits["val_ema_wrong"]
            for trial in study.trials
            if trial.config.seed in (6, 8, 9, 10, 11, 12) and (record := read(trial.config.id))
        ]
    )
    assert (row["n"], row["seeds_without_bits"], row["images"]) == (6, 5, 90)
    assert row["mean"] == pytest.approx(100 * stacked.mean())
    assert row["sd"] == pytest.approx(100 * stacked.mean(1).std(ddof=1))
    (pair,) = results.once(agreement.agreement).to_dict("records")
    assert pair["agreement_pct"] == pytest.approx(100 * images.agreement(stacked).share[0])
    said = " ".join(headline(results))
    assert "were not kept, as in older versions: 5 of a; they are in no number" in said
    assert (
        "one more seed, if it finishes, lies within the range of these n=11" in said
        and "at least 83%" in said
    )
    caution = " ".join(caveats(results))
    assert "Those of seed_spread and agreement generalize to other images" in caution
    write_report(results, Workdir(tmp_path), {})
    written = pd.read_parquet(tmp_path / "agreement.parquet")
    pd.testing.assert_frame_equal(written, results.once(agreement.agreement), check_dtype=False)


def test_equal_seeds_have_no_share_of_a_variance() -> None:
    study = make_study(4, more="", tables=TABLES)
    outcomes, rows = make_tables(study, {})
    bits = Misclassified({"val_ema_wrong": np.arange(90) < 9}, {"val": "these"})
    results = Results(study, outcomes, rows, misclassified=lambda _: bits)
    (row,) = results.once(mistakes.seed_spread).to_dict("records")
    assert np.isnan(row["seed_share_pct"]) and row["mean"] == pytest.approx(10)
    said = [line for line in headline(results) if "spread on val" in line]
    assert len(said) == 1 and "nan" not in said[0] and "equal errors on these 90" in said[0]


def test_arms_are_compared_with_themselves_and_with_those_of_their_panel() -> None:
    one = make_study(4, more="")
    trials = [
        Trial(arm, t.config.replace(seed=10 * i + t.config.seed), t.point)
        for i, arm in enumerate("abc")
        for t in one.trials
    ]
    study = make_study(trials=tuple(trials), panels={"left": ("a", "b"), "right": ("c",)})
    table = Results(study, make_tables(study)[0], misclassified=reader(study, range(0)))
    found = table.once(agreement.agreement)
    assert list(zip(found["a"], found["b"], strict=True)) == [
        *(("a", "a"), ("b", "b"), ("c", "c"), ("a", "b")),
    ]
    (ax, right) = known.FIGURES["agreement"](table).axes
    assert [text.get_text().split("\n")[0] for text in ax.get_yticklabels()] == [
        *("two seeds of a", "two seeds of b", "two seeds of c"),
        "a and b",
    ]
    drawn = next(line for line in ax.lines if line.get_label() == "two runs, val")
    np.testing.assert_allclose(drawn.get_xdata(), found["agreement_pct"])
    (kappas,) = (line for line in right.lines if line.get_marker() == "o")
    np.testing.assert_allclose(kappas.get_xdata(), found["kappa"])
    svg = ElementTree.fromstring(as_files(ax.figure, ["svg"])["svg"])
    said = [node.text or "" for node in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert [[line[0] for line in text.splitlines()[::2]] for text in said] == 2 * [
        *(["a"], ["b"], ["c"], ["a", "b"]),
    ]


def test_bits_are_read_once_and_only_if_a_table_asks() -> None:
    asked: list[str] = []
    study = make_study(5, more="", tables=("seed_statistics",), figures=("seed_histogram",))
    read = reader(study, range(0))
    outcomes, rows = make_tables(study)
    results = Results(study, outcomes, rows, misclassified=lambda i: (asked.append(i), read(i))[1])
    headline(results)
    assert asked == []
    results.once(mistakes.seed_spread), results.once(agreement.agreement)
    assert sorted(asked) == sorted(t.config.id for t in study.trials if t.point is not None)


def test_a_study_of_another_metric_says_why_its_tables_are_empty() -> None:
    study = make_study(3, more="", tables=TABLES, metric="val_ema_top5_error_pct")
    outcomes, rows = make_tables(make_study(3, more=""))
    outcomes["val_ema_top5_error_pct"] = outcomes["value"]
    results = Results(study, outcomes, rows, misclassified=reader(study, range(0)))
    assert results.once(mistakes.seed_spread).empty and results.once(agreement.agreement).empty
    assert "and this study is about the top-5 error" in " ".join(headline(results))
    assert len(known.FIGURES["agreement"](results).axes) == 2


def trained_seeds(folder: Path) -> tuple[Study, Store]:
    base = TINY.replace(epochs=1, warmup_epochs=0.0, more_evals="")
    trials = tuple(Trial("a", base.replace(seed=i), i) for i in range(3))
    study = make_study(trials=trials, tables=TABLES, figures=("agreement",))
    return study, train_all(study, folder)


def test_from_the_store_to_the_report(tmp_path: Path) -> None:
    """Errors from bits are those of the rows; a damaged file of bits warns and fails nothing."""
    study, store = trained_seeds(tmp_path)
    read = read_trials(study, store)
    folder, _, _ = draw(study, store, dict(read))
    table = pd.read_csv(folder.path / "seed_spread.csv")
    errors = [read[t.config.id].rows[-1]["val_ema_error_pct"] for t in study.trials]
    assert table["mean"].item() == pytest.approx(np.mean(errors))
    assert table["sd"].item() == pytest.approx(np.std(errors, ddof=1))
    (bits,) = store.trial(study.trials[1].config.id).path.glob("wrong-*")
    bits.write_bytes(b"no parquet")
    with pytest.warns(UserWarning, match="wrong images must be readable"):
        draw(study, store, dict(read))
    table = json.loads(pd.read_csv(folder.path / "seed_spread.csv").to_json(orient="records"))
    assert (table[0]["n"], table[0]["seeds_without_bits"]) == (2, 1)
