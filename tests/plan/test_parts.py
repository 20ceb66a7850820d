"""Parts of a user's own, as a plan sees them: read and never run."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from vitscale import Study, TrainConfig, Trial
from vitscale.plan import parts
from vitscale.plan.cost import shape_of
from vitscale.plan.study import config_of
from vitscale.record.table import axes_of

TINY = """
raise SystemExit("a plan must not run this")
class Tiny:
    def __init__(self, num_classes, resolution, channels, dim: int = 32, act="gelu", rate=0.5): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def test_a_part_has_the_digest_of_its_source_in_the_id(folder: Path) -> None:
    config = TrainConfig(model="tiny.py:Tiny")
    content = json.dumps({"main": "tiny", "modules": {"tiny": [False, TINY]}}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    assert config.model == f"tiny.py:Tiny@{digest}"
    assert TrainConfig(model=config.model).id == config.id  # as a worker makes it from a store
    (folder / "other").mkdir()
    (folder / "other/tiny.py").write_text(TINY)
    assert TrainConfig(model="other/tiny.py:Tiny").id == config.id  # wherever the file lies
    (folder / "tiny.py").write_text(TINY + "# edited\n")
    assert TrainConfig(model="tiny.py:Tiny").id != config.id


def test_imported_files_of_the_project_are_of_the_source(folder: Path) -> None:
    (folder / "package/sub").mkdir(parents=True)
    for name in ("package/__init__.py", "package/sub/__init__.py"):
        (folder / name).write_text("")
    (folder / "package/a.py").write_text("from .sub import b\nimport torch\nimport tiny\nA = 1\n")
    (folder / "package/sub/b.py").write_text("from ..c import C\n")
    (folder / "package/c.py").write_text("from package import a\nC = 1\n")  # a circle
    (folder / "package/unused.py").write_text("")
    (folder / "main.py").write_text("def f():\n    from package import a\ndef make(): ...\n")
    config = TrainConfig(model="main.py:make")
    source = parts.source_of(parts.digest_of(config.model))
    assert source is not None
    assert set(source.modules) == {
        *("main", "package", "package.a", "package.sub", "package.sub.b", "package.c", "tiny")
    }
    before = config.id
    (folder / "package/c.py").write_text("C = 2\n")
    assert TrainConfig(model="main.py:make").id != before


def test_arguments_are_axes_with_one_text_each(folder: Path) -> None:
    config = TrainConfig(model="tiny.py:Tiny", own={"rate": 1, "dim": 64})
    assert config.own == "dim=64,rate=1.0"
    assert (config.axis("own.dim"), config.axis("own.act"), config.axis("lr")) == (64, "gelu", 1e-3)
    assert config.replace(**{"own.dim": 32}).own == "rate=1.0"  # the default is left out
    assert config.replace(**{"own.act": "a,b='c'"}).own_arguments["act"] == "a,b='c'"
    assert TrainConfig(model=config.model, own="rate=1.0,dim=64").id == config.id
    assert (
        TrainConfig(model="tiny.py:Tiny", own={"dim": 32}).id
        == TrainConfig(model="tiny.py:Tiny").id
    )
    assert shape_of(config) != shape_of(config.replace(**{"own.dim": 65}))


def test_the_arguments_of_all_parts_of_a_study_are_columns(folder: Path) -> None:
    (folder / "sgd.py").write_text("def make(groups, lr, mu: float = 0.9): ...\n")
    base = TrainConfig(model="tiny.py:Tiny")
    configs = {"ours": base, "own": base.replace(optimizer="sgd.py:make")}
    study = Study(
        kind="repeats",
        name="own",
        scale="demo",
        question="Which optimizer?",
        source="ours",
        trials=tuple(Trial(arm, config) for arm, config in configs.items()),
        metric="val_error_pct",
        tables=("arm_means",),
    )
    own = [name for name in axes_of(study) if name.startswith("own.")]
    assert own == ["own.dim", "own.act", "own.rate", "own.mu"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"own": {"dm": 3}}, ["one of (dim, act, rate) of tiny.py:Tiny", "'dm'=3"]),
        ({"own": {"dim": "x"}}, ["dim of tiny.py:Tiny must be of type int", "dim='x'"]),
        ({"own": {"rate": math.nan}}, ["a finite float", "'rate'=nan"]),
        ({"own": "dim=[1]"}, ["an int, a finite float, a bool or a str", "'dim'=[1]"]),
        ({"own": "dim=__import__('os')"}, ["own must be like {'dim': 64}"]),
        ({"width": 32}, ["width == 64 unless the model takes it", "width=32"]),
        ({"drop_path": 0.1}, ["drop_path == 0.0 unless the model takes it"]),
        ({"model": "no.py:Tiny"}, ["the file of a part must exist", "no.py:Tiny"]),
        ({"model": "tiny.py:Tin"}, ["its file defines", "no Tin in it"]),
        ({"model": "tiny.py:"}, ["must name a part as 'folder/file.py:Name'", "model='tiny.py:'"]),
        ({"model": "syntax.py:X"}, ["must be Python", "line 1"]),
        ({"model": "bytes.py:X"}, ["must be readable", "bytes.py"]),
        ({"model": "relative.py:X"}, ["within a package", "line 1"]),
        ({"model": "field.py:X"}, ["depth of field.py:X must have no default", "depth=12, and 4"]),
        ({"model": "asks.py:X"}, ["without a default must be a field or in own", "no size"]),
        ({"model": "no_package_of_this_name.a:X"}, ["must be installed"]),
        ({"model": "tiny:Tiny"}, ["must be installed", "a file is named as tiny.py:Tiny"]),
        ({"model": "tiny.py:Tine"}, ["no Tine in it", "did you mean 'Tiny'"]),
        ({"model": "calls.py:X"}, ["by `import`, which can be read", "line 2", "'tiny'"]),
        ({"model": "path.py:X"}, ["must not use sys.path", "line 1"]),
        ({"loss": "asks.py:rated"}, ["two parts with different defaults", "rate=0.5 and 0.1"]),
        ({"dim": 4}, ["must be known", "an argument of a part is own={'dim': ...}"]),
        ({"model": int}, ["model must be of type str", "as in 'file.py:Name'"]),
        ({"metrics": "asks.py:unitless"}, ["a unit and its own name", "a unit must have a name"]),
        ({"optimizer": "asks.py:none"}, ["must take (groups) by position", "0 parameters"]),
        ({"metrics": "asks.py:none"}, ["must take (logits, targets) by position"]),
        ({"metrics": "asks.py:undeclared"}, ["must be decorated by @reports(Metric(...), ...)"]),
        ({"metrics": "asks.py:odd"}, ["a metric must be Metric(name=..., ...) with constants"]),
        ({"model": "vit", "own": {"dim": 3}}, ["own must come with a part"]),
    ],
)
def test_what_is_no_part_is_refused_in_one_line(
    folder: Path, fields: dict[str, object], words: list[str]
) -> None:
    (folder / "syntax.py").write_text("def x(:")
    (folder / "bytes.py").write_bytes(b"\xff\xfe")
    (folder / "calls.py").write_text(
        "import importlib\ntiny = importlib.import_module('tiny')\nclass X: ...\n"
    )
    (folder / "path.py").write_text("import sys; sys.path.insert(0, 'lib')\nclass X: ...\n")
    (folder / "relative.py").write_text("from . import y\nclass X: ...\n")
    (folder / "field.py").write_text("def X(num_classes, depth=12): ...\n")
    (folder / "asks.py").write_text(
        "from vitscale import Metric, reports\n"
        "def X(size): ...\ndef none(): ...\ndef undeclared(logits, labels): ...\n"
        "def rated(logits, targets, rate=0.1): ...\n"
        "@reports(Metric(name=none(), label='x', near=1.0))\ndef odd(logits, labels): ...\n"
        "@reports(Metric(name='x', label='x', unit='', near=1.0, worst=0.0, bounds=(0.0, 1.0),"
        " beyond=2.0))\ndef unitless(logits, labels): ...\n"
    )
    with pytest.raises(ValueError) as refused:
        config = TrainConfig(**{"model": "tiny.py:Tiny", **fields})  # type: ignore[arg-type]
        assert config.columns
    message = str(refused.value)
    assert "\n" not in message and "but got" in message
    assert all(word in message for word in words), message


