"""The files in deploy/, against the schemas of those who read them. SLURM's: test_slurm.py."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from jsonschema import Draft202012Validator

DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, which the API server would drop without a word."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    if made.pop("x-kubernetes-int-or-string", False):
        made = {**made, "anyOf": [{"type": "integer"}, {"type": "string"}]}
        made.pop("type", None)
    keeps = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and "properties" in made and not keeps:
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def rayjob() -> Draft202012Validator:
    """KubeRay's own definition of a RayJob (version v1 of ray-operator's CRD)."""
    content = gzip.decompress((ROOT / "tests/schemas/rayjob-v1.json.gz").read_bytes())
    schema = closed(json.loads(content))
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft202012Validator(schema)


def mistakes(validator: Draft202012Validator, document: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(document)]


def test_the_rayjob_is_one_by_kuberay_s_schema(rayjob: Draft202012Validator) -> None:
    assert mistakes(rayjob, load("kuberay/rayjob.yaml")) == []


def test_the_schema_names_mistakes(rayjob: Draft202012Validator) -> None:
    wrong = copy.deepcopy(load("kuberay/rayjob.yaml"))
    spec = wrong["spec"]
    spec["backoffLimit"] = "8"
    spec["rayClusterSpec"]["workerGroupSpecs"][0]["minReplica"] = 1
    del spec["rayClusterSpec"]["headGroupSpec"]
    found = " | ".join(mistakes(rayjob, wrong))
    for part in ("'8' is not of type 'integer'", "'minReplica' was unexpected", "'headGroupSpec'"):
        assert part in found


def test_the_rayjob_starts_again_keeps_the_head_free_and_has_shared_memory() -> None:
    spec = load("kuberay/rayjob.yaml")["spec"]
    head = spec["rayClusterSpec"]["headGroupSpec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert spec["backoffLimit"] > 0 and head["rayStartParams"]["num-gpus"] == "0"
    pod = workers["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    assert volumes[places["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    store = re.search(r"--store (/\w+)/", spec["entrypoint"])
    assert store and store[1] in places


def test_the_image_can_run_the_rayjob() -> None:
    """It wants a token, is of a user who may write to the volume, and has what a bucket needs."""
    image = (DEPLOY / "Dockerfile").read_text()
    cluster = load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]
    assert "RAY_AUTH_MODE=token" in image and cluster["authOptions"] == {"mode": "token"}
    (user,) = re.findall(r"^USER (\d+)$", image, re.MULTILINE)
    # Ubuntu 24.04, and so CUDA's images, has a user 1000 of its own
    assert 0 < image.find("userdel") < image.find(f"useradd --create-home --uid {user}")
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["securityContext"]["fsGroup"] == int(user)
    (command,) = (
        container["lifecycle"]["preStop"]["exec"]["command"]
        for group in cluster["workerGroupSpecs"]
        for container in group["template"]["spec"]["containers"]
    )
    # what it does: test_cluster.py, on a node that is taken away
    assert command == ["sh", "/src/deploy/leave.sh"] and (DEPLOY / "leave.sh").exists()
    assert re.search(r"^WORKDIR /src\nCOPY \. \.$", image, re.MULTILINE) and " procps " in image
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not [name for name in ignored if name.startswith("deploy")]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", image)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) == {"train", "bucket"} <= set(declared["optional-dependencies"])


def test_the_cluster_file_is_one_by_ray_s_schema_and_its_own_validation() -> None:
    import ray
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    document = load("ray-cluster.yaml")
    validator = Draft202012Validator(schema)
    assert mistakes(validator, document) == []
    validate_config(prepare_config(document))
    for mounted in document["file_mounts"].values():
        assert mounted.startswith("~") or (DEPLOY / mounted).exists()
    # without one, Ray takes an image of 2018 with Python 3.10 at most
    assert all(kind["node_config"]["ImageId"] for kind in document["available_node_types"].values())
    wrong = {**document, "max_worker": 1}
    assert any("'max_worker' was unexpected" in text for text in mistakes(validator, wrong))


def test_files_name_this_version_and_the_tested_ray() -> None:
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    rayjob = load("kuberay/rayjob.yaml")
    assert pinned and rayjob["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]
    for name in ("kuberay/rayjob.yaml", "ray-cluster.yaml", "Dockerfile"):
        named = re.findall(r"vitscale[:-](\d+\.\d+\.\d+)", (DEPLOY / name).read_text())
        assert named and set(named) == {VERSION}


@pytest.mark.parametrize("name", ["slurm/study.sbatch", "mlflow/serve.sh"])
def test_scripts_parse_and_refuse_a_call_without_arguments(name: str) -> None:
    finished = subprocess.run(["bash", DEPLOY / name], capture_output=True, text=True)
    assert finished.returncode in (1, 2) and "usage: " in finished.stderr


def test_the_script_of_leaving_refuses_what_it_does_not_know_and_is_quiet_without_ray() -> None:
    script = DEPLOY / "leave.sh"
    wrong = subprocess.run(["sh", script, "--sport"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr == "usage: leave.sh [--spot]\n"
    alone = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc")
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to have processes in a namespace of its own")
    quiet = subprocess.run([*alone, "sh", script], capture_output=True, text=True)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


@pytest.mark.parametrize("node", [0, 1])
def test_a_burst_of_sigterm_to_a_task_of_slurm_is_heard(tmp_path: Path, node: int) -> None:
    """As preemption and `scancel` send one each. Scripts stand for Ray, which ends by itself, and
    for what signals its workers, since workers of other tests may run here.
    """
    told = tmp_path / "told"
    for name, does in {
        "ray": "echo begun; sleep 3",
        "pgrep": "echo 17",
        "pkill": f'echo "$*" >> {told}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    lines = (DEPLOY / "slurm/study.sbatch").read_text()
    assigned = lines[lines.index("stop='") : lines.index("export address")]
    driver = tmp_path / "driver"
    driver.touch()
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        **{"SLURM_NODEID": str(node), "SLURM_CPUS_ON_NODE": "1"},
        **{"address": "127.0.0.1:1", "driver": str(driver)},
    }
    task = subprocess.Popen(
        ["bash", "-c", f'{assigned}\nexport stop; exec bash -c "$task" task'],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert task.stdout and task.stdout.readline() == "begun\n"
    for _ in range(60):
        task.terminate()
        time.sleep(0.005)
    _, complaints = task.communicate(timeout=30)
    assert not complaints and task.returncode == 0
    assert Path(f"{driver}.stop").exists() == (node == 0)
    line = f"-TERM -u {os.getuid()} -P 17 -f ^ray::(ImplicitFunc|RayTrainWorker)"
    assert set(told.read_text().splitlines()) == {line}
