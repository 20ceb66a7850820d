"""Private names of Ray that launch/ uses are there, as they are used.

pyproject.toml allows one minor version of Ray. These tests tell which names the next one lacks.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import ray._private.node
import ray._private.worker
import ray.actor
from ray._private.state import GlobalState
from ray.core.generated import gcs_pb2
from ray.train._internal.session import _TrainSession
from ray.train.torch import TorchConfig, TorchTrainer
from ray.tune.experiment.trial import _TemporaryTrialState
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.trainable.function_trainable import wrap_function

LAUNCH = Path(__file__).parents[2] / "vitscale" / "launch"
FILES = ("cluster.py", "nodes.py", "placement.py", "ray_team.py", "tune.py")


def imported(file: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import from a module of Ray that Ray does not document."""
    for node in ast.walk(ast.parse((LAUNCH / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ray."):
            module = node.module or ""
            for alias in node.names:
                parts = f"{module}.{alias.name}".split(".")
                if any(part.startswith("_") for part in parts) or "generated" in parts:
                    yield module, alias.name


def test_private_imports_exist() -> None:
    names = [name for file in FILES for name in imported(file)]
    assert len(names) >= 7
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_attributes_that_are_reached_through_them_exist() -> None:
    assert hasattr(ray._private.worker, "_global_node")
    for name in ("dead_processes", "kill_all_processes"):
        assert callable(getattr(ray._private.node.Node, name)), name
    assert callable(GlobalState._connect_and_get_accessor)
    assert "ray_actor" in inspect.getsource(_TemporaryTrialState)
    assert "_actor_id" in inspect.getsource(ray.actor.ActorHandle)
    assert BasicVariantGenerator()._live_trials == set()
    assert "__mixins__" in inspect.getsource(wrap_function)
    group = gcs_pb2.PlacementGroupTableData()  # type: ignore[attr-defined]
    for name in ("placement_group_id", "creator_job_id", "creator_actor_id", "creator_actor_dead"):
        assert hasattr(group, name), name
    assert hasattr(group, "REMOVED") and hasattr(group, "state")


def test_methods_that_teams_override_exist() -> None:
    assert callable(TorchTrainer._create_default_callbacks)  # type: ignore[attr-defined]
    assert callable(TorchConfig().backend_cls.on_training_start)
    assert "_inter_actor_queue" in inspect.getsource(_TrainSession)
