"""A cache of a study's MLflow runs in its store: a start need not read 10,000 from a server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitscale.record.mlflow.place import without_user
from vitscale.record.store import Store
from vitscale.record.workdir import Damaged

if TYPE_CHECKING:
    from mlflow.entities import Run

FILE = "mlflow.json"  # in the folder of the study
# in place of a digest: the run is tagged as of a trial that is not planned any more
UNPLANNED = "left out"
BEGAN, EPOCH = "began_s", "epoch"  # tags of a trial's run


@dataclass
class ChildRun:
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
    def from_run(cls, run: Run, digest: str) -> ChildRun:
        """The state of a run on the server.

        The status of a run that a killed driver left RUNNING is unknown, whatever its tag.
        """
        state = run.info.status
        status = run.data.tags.get("vitscale.status", "") if state != "RUNNING" else ""
        shown = run.data.metrics.get("epoch", 0)  # of older versions, which had no tag
        return cls(
            run.info.run_id,
            state,
            int(run.data.tags.get(f"vitscale.{EPOCH}", shown)),
            status,
            "vitscale.error" in run.data.tags,
            digest,
            float(run.data.tags.get(f"vitscale.{BEGAN}", 0.0)),
        )


@dataclass
class RunCache:
    """Ids and states of the runs of one study on one server; empty if there is no cache."""

    experiment_id: str = ""
    parent_id: str = ""
    saved_ms: int = 0  # unix time: every run created before is in `children`
    children: dict[str, ChildRun] = field(default_factory=dict)  # by trial id

    @classmethod
    def read(cls, store: Store, slug: str, uri: str) -> RunCache:
        """The cache; empty if its file is damaged or of another store: then the server is read."""
        return cls._of_server(_servers(store, slug), uri)

    @classmethod
    def _of_server(cls, servers: Mapping[str, Any], uri: str) -> RunCache:
        try:
            fields = servers.get(without_user(uri), {})
            children = {i: ChildRun(*values) for i, values in fields.get("children", {}).items()}
            return cls(**{**fields, "children": children})
        except (TypeError, AttributeError):
            return cls()

    def write(self, store: Store, slug: str, uri: str) -> None:
        """Saves the cache as of now, or as of a clock that was ahead. Raises OSError."""
        servers = _servers(store, slug)
        self.saved_ms = max(int(time.time() * 1000), self._of_server(servers, uri).saved_ms)
        children = {i: list(vars(child).values()) for i, child in self.children.items()}
        servers[without_user(uri)] = {**vars(self), "children": children}  # asdict copies children
        content = json.dumps({"store": store.identity(), "servers": servers}, separators=(",", ":"))
        store.study(slug).write(FILE, content.encode())


def _servers(store: Store, slug: str) -> dict[str, Any]:
    """The cached fields by server; empty if the file is damaged or of another store."""
    try:
        document = json.loads(store.study(slug).read(FILE))
        return dict(document["servers"]) if document["store"] == store.identity() else {}
    except (OSError, ValueError, KeyError, TypeError, Damaged):
        return {}
