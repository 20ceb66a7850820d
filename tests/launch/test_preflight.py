"""Data that a study cannot be trained on, or that are not those
of its done trials: refused once, before Ray starts.
"""

from __future__ import annotations

import dataclasses
import http.server
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY, load_script
from support.own_images import BASE, study, write
from support.refusals import refusing
from support.users import as_user

from vitscale.analysis.report.report import caveats
from vitscale.analysis.results import Results
from vitscale.cli import script as cli
from vitscale.launch import preflight
from vitscale.launch.driver import waits_for_data
from vitscale.launch.preflight import READ, Data
from vitscale.launch.resources import Event, Resources
from vitscale.launch.worker import train_trial
from vitscale.plan import cores
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import DEFAULTS
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial
from vitscale.record.outcome import Outcome, Status
from vitscale.record.provenance import mixed_images
from vitscale.record.store import Store
from vitscale.record.table import outcomes, read_trials, tidy
from vitscale.train.data import fingerprint
from vitscale.train.sources import load_split


def refusal(made: Study, root: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a start is refused, without Ray."""
    with pytest.raises(SystemExit) as ended:
        cli.main(lambda: made, ["--store", str(store), "--data-root", str(root)])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and said.err.count("\n") == 1, said
    assert "ray.tune" not in sys.modules or not ray_runs()
    assert not store.exists() or "images of" in said.err
    return said.err


def ray_runs() -> bool:
    import ray

    return ray.is_initialized()


WRONG = [
    ({"num_images": 13}, "13 training images of own must be there, but got (12)"),
    ({"num_images": 24}, "24 training images of own must be there, but got (12)"),
    ({"num_classes": 10}, "num_classes == 3 must hold for own, but got (num_classes=10)"),
    ({"num_classes": 2}, "num_classes == 3 must hold for own, but got (num_classes=2)"),
    ({"crop": "pad"}, "crop in (rrc, src) must hold for images of any size, but got (crop='pad')"),
    ({"more_evals": "test"}, "an evaluation set of own must be one of train, val, but got (test)"),
    ({"dataset": "other"}, "a dataset must lie at root/name as a prepared set, class folders,"),
    (
        {"dataset": "torchvision:os"},
        "a class of torchvision.datasets with an argument train or split must be named",
    ),
    (
        {"dataset": "torchvision:VisionDataset"},
        "a class of torchvision.datasets with an argument train or split must",
    ),
    ({"dataset": "torchvision:SVHN"}, "the files of torchvision:SVHN must be there"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=[str(fields) for fields, _ in WRONG])
def test_data_that_a_config_cannot_be_trained_on_are_refused_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], said: str
) -> None:
    assert said in refusal(study(**fields), write(tmp_path / "data"), tmp_path / "store", capsys)


def test_a_class_that_only_this_process_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers do not run the script that puts it there."""
    import torchvision.datasets

    class Mine(torchvision.datasets.FakeData):
        def __init__(self, root: str, train: bool = True) -> None:
            super().__init__(12, (3, 8, 8), 3)

    monkeypatch.setattr(torchvision.datasets, "Mine", Mine, raising=False)
    made, root = study(dataset="torchvision:Mine"), write(tmp_path / "data")
    said = refusal(made, root, tmp_path / "store", capsys)
    assert f"got (Mine, defined in {__name__})" in said


def test_one_wrong_config_of_many_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of what differs is looked at: another crop, another evaluation set, another minival."""
    root, good = write(tmp_path / "data"), study()
    for number, (wrong, said) in enumerate(
        [
            ({"crop": "pad"}, "crop in (rrc, src) must hold"),
            ({"more_evals": "test"}, "an evaluation set of own"),
            ({"minival_images": 4, "minival_rule": "last"}, "a class must keep training images"),
        ]
    ):
        odd = Trial("sgd", good.trials[0].config.replace(**wrong), 9)
        made = dataclasses.replace(good, trials=(*good.trials, odd))
        assert said in refusal(made, root, tmp_path / f"store{number}", capsys)


def test_digits_of_another_size_are_refused_and_need_no_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(
        dataset="digits", num_images=0, num_classes=10, channels=1, resolution=16, crop="pad"
    )
    said = refusal(made, tmp_path, tmp_path / "store", capsys)
    assert (
        "resolution == height == width must hold for the crop pad, but got (dataset='digits', "
        "resolution=16"
    ) in said
    Data("").look(study(dataset="digits", num_images=0, num_classes=10, channels=1, crop="pad"))


def test_a_damaged_image_that_is_looked_at_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path / "data")
    (root / "own/train/a/0.png").write_bytes(b"no image")
    assert "own/train/a/0.png: no known image format" in refusal(
        study(), root, tmp_path / "store", capsys
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Store]:
    """Data, and a store in which two of the four trials of a study are done on them."""
    folder = tmp_path_factory.mktemp("trained")
    root, store = write(folder / "data"), Store.open(folder / "store")
    for name in ("train/a/notes.txt", "train/a/.0.png", "val/b/x.md"):
        (root / "own" / name).touch()
    for trial in study().trials[:2]:
        where = Resources(data_root=str(root))
        events = list(
            train_trial(trial.config.id, trial.config.non_default(), store, "own-demo", 1, where)
        )
        assert events[-1].status == "finished"
    return root, store


def known_of(store: Store, made: Study) -> dict[str, Outcome]:
    ids = [trial.config.id for trial in made.trials]
    return {trial_id: store.read(trial_id) for trial_id in ids if store.is_done(trial_id)}


def test_a_report_names_what_was_left_out_of_the_images(trained: tuple[Path, Store]) -> None:
    _, store = trained
    read = read_trials(study(), store)
    results = Results(study(), outcomes(study(), read), tidy(study(), read))
    (line,) = (line for line in caveats(results) if "left out" in line)
    assert line.count(";") == 1 and line.endswith(".")
    train, val = line.removeprefix("Files left out of the images: ").split("; ")
    assert train.startswith("train: 1 hidden (first 'train/a/.0.png'), 1 ")
    assert train.endswith("(first 'train/a/notes.txt')")
    assert val.startswith("val: 1 ") and "'val/b/x.md'" in val


def test_other_images_under_one_name_are_refused(
    tmp_path: Path, trained: tuple[Path, Store], capsys: pytest.CaptureFixture[str]
) -> None:
    root, store = trained
    copied = Path(shutil.copytree(store.root, tmp_path / "store"))
    plan = copied / "studies/own-demo/plan.json"
    plan.parent.mkdir()
    plan.write_text("{}")
    other = write(tmp_path / "other", seed=1)
    digests = [
        fingerprint(load_split(study().trials[0].config, "train", path))[:8]
        for path in (other, root)
    ]
    said = refusal(study(), other, copied, capsys)
    assert f"(digest {digests[0]}; of 2 done trials {digests[1]}; data_root='{other}')" in said
    assert (
        "the train images of own must be those that the trials of this study were trained on"
        in said
    )
    assert plan.read_text() == "{}"  # a start that is refused plans nothing


def test_the_same_images_elsewhere_are_the_same(
    tmp_path: Path, trained: tuple[Path, Store]
) -> None:
    root, store = trained
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    for path in (root, moved):
        data = Data(str(path))
        data.look(study())
        assert len(data.digests) == 1 and len(known_of(store, study())) == 2
        data.compare(study(), known_of(store, study()))


def test_other_evaluation_images_under_one_name_are_refused(
    tmp_path: Path, trained: tuple[Path, Store]
) -> None:
    """Only val differs: refused at the start, and said of what stands side by side."""
    root, store = trained
    other = Path(shutil.copytree(root, tmp_path / "corrected"))
    for path in write(tmp_path / "other", seed=1).glob("own/val*"):
        target = other / "own" / path.name
        (shutil.rmtree if target.is_dir() else Path.unlink)(target)
        path.rename(target)
    data, known = Data(str(other)), known_of(store, study())
    data.look(study())
    with refusing("of 2 done trials"):
        data.compare(study(), known)
    first = next(iter(known))
    digests = {i: outcome.facts["eval_digests"] for i, outcome in known.items()}
    assert mixed_images(digests.values()) == ""
    assert "DIFFERENT IMAGES of val" in mixed_images([digests[first], "val=0123456789abcdef"])


def test_trials_of_older_versions_are_believed_and_other_selections_are_not_mixed_up(
    tmp_path: Path, trained: tuple[Path, Store]
) -> None:
    root, store = trained
    other = Data(str(write(tmp_path / "other", seed=1)))
    other.look(study())
    known = known_of(store, study())
    older = {
        i: replace(o, facts={k: v for k, v in o.facts.items() if "digest" not in k})
        for i, o in known.items()
    }
    other.compare(study(), older)
    with refusing("of 1 done trials"):
        other.compare(study(), {**older, **dict([next(iter(known.items()))])})
    # of the same images, and has another digest
    data, subset = Data(str(root)), study(subset_images=6)
    both = dataclasses.replace(study(), trials=(*study().trials, *subset.trials))
    data.look(both)
    assert len({splits["train"] for splits in data.digests.values()}) == 2
    data.compare(both, known)


def test_what_decides_the_images_is_what_the_loader_reads(tmp_path: Path) -> None:
    """Fields outside READ leave the training images alone."""
    root = write(tmp_path)
    config = TrainConfig(**BASE)
    digest = fingerprint(load_split(config, "train", root))
    others: dict[str, Any] = {
        "seed": 3,
        "batch_size": 2,
        "crop": "src",
        "resolution": 16,
        "epochs": 7,
        "flip_prob": 0.5,
    }
    for name, value in others.items():
        assert name not in READ
        assert fingerprint(load_split(config.replace(**{name: value}), "train", root)) == digest
    assert fingerprint(load_split(config.replace(minival_images=3), "train", root)) != digest
    assert set(READ) <= set(DEFAULTS)


def test_looking_at_data_imports_neither_ray_nor_mlflow(tmp_path: Path) -> None:
    code = f"""
        import sys
        from vitscale.launch.preflight import Data
        from vitscale.plan.config import TrainConfig
        from vitscale.plan.study import Study
        from vitscale.plan.trial import Trial
        of = dict(kind="distribution", name="own", scale="demo", question="?", source="none")
        Data("").look(Study(**of, trials=(Trial("a", TrainConfig()),)))
        assert "torch" not in sys.modules
        data = Data({str(write(tmp_path))!r})
        data.look(Study(**of, trials=(Trial("a", TrainConfig(**{BASE!r})),)))
        assert data.digests and not {{"ray", "mlflow"}} & set(sys.modules)
    """
    lines = "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_store_with_trials_is_not_called_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its studies may have been deleted, to start them afresh."""
    from vitscale.launch.driver import _announce_new
    from vitscale.launch.process import Output

    store, output = Store.open(tmp_path / "runs"), Output(sys.stdout, threading.Event())
    _announce_new(store, output)
    assert capsys.readouterr().out.startswith(f"new store {store.root}: nothing is done in it")
    store.claim("0123456789ab", {}, "one-demo", 1)
    _announce_new(store, output)
    assert not capsys.readouterr().out


class Silent(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        time.sleep(5)


AFFINITY = len(os.sched_getaffinity(0))
QUOTAS = [  # what /proc/self/cgroup says, files of groups, cores
    ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
    ("0::/a", {"a/cpu.max": "99000000 100000"}, AFFINITY),
    ("0::/a", {"a/cpu.max": "20000 100000"}, 1),
    ("0::/gone", {"cpu.max": "150000 100000"}, 1),  # as in a container with a mount of its own
    ("1:name=systemd:/a\n3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs": (100000, 100000)}, 1),
    ("3:cpu:/", {"cpu/cpu.cfs": (-1, 100000)}, AFFINITY),
    ("2:cpuset:/a", {"a/cpu.max": "100000 100000"}, AFFINITY),
]


@pytest.mark.parametrize(("own", "files", "num"), QUOTAS)
def test_cores_are_those_of_affinity_and_quotas(
    own: str, files: dict[str, Any], num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN", tmp_path / "own")
    (tmp_path / "own").write_text(f"{own}\n")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (tmp_path / name).write_text(f"{content}\n")
        else:
            for kind, value in zip(("quota", "period"), content, strict=True):
                (tmp_path / f"{name}_{kind}_us").write_text(f"{value}\n")
    assert cores.num_cores() == num
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_folder_in_which_ray_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is that of the system, which a socket of this test meets as well."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    rest = preflight.SOCKET.format(os.getpid())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for num_bytes, fits in ((107, True), (108, False)):
            name = "n" * (num_bytes - len(f"{folder}//ray/{rest}"))
            monkeypatch.setenv("TMPDIR", f"{folder}/{name}")
            path = Path(folder, name, "ray", rest)
            path.parent.mkdir(parents=True)
            refused = nullcontext() if fits else pytest.raises(OSError, match="too long")
            with socket.socket(socket.AF_UNIX) as of_ray, refused:
                of_ray.bind(str(path))
            if fits:
                assert preflight.check_ray_folder() == Path(folder, name, "ray")
    long = f"{tmp_path}/{'n' * 120}"
    for ray, other, hint in (
        ("/proc/nowhere", "/tmp", "set RAY_TMPDIR or TMPDIR"),
        ("", long, "set RAY_TMPDIR or TMPDIR"),
        ("/tmp", long, "set TMPDIR to a shorter"),  # of processes that load images
    ):
        named = long if other == long else ray
        monkeypatch.setenv("RAY_TMPDIR", ray)
        monkeypatch.setenv("TMPDIR", other)
        monkeypatch.setattr(tempfile, "tempdir", other)
        with pytest.raises(SystemExit, match="2"):
            options = ["--store", str(tmp_path / "runs"), "--num-loader-workers", "1"]
            cli.main(load_script(TINY).study, options)
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and hint in said and named in said
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("handler", "why"),
    [(http.server.SimpleHTTPRequestHandler, "what listens there is no Ray"), (Silent, "timed out")],
)
def test_an_address_where_another_server_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    handler: type[socketserver.BaseRequestHandler],
    why: str,
) -> None:
    monkeypatch.setattr(preflight, "ANSWER_S", 1.0)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(ValueError, match=why) as caught:
            preflight.check_answers(address)
        server.shutdown()
    assert f"(address={address!r}): " in str(caught.value)