def test_a_declared_metric_is_a_column(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import math\nfrom vitscale import Metric, reports\n"
        "@reports(Metric(name='margin', label='margin', unit='nats', worst=-math.inf, near=0.2,"
        " bounds=(-math.inf, math.inf), lower_is_better=False, beyond=0.5))\n"
        "def margin(logits, labels): ...\n"
    )
    column = TrainConfig(metrics="mine.py:margin").columns["val_ema_margin"]
    assert (column.metric.worst, column.metric.lower_is_better) == (-math.inf, False)
    assert column.metric.bounds == (-math.inf, math.inf)
    assert column.metric.text(0.0717) == "0.07 nats"  # a tenth of what is near is seen


def test_a_part_of_a_package_has_its_version_in_the_id() -> None:
    import torchvision

    config = TrainConfig(model="torchvision.models:resnet18")
    assert config.model == f"torchvision.models:resnet18@{torchvision.__version__.split('+')[0]}"
    other = config.replace(model="torchvision.models:resnet18@0.1")
    assert other.id != config.id


def test_a_value_that_is_one_of_two_defaults_is_kept(folder: Path) -> None:
    (folder / "loss.py").write_text("def rated(logits, targets, rate=0.1, sizes=[1]): ...\n")
    base = {"model": "tiny.py:Tiny", "loss": "loss.py:rated"}
    texts = [TrainConfig(**base, own={"rate": rate}).own for rate in (0.1, 0.5)]
    assert texts == ["rate=0.1", "rate=0.5"]


