"""A cache of a study's MLflow runs in its store: a start need not read 10,000 from a server."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitscale.record.mlflow_place import without_user
from vitscale.record.store import Damaged, Store

if TYPE_CHECKING:
    from mlflow.entities import Run

FILE = "mlflow.json"  # in the folder of the study
# in place of a digest: the run is tagged as of a trial that is not planned any more
UNPLANNED = "left out"
BEGAN = "began_s"  # tag of a trial's run


@dataclass
class Child:
    """The known state of a trial's run."""

    run_id: str
    state: str = "RUNNING"  # of the run, in MLflow's terms
    epoch: int = 0  # the last epoch that it shows
    status: str = ""  # of the trial; empty if uncertain
    error: bool = False  # whether it has the tag vitscale.error
    # digest of the params and tags that do not change during training; empty if not known
    digest: str = ""
    # unix time of the first row, which no two trainings share; 0: none yet, or of an older version
    began_s: float = 0.0

    @classmethod
    def read(cls, run: Run, digest: str) -> Child:
        """The state of a run on the server.

        The status of a run that a killed driver left RUNNING is unknown, whatever its tag.
        """
        state = run.info.status
        status = run.data.tags.get("vitscale.status", "") if state != "RUNNING" else ""
        return cls(
            run.info.run_id,
            state,
            int(run.data.metrics.get("epoch", 0)),
            status,
            "vitscale.error" in run.data.tags,
            digest,
            float(run.data.tags.get(f"vitscale.{BEGAN}", 0.0)),
        )


@dataclass
class Known:
    """Ids and states of the runs of one study on one server; empty if there is no cache."""

    experiment_id: str = ""
    parent_id: str = ""
    saved_ms: int = 0  # unix time: every run created before is in `children`
    children: dict[str, Child] = field(default_factory=dict)  # by trial id


def recall(store: Store, slug: str, uri: str) -> Known:
    """The cache; empty if its file is damaged or of another store, and then the server is read."""
    return _known(_read(store, slug), uri)


def _known(servers: dict[str, Any], uri: str) -> Known:
    try:
        entries = servers.get(without_user(uri), {})
        children = {
            trial_id: Child(*entry) for trial_id, entry in entries.get("children", {}).items()
        }
        return Known(**{**entries, "children": children})
    except (TypeError, AttributeError):
        return Known()


def remember(store: Store, slug: str, uri: str, known: Known) -> None:
    """Writes the cache with the current time, or that of a clock that was ahead. Raises OSError."""
    servers = _read(store, slug)
    known.saved_ms = max(int(time.time() * 1000), _known(servers, uri).saved_ms)
    plain = {
        **vars(known),  # asdict copies what is below
        "children": {i: list(vars(child).values()) for i, child in known.children.items()},
    }
    servers[without_user(uri)] = plain
    content = json.dumps({"store": store.identity(), "servers": servers}, separators=(",", ":"))
    store.study(slug).write(FILE, content.encode())


def _read(store: Store, slug: str) -> dict[str, Any]:
    """The cached entries by server; empty if the file is damaged or of another store."""
    try:
        entries = json.loads(store.study(slug).read(FILE))
        return dict(entries["servers"]) if entries["store"] == store.identity() else {}
    except (OSError, ValueError, KeyError, TypeError, Damaged):
        return {}