SEES = """
from vitscale.launch.nodes import _look
from vitscale.record.store import Store
say(_look(Store(arguments[0]), "a-demo", arguments[1], [], "").reason)
"""


def test_a_node_that_may_not_write_to_the_store_says_so_at_the_start(
    another_user: int,
) -> None:
    """Its processes are another user's, say; and not each trial in turn."""
    import vitscale.launch.nodes  # noqa: F401  before the user changes

    with tempfile.TemporaryDirectory() as folder:  # pytest's own are root's alone
        os.chmod(folder, 0o755)
        store = Store.open(Path(folder) / "runs")
        with store.drive("a-demo"):
            nonce = store.nonce("a-demo")
            assert as_user(0, 0, SEES, store.root, nonce) == ""
            said = as_user(another_user, another_user, SEES, store.root, nonce)
        assert said.startswith("it cannot write to the store: ") and "\n" not in said
        assert not [name for name in store.trials.names() if name.startswith(".")]


def gib(amount: float) -> int:
    return int(amount * 2**30)


def test_nodes_are_asked_for_tensor_cores_and_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a tool of NVIDIA's that prints what theirs does, and sizes of a node of an H100."""
    from vitscale.launch import nodes

    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 9.0\necho 7.5\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    here = nodes._hardware()
    assert here.capabilities == (9.0, 7.5)
    assert here.shm_bytes is not None and abs(here.shm_bytes / free_kib() / 1024 - 1) < 0.1
    hints = {(6.1,): "", (7.5, 6.1): " in fp16 (", (9.0, 7.5): " in bf16 or tf32 (", (): ""}
    for capabilities, expected in hints.items():
        hint = nodes.tensor_core_hint(capabilities)
        assert expected in hint and bool(hint) == bool(expected)

    node = {"NodeManagerAddress": "n", "NodeID": "1" * 40, "Alive": True}
    node["Resources"] = {"CPU": 33.0, "GPU": 2.0}
    seen = {nodes.label(node): here._replace(shm_bytes=gib(2))}
    monkeypatch.setattr(nodes, "watched", lambda ask, resources: ask())
    monkeypatch.setattr("ray.nodes", lambda: [node, node | {"NodeID": "2", "Alive": False}])
    monkeypatch.setattr(nodes, "ask_nodes", lambda *_, **__: seen)
    whole, half = Resources(gpus_per_trial=1.0), Resources(gpus_per_trial=0.5)
    assert [nodes.share_of_cores(request) for request in (whole, half)] == [16, 8]

    made, data = study(), Data(str(write(tmp_path)))  # in fp32, from files
    data.look(made)
    assert data.is_on_disk and data.batch_bytes == (4 + 512) * 3 * 8 * 8
    data.batch_bytes = 2**20 * 64
    asked = replace(half, cpus_per_trial=8.0, num_loader_workers="auto")
    short, hint = nodes.look_at_hardware(made, asked, data)
    # 4 trials with 7 readers, which hold 2 batches each
    assert "2 GiB free, 28 readers need up to 3.5 GiB" in short and hint.startswith(
        "trials in fp32"
    )
    for fewer in ({"num_loader_workers": 2}, {"max_concurrent": 2}):
        assert nodes.look_at_hardware(made, replace(asked, **fewer), data) == [hint]
    assert (
        nodes.look_at_hardware(study(precision="bf16"), replace(asked, max_concurrent=1), data)
        == []
    )
    data.is_on_disk = False  # then "auto" is none
    assert nodes.look_at_hardware(made, asked, data) == [hint]
    assert nodes.look_at_hardware(made, Resources(), data) == []


