"""Contents of MLflow's pages of a study: saved views of its runs, and the parent's description.

MLflow 3.17 stores a saved view as a tag of the experiment: a JSON envelope with a name and a state,
which holds filter, order, columns and charts. The page lists the views under "Views" and opens the
one that its address names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from vitscale.plan.config import TrainConfig
from vitscale.plan.escape import in_markdown
from vitscale.plan.laws import FREE
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

TRIALS, CURVES, ARMS = "vitscale-trials", "vitscale-curves", "vitscale-arms"
_LINKS = {
    TRIALS: "Trials with their charts",
    CURVES: "Curves by arm",
    ARMS: "Arms with their intervals",
}
MAX_AXES = 5  # of a parallel-coordinates plot, besides the result: more cannot be read
MAX_PLOTS = 2  # of parallel coordinates, where the axes are too many for one
MAX_LABELS = 12  # of arms on an axis, and of letters of each: more are cut to the same few letters
CARD_HEIGHT = 380  # pixels
MAX_COLUMNS = 3  # of charts beside each other, and 1 of parallel coordinates
MAX_ARMS = 40  # in a description, which MLflow limits to 8,000 characters
LOGS = {"lr": "log10_lr", "wd": "log10_wd"}  # field -> the param with its logarithm
_COUNTS = ("n", "diverged", "failed", "missing")
_PLANNED = "tags.`vitscale.planned` = 'true'"  # hides trials of earlier plans
_TAG = "mlflow.sharedViewState."
_QUERY = {"workflowType": "machine_learning"}
# MLflow fills these sections with a chart per metric
_COLLAPSED = ("Model metrics", "System metrics")


def address(base: str, experiment_id: str, view: str = TRIALS) -> str:
    """The address of an experiment's runs, with a saved view and its charts, if it has any."""
    charts = {} if view == ARMS else {"compareRunsMode": "CHART"}
    query = urlencode({**_QUERY, **charts, "viewStateShareKey": view})
    return f"{base}/#/experiments/{experiment_id}/runs?{query}"


def tags(views: Mapping[str, Mapping[str, object]], created_ms: int) -> dict[str, str]:
    """Saved views as tags of the experiment: tag -> the JSON envelope that MLflow reads."""
    return {
        _TAG + key: json.dumps(
            {"name": view["name"], "createdAt": created_ms, "state": json.dumps(view["state"])}
        )
        for key, view in views.items()
    }


def trial_views(study: Study) -> dict[str, dict[str, Any]]:
    """Views of the trials: results over the axes, of all trials and by optimizer if there are
    several, whose lr and wd are not on one scale; and learning curves grouped by arm.
    """
    role = f"tags.`vitscale.role` = 'trial' and {_PLANNED}"
    by_optimizer: dict[str, list[Trial]] = {}
    for trial in study.trials:
        by_optimizer.setdefault(str(trial.config.axis("optimizer")), []).append(trial)
    several = len(by_optimizer) > 1
    views = {TRIALS: _trials(study, "Trials", role, study.trials, not several)}
    for i, (name, trials) in enumerate(by_optimizer.items() if several else ()):
        of_one = f'{role} and params.`optimizer` = "{name}"'
        views[f"{TRIALS}-{i}"] = _trials(study, f"Trials, {name}", of_one, trials)
    metrics = (study.metric, *study.trials[0].config.also_charted)
    curves = {"One line per trial": [_line(metric) for metric in metrics]}
    # no column of the result: MLflow would show the mean of a group without its spread
    by_arm = _view("Curves by arm", role, "params.`arm`", [], curves)
    keys = [{"mode": "param", "groupByData": "arm"}]
    grouping = {"aggregateFunction": "average", "groupByKeys": keys}
    by_arm["state"] |= {"groupBy": grouping, "useGroupedValuesInCharts": False}
    return {**views, CURVES: by_arm}


def _trials(
    study: Study, name: str, filter_string: str, trials: Sequence[Trial], contour: bool = True
) -> dict[str, Any]:
    """The view of some of the trials, with their own axes."""
    result, params = result_of(study), axes(trials)
    order, shown = f"metrics.`{result}`", [f"params.`{param}`" for param in params]
    columns = ["tags.`vitscale.status`", *shown, order]
    return _view(name, filter_string, order, columns, _relations(params, result, contour))


