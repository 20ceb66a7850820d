"""`vitscale evaluate`: evaluate a study's trials on other images, resolutions or crops."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitscale.cli.stores import add_data_root, add_store, add_trust, existing, read_plan
from vitscale.cli.terminal import columns, one_line, print_json
from vitscale.plan.evaluation import Evaluation
from vitscale.plan.metrics import column, columns_of
from vitscale.plan.parts import metrics_of
from vitscale.plan.paths import data_root
from vitscale.plan.study import Study
from vitscale.record.store import Store

if TYPE_CHECKING:
    from vitscale.launch.evaluating import Result

HELP = "evaluate final weights on other sets, resolutions or crops; nothing is trained"


def add_evaluate(parsers: Any) -> None:
    """Adds the command `vitscale evaluate`."""
    parser = parsers.add_parser("evaluate", help=HELP, description=__doc__)
    parser.add_argument("study", metavar="STUDY", help="such as lr_wd_edf-demo")
    parser.add_argument(
        "--split",
        nargs="+",
        required=True,
        metavar="NAME",
        help="evaluation sets, such as val test",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="a dataset with the same classes (default: the trial's)"
    )
    parser.add_argument("--resolution", type=int, metavar="PIXELS", help="(default: the trial's)")
    parser.add_argument("--crop-ratio", type=float, metavar="R", help="(default: the trial's)")
    parser.add_argument("--arm", default="*", help="arms to evaluate; may contain * (default: all)")
    parser.add_argument(
        "--predictions", action="store_true", help="store label, prediction and top 5 of each image"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--cpus", type=float, default=1.0, help="threads (default: 1)")
    parser.add_argument(
        "--micro-batch",
        type=int,
        default=0,
        help="maximum images per forward pass (default: no limit)",
    )
    parser.add_argument(
        "--num-loader-workers", type=int, default=0, help="data loading processes (default: 0)"
    )
    add_data_root(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_store(parser)
    add_trust(parser)
    parser.set_defaults(run=evaluate)


def evaluate(options: argparse.Namespace) -> None:
    """Runs the evaluations that are not in the store yet, prints a table, and updates MLflow.

    Raises ValueError if no trial could be evaluated.
    """
    from vitscale.launch.evaluating import evaluate_study, on_device
    from vitscale.launch.preflight import check_loaders
    from vitscale.launch.resources import Resources

    store = existing(options.store)
    study = read_plan(store, options.study)
    resources = Resources(
        cpus_per_trial=options.cpus,
        micro_batch=options.micro_batch,
        num_loader_workers=options.num_loader_workers,
        data_root=data_root(options.data_root),
    )
    check_loaders(resources)
    results = list(
        evaluate_study(
            study,
            store,
            _evaluations(options),
            on_device(options.device, resources),
            arms=options.arm,
            predictions=options.predictions,
            trusted=options.trust_parts,
        )
    )
    _check_weights(study, results)
    rows = summarize(study, results)
    if options.json:
        print_json({"study": study.slug, "arms": rows, "trials": [_plain(r) for r in results]})
    else:
        print(_as_text(study, rows))
    if without := [r for r in results if r.status == "no weights"]:
        print(f"vitscale: warning: {_without_weights(study, without, results)}", file=sys.stderr)
    if any(result.status == "done" for result in results):
        _show(study, store, {result.trial.config.id for result in results})


def _evaluations(options: argparse.Namespace) -> list[Evaluation]:
    """One evaluation per split. Raises ValueError for an impossible resolution or crop ratio."""
    if options.resolution is not None and options.resolution < 1:
        raise ValueError(f"resolution >= 1 must hold, but got (resolution={options.resolution})")
    if options.crop_ratio is not None and not 0 < options.crop_ratio <= 1:
        raise ValueError(f"0 < crop_ratio <= 1 must hold, but got ({options.crop_ratio})")
    return [
        Evaluation(
            split=split,
            dataset=options.dataset,
            resolution=options.resolution,
            crop_ratio=options.crop_ratio,
        )
        for split in dict.fromkeys(options.split)
    ]


def _check_weights(study: Study, results: Sequence[Result]) -> None:
    """Raises ValueError if no trial was evaluated."""
    if any(result.outcome is not None for result in results):
        return
    if without := [r for r in results if r.status == "no weights"]:
        raise ValueError(_without_weights(study, without, results))
    raise ValueError(f"a trial must be finished to be evaluated, but got none ({study.slug})")


def _without_weights(study: Study, without: Sequence[Result], results: Sequence[Result]) -> str:
    num = len({result.trial.config.id for result in without})
    return (
        "a trial must have kept its final weights to be evaluated, but got none of "
        f"({num} of {len({result.trial.config.id for result in results})} trials of {study.slug}); "
        "retrain the study with --keep-weights in another store"
    )


def summarize(study: Study, results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row per evaluation and arm: mean of the study's metric with its 95% interval, n, and
    counts by status.

    Reference runs of an arm with draws are left out. Weights are those of the metric, averaged or
    raw. Diverged trials have no predictions: they are counted, but are not part
    of the mean.
    """
    import numpy as np

    from vitscale.analysis.estimates import value_interval

    rows, weights = [], study.column.weights
    metric = study.column.metric
    for evaluation in dict.fromkeys(result.evaluation for result in results):
        for arm in study.arms:
            runs = [r for r in results if r.evaluation == evaluation and r.trial.arm.name == arm]
            runs = [r for r in runs if r.trial.point is not None] or runs
            name = column(evaluation.split, weights, metric.name)
            values = np.array([r.outcome.rows[0][name] for r in runs if r.outcome is not None])
            mean, low, high = value_interval(values, metric) if len(values) else (np.nan,) * 3
            statuses = [result.status for result in runs]
            counts = {
                status.replace(" ", "_"): statuses.count(status)
                for status in ("diverged", "failed", "missing", "no weights")
            }
            if runs:
                rows.append(
                    {
                        "evaluation": evaluation.name,
                        "arm": arm,
                        "n": len(values),
                        **counts,
                        f"mean_{metric.name}": float(mean),
                        f"mean_{metric.name}_low": float(low),
                        f"mean_{metric.name}_high": float(high),
                    }
                )
    return rows


