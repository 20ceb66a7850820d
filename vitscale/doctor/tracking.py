"""MLflow: what a client writes can be read again."""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Iterator

from vitscale.doctor.check import Finding, Machine, judged

VALUES = {"error_pct": 12.5, "loss": 0.5}


def write_and_read(machine: Machine) -> Finding:
    """An experiment, a run, its metrics, params and a text file; then the experiment is deleted."""
    from mlflow.entities import Metric, Param

    from vitscale.record.mlflow.place import artifacts_of, create_database, without_user
    from vitscale.record.mlflow.view import client_of

    with place(machine) as uri:
        began, name = time.perf_counter(), f"vitscale-doctor-{uuid.uuid4().hex[:8]}"
        create_database(uri)
        client = client_of(uri)
        connected_s = time.perf_counter() - began
        began = time.perf_counter()
        experiment = client.create_experiment(name, artifacts_of(uri, name))
        try:
            run = client.create_run(experiment).info.run_id
            metrics = [Metric(name, value, 0, 1) for name, value in VALUES.items()]
            client.log_batch(run, metrics, [Param("seed", "0")])
            client.log_text(run, "doctor", "report/doctor.txt")
            data = client.get_run(run).data
            files = [file.path for file in client.list_artifacts(run, "report")]
        finally:
            client.delete_experiment(experiment)
        spent_s = time.perf_counter() - began
    whole = data.metrics == VALUES and data.params == {"seed": "0"}
    detail = (
        f"{without_user(uri) if machine.mlflow else 'a temporary database'}: metrics and params "
        f"{'read back' if whole else f'differ ({data.metrics}, {data.params})'}, report "
        f"{'stored' if files else 'NOT stored'}, {spent_s:.2g} s"
    )
    return judged(whole and bool(files), detail, connected_s=connected_s, spent_s=spent_s)


@contextlib.contextmanager
def place(machine: Machine) -> Iterator[str]:
    """The tracking URI: the given one, else of a temporary database."""
    if machine.mlflow:
        yield machine.mlflow
        return
    with tempfile.TemporaryDirectory(prefix="vitscale-doctor-") as folder:
        yield f"sqlite:///{folder}/mlflow.db"
