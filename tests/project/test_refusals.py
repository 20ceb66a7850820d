"""Bad input of every kind: one line on stderr, status 2, nothing trained and nothing written.

All in one process.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import ROOT, load_script
from optuna.distributions import FloatDistribution
from PIL import Image
from support.refusals import refusing

from vitscale.__main__ import main as vitscale_main
from vitscale.analysis import kinds
from vitscale.cli import script as cli
from vitscale.plan.config import TrainConfig
from vitscale.plan.cores import num_cores
from vitscale.plan.data import check_readable, facts
from vitscale.plan.design import cross, grid, sample, trials
from vitscale.plan.fields import DEFAULTS, choices, field_types, limits
from vitscale.plan.paths import data_root
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.questions import of_kind
from vitscale.plan.search import Search
from vitscale.plan.spelling import ALIASES
from vitscale.plan.study import MAX_TRIALS, SearchInfo, Study
from vitscale.plan.trial import Arm, Trial
from vitscale.record.store import Store

TINY_SEARCH = ROOT / "tests/studies/tiny_search.py"
HUGE = 10**22
LONG = "x" * 100_000
SPACE = {"lr": FloatDistribution(1e-4, 1e-2, log=True)}
GOOD: dict[str, Any] = {
    "kind": "distribution",
    "name": "made",
    "scale": "demo",
    "question": "Is bad input refused?",
    "source": "none",
    "trials": tuple(
        Trial(arm, TrainConfig(seed=i, depth=d), i)
        for arm, d in (("a", 1), ("b", 2))
        for i in range(2)
    ),
    "panels": {"": ("a", "b")},
    "pairs": (("a", "b"),),
    "figures": ("learning_curves",),
    "tables": ("edf_summary",),
}
GOOD_SEARCH: dict[str, Any] = {
    "name": "made",
    "scale": "demo",
    "question": "Is bad input refused?",
    "source": "none",
    "arms": {"a": TrainConfig(eval_split="minival")},
    "spaces": {"a": SPACE},
    "num": 2,
}
NO_TEXT: list[Any] = [None, 0, 1.5, True, b"x", ["x"], object()]
NO_LIST: list[Any] = [None, 0, True, "edf", b"x", {"a": 1}, (1,), (None,), object()]
NO_MAP: list[Any] = [None, 0, True, "a", ("a",), [("a", "b")], object()]
LABELS = ["", " ", " a", "a\nb", "a\0b", "\x1b[31ma", "$x_{$", "$x$", LONG]


def points(point: Any) -> tuple[Trial, ...]:
    return (Trial("a", TrainConfig(), point), Trial("b", TrainConfig(seed=1), 0))


BAD_STUDIES: list[tuple[str, list[Any]]] = [
    ("kind", [*NO_TEXT, "", "Of mine", "a-b", "x" * 101, "search", "profile", "shapes"]),
    ("name", [*NO_TEXT, "", "Made", "made-1", "made\n", "../x", "/etc", "x\0", "ä", LONG]),
    ("scale", [*NO_TEXT, "", "De mo", "../x", "x\0", LONG]),
    ("question", [*NO_TEXT, "a\0b", "x" * 10**6]),
    ("source", [*NO_TEXT, "a\0b"]),
    ("design", [*NO_TEXT, "a\0b"]),
    ("notes", [*NO_TEXT, "a\0b"]),
    ("measured", [None, 3, "x"]),
    ("num_scrambles", [None, "2", 2.0, True, -1, 1]),
    ("published", [None, 0, 1, "yes"]),
    (
        "printed",
        [*NO_MAP, {"val": 1}, {"val": {"z": 1.0}}, {"no": {}}, {1: {}}, {"val": {"a": -1}}],
    ),
    ("axis", [*NO_TEXT, "a\0b"]),
    ("margin", [0, 0.0, -1.0, math.nan, math.inf, True, "1", (1.0,)]),
    ("parents", [*NO_LIST, (None,), (TrainConfig,), ({},), (Trial("a", TrainConfig()),)]),
    (
        "metric",
        [
            *NO_TEXT,
            "",
            "val_nothing",
            "val_ece",
            "train_loss",
            "loss",
            "test_loss",
            "val_emaloss",
            "test_error_pct",
            "error_pct",
            "images_per_s",
            "val_error_pct ",
            LONG,
        ],
    ),
    (
        "trials",
        [
            *NO_LIST,
            (),
            [],
            (Trial("a", None),),
            (Trial("a", {}),),
            (Trial("a", TrainConfig),),  # type: ignore[arg-type,list-item]
            (TrainConfig(),),
            (Trial("a", TrainConfig()),) * 2,
            *map(points, ["x", 0.5, math.nan, -1, True, HUGE, (1,)]),
            (
                Trial("a", TrainConfig()),
                Trial("b", ProfileConfig(profile="inference", hardware="x")),
            ),
        ],
    ),
    (
        "panels",
        [
            *NO_MAP,
            {"": "a"},
            {"": ()},
            {"": ("c",)},
            {"": (1,)},
            {1: ("a",)},
            {None: ("a",)},
            *({label: ("a",)} for label in LABELS[1:]),
        ],
    ),
    (
        "pairs",
        [
            *NO_LIST,
            ("a", "b"),
            (("a",),),
            (("a", "b", "a"),),
            (("a", "a"),),
            (("a", "c"),),
            ((1, 2),),
            ("ab",),
        ],
    ),
    ("figures", [*NO_LIST, ("edf_panel",), ("edf_panels", ""), ("search_history",), (LONG,)]),
    ("tables", [*NO_LIST, ("edf_sumary",), ("search_best",), (LONG,)]),
    ("search", ["TPE", 3, {"sampler": "tpe"}, SearchInfo(sampler="tpe", per_round=4)]),
    ("colour", ["red", None, LONG]),  # no field
]
BAD_SEARCHES: list[tuple[str, list[Any]]] = [
    ("name", [None, 1, "", "A b", LONG]),
    ("scale", [None, ""]),
    ("question", [None]),
    ("source", [None]),
    (
        "arms",
        [*NO_MAP, {}, {"a": None}, {"b": TrainConfig(eval_split="minival")}, {1: TrainConfig()}],
    ),
    (
        "spaces",
        [
            *NO_MAP,
            {},
            {"a": {}},
            {"a": None},
            {"a": {"lr": (1e-3, 1e-2)}},
            {"a": {"wdd": SPACE["lr"]}},
        ],
    ),
    ("num", [None, "2", 2.0, True, 0, -1, HUGE]),
    ("per_round", [None, 0, HUGE, 1.5]),
    ("seeds", [None, 0, (), (0, 0), ("0",), (-1,), (HUGE,)]),
    ("sampler", [None, 1, "grid"]),
    ("sampler_seed", [None, -1]),
    ("asha", [None, 1]),
    ("metric", [None, 1, "val_error_pct", "minival_loss", "minival_nothing"]),
    ("panels", [None, {"": ("c",)}]),
    ("figures", [None, ("edf_panels",)]),
    ("tables", [None, ("edf_summary",)]),
    ("notes", [None]),
    ("winners_file", [None, 1, "/tmp/x.json", "../x.json", "x.py"]),
    ("measured", [3, "x"]),
    ("colour", ["red"]),
]
MODES = [["--plan"], ["--report"], []]


def refusal(
    make: Callable[..., Any], *arguments: str, capsys: pytest.CaptureFixture[str], store: Path
) -> str:
    """The one line with which a study is refused."""
    with pytest.raises(SystemExit) as ended:
        cli.main(make, [*arguments, "--store", str(store)])
    said = capsys.readouterr()
    assert ended.value.code == 2, (ended.value.code, said)
    assert (
        said.err.count("\n") == 1
        and said.err.endswith("\n")
        and ": error: " in said.err
        and said.out == ""
    )
    assert len(said.err) < 2000 and "Traceback" not in said.err and not (store / "trials").exists()
    return said.err


def changed(kind: type, good: dict[str, Any], name: str, value: Any) -> Callable[[], Any]:
    return lambda: kind(**{**good, name: value})


@pytest.mark.parametrize(
    ("kind", "good", "name", "values"),
    [(Study, GOOD, *bad) for bad in BAD_STUDIES]
    + [(Search, GOOD_SEARCH, *bad) for bad in BAD_SEARCHES],
    ids=[
        f"{kind}-{name}"
        for kind, bad in (("study", BAD_STUDIES), ("search", BAD_SEARCHES))
        for name, _ in bad
    ],
)
def test_a_wrong_study_is_refused_whatever_is_asked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: type,
    good: dict[str, Any],
    name: str,
    values: list[Any],
) -> None:
    for number, value in enumerate(values):
        for mode in MODES:
            make = changed(kind, good, name, value)
            assert refusal(make, *mode, capsys=capsys, store=tmp_path / "store"), (
                name,
                number,
                mode,
            )


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        *((label, {}) for label in [*NO_TEXT, *LABELS]),
        *(("a", factors) for factors in NO_MAP),
        ("a", {1: 1}),
        ("a", {"$x$": 1}),
        ("a", {"x": "$"}),
        ("a", {"x": None}),
        ("a", {"x": True}),
        ("a", {"x": math.nan}),
        ("a", {"x": (1,)}),
        ("a", {"x": 1}),  # which the other arm lacks
    ],
)
def test_a_wrong_arm_is_refused_whatever_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: Any, factors: Any
) -> None:
    def make() -> Study:
        trials = (Trial(Arm(name, factors), TrainConfig()), Trial("b", TrainConfig(seed=1)))
        return Study(**{**GOOD, "panels": {}, "pairs": (), "trials": trials})

    for mode in MODES:
        assert refusal(make, *mode, capsys=capsys, store=tmp_path / "store")


def test_every_field_of_a_study_was_tried() -> None:
    for kind, bad in ((Study, BAD_STUDIES), (Search, BAD_SEARCHES)):
        assert {name for name, _ in bad} == {f.name for f in dataclasses.fields(kind)} | {"colour"}
    # what is right is not refused
    assert tuple(Study(**GOOD).arms) == ("a", "b") and Search(**GOOD_SEARCH).num_trials == 2


@pytest.mark.parametrize("made", [None, 3, "study", Study, (), [Study(**GOOD)], {"name": "x"}])
def test_a_function_that_makes_no_study_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: object
) -> None:
    for mode in MODES:
        said = refusal(lambda: made, *mode, capsys=capsys, store=tmp_path / "store")
        assert "must return a Study or a Search, but got (" in said


def test_a_study_without_its_keywords_is_refused() -> None:
    for without in ("name", "trials"):
        rest = {name: value for name, value in GOOD.items() if name != without}
        with refusing(f"(without {without})"):
            Study(**rest)
    with refusing("(without kind, name, scale, question, source, trials)"):
        Study("a", "b")  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"but got \(positional \('a',\)\)$"):
        Study("a", **GOOD)  # type: ignore[misc]


def test_names_that_a_plan_takes_for_known_are_drawn() -> None:
    """One that is drawn and not among them only costs a plan
    a second: then those that draw are asked.
    """
    for kind, made in kinds.KINDS.items():
        listed = [{name for question in of_kind(kind) for name in question.figures}]
        listed.append({name for question in of_kind(kind) for name in question.tables})
        assert [set(made.figures), set(made.tables)] == listed


# Configs


WRONG: dict[type, list[Any]] = {
    int: [None, "1", 1.0, True, -1, HUGE, 10**40, 10**5000, (1,), object()],
    float: [None, "1", 1, True, math.nan, -1.0, -0.0, -math.inf, object()],
    str: [None, 1, True, b"x", "\0", "x" * 100_000, "no such value\n", object()],
    bool: [None, 0, 1, "True", object()],
}


def test_every_field_of_a_config_refuses_what_it_cannot_be() -> None:
    for name, field in field_types(TrainConfig).items():
        for value in WRONG[field.kind]:
            if (name, value) == ("seed", HUGE // 10**4):
                continue
            with pytest.raises(ValueError) as error:
                TrainConfig(**{name: value})
            said = str(error.value)
            assert "\n" not in said and len(said) < 700, (name, said)
            assert name in said or name in choices(TrainConfig), (name, said)


def test_limits_are_far_above_what_is_trained_and_hold_at_their_edge() -> None:
    most = limits(ProfileConfig)
    assert most == {**limits(TrainConfig), "timed_runs": 10**6} and set(limits(TrainConfig)) <= set(
        DEFAULTS
    )
    assert TrainConfig(epochs=most["epochs"]).epochs == 10**6
    for name in most:
        kind, known = (ProfileConfig, {}) if name == "timed_runs" else (TrainConfig, DEFAULTS)
        with refusing(f"{name}={most[name] + 1}"):
            kind(**{name: most[name] + 1})
        assert most[name] >= 100 * known.get(name, 1)
    stem = {"stem": "conv", "stem_strides": "2"}
    for channels in ("9" * 150, str(2**17 + 1), "-".join("4" * 33)):
        with refusing(f"stem_channels='{channels[:90]}"):
            TrainConfig(**stem, stem_channels=channels)
    assert TrainConfig(**stem, stem_channels=str(2**17)).stem_layers == [(2**17, 2, 3)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc",
        "../../etc",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        ".hidden",
        "a/.b",
        " a",
        "a ",
        "a\0b",
        "a\nb",
        "torchvision:",
        "torchvision:os.system",
        "torchvision:../x",
        "torchvision:SVHN ",
        "torchvision:__import__",
    ],
)
def test_a_dataset_is_named_and_no_path(name: str) -> None:
    with refusing(f"dataset={name!r}"):
        TrainConfig(dataset=name, num_images=100)


@pytest.mark.parametrize(
    "name", ["flowers", "flowers-64", "sets/flowers", "my data", "Blümchen", "torchvision:SVHN"]
)
def test_a_dataset_may_have_any_name_of_a_folder(name: str) -> None:
    assert TrainConfig(dataset=name, num_images=100).dataset == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("weight_decay", "wd"),
        ("image_size", "resolution"),
        ("learning_rate", "lr"),
        ("img_size", "resolution"),
        ("batch", "batch_size"),
        ("bs", "batch_size"),
        ("hidden_dim", "width"),
        ("embed_dim", "width"),
        ("num_layers", "depth"),
        ("num_heads", "heads"),
        ("drop_path_rate", "drop_path"),
        ("smoothing", "label_smoothing"),
        ("init_values", "layerscale"),
        ("opt", "optimizer"),
        ("Weight_Decay", "wd"),
        ("weight-decay", "wd"),
        ("patchsize", "patch_size"),
        ("num_epochs", "epochs"),
    ],
)
def test_a_field_by_the_name_that_others_give_it(wrong: str, right: str) -> None:
    for make in (lambda: TrainConfig(**{wrong: 1}), lambda: TrainConfig().replace(**{wrong: 1})):
        with pytest.raises(ValueError, match=rf"\({wrong}=1\); did you mean '{right}'\?$"):
            make()


def test_aliases_are_of_fields_and_are_none() -> None:
    aliases = [alias for of_field in ALIASES.values() for alias in of_field.split()]
    assert (
        set(ALIASES) <= set(DEFAULTS)
        and not set(aliases) & set(DEFAULTS)
        and len(aliases) == len(set(aliases))
    )


# Designs and counts


def test_more_points_than_a_study_can_hold_are_not_drawn() -> None:
    for make in (
        lambda: sample(SPACE, num=HUGE),
        lambda: grid(seed=range(HUGE)),
        lambda: grid(seed=iter(int, 1)),
        lambda: grid(**{name: range(1000) for name in "abc"}),
        lambda: cross(*[grid(**{n: range(200)}) for n in "abc"]),
    ):
        with pytest.raises(ValueError, match=rf"at most {MAX_TRIALS} .* must hold, but got \("):
            make()
    for num in (None, "3", 2.5, True, 0, -1):
        with refusing("num="):
            sample(SPACE, num=num)  # type: ignore[arg-type]
    for axis in (5, "abc", None):
        with refusing("lr="):
            grid(lr=axis)  # type: ignore[arg-type]


def test_trials_are_made_of_a_config_of_arms_and_of_points() -> None:
    point = {"lr": 1e-3}
    good: list[Any] = [TrainConfig(), {"a": {}}, [point]]
    assert len(trials(*good)) == 1
    for place, wrong in (
        (0, [None, {}, TrainConfig]),
        (1, [None, ["a"], {"a": None}, {"a": TrainConfig()}]),
        (2, [None, point, 3, [None], ["lr"], iter([point])]),
    ):
        for value in wrong:
            with pytest.raises(ValueError, match=r"^(base|arms|points) must (be|map) .*but got \("):
                trials(*good[:place], value, *good[place + 1 :])
    with pytest.raises(ValueError, match=r"\(wdd=1\); did you mean 'wd'\?"):
        trials(good[0], {"a": {"wdd": 1}}, [point])


# The command line


def counted(
    scale: str = "demo",
    num: int = 3,
    epochs: int = 9,
    seed: int = 0,
    share: float = 0.5,
    deep: bool = True,
    size: Literal["S", "B"] = "S",
    most: float | None = None,
) -> Study:
    """Every type that an option may have."""
    base = TrainConfig(epochs=epochs, seed=seed, depth=2 + deep, drop_path=share, lr=most or 1e-3)
    plan = tuple(Trial(size, base.replace(lr=(i + 1) * 1e-4), i) for i in range(num))
    return Study(
        kind="distribution", name="counted", scale=scale, question="?", source="none", trials=plan
    )


BAD_OPTIONS = [
    *(
        f"--{name}={value}"
        for name in ("num", "epochs", "seed")
        for value in (HUGE, "9" * 5000, "--", "x", "1.5", "")
    ),
    f"--num={MAX_TRIALS + 1}",
    "--num=0",
    "--epochs=0",
    "--num=-1",
    "--share=nan",
    "--share=inf",
    "--share=--",
    "--share=x",
    "--most=nan",
    "--size=M",
    "--scale=imagenet",
    "--scale=",
    "--scale=--",
    "--size=a\nb",
    "--unknown",
    "--num 3 4",
    "--deep=1",
    "--gpus-per-trial=nan",
    "--gpus-per-trial=inf",
    "--gpus-per-trial=-1",
    "--gpus-per-trial=2",
    "--cpus-per-trial=nan",
    "--cpus-per-trial=inf",
    "--cpus-per-trial=0",
    "--cpus-per-trial=1e22",
    f"--workers-per-trial={HUGE}",
    "--workers-per-trial=0",
    "--micro-batch=-1",
    f"--max-concurrent={HUGE}",
    "--max-concurrent=-1",
    "--num-loader-workers=-1",
    f"--num-loader-workers={HUGE}",
    "--checkpoint-every-s=nan",
    "--checkpoint-every-s=inf",
    "--checkpoint-every-s=-1",
    "--device=tpu",
    "--device=cuda",
    "--workers-per-trial=x",
]
BAD_PLANS = [
    "--throughput=1e22",
    "--throughput=nan",
    "--throughput=inf",
    "--throughput=0",
    "--throughput=-1",
    "--throughput=x",
    "--throughput=1e-300",
    "--throughput=--",
    "--throughput=M=5",
    "--epoch-minutes=1e22",
    "--epoch-minutes=--",
    "--throughput=5 --devices=0",
    f"--throughput=5 --devices={HUGE}",
    "--throughput=5 --devices=x",
    "--devices=2",
    "--throughput=5 --devices-per-trial=--",
    "--throughput=5 --devices-per-trial=nan",
    "--throughput=5 --devices-per-trial=inf",
    "--throughput=5 --devices=1 --devices-per-trial=1e-300",
    "--throughput=5 --devices-per-trial=1.5",
    "--throughput=5 --epoch-minutes=5",
    "--data-root=/nope --num-images=8",
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=[option[:40] for option in BAD_OPTIONS])
def test_a_wrong_option_is_refused_with_and_without_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    for mode in MODES:
        refusal(counted, *mode, *options.split(" "), capsys=capsys, store=tmp_path / "store")


@pytest.mark.parametrize("options", BAD_PLANS)
def test_a_wrong_option_of_a_plan_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    refusal(counted, "--plan", *options.split(), capsys=capsys, store=tmp_path / "store")


@pytest.mark.parametrize("make", [counted, load_script(TINY_SEARCH).study])
def test_nothing_is_drawn_of_a_study_that_was_never_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[..., Any]
) -> None:
    said = refusal(make, "--report", capsys=capsys, store=tmp_path / "store")
    assert "a report must have at least one done trial, but got none" in said and "--store" in said
    assert not (tmp_path / "store").exists()


def of_flowers(num_images: int = 8, num_classes: int = 2) -> Study:
    base = TrainConfig(
        dataset="flowers",
        num_images=num_images,
        num_classes=num_classes,
        channels=3,
        resolution=32,
        patch_size=8,
        batch_size=4,
    )
    plan = tuple(Trial("a", base.replace(lr=(i + 1) * 1e-4), i) for i in range(2))
    return Study(
        kind="distribution", name="made", scale="own", question="?", source="none", trials=plan
    )


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ("", "a data root must be given for a dataset other than digits"),
        ("--data-root={0}/none", "the data root must be a folder, but got (root="),
        ("--data-root={0}", "a dataset must lie at root/name"),
        (
            "--data-root={0}/data --num-images 9",
            "9 training images of flowers must be there, but got (8)",
        ),
        ("--data-root={0}/data --num-classes 3", "classes"),
    ],
)
def test_a_start_without_its_data_creates_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, law: str
) -> None:
    for folder, index in itertools.product(("train/a", "train/b", "val/a", "val/b"), range(4)):
        image = tmp_path / "data/flowers" / folder / f"{index}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (index, 0, 0)).save(image)
    there = sorted(tmp_path.rglob("*"))
    said = refusal(
        of_flowers, *options.format(tmp_path).split(), capsys=capsys, store=tmp_path / "store"
    )
    assert law in said and "did you mean" not in said
    assert sorted(tmp_path.rglob("*")) == there


def test_paths_are_read_alike_from_options_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """~ is the home, also where no shell replaces it; an empty value is as unset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for root, place in {"~/x": "home/x", "~": "home", " 50% done?#": " 50% done?#"}.items():
        monkeypatch.setenv("VITSCALE_STORE", root)
        monkeypatch.setenv("VITSCALE_DATA", root)
        for text in (root, "", " "):
            assert Store.at(text).root == Path(data_root(text)) == tmp_path / place
    for unset in ("", " "):
        monkeypatch.setenv("VITSCALE_STORE", unset)
        monkeypatch.setenv("VITSCALE_DATA", unset)
        assert Store.at("").root == tmp_path / "runs" and data_root() == ""
    (tmp_path / "home/set").mkdir(parents=True)
    with refusing(f"{tmp_path}/home/set/manifest.json: no file"):
        facts("~/set")
    for bad in ("runs\r", "s3://bucket/runs\r", "a\nb", "~nobody-of-this-name/x"):
        with refusing(repr(bad)):
            Store.at(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ("--cpus-per-trial=999", "a trial must fit on a node, but got (cpus_per_trial=999"),
        (
            f"--workers-per-trial={1 + num_cores()}",
            f"{num_cores()} cores, and 0 GPUs",
        ),
        ("--gpus-per-trial=1", "leave --gpus-per-trial out to train on the CPU"),
        ("--gpus-per-trial=1 --device=cuda", "0 GPUs that torch sees"),
        ("--address=127.0.0.1:1", "a Ray cluster must answer at (address='127.0.0.1:1')"),
        ("--address=nohost", "must be host:port or auto, but got (address='nohost')"),
        ("--address=auto", "a Ray cluster must run on this machine, but got none"),
        ("--store=/proc/nowhere", "the store must be writable"),
    ],
)
@pytest.mark.parametrize("make", [counted, load_script(TINY_SEARCH).study])
def test_a_start_that_fits_nowhere_creates_no_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[..., Any],
    options: str,
    law: str,
) -> None:
    """On a machine without a GPU, which CUDA_VISIBLE_DEVICES makes of one that has some."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # clusters of other tests
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: None)
    store = tmp_path / "store"
    given = [f"--store={store}", *options.split()]  # a later --store counts
    with pytest.raises(SystemExit) as ended:
        cli.main(make, given)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out and said.err.count("\n") == 1
    assert law in said.err and not store.exists()


def test_right_options_are_read_as_their_types(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, said in (
        ("--num=2 --epochs=12 --no-deep --size=B --most=0.5 --seed=4000000000", "B         2"),
        ("--throughput=5 --devices=1000000 --devices-per-trial=0.001", "3 trials"),
        ("--scale=demo", "counted-demo: ?"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(counted, ["--plan", "--store", str(tmp_path), *options.split()])
        told = capsys.readouterr()
        assert ended.value.code == 0 and not told.err
        assert said in told.out or "trials at once" in told.out, told.out


def test_a_function_whose_parameters_cannot_be_options_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bare(num) -> Study: ...  # type: ignore[no-untyped-def,empty-body]

    def needed(num: int) -> Study: ...  # type: ignore[empty-body]

    def listed(nums: tuple[int, ...] = (1,)) -> Study: ...  # type: ignore[empty-body]

    for make, law in (
        (bare, "a type and a default"),
        (needed, "a type and a default"),
        (listed, "of type int, float"),
    ):
        assert law in refusal(make, "--plan", capsys=capsys, store=tmp_path / "store")


COMMANDS = [
    "",
    "nothing",
    "status --store={0}/none",
    "report x --store={0}/none",
    "compare a b --store={0}/none",
    "adopt x --store={0}/none",
    "plan x --store={0}/none",
    "plan x.py",
    "sync x --store={0}/none",
    "sync --store={0}/none",
    "prepare {0}/none {0} --size 8",
    "prepare {0} {0} --size=--",
    "prepare {0}",
    "prepare {0} {0} --size 0",
    "prepare {0} --verify",
    "ui --port=x",
    "ui --store hdfs://host/runs",
    "report --store=--",
    "complexity x",
    "status --json=1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_with_status_2_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["vitscale", *command.format(tmp_path).split()])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(SystemExit) as ended:
        vitscale_main()
    said = capsys.readouterr()
    assert (
        ended.value.code == 2 and said.err.count("\n") == 1 and said.err.startswith("vitscale")
    ), said


# A study of one's own, as docs/own-study.md makes it


def own_study(num: int = 3) -> Study:
    """On prepared images, which are looked up relative to the current folder."""
    base = TrainConfig(**facts("data/flowers-32"), patch_size=8)
    plan = trials(base, {"a": {}}, [{"seed": i} for i in range(num)])
    return Study(kind="repeats", name="own", scale="mine", question="?", source="ours", trials=plan)


def test_a_study_that_is_started_in_another_folder_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(own_study, "--plan", capsys=capsys, store=tmp_path / "store")
    assert f"({tmp_path / 'data/flowers-32/manifest.json'}: no file)" in said
    assert "where the study is started" in said


def test_a_data_root_that_is_absent_or_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = {"splits": {"train": {"num_images": 500}}, "classes": ["x", "y"], "channels": 1}
    (tmp_path / "data" / "flowers-32").mkdir(parents=True)
    (tmp_path / "data/flowers-32/manifest.json").write_text(json.dumps({**manifest, "size": 32}))
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for root in ("file", "nowhere"):
        given = ["--plan", "--data-root", root]
        said = refusal(own_study, *given, capsys=capsys, store=tmp_path / "store")
        assert f"the data root must be a folder, but got (root='{tmp_path / root}')" in said
    with refusing("dataset='flowers-32'", "--data-root", "VITSCALE_DATA"):
        check_readable("flowers-32")
