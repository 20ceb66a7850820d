"""`vitscale ui`, `sync`, `prepare` and `complexity`: the parts of the command line that are about no single study."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from vitscale.plan.study import Study, from_json
from vitscale.record.mlflow_view import default_uri
from vitscale.record.store import Store


def main() -> None:
    """Entry point of the `vitscale` command."""
    parser = argparse.ArgumentParser(prog="vitscale", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ui_parser = commands.add_parser("ui", help="open the MLflow UI on the store of the results")
    ui_parser.add_argument("--host", default="127.0.0.1")
    ui_parser.add_argument("--port", type=int, default=5000)
    ui_parser.set_defaults(run=ui)
    sync_parser = commands.add_parser("sync", help="bring MLflow up to date with the store, or fill an empty server")
    sync_parser.add_argument("studies", nargs="*", help="such as lr_wd_edf-demo (default: all)")
    sync_parser.add_argument("--store", default=os.environ.get("VITSCALE_STORE", "runs"))
    sync_parser.set_defaults(run=sync)
    add_prepare(commands)
    complexity_parser = commands.add_parser("complexity", help="published costs of models next to ours, as built")
    complexity_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    complexity_parser.set_defaults(run=complexity)
    options = parser.parse_args()
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        sys.exit(f"vitscale: error: {error}")


def add_prepare(commands: Any) -> None:
    """The arguments of `vitscale prepare`."""
    parser = commands.add_parser(
        "prepare",
        help="write a dataset once as files that load fast, with all images at one size",
        description="Writes DEST/NAME-SIZE, or DEST/NAME if every image has that size already: DEST is the data root "
        "of studies, and the name is their dataset. Killed and run again, it goes on.",
    )
    parser.add_argument("source", metavar="SOURCE", help="a dataset's folder, or torchvision:CLASS")
    parser.add_argument("data_root", metavar="DEST", nargs="?", type=Path, help="the data root, not the set's folder")
    parser.add_argument("--size", type=int, default=256, help="pixels a side (default: %(default)s)")
    parser.add_argument("--splits", nargs="+", default=[], metavar="SPLIT", help="such as train val (default: all)")
    parser.add_argument("--dataset", default="", metavar="NAME", help="(default: the name of the folder or class)")
    parser.add_argument("--source-root", default="", metavar="FOLDER", help="where the files of torchvision:CLASS are")
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3, help="of images: 3 (default) or 1, grey")
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out damaged images (default: stop)")
    parser.add_argument("--num-workers", type=int, default=0, metavar="N", help="processes that decode images")
    parser.add_argument("--verify", action="store_true", help="only compare the checksums of SOURCE, a prepared set")
    parser.set_defaults(run=prepare)


def prepare(options: argparse.Namespace) -> None:
    """Writes a prepared set with a progress bar on stderr, or verifies one."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from vitscale.train import prepare as stage
    from vitscale.train.sources.prepared import read_manifest

    if options.verify:
        print(f"{options.source}: {stage.verify(Path(options.source))} files are as they were written")
        return
    if options.data_root is None or options.size < 1:
        raise ValueError(f"DEST and size >= 1 must be given, but got ({options.data_root}, size={options.size})")
    fields = "source data_root size skip_unreadable dataset source_root channels"
    request = stage.Request(splits=tuple(options.splits), **{name: getattr(options, name) for name in fields.split()})
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def show(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = bar.add_task(split, total=total)
            bar.update(tasks[split], completed=done)

        folder = stage.prepare(request, options.num_workers, show)
    for split, facts in read_manifest(folder)["splits"].items():
        print(f"{folder} {split}: {facts['num_images']} images, {len(facts['skipped'])} unreadable left out")


def ui(options: argparse.Namespace) -> None:
    """Becomes an MLflow server on the tracking database; a tracking server that runs already is only named."""
    uri = default_uri()
    if uri.startswith("http"):
        print(f"MLFLOW_TRACKING_URI is a server: open {uri}")
        return
    database = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite") and not database.exists():
        raise ValueError(f"an MLflow database must exist, but got ({database}); run a study or `vitscale sync` first")
    print(f"MLflow UI of {uri}: http://{options.host}:{options.port}")
    sys.stdout.flush()
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", options.host]
    os.execv(sys.executable, [*command, "--port", str(options.port), "--workers", "1"])


def sync(options: argparse.Namespace) -> None:
    """Shows every outcome of the store in MLflow. Changes nothing where the view is up to date."""
    from vitscale.launch.costs import learn_costs
    from vitscale.launch.driver import draw
    from vitscale.record.mlflow_view import View, state_of, synchronize
    from vitscale.record.table import read_trials

    store = Store.open(options.store)
    uri = default_uri()
    for slug in options.studies or store.slugs():
        study = learn_costs(read_plan(store, slug))
        read = read_trials(study, store)
        report, _, summary = draw(study, store, read)
        try:
            view = View(study, uri)
            num = synchronize(view, read)
            view.summarize(summary, report.parent)
            if not store.driver_is_alive(slug):
                view.interrupt()
                view.set_parent(state_of([facts["status"] for _, facts in read.values()]))
        except Exception as error:
            raise ValueError(f"MLflow must answer at ({uri}): {str(error).splitlines()[0]}") from error
        print(f"{slug}: {num} of {len(study.trials)} trials shown at {view.page(uri)}")


def complexity(options: argparse.Namespace) -> None:
    """Prints what papers say that models cost, next to what ours cost as they are built. Takes half a minute."""
    from vitscale.train.complexity import compare_published

    rows = compare_published()
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("source", "model", "pixels", title="published | ours (* deviates)")
    for unit in ("params (M)", "multiply-adds (G)", "activations (M)"):
        table.add_column(unit, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row['published'][name] or '-'} | {number:.2f}{' *' if name in row['deviates'] else '  '}"
                 for name, number in row["ours"].items()]  # fmt: skip
        table.add_row(row["source"], row["name"], str(row["resolution"]), *cells)
    Console().print(table)
    for row in rows:
        if row["deviates"]:
            print(f"* {row['source']}, {row['name']}, {row['resolution']} pixels: {row['reason']}")


def read_plan(store: Store, slug: str) -> Study:
    """The study as it was planned at its last start. Raises ValueError if there is none."""
    if slug not in store.slugs():
        raise ValueError(f"a study must be in the store, but got ({slug!r}; there are: {', '.join(store.slugs())})")
    return from_json(json.loads((store.study(slug) / "plan.json").read_text()))


if __name__ == "__main__":
    main()
