"""The commands of `vitscale`: one function per command, which takes the parsed options.

The parsers are in `vitscale.cli.parsers`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscale.cli import housekeeping, plans
from vitscale.cli.process import is_live
from vitscale.cli.project import become, copy_project, find_script, listing
from vitscale.cli.script import (
    Parser,
    check_installed,
    report_only,
    status_of_report,
)
from vitscale.cli.stores import add_store, existing, read_plan
from vitscale.cli.terminal import columns, one_line, print_json, si
from vitscale.launch.command import program
from vitscale.launch.costs import with_costs
from vitscale.plan.data import TORCHVISION
from vitscale.plan.paths import path_of
from vitscale.plan.spelling import did_you_mean, shown
from vitscale.plan.study import Study
from vitscale.record.store import Store

if TYPE_CHECKING:
    from vitscale.analysis.side_by_side import Side
    from vitscale.record.outcome import Outcome
    from vitscale.record.overview import StudyState


MOST_TRUNKS = 5  # of a study, in a line


# Studies of a store


def status(options: argparse.Namespace) -> None:
    """Prints the progress of every study in the store, or the trials that no study plans."""
    if options.orphans:
        housekeeping.orphans(options)
        return
    from vitscale.record.overview import overview

    store = existing(options.store)
    states, num_bytes = overview(store)
    if not states:
        raise ValueError(
            f"a study must have a readable plan, but got none (store={str(store.root)!r})"
        )
    if options.json:
        studies = [{**state._asdict(), "changed": _when(state.changed_s)} for state in states]
        print_json({"store": str(store.root), "num_bytes": num_bytes, "studies": studies})
        return
    names = ("planned", "finished", "running", "diverged", "stopped", "failed", "missing")
    counts = [name for name in names if name != "stopped" or any(state.stopped for state in states)]
    rows = [["study", *counts, "on disk", "weights", "last activity", "driver"]]
    for state in states:
        rows.append(
            [
                state.study,
                *(str(getattr(state, name)) for name in counts),
                f"{si(state.num_bytes)}B",
                f"{si(state.checkpoint_bytes)}B",
                _when(state.changed_s),
                "runs" if state.driver_alive else "none",
            ]
        )
    trunks = "".join(
        f"{state.study}: trials start from {', '.join(state.trunks[:MOST_TRUNKS])}"
        f"{', ...' * (len(state.trunks) > MOST_TRUNKS)}\n"
        for state in states
        if state.trunks
    )
    looks = "".join(f"{_looks(state)}\n" for state in states if state.looks or state.final_num)
    print(
        f"{columns(rows)}\n\n{trunks}{looks}store {store.root}: {si(num_bytes)}B in total; "
        "studies share trials"
    )


def _looks(state: StudyState) -> str:
    """How often a study was looked at, and what that leaves for its claims."""
    num = len(state.looks)
    at = f" (at up to {', '.join(map(str, state.looks))} per arm)" if num else ""
    size = (
        f"--final-num {state.final_num}"
        if state.final_num is not None
        else "no final size declared (--final-num)"
    )
    return f"{state.study}: {num} look{'s' * (num != 1)} with p values{at}; {size}"


def report(options: argparse.Namespace) -> None:
    """Writes the tables, figures and report of a study so far, by the plan of its last start."""
    if options.json and options.format:
        raise ValueError(
            "--json must come without --format, since it prints what a whole report says, but got "
            "both"
        )
    chosen = formats(options.format) if options.format else ()
    store = existing(options.store)
    study = read_plan(store, options.study)
    study = with_costs(replace(study, published=study.published or options.published))
    if options.json:
        from vitscale.record.table import read_trials

        read = read_trials(study, store)
        print_json(_report_as_json(study, store, read))
        status = status_of_report(study, read)
    else:
        status = report_only(study, store, chosen)
    if status:
        sys.exit(status)


def formats(text: str) -> list[str]:
    """The formats of a report in a list like "pdf,tex". Raises ValueError for unknown ones."""
    from vitscale.analysis.report.report import FORMATS

    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in FORMATS]:
        raise ValueError(
            f"a format must be among ({', '.join(FORMATS)}), but got ({shown(unknown[0])})"
        )
    return [name for name in FORMATS if name in chosen]


def _report_as_json(study: Study, store: Store, read: Mapping[str, Outcome]) -> dict[str, Any]:
    """Redraws the report; returns its headline and its tables, each as a list of rows."""
    import pandas as pd

    from vitscale.analysis.report.draw import draw
    from vitscale.analysis.report.report import PAGE

    report, headline, _ = draw(study, store, dict(read))
    files = {name: io.BytesIO(report.read(f"{name}.parquet")) for name in study.tables}
    tables = {name: pd.read_parquet(file).to_dict("records") for name, file in files.items()}
    return {
        "study": study.slug,
        "report": report.address(PAGE),
        "headline": headline,
        "tables": tables,
    }


def compare(options: argparse.Namespace) -> None:
    """Prints two arms, or the arms that two studies have in common, side by side."""
    from vitscale.analysis.side_by_side import as_cells, incomparable_reason, side_by_side

    pairs, alone = _sides(existing(options.store), (options.a, options.b))
    reasons = [incomparable_reason(a, b) for a, b in pairs]
    compared = [
        side_by_side(a, b) for (a, b), reason in zip(pairs, reasons, strict=True) if not reason
    ]
    if not compared:
        raise ValueError(reasons[0])
    if options.json:
        print_json(
            {
                "compared": compared,
                "not_compared": [reason for reason in reasons if reason],
                "alone": alone,
            }
        )
        return
    metric = pairs[0][0].study.column.metric
    cells = [row for c in compared for row in ([""] * 4, *as_cells(c, metric))]
    print(columns(cells[1:]))
    print(
        f"\n{compared[0]['metric']} of the last epoch, 95% intervals; difference: left minus "
        f"right, in {metric.difference_unit}. Diverged and failed draws count as "
        f"{metric.worst:g} in medians."
    )
    for line in (
        *(f"in one study only: {arm}" for arm in alone),
        *(f"not compared: {why}" for why in reasons if why),
    ):
        print(line)


def _sides(store: Store, names: tuple[str, str]) -> tuple[list[tuple[Side, Side]], list[str]]:
    """(pairs of arms named by two STUDY or STUDY:ARM, arms that only one study has)."""
    from vitscale.analysis.side_by_side import Side, arm_pairs
    from vitscale.record.table import outcomes, read_trials

    studies = [read_plan(store, name.partition(":")[0]) for name in names]
    arms = [name.partition(":")[2] if ":" in name else None for name in names]
    pairs = arm_pairs(studies[0], studies[1], arms[0], arms[1])
    tables = [outcomes(study, read_trials(study, store)) for study in studies]
    sides = [(Side(studies[0], tables[0], a), Side(studies[1], tables[1], b)) for a, b in pairs]
    alone = [
        f"{study.slug}:{arm}"
        for i, study in enumerate(studies)
        if arms == [None, None]
        for arm in study.arms
        if arm not in {pair[i] for pair in pairs}
    ]
    return sides, alone


def adopt(options: argparse.Namespace) -> None:
    """Writes the winners of a search to the file that the studies at its scale read."""
    from vitscale.cli.adoption import adopt as write

    print("\n".join(write(options.store, options.study)))


def run_script(options: argparse.Namespace) -> None:
    """Replaces this process by the study's script; without a name, lists the scripts."""
    if options.study is None:
        rows = [["study", "question", "from"], *listing()]
        print("\n".join(f"{name:24}{where:13}{question}" for name, question, where in rows))
        return
    script = find_script(options.study)
    if script is None:
        names = ", ".join(row[0] for row in listing())
        raise ValueError(
            f"a study must be a path that ends in .py, or among ({names}), but got "
            f"({shown(options.study)}){did_you_mean(options.study, [row[0] for row in listing()])}"
        )
    become(options.study, script, options.arguments)