def _as_text(study: Study, rows: Sequence[dict[str, Any]]) -> str:
    metric = study.column.metric
    shown = f"{metric.label} {metric.unit}"
    table = [["evaluation", "arm", "n", "diverged", "no weights", "other", shown, "95%"]]
    for row in rows:
        mean, low, high = (row[f"mean_{metric.name}{end}"] for end in ("", "_low", "_high"))
        table.append(
            [
                row["evaluation"],
                row["arm"],
                *(str(row[name]) for name in ("n", "diverged", "no_weights")),
                str(row["failed"] + row["missing"]),
                "" if mean != mean else metric.number(mean, 2),
                "" if low != low else f"[{metric.number(low, 2)}, {metric.number(high, 2)}]",
            ]
        )
    weights = "averaged" if study.column.weights else "raw"
    return (
        f"{columns(table, left=2)}\n\nmean over finished trials, {weights} weights, Student's t "
        "interval over trials; diverged trials are not part of the mean"
    )


def _plain(result: Result) -> dict[str, Any]:
    """A trial's evaluation as plain values."""
    row = dict(result.outcome.rows[0]) if result.outcome is not None else {}
    columns = columns_of(result.evaluation.split, metrics_of(result.trial.config.metrics))
    return {
        "trial_id": result.trial.config.id,
        "arm": result.trial.arm.name,
        "point": result.trial.point,
        "evaluation": result.evaluation.name,
        "status": result.status,
        **{name: value for name, value in row.items() if name in columns},
    }


def _show(study: Study, store: Store, trial_ids: set[str]) -> None:
    """Adds the evaluations to the trials' MLflow runs; warns if the server does not answer."""
    from vitscale.record.mlflow.place import tracking_uri
    from vitscale.record.mlflow.view import View

    try:
        View(study, tracking_uri(store), store).show_evaluations(trial_ids)
    except Exception as error:  # the view is optional, whatever the server answers
        line = f"MLflow is not up to date ({one_line(error)}); run `vitscale sync` later"
        print(f"vitscale: warning: {line}", file=sys.stderr)