def arm_view(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The view of the parent and the arms: a table with estimates between the ends of their
    intervals, and no chart, since none of MLflow's has an interval.
    """
    metrics = dict.fromkeys(names)  # in the order of the summary
    counts = [name for name in _COUNTS if name in metrics]
    spans = [(f"{name}_low", name, f"{name}_high") for name in metrics if f"{name}_low" in metrics]
    columns = [f"metrics.`{name}`" for name in (*counts, *(end for span in spans for end in span))]
    columns += ["params.`params_m`", "params.`flops_g`"]
    role = f"tags.`vitscale.role` != 'trial' and {_PLANNED}"
    return {ARMS: _view("Arms", role, "tags.`vitscale.arm`", columns, {})}


def result_of(study: Study) -> str:
    """The name of the metric that holds the final result of a trial."""
    metric = study.column.metric
    return f"{metric.result}_{metric.name}"


def axes(trials: Sequence[Trial]) -> list[str]:
    """The params for axes: the arm, and those that vary within arms, or else between arms; both
    if names of arms are too many or too long to be read, and no arm if they are too many.
    """
    configs: dict[str, list[TrainConfig]] = {}
    for trial in trials:
        configs.setdefault(trial.arm.name, []).append(trial.config)
    within = _varying(*configs.values())
    many = len(configs) > MAX_LABELS
    are_read = not many and max(map(len, configs)) <= MAX_LABELS
    names = within if within and are_read else _not_derived(trials)
    positive = all(trial.config.wd > 0 for trial in trials)
    logs = LOGS if positive else {"lr": LOGS["lr"]}
    params = ["arm"] * (not many) + [logs.get(name, name) for name in names]
    return params[: MAX_AXES * MAX_PLOTS]


def _not_derived(trials: Sequence[Trial]) -> list[str]:
    """The fields that vary, without those that another one decides, as `width` decides `heads`, and
    without those that are empty in a trial, which MLflow would leave out of the plot; lr and wd are
    last, for which deciding would be chance.
    """
    names = _varying([trial.config for trial in trials])
    columns = {name: [trial.config.axis(name) for trial in trials] for name in names}
    kept: list[str] = []
    for name in (name for name in names if name not in LOGS and "" not in columns[name]):
        pairs = [(other, set(zip(columns[other], columns[name], strict=True))) for other in kept]
        if not any(len(both) == len(set(columns[other])) for other, both in pairs):
            kept.append(name)
    return kept + [name for name in names if name in LOGS]


def _varying(*groups: Sequence[TrainConfig]) -> list[str]:
    """Fields that vary within a group, other than the seed, ids and what is evaluated besides;
    arguments of parts are axes of their own.
    """
    left_out = ("seed", "more_evals", "init_from", "teacher", "own")
    axes = dict.fromkeys(name for group in groups for name in group[0].axes())
    names = [name for name in axes if name not in left_out]
    # one of those that differ in FREE alone: of 100,000 configs, all fields take seconds
    few = [list({c.others or c.id: c for c in group}.values()) for group in groups]
    return [
        name
        for name in names
        if any(
            c.axis(name) != group[0].axis(name)
            for group in (groups if name in FREE else few)
            for c in group
        )
    ]


def links(experiment_id: str, run_id: str) -> str:
    """Markdown for the parent run: where its trials, arms and report are, on whatever server."""
    report = f"./#/experiments/{experiment_id}/runs/{run_id}/artifacts/report.html"
    pages = [(name, address(".", experiment_id, view)) for view, name in _LINKS.items()]
    return " · ".join(f"[{name}]({page})" for name, page in [*pages, ("Report", report)])


def about(study: Study, pages: str = "") -> str:
    """Markdown: question, links, which MLflow shows before "Show more", and source."""
    parts = [f"**{in_markdown(study.question)}**", pages, f"Source: {in_markdown(study.source)}"]
    return "\n\n".join(part for part in parts if part)


def description(
    study: Study,
    arms: Mapping[str, Mapping[str, float]],
    headline: Sequence[str] = (),
    pages: str = "",
) -> str:
    """Markdown for the parent run: question, links, source, answer, and a table of the arms with
    their intervals. Names and texts of the study are no markup in it.
    """
    parts = [about(study, pages), "\n".join(f"- {in_markdown(line)}" for line in headline)]
    parts.append("\n".join(_table(arms)))
    if len(arms) > MAX_ARMS:
        parts.append(f"and {len(arms) - MAX_ARMS} more arms: see the view Arms")
    parts.append(
        "Brackets contain 95% intervals. `report.html`, under Artifacts, says how diverged and "
        "failed trials count. The command that started the study also resumes and redraws it."
    )
    return "\n\n".join(part for part in parts if part)


def _table(arms: Mapping[str, Mapping[str, float]]) -> list[str]:
    metrics = dict.fromkeys(name for numbers in arms.values() for name in numbers)
    names = [name for name in metrics if name in _COUNTS or f"{name}_low" in metrics]
    if not names:
        return []
    lines = [["arm", *names]] + [
        [in_markdown(arm), *(_cell(numbers, name) for name in names)]
        for arm, numbers in list(arms.items())[:MAX_ARMS]
    ]
    head, *rest = [f"| {' | '.join(cells)} |" for cells in lines]
    return [head, "|---" * (1 + len(names)) + "|", *rest]


def _cell(numbers: Mapping[str, float], name: str) -> str:
    if name not in numbers:
        return "–"
    names = (f"{name}_low", f"{name}_high")
    ends = [f"{numbers[end]:.4g}" for end in names if end in numbers]
    return f"{numbers[name]:.4g}" + (f" [{', '.join(ends)}]" if ends else "")


# A view as MLflow keeps it


def _view(
    name: str,
    filter_string: str,
    order: str,
    columns: Sequence[str],
    plots: Mapping[str, Sequence[Mapping[str, object]]],
) -> dict[str, Any]:
    """`plots` are by section.

    Order is never by time: MLflow then adds the parents of what the filter has filter_string.
    """
    sections = [_section(title, charts) for title, charts in plots.items()]
    common = {"deleted": False, "isGenerated": False}
    charts = [
        {"uuid": f"{title} {i}", "metricSectionId": title, **common, **chart}
        for title, of_section in plots.items()
        for i, chart in enumerate(of_section)
    ]
    state = {
        "searchFilter": filter_string,
        "orderByKey": order,
        "orderByAsc": True,
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        # pixels for the name of a column
        "columnWidths": {column: 40 + 8 * len(column.split("`")[1]) for column in columns},
        "compareRunCharts": charts,
        "compareRunSections": [*sections, *(_section(title, ()) for title in _COLLAPSED)],
        "isAccordionReordered": True,
        "runsHiddenMode": "SHOW_ALL",
    }
    return {"name": name, "state": state}


def _section(title: str, charts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """A section of charts, which is closed if there are none."""
    section = {"uuid": title, "name": title, "display": bool(charts), "isReordered": True}
    if not charts:
        return section
    is_wide = any(chart["type"] == "PARALLEL" for chart in charts)
    num_columns = 1 if is_wide else min(len(charts), MAX_COLUMNS)
    return {**section, "columns": num_columns, "cardHeight": CARD_HEIGHT}


def _relations(
    params: Sequence[str], result: str, contour: bool
) -> dict[str, list[dict[str, object]]]:
    """Parallel coordinates of all axes; the result over each logarithm, and over both if `contour`,
    which has no color left for the arm.
    """
    metric = {"key": result, "type": "METRIC"}
    logs = [{"key": name, "type": "PARAM"} for name in params if name in LOGS.values()]
    plots: list[dict[str, object]] = [
        {"type": "SCATTER", "xaxis": log, "yaxis": metric} for log in logs
    ]
    if contour and len(logs) == 2:
        plots.append({"type": "CONTOUR", "xaxis": logs[0], "yaxis": logs[1], "zaxis": metric})
    parts = [params[i : i + MAX_AXES] for i in range(0, len(params), MAX_AXES)]
    lines = {"One line per trial": [_parallel(part, [result]) for part in parts]}
    return lines | ({"One point per trial": plots} if plots else {})


def _parallel(params: Sequence[str], metrics: Sequence[str]) -> dict[str, object]:
    return {
        "type": "PARALLEL",
        "selectedParams": list(params),
        "selectedMetrics": list(metrics),
        "showAllRuns": True,
    }


def _line(metric: str) -> dict[str, object]:
    return {
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "scaleType": "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
    }
