"""What a store remembers of its runs in MLflow, so that a
start need not read 10,000 of them from a server.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from vitscale.record.store import Damaged, Store

if TYPE_CHECKING:
    from mlflow.entities import Run

FILE = "mlflow.json"  # in the folder of the study
# instead of a digest: the run of a trial that is not planned any more, and says so
LEFT_OUT = "left out"


@dataclass
class Child:
    """What is known of a trial's run."""

    run_id: str
    state: str = "RUNNING"  # of the run, as MLflow knows states
    epoch: int = 0  # the last that it shows
    status: str = ""  # of the trial; empty: not known for certain
    error: bool = False  # whether it has the tag of one
    # digest of the params and tags that do not change while it trains; empty: not known
    told: str = ""

    @classmethod
    def read(cls, run: Run, told: str) -> Child:
        """Of a run as the server has it.

        One that a killed driver left RUNNING is shown anew, whatever its tag says.
        """
        state = run.info.status
        status = run.data.tags.get("vitscale.status", "") if state != "RUNNING" else ""
        return cls(
            run.info.run_id,
            state,
            int(run.data.metrics.get("epoch", 0)),
            status,
            "vitscale.error" in run.data.tags,
            told,
        )


@dataclass
class Known:
    """Ids and states of the runs of one study on one server; empty if nothing is known."""

    experiment_id: str = ""
    parent_id: str = ""
    saved_ms: int = 0  # unix time: every run that was made before is in `children`
    children: dict[str, Child] = field(default_factory=dict)  # by trial id


def recall(store: Store, slug: str, uri: str) -> Known:
    """What the store remembers; nothing if the file is damaged
    or another store's, and then the server is read.
    """
    try:
        found = _read(store, slug).get(_place(uri), {})
        children = {
            trial_id: Child(*entry) for trial_id, entry in found.get("children", {}).items()
        }
        return Known(**{**found, "children": children})
    except (TypeError, AttributeError):
        return Known()


def remember(store: Store, slug: str, uri: str, known: Known) -> None:
    """Writes what is known, as of now. Raises OSError."""
    known.saved_ms = int(time.time() * 1000)
    plain = {
        **asdict(known),
        "children": {i: list(asdict(child).values()) for i, child in known.children.items()},
    }
    servers = {**_read(store, slug), _place(uri): plain}
    content = json.dumps({"store": store.identity(), "servers": servers}, separators=(",", ":"))
    store.study(slug).write(FILE, content.encode())


def _read(store: Store, slug: str) -> dict[str, Any]:
    """Entries by server."""
    try:
        found = json.loads(store.study(slug).read(FILE))
        return dict(found["servers"]) if found["store"] == store.identity() else {}
    except (OSError, ValueError, KeyError, TypeError, Damaged):
        return {}


def _place(uri: str) -> str:
    """The server without what may be a user's name and password."""
    return re.sub(r"//[^/@]*@", "//", uri)
