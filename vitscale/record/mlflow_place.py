"""Location of a store's MLflow view: a database in the store, or MLFLOW_TRACKING_URI.

`<store>/mlflow.db` holds the runs, metrics, params and tags of all studies of the store;
`<store>/mlruns/<slug>/` holds their artifacts, which are the reports.
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
# of those that MLflow knows, in a text: scheme, address, query
_DATABASE_URI = re.compile(
    r"\b((?:postgres\w*|mysql|mariadb|mssql|oracle)(?:\+\w+)?://)(?:\S*@)?([^\s?]*)(\?\S*)?"
)
PREFIX = "VITSCALE_EXPERIMENT_PREFIX"
MAX_PREFIX = 100  # characters
DATABASE, ARTIFACTS = "mlflow.db", "mlruns"


def tracking_uri(store: Store) -> str:
    """MLFLOW_TRACKING_URI, else a database in the store.

    The path is absolute, so that all processes read the same database.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    path = database_of(uri) if uri else store.beside(DATABASE)
    return uri if path is None else _uri_of(path)


def database_of(uri: str) -> Path | None:
    """The absolute path of an SQLite URI; None for other URIs, such as a server's."""
    return Path(unquote(uri.removeprefix(_SQLITE))).absolute() if uri.startswith(_SQLITE) else None


def experiment_prefix() -> str:
    """VITSCALE_EXPERIMENT_PREFIX: with it begin the names of the experiments that are made.

    Raises ValueError.
    """
    prefix = os.environ.get(PREFIX, "")
    if len(prefix) > MAX_PREFIX or not prefix.isprintable():
        raise ValueError(
            f"{PREFIX} must be at most {MAX_PREFIX} printable characters, but got {prefix[:200]!r}"
        )
    return prefix


def without_user(text: str) -> str:
    """A text without the user and password of its URIs, for all that is printed or stored.

    Those of a database may have any character but @, and may be in the query (SQLAlchemy).
    """
    text = _DATABASE_URI.sub(lambda uri: f"{uri[1]}{uri[2]}{'?...' if uri[3] else ''}", text)
    return re.sub(r"://[^/\s]*@", "://", text)


def _uri_of(path: Path) -> str:
    """The SQLite URI of a path; quotes only the characters that SQLAlchemy would interpret."""
    return _SQLITE + re.sub(r"[%?]", lambda c: quote(c[0], safe=""), str(path))


def artifacts_of(uri: str, name: str) -> str | None:
    """Location of the artifacts of a named experiment; None where the server decides.

    It is an absolute path beside the database: MLflow's default is relative to the client.
    """
    path = database_of(uri)
    return None if path is None else str(path.parent / ARTIFACTS / name.replace("/", "-"))


def create_database(uri: str) -> None:
    """Creates the SQLite file of a tracking URI atomically, unless it exists.

    MLflow creates its tables in many transactions, over seconds, and cannot open a database in
    which a killed process has left only some of them.
    """
    path = database_of(uri)
    if path is None or path.exists() or not path.parent.is_dir():
        return
    from mlflow import MlflowClient

    made = path.with_name(f"{path.name}.new-{uuid.uuid4().hex}")
    made.touch()  # with the user's umask; SQLite would let nobody else write
    MlflowClient(tracking_uri=_uri_of(made)).search_experiments(max_results=1)
    try:
        os.link(made, path)
    except (FileExistsError, FileNotFoundError):
        if not path.exists():  # else another process was first, and may have removed ours
            raise
    for leftover in path.parent.glob(f"{path.name}.new-*"):  # also those of killed processes
        leftover.unlink(missing_ok=True)


def follow_move(uri: str) -> None:
    """Updates the paths of artifacts in a database that was moved or copied together with them.

    MLflow stores only absolute paths: without this, the reports of a copy would be written into the
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
                or ":" in location.partition("/")[0]  # a server decides, as in mlflow-artifacts:/1
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
