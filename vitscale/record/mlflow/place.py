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
from urllib.parse import quote, unquote, urlsplit

from vitscale.plan.paths import given, path_of
from vitscale.record.store import Store

_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")
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
    uri = given_uri()
    path = database_of(uri) if uri else store.beside(DATABASE)
    return uri if path is None else _uri_of(path)


def given_uri(text: str = "") -> str:
    """An option, else MLFLOW_TRACKING_URI, without spaces around it and with its scheme in lower
    case, which MLflow expects; empty if neither is given.
    """
    scheme, colon, rest = given(text, "MLFLOW_TRACKING_URI").strip().partition(":")
    return f"{scheme.lower()}{colon}{rest}" if colon else scheme


def database_of(uri: str) -> Path | None:
    """The absolute path of an SQLite URI; None for other URIs, such as a server's."""
    match = _SQLITE.match(uri)
    return path_of(unquote(uri[match.end() :])) if match else None


def experiment_prefix() -> str:
    """VITSCALE_EXPERIMENT_PREFIX: with it begin the names of the experiments that are made.

    Raises ValueError.
    """
    prefix = os.environ.get(PREFIX, "")
    if len(prefix) > MAX_PREFIX or not prefix.isprintable():
        raise ValueError(
            f"{PREFIX} must be at most {MAX_PREFIX} printable characters, but got "
            f"({PREFIX}={prefix[:200]!r})"
        )
    return prefix


def without_user(text: str) -> str:
    """A text without the user and password of its URIs, for all that is printed or stored.

    Those of a database may have any character but @, and may be in the query (SQLAlchemy).
    """
    text = _DATABASE_URI.sub(lambda uri: f"{uri[1]}{uri[2]}{'?...' if uri[3] else ''}", text)
    return re.sub(r"://[^/\s]*@", "://", text)


def _uri_of(path: Path) -> str:
    """The SQLite URI of a path; quotes only the characters that SQLAlchemy would interpret.

    Where it quotes, it names the driver: of a URI without one MLflow would take what is quoted for
    a path, and make its folders.
    """
    quoted = re.sub(r"[%?]", lambda c: quote(c[0], safe=""), str(path))
    return f"sqlite{'' if quoted == str(path) else '+pysqlite'}:///{quoted}"


def artifacts_of(uri: str, name: str) -> str | None:
    """Location of the artifacts of a named experiment; None where the server decides.

    It is an absolute URI beside the database: MLflow's default is relative to the client, and a
    path would be read as a URI.
    """
    path = database_of(uri)
    return (path.parent / ARTIFACTS / name.replace("/", "-")).as_uri() if path else None


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


def _path_of_uri(location: str) -> Path | None:
    """The path of a file's URI; None where a server decides, as in mlflow-artifacts:/1."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


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
            before = _path_of_uri(location or "")
            if before is None:
                continue
            place = path.parent / ARTIFACTS / before.name
            if before == place or (before.exists() and not place.exists()):
                continue
            here, since = place.as_uri(), len(location) + 1
            database.execute(
                "update experiments set artifact_location = ? where experiment_id = ?",
                (here, experiment_id),
            )
            database.execute(
                "update runs set artifact_uri = ? || substr(artifact_uri, ?) "
                "where experiment_id = ? and substr(artifact_uri, 1, ?) = ?",
                (here, since, experiment_id, since, f"{location}/"),
            )
