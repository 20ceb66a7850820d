"""Where the MLflow view of a store lies: in a database of the store, unless MLFLOW_TRACKING_URI
names another place.

`<store>/mlflow.db` has runs, metrics, params and tags of all studies of the store,
`<store>/mlruns/<slug>/` their artifacts, which are the reports.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import uuid
from pathlib import Path
from urllib.parse import quote, unquote

from vitscale.record.store import Store

_SQLITE = "sqlite:///"
DATABASE, ARTIFACTS = "mlflow.db", "mlruns"


def tracking_uri(store: Store) -> str:
    """MLFLOW_TRACKING_URI, else a database in the store.

    Absolute, so that no process reads another one.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    path = database_of(uri) if uri else store.beside(DATABASE)
    return uri if path is None else _uri_of(path)


def database_of(uri: str) -> Path | None:
    """The file of an SQLite URI, absolute; None for any other, such as a server's."""
    return Path(unquote(uri.removeprefix(_SQLITE))).absolute() if uri.startswith(_SQLITE) else None


def _uri_of(path: Path) -> str:
    """Quotes only what SQLAlchemy would take for something
    else, so that the rest stays readable.
    """
    return _SQLITE + re.sub(r"[%?]", lambda c: quote(c[0], safe=""), str(path))


def artifacts_of(uri: str, name: str) -> str | None:
    """Where the artifacts of a named experiment lie; None where the server decides.

    Beside the database, and absolute: MLflow's default is relative to whoever asks.
    """
    path = database_of(uri)
    return None if path is None else str(path.parent / ARTIFACTS / name)


def note_of_old_database(store: Store) -> str:
    """What to do about an mlflow.db in this directory, which earlier versions wrote for all stores;
    once, or empty.

    Once: as long as the store has no database of its own.
    """
    old, new = Path(DATABASE).absolute(), store.beside(DATABASE)
    if os.environ.get("MLFLOW_TRACKING_URI") or new.exists() or old == new or not _is_ours(old):
        return ""
    return (
        f"note: the MLflow view of a store now lies in the store, {new}; {old} is from before and "
        "is not written any more. `vitscale sync` shows all studies of the store in the new one; "
        f"then the old one can go, or be read with MLFLOW_TRACKING_URI={_uri_of(old)} vitscale ui"
    )


def _is_ours(path: Path) -> bool:
    """Whether a file is an MLflow database with runs of studies."""
    if not path.is_file():
        return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        return bool(
            database.execute("select 1 from tags where key = 'vitscale.role' limit 1").fetchall()
        )
    return False


def create_database(uri: str) -> None:
    """Makes the SQLite file of a tracking URI, whole or not at all, unless it is there.

    MLflow makes its tables in many transactions, over seconds, and cannot open a database in which
    a killed process has left some of them.
    """
    path = database_of(uri)
    if path is None or path.exists() or not path.parent.is_dir():
        return
    from mlflow import MlflowClient

    made = path.with_name(f"{path.name}.new-{uuid.uuid4().hex}")
    MlflowClient(tracking_uri=_uri_of(made)).search_experiments(max_results=1)
    try:
        os.link(made, path)
    except (FileExistsError, FileNotFoundError):
        if not path.exists():  # else another process was first, and may have cleared up
            raise
    for leftover in path.parent.glob(f"{path.name}.new-*"):  # of killed processes, too
        leftover.unlink(missing_ok=True)


def follow_move(uri: str) -> None:
    """Makes a database that was moved or copied with its artifacts name them where they are now.

    MLflow keeps absolute paths only: without this the reports of a copy would be written into the
    original.
    """
    path = database_of(uri)
    if path is None or not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as database, database:
        rows = database.execute(
            "select experiment_id, artifact_location from experiments join experiment_tags using "
            "(experiment_id) where key = 'vitscale.study'"
        ).fetchall()
        for experiment_id, location in rows:
            here = path.parent / ARTIFACTS / Path(location or "").name
            if (
                not location
                or location == str(here)
                or (Path(location).exists() and not here.exists())
            ):
                continue
            database.execute(
                "update experiments set artifact_location = ? where experiment_id = ?",
                (str(here), experiment_id),
            )
            database.execute(
                "update runs set artifact_uri = ? || substr(artifact_uri, ?) "
                "where experiment_id = ? and substr(artifact_uri, 1, ?) = ?",
                (str(here), len(location) + 1, experiment_id, len(location) + 1, f"{location}/"),
            )