def test_a_trial_that_waits_for_its_images_is_named() -> None:
    def line(waits_s: float, has_readers: bool = False) -> str:
        rows = [{"train_s": 20.0, "wait_data_s": waits_s}, {"train_s": 40.0, "wait_data_s": 30.0}]
        return waits_for_data(Event("abc", Status.RUNNING, rows), has_readers)

    assert line(2.0) == "" and waits_for_data(Event("abc", Status.RUNNING), False) == ""
    assert "abc waited for images for 2.5 s of its first 20;" in line(2.5)
    assert "gives it readers" in line(2.5) and "gives it more readers" in line(2.5, True)


def free_kib() -> int:
    listed = subprocess.run(["df", "-k", "--output=avail", "/dev/shm"], capture_output=True)
    return int(listed.stdout.split()[-1])


def test_tf32_is_refused_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(study(precision="tf32"), write(tmp_path), tmp_path / "runs", capsys)
    assert "precision != 'tf32' must hold on a CPU" in line


def test_nodes_of_other_code_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from vitscale.launch import nodes

    monkeypatch.setattr(nodes, "_code", lambda: "commit a; torch 1")
    same, other, old = nodes.Sight(code="commit a; torch 1"), nodes.Sight(code="x"), True
    lost = ray.exceptions.RayError()
    answers = {"n1": same, "n2": other, "n3": old, "n4": lost, "n5": other}
    sights = {node: nodes._sight(answer) for node, answer in answers.items()}
    line = nodes._other_code(sights, {"n1", "n2", "n3", "n4"})
    assert line.startswith("n2, and 1 more nodes will train with other code or packages (x; here")
    assert not nodes._other_code(sights, {"n1", "n4"})
