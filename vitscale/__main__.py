"""`vitscale ui` and `vitscale sync`: the parts of the command line that are about no single study."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

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
    options = parser.parse_args()
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        sys.exit(f"vitscale: error: {error}")


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
    from vitscale.launch.driver import draw
    from vitscale.record.mlflow_view import View, state_of, synchronize
    from vitscale.record.table import read_trials

    store = Store.open(options.store)
    uri = default_uri()
    for slug in options.studies or store.slugs():
        study = read_plan(store, slug)
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


def read_plan(store: Store, slug: str) -> Study:
    """The study as it was planned at its last start. Raises ValueError if there is none."""
    if slug not in store.slugs():
        raise ValueError(f"a study must be in the store, but got ({slug!r}; there are: {', '.join(store.slugs())})")
    return from_json(json.loads((store.study(slug) / "plan.json").read_text()))


if __name__ == "__main__":
    main()
