"""Requests to an MLflow server that may be slow, down, or of other users."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE, MIN_PAGE = 200, 10  # runs per request
PAUSES_S = (0.5, 2.0)  # before each retry of a request
GONE, FORBIDDEN = "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"
EXISTS = "RESOURCE_ALREADY_EXISTS"
TEMPORARY = (  # the server was down, slow or broken
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "REQUEST_LIMIT_EXCEEDED",
    "DEADLINE_EXCEEDED",
)
T = TypeVar("T")


def client_of(uri: str) -> MlflowClient:
    """A quiet client that detects a dead server in seconds; MLflow's defaults wait for minutes."""
    # MLflow's own retries could create a second run of a trial. `PatientClient` retries all
    # requests but those that create something.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # importing MLflow sets its own level
        logging.getLogger(name).setLevel(logging.WARNING)
    # prints the traceback of every error of a database that it raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


class TakenOver(RuntimeError):
    """Another start of the study writes its view now."""


class PatientClient:
    """A client that retries requests after a pause, except those that create a run."""

    def __init__(self, client: MlflowClient, may_write: Callable[[], bool]) -> None:
        self.client, self.may_write = client, may_write

    def __getattr__(self, name: str) -> Any:
        request = functools.partial(self._request, getattr(self.client, name))
        is_final = name.startswith(("create_", "search_"))
        return request if is_final else functools.partial(_with_retries, request)

    def _request(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T:
        if not self.may_write():
            raise TakenOver("another start of the study has taken it over")
        return method(*arguments, **options)


def _with_retries(request: Callable[..., T], *arguments: Any, **options: Any) -> T:
    for pause_s in PAUSES_S:
        try:
            return request(*arguments, **options)
        except Exception as error:
            if code_of(error) not in TEMPORARY:
                raise
            time.sleep(pause_s)
    return request(*arguments, **options)


def code_of(error: Exception) -> str:
    """MLflow's code of an error; empty for an error of something else."""
    return getattr(error, "error_code", "")


def get_if_there(get: Callable[[str], T], entity_id: str) -> T | None:
    """The entity with an id; None if the server no longer has it, or not for this user, or for an
    empty id.
    """
    try:
        return get(entity_id) if entity_id else None
    except Exception as error:
        if code_of(error) in (GONE, FORBIDDEN):
            return None
        raise


def search_runs(
    client: MlflowClient, experiment_id: str, filter_string: str, deleted: bool = False
) -> Iterator[Run]:
    """Runs of an experiment, page by page; pages shrink if the server is too slow."""
    from mlflow.entities import ViewType

    kind, token, size = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY, None, PAGE
    while True:
        try:
            page = client.search_runs(
                [experiment_id], filter_string, kind, max_results=size, page_token=token
            )
        except Exception as error:
            if code_of(error) not in TEMPORARY or size <= MIN_PAGE:
                raise
            size //= 4
            time.sleep(PAUSES_S[0])
            continue
        yield from page
        token = page.token
        if not token:
            return
