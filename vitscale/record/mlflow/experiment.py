"""The MLflow experiment of one study of one store, and what is common to its runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vitscale.record.mlflow import pages
from vitscale.record.mlflow.client import (
    EXISTS,
    FORBIDDEN,
    GONE,
    client_of,
    code_of,
    get_if_there,
    search_runs,
)
from vitscale.record.mlflow.contents import Contents
from vitscale.record.mlflow.place import artifacts_of, experiment_prefix
from vitscale.record.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

MARGIN_MS = 120_000  # clock difference between machines that run a study in turn


class StudyExperiment:
    """The experiment of a study and store, which is created unless it is there."""

    def __init__(
        self, client: MlflowClient, uri: str, contents: Contents, cached_id: str, saved_ms: int
    ) -> None:
        """`saved_ms`: when the cache of runs was saved, in unix time; 0 if there is none."""
        self.client, self.uri, self.contents, self.saved_ms = client, uri, contents, saved_ms
        experiment = self._open(cached_id)
        self.id = experiment.experiment_id
        self.save_views(pages.trial_views(contents.study), experiment)

    # ---- of the experiment

    def _open(self, cached_id: str) -> Experiment:
        """The experiment of this study and store; one of another store is left untouched."""
        try:
            return self._look(cached_id)
        except Exception as error:
            if code_of(error) not in (EXISTS, GONE):
                raise
            return self._look(cached_id)  # another process has created or restored it meanwhile

    def _look(self, cached_id: str) -> Experiment:
        """Finds the experiment, restores a deleted one, or creates it."""
        cached = get_if_there(self.client.get_experiment, cached_id)
        if cached and self._is_own(cached.tags) and cached.lifecycle_stage != "deleted":
            return cached
        slug, store_id = self.contents.study.slug, self.contents.store_id
        tagged = self.client.search_experiments(  # whatever its name; not one that was deleted
            filter_string=f"tags.`vitscale.store` = '{store_id}' and "
            f"tags.`vitscale.study` = '{slug}'"
        )
        if tagged:
            return tagged[0]
        usual = experiment_prefix() + slug
        for name in (usual, f"{usual}-{store_id[:8]}"):
            try:
                experiment = self.client.get_experiment_by_name(name)
            except Exception as error:
                if code_of(error) == FORBIDDEN:  # of another user
                    continue
                raise
            if experiment is None:
                return self._create(name)
            if self._is_own(experiment.tags):
                return self._reopened(experiment)
        raise ValueError(
            f"an experiment must be of this store and user, but got ({name!r}: of another)"
        )

    def _is_own(self, tags: Mapping[str, str]) -> bool:
        """Whether an experiment is of this study and store, or of a version without store ids."""
        slug, store_id = self.contents.study.slug, self.contents.store_id
        named = tags.get("vitscale.study"), tags.get("vitscale.store", store_id)
        return named == (slug, store_id)

    def _create(self, name: str) -> Experiment:
        tags = self.contents.origin | {"mlflow.note.content": pages.about(self.contents.study)}
        tags["mlflow.experimentKind"] = "custom_model_development"
        place = artifacts_of(self.uri, name)
        return self.client.get_experiment(self.client.create_experiment(name, place, tags))

    def _reopened(self, experiment: Experiment) -> Experiment:
        """An own experiment, which may have been deleted, or be of a version without store ids."""
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        if "vitscale.store" not in experiment.tags:
            store_id = self.contents.store_id
            self.client.set_experiment_tag(experiment.experiment_id, "vitscale.store", store_id)
        return experiment

    def save_views(
        self, views: Mapping[str, Mapping[str, object]], experiment: Experiment | None = None
    ) -> None:
        """Saves views of the experiment's runs, unless they are saved and unchanged."""
        experiment = experiment or self.client.get_experiment(self.id)
        for tag, value in pages.tags(views, experiment.creation_time or 0).items():
            if experiment.tags.get(tag) != value:
                self.client.set_experiment_tag(self.id, tag, value)

    # ---- of its runs

    def runs(self, filter_string: str, deleted: bool = False) -> Iterator[Run]:
        return search_runs(self.client, self.id, filter_string, deleted)

    @property
    def since_cache(self) -> str:
        """The condition of runs that were created after the cache was saved."""
        return f" and attributes.start_time >= {self.saved_ms - MARGIN_MS}"

    def create_run(self, tags: Mapping[str, str]) -> Run:
        """A new run, which starts after what the cache has seen, by whatever clock that was saved:
        otherwise a later start, which asks for the runs since, would not find it.
        """
        began_ms = max(int(time.time() * 1000), self.saved_ms - MARGIN_MS)
        return self.client.create_run(self.id, start_time=began_ms, tags=dict(tags))

    def log_changes(
        self, run: Run, tags: Mapping[str, str], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Logs tags and metrics that a run lacks or that have another value."""
        from mlflow.entities import Metric, RunTag

        now_ms, logged = int(time.time() * 1000), run.data
        new_metrics = [
            Metric(name, value, now_ms, 0)
            for name, value in (metrics or {}).items()
            if logged.metrics.get(name) != value
        ]
        new_tags = [
            RunTag(name, value) for name, value in tags.items() if logged.tags.get(name) != value
        ]
        if new_metrics or new_tags:
            self.client.log_batch(run.info.run_id, metrics=new_metrics, tags=new_tags)


def study_pages(uri: str, store: Store, base: str) -> dict[str, str]:
    """Study -> the address of its page, for the store's studies on the server at `base`."""
    experiments = client_of(uri).search_experiments(
        filter_string=f"tags.`vitscale.store` = '{store.identity()}'", max_results=1000
    )
    ids = {
        experiment.tags["vitscale.study"]: experiment.experiment_id for experiment in experiments
    }
    return {slug: pages.address(base, ids[slug]) for slug in sorted(ids)}