def init(options: argparse.Namespace) -> None:
    """Copies the shipped studies to a folder."""
    made = copy_project(options.folder)
    print("\n".join(f"wrote {path}" for path in made))
    again = shlex.join([*program(), "run", "lr_wd_edf"])
    print(f"cd {shlex.quote(str(options.folder))} && {again}")


def new(options: argparse.Namespace) -> None:
    """Writes a study script of one's own."""
    from vitscale.cli.new import write

    path = write(options.name, options.kind)
    print(f"wrote {path}\n{shlex.join(['python', str(path)])} --plan")


def plan(options: argparse.Namespace) -> None:
    """Replaces this process by `script --plan`; for a study, prints the plan of its last start."""
    script = find_script(options.study)
    if script:
        become(options.study, script, ["--plan", *options.arguments])
    _check_known_study(options.study, options.arguments)
    parser = Parser(prog=f"vitscale plan {options.study}")
    plans.add_options(parser)
    add_store(parser)
    chosen = parser.parse_args(options.arguments)
    store = existing(chosen.store)
    plans.show(with_costs(read_plan(store, options.study)), store, chosen)


def _check_known_study(study: str, arguments: Sequence[str]) -> None:
    """Raises ValueError for a name that is neither a script nor a study.

    This comes before the options are parsed, which would be reported as unknown.
    """
    if {"-h", "--help"} & set(arguments):
        return
    parser = Parser(add_help=False)
    add_store(parser)
    root = parser.parse_known_args(arguments)[0].store
    hint, names = f"; this folder has no studies/{study}.py either", [row[0] for row in listing()]
    store = existing(root, f"{hint}{did_you_mean(study, names)}")
    if study not in store.slugs():
        raise ValueError(
            f"a study must be in the store, but got ({shown(study)}; the store has: "
            f"{', '.join(store.slugs())}){hint}{did_you_mean(study, [*store.slugs(), *names])}"
        )