def test_fields_of_a_dataclass_are_arguments(folder: Path) -> None:
    (folder / "loss.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Smooth:\n    eps: float = 0.1\n"
        "    def __call__(self, logits, targets): ...\n"
    )
    assert TrainConfig(loss="loss.py:Smooth", own={"eps": 0.2}).own == "eps=0.2"


def test_what_a_part_imports_by_pythonpath_is_of_its_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("lab/norms.py", "K = 1\n"), ("lab/__init__.py", "from lab import norms\n")):
        (folder / "elsewhere" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "elsewhere" / name).write_text(text)
    (folder / "net.py").write_text("import torch\nfrom lab.norms import K\ndef Net(): ...\n")
    monkeypatch.syspath_prepend(str(folder / "elsewhere"))
    config = TrainConfig(model="net.py:Net")
    source = parts.source_of(parts.digest_of(config.model))
    assert source is not None and set(source.modules) == {"net", "lab", "lab.norms"}
    (folder / "elsewhere/lab/norms.py").write_text("K = 22\n")
    assert TrainConfig(model="net.py:Net").id != config.id


def test_a_file_that_is_written_later_and_a_byte_order_mark_are_read(folder: Path) -> None:
    (folder / "net.py").write_bytes(b"\xef\xbb\xbfimport helper\ndef Net(): ...\n")
    config = TrainConfig(model="net.py:Net")
    (folder / "helper.py").write_text("")
    source = parts.source_of(parts.digest_of(TrainConfig(model="net.py:Net").model))
    assert source is not None and set(source.modules) == {"net", "helper"}
    assert parts.digest_of(config.model) not in {"", source.sha256[:16]}


@pytest.mark.parametrize("part", ["tiny.py:Tiny", "json:loads"])
def test_a_store_names_no_file_or_package_of_this_machine(folder: Path, part: str) -> None:
    with pytest.raises(ValueError, match="must have its digest or version") as refused:
        config_of({"model": part})
    assert part in str(refused.value)