def _when(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")


# MLflow


def ui(options: argparse.Namespace) -> None:
    """Prints a link per study, then replaces this process by an MLflow server on the database.

    If MLFLOW_TRACKING_URI names a server, only prints the links.
    """
    check_installed("mlflow")
    from vitscale.record.mlflow.place import (
        database_of,
        follow_move,
        tracking_uri,
        without_user,
    )

    store = Store.at(options.store)
    uri = tracking_uri(store)
    database = database_of(uri)
    if database is not None and not database.exists():
        raise ValueError(
            f"an MLflow database must exist, but got ({database}); run a study or `vitscale sync` "
            "first"
        )
    print("starting", file=sys.stderr, flush=True)  # not before a refusal; MLflow takes seconds
    from vitscale.record.mlflow.experiment import study_pages

    follow_move(uri)
    if uri.startswith("http"):
        base = without_user(uri)
        print(f"MLFLOW_TRACKING_URI is a server: {base}")
    else:
        port = free_port(options.host, options.port)
        base = f"http://{options.host}:{port}"
        print(f"MLflow UI of {without_user(uri)}: {base}")
    with _server_errors(uri):
        links = study_pages(uri, store, base) if store.folder.exists() else {}
    print(columns(list(links.items())) if links else "MLflow shows no study of this store yet")
    sys.stdout.flush()
    if not uri.startswith("http"):
        # seven processes for jobs of MLflow's own, which studies have none of
        os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "ui",
            "--backend-store-uri",
            uri,
            "--host",
            options.host,
        ]
        os.execv(sys.executable, [*command, "--port", str(port), "--workers", "1"])


PORT = 5000  # MLflow's own


def free_port(host: str, requested: int | None) -> int:
    """The requested port, or the first free one from 5000. Raises ValueError if none is free."""
    for port in [requested] if requested is not None else range(PORT, PORT + 100):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # allows the port of a server that has just ended
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except (OSError, OverflowError) as error:
                reason = error
                continue
        if requested is None and port != PORT:
            print(f"port {PORT} is in use; using {port}")
        return port
    raise ValueError(
        f"a port must be free, but got (host={host}, port={requested or PORT}: {reason})"
    )


def sync(options: argparse.Namespace) -> None:
    """Shows every outcome of the store in MLflow. Changes nothing that is up to date.

    What the store's cache says of a run is believed, unless the run was deleted since; with
    `reread`, the server is asked for every run.
    """
    check_installed("mlflow")
    from vitscale.analysis.report.draw import draw
    from vitscale.launch.colors import arm_colors
    from vitscale.record.mlflow.place import tracking_uri
    from vitscale.record.mlflow.view import View, synchronize
    from vitscale.record.table import read_trials

    store = existing(options.store)
    uri = tracking_uri(store)
    slugs, failed = options.studies or store.slugs(), list[str]()
    evaluated = store.evaluated()
    for slug in slugs:
        with _continue_after_failure(slug, failed):
            study = with_costs(read_plan(store, slug))
            is_alone = _alone(store, slug)
            with _server_errors(uri):  # before the report, which takes longer
                view = View(study, uri, store, arm_colors, reread=options.reread)
            read = read_trials(study, store)
            with _server_errors(uri):
                num = synchronize(view, read, is_alone)
                view.show_evaluations(evaluated & read.keys())
            report, headline, summary = draw(study, store, read)
            with _server_errors(uri):
                view.summarize(summary, report, headline)
                if is_alone():
                    view.runs.interrupt()
                    view.end(read)
                    view.save()
            print(f"{slug}: {num} of {len(study.trials)} trials shown at {view.page()}")
    if failed:
        raise ValueError(
            f"every requested study must be shown, but got ({len(failed)} not shown: "
            f"{', '.join(failed)})"
        )


def _alone(store: Store, slug: str) -> Callable[[], bool]:
    """Whether no driver of a study has run since this call. One that has gives trials their runs,
    of which this process does not know.
    """
    starts, is_driven = store.num_starts(slug), store.driver_is_alive(slug)
    return lambda: not is_driven and store.num_starts(slug) == starts


class Unreachable(ValueError):
    """MLflow does not answer."""


@contextlib.contextmanager
def _server_errors(uri: str) -> Iterator[None]:
    """Turns any exception of MLflow into an error of one line."""
    from vitscale.record.mlflow.place import without_user

    try:
        yield
    except Exception as error:
        raise Unreachable(
            without_user(f"MLflow must answer at ({uri}): {one_line(error)}")
        ) from error


@contextlib.contextmanager
def _continue_after_failure(slug: str, failed: list[str]) -> Iterator[None]:
    """Warns of a study that cannot be read or drawn, and continues with the next one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Unreachable) or os.environ.get("VITSCALE_TRACEBACK"):
            raise
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        warnings.warn(f"{slug} is not shown: {one_line(reason)}", stacklevel=3)
        failed.append(slug)


def completion(options: argparse.Namespace) -> None:
    """Prints what completes the commands and options of vitscale in a shell."""
    from vitscale.cli.completion import script

    print(script(options.shell, options.parser))


def complexity(options: argparse.Namespace) -> None:
    """Prints the published costs of models next to those of our models as built (half a minute)."""
    if options.runtime:
        _runtime(options)
        return
    from vitscale.train.complexity import compare_published

    rows = compare_published()
    if options.json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("source", "model", "pixels", title="published | ours (* deviates)")
    units = ("params (M)", "multiply-adds (G)", "activations (M)", "training (exaFLOPs)")
    for unit in units:
        table.add_column(unit, justify="right", no_wrap=True)
    for row in rows:
        cells = [
            (
                f"{row['published'][name] or '-'} | "
                f"{number:.2f}{' *' if name in row['deviates'] else '  '}"
            )
            for name, number in row["ours"].items()
        ]
        table.add_row(row["source"], row["name"], str(row["resolution"]), *cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    for row in rows:
        if row["deviates"]:
            print(f"* {row['source']}, {row['name']}, {row['resolution']} pixels: {row['reason']}")


def _runtime(options: argparse.Namespace) -> None:
    """Prints how well printed costs predict minutes per epoch: no model is built."""
    from vitscale.analysis.published.tables import runtime_correlations

    rows = runtime_correlations().to_dict("records")
    if options.json:
        print_json(rows)
        return
    print(f"minutes per epoch and cost, {rows[0]['n']} models of Xiao et al. 2021, Table 2:")
    for row in rows:
        words = "{r:.2f} [{r_low:.2f}, {r_high:.2f}], Figure 9 prints {printed}".format_map(row)
        if row["cost"] != "acts_m":
            more = "{acts_minus_r:.2f} [{acts_minus_r_low:.2f}, {acts_minus_r_high:.2f}]"
            words += f"; activations have {more.format_map(row)} more"
        print(f"{row['cost']:<9} r = {words}")
    print("95% intervals: Fisher's z, and a bootstrap over models, which are no random sample.")


def fields(options: argparse.Namespace) -> None:
    """Prints the fields of a config, one of them, or a table of Markdown."""
    from vitscale.cli.fields import entry, listing, table

    if options.markdown:
        print(table(options.markdown))
    elif options.name:
        print(entry(options.name))
    else:
        print(listing())


def prepare(options: argparse.Namespace) -> None:
    """Writes a prepared dataset with a progress bar on stderr, or verifies one."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from vitscale.train import prepare as stage
    from vitscale.train.sources.prepared import read_manifest

    if options.verify:
        print(f"{options.source}: {stage.verify(Path(options.source))} files match their checksums")
        return
    if options.data_root is None or options.size < 1:
        raise ValueError(
            f"DEST and size >= 1 must be given, but got ({options.data_root}, size={options.size})"
        )
    fields = (
        "source data_root size skip_unreadable dataset source_root channels max_megapixels "
        "follow_symlinks val_fraction seed"
    )
    for name in ("source", "data_root", "source_root"):
        if (given := getattr(options, name)) and not str(given).startswith(TORCHVISION):
            setattr(options, name, type(given)(path_of(given)))
    request = stage.Request(
        splits=tuple(options.splits), **{name: getattr(options, name) for name in fields.split()}
    )
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, disable=not is_live(console))
    with bar if is_live(console) else contextlib.nullcontext():  # older rich ends in an empty line
        tasks: dict[str, Any] = {}

        def show(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = bar.add_task(split, total=total)
            bar.update(tasks[split], completed=done)

        folder = stage.prepare(request, options.num_workers, show)
    splits = read_manifest(folder)["splits"]
    for split, facts in splits.items():
        print(
            f"{folder} {split}: {facts['num_images']} images, {len(facts['skipped'])} skipped "
            "as unreadable"
        )
        for reason, (num, first) in facts["left_out"].items():
            print(f"  {num} left out: {reason}, first {first!r}")
    if lacking := {"train", "val"} - splits.keys():
        print(
            f"{folder} has no {' and no '.join(sorted(lacking))}, which every study reads: its "
            "source must have both, or class folders alone, of which --val-fraction 0.2 makes both"
        )
    _print_facts(folder)


def _print_facts(folder: Path) -> None:
    """Prints the config fields of a prepared dataset; nothing if they cannot be derived from it."""
    from vitscale.plan.data import facts

    with contextlib.suppress(ValueError):
        print(
            "config fields: "
            f"{', '.join(f'{name}={value!r}' for name, value in facts(folder).items())}"
        )
