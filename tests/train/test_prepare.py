"""`vitscale prepare` against Pillow, and against itself:
killed anywhere, damaged, asked for something else.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_sets import write_pickles
from support.refusals import refusing

from vitscale.plan.config import TrainConfig
from vitscale.plan.data import facts
from vitscale.train.prepare import Request, prepare, verify
from vitscale.train.sources import folders, load_split
from vitscale.train.sources.prepared import Prepared

torch.set_num_threads(1)

NUM, SIZE = 12, 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Twelve JPEGs of two classes and several sizes in train, two in val."""
    rng = np.random.default_rng(0)
    for split, num in (("train", NUM), ("val", 2)):
        for i in range(num):
            path = tmp_path / "raw" / "tiny" / split / f"c{i % 2}" / f"{i:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
            small.resize((40 + i, 53 - 2 * i), Image.Resampling.BICUBIC).save(path, quality=90)
    return tmp_path / "raw" / "tiny"


def request(source: Path, root: Path, **fields: Any) -> Request:
    """Two images a file."""
    return Request(str(source), root, SIZE, **{"shard_bytes": 2 * 3 * SIZE * SIZE, **fields})


def config_of(dataset: str, num: int = NUM) -> TrainConfig:
    return TrainConfig(dataset=dataset, num_images=num, channels=3, num_classes=2, batch_size=2)


def content(folder: Path) -> dict[str, str]:
    """Hash of each file, and of the manifest without its date."""
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.arrow")
    }
    manifest = {**json.loads((folder / "manifest.json").read_text()), "date": ""}
    return {**hashes, "manifest": json.dumps(manifest)}


def by_hand(path: Path) -> np.ndarray:
    """Shorter side to 16 and the central 16 x 16, in one step of Pillow's for the resize."""
    image = Image.open(path)
    width, height = image.size
    short = min(width, height)
    image = image.resize((SIZE * width // short, SIZE * height // short), Image.Resampling.BICUBIC)
    left, top = round((image.width - SIZE) / 2), round((image.height - SIZE) / 2)
    return np.asarray(image.crop((left, top, left + SIZE, top + SIZE)))


def test_a_source_that_has_changed_is_refused(source: Path, tmp_path: Path) -> None:
    """Another file, another class, other bytes of the same size and time: of a finished set and of
    one that was interrupted.
    """
    asked = request(source, tmp_path / "data")
    folder = prepare(asked)
    before, path = content(folder), source / "train" / "c0" / "00.jpg"
    assert prepare(asked) == folder and content(folder) == before
    whole, times = path.read_bytes(), path.stat()
    for finished in (True, False):
        if not finished:
            (folder / "prepare.json").write_text(
                json.dumps(json.loads((folder / "manifest.json").read_text())["request"])
            )
            (folder / "manifest.json").unlink()
        path.write_bytes(whole[:-3] + b"xyz")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        with refusing(f"{source}: content was "):
            prepare(asked)
        path.write_bytes(whole)
        (source / "train" / "c0" / "99.jpg").write_bytes(whole)
        folders._list.cache_clear()  # as in another process
        with refusing(f"{source}: images was "):
            prepare(asked)
        (source / "train" / "c0" / "99.jpg").unlink()
        folders._list.cache_clear()
    assert content(prepare(asked)) == before


def test_unreadable_files_are_skipped_by_name_and_no_set_is_empty(
    source: Path, tmp_path: Path
) -> None:
    (source / "train" / "c0" / "link.jpg").symlink_to("gone.jpg")
    name = os.fsdecode(b"caf\xe9.jpg")
    (source / "train" / "c1" / name).write_bytes((source / "train/c1/01.jpg").read_bytes())
    folder = prepare(request(source, tmp_path / "data", skip_unreadable=True))
    train = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    assert train["num_images"] == NUM + 1 and "c0/link.jpg" in train["skipped"][0]
    read = load_split(config_of(folder.name, NUM + 1), "train", folder.parent)
    assert f"train/c1/{name}" in {read.name(index) for index in range(len(read))}
    for path in (source / "val").rglob("*.jpg"):
        path.write_bytes(b"?")
    with refusing(f"{source}, val: 2 skipped"):
        prepare(request(source, tmp_path / "other", skip_unreadable=True))


def test_pixels_are_those_of_pillow_in_the_order_of_the_source(
    source: Path, tmp_path: Path
) -> None:
    folder = prepare(request(source, tmp_path))
    assert folder == tmp_path / "tiny-16" and verify(folder) == 7
    images = load_split(config_of("tiny-16"), "train", tmp_path)
    files = sorted((source / "train").rglob("*.jpg"))
    assert images.pixels is not None and len(images) == NUM
    for i, path in enumerate(files):
        np.testing.assert_array_equal(images[i].permute(1, 2, 0).numpy(), by_hand(path))
        assert images.name(i) == str(path.relative_to(source)) and images.labels[i] == int(
            path.parent.name[1]
        )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["classes"] == ["c0", "c1"] and manifest["splits"]["val"]["num_images"] == 2
    assert sorted(path.suffix for path in folder.iterdir()) == [".arrow"] * 7 + [".json"]


def test_the_number_of_workers_changes_no_byte(source: Path, tmp_path: Path) -> None:
    alone, two = (prepare(request(source, tmp_path / str(n)), num_workers=n) for n in (0, 2))
    assert content(alone) == content(two)


def test_images_of_the_size_already_keep_the_name_of_the_dataset(
    source: Path, tmp_path: Path
) -> None:
    once = prepare(request(source, tmp_path))
    again = prepare(request(once, tmp_path / "other"))
    assert again.name == "tiny-16"
    assert torch.equal(
        *(load_split(config_of("tiny-16"), "val", f.parent).pixels[:] for f in (once, again))
    )  # type: ignore[index,union-attr]


def test_images_of_one_size_beside_their_prepared_set_need_no_look(
    source: Path, tmp_path: Path
) -> None:
    """A folder inside the data root, all of its images 16
    pixels already: NAME-SIZE, as for any other size.
    """
    for path in source.rglob("*.jpg"):
        Image.new("RGB", (SIZE, SIZE)).save(path)
    assert prepare(request(source, source.parent)) == source.parent / "tiny-16"


def test_cifar_at_its_own_size_keeps_the_name_that_studies_know(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_pickles(tmp_path / "raw", split)
    for size, name in ((32, "cifar10"), (16, "cifar10-16")):
        asked = Request(str(tmp_path / "raw"), tmp_path / "data", size)
        assert prepare(asked).name == name


def test_facts_are_the_fields_of_a_config_that_reads_the_set(source: Path, tmp_path: Path) -> None:
    fields = facts(prepare(request(source, tmp_path)))
    config = TrainConfig(**fields, batch_size=2, patch_size=4)
    images = load_split(config, "train", tmp_path)
    assert images.pixels is not None and tuple(images.pixels.shape) == (NUM, 3, SIZE, SIZE)
    assert (config.num_train, config.num_classes, config.dataset) == (NUM, 2, "tiny-16")
    with refusing("tiny/manifest.json: no file"):
        facts(source)
    (tmp_path / "tiny-16" / "manifest.json").write_text("[]")
    with refusing("tiny-16/manifest.json: ") as caught:
        facts(tmp_path / "tiny-16")
    assert "\n" not in str(caught.value)


def test_the_folder_of_the_dataset_is_no_data_root(source: Path) -> None:
    """A study would be told to look for the prepared set within the one that it was made of."""
    before = sorted(source.rglob("*"))
    for root in (source, source / "prepared", source.parent / "x" / ".." / source.name):
        with refusing(f"source={source}", f"data root={root}"):
            prepare(request(source, root))
    assert sorted(source.rglob("*")) == before


def test_another_folder_is_not_written_into(source: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny-16").mkdir()
    (tmp_path / "tiny-16" / "mine.txt").write_text("mine")
    with refusing(f"{tmp_path / 'tiny-16'}: not empty"):
        prepare(request(source, tmp_path))
    assert [path.name for path in (tmp_path / "tiny-16").iterdir()] == ["mine.txt"]


def test_a_run_that_is_killed_anywhere_ends_with_the_same_bytes(
    source: Path, tmp_path: Path
) -> None:
    """Killed within some milliseconds of the moment at which
    a further file appears, many files in all.
    """
    for i, path in enumerate(sorted((source / "train").rglob("*.jpg")) * 12):
        (path.parent / f"copy{i}.jpg").write_bytes(path.read_bytes())
    whole = prepare(request(source, tmp_path / "whole"))
    folder = tmp_path / "killed" / whole.name
    code = f"""
from pathlib import Path
from vitscale.train.prepare import Request, prepare
folder = Path({str(folder.parent)!r})
prepare(Request({str(source)!r}, folder, {SIZE}, shard_bytes={2 * 3 * SIZE * SIZE}))
"""
    rng, found = random.Random(0), []
    for target in (0, 5, 30, 55):
        process = subprocess.Popen([sys.executable, "-c", code])
        while process.poll() is None and not (
            folder.exists() and len(list(folder.glob("*.arrow"))) >= target
        ):
            time.sleep(0.003)
        time.sleep(rng.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not (folder / "manifest.json").exists():
            found.append(len(list(folder.glob("*.arrow"))))
            with refusing(folder.name):
                load_split(config_of("tiny-16"), "train", folder.parent)
    assert sum(0 < num < 79 for num in found) >= 2 and found == sorted(found)
    assert content(prepare(request(source, folder.parent))) == content(whole)


@pytest.mark.parametrize(
    "stage", ["half a file", "a file without its facts", "a damaged file", "no manifest"]
)
def test_what_a_kill_may_leave_behind_never_counts(
    source: Path, tmp_path: Path, stage: str
) -> None:
    """Each state between two writes, made by hand; files
    that were finished are not written again.
    """
    whole = prepare(request(source, tmp_path / "whole"))
    root = tmp_path / "again"
    interrupt_after(request(source, root), files=4)
    folder = root / "tiny-16"
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.arrow")}
    assert len(kept) == 4 and not (folder / "manifest.json").exists()
    last = folder / "train-00003.arrow"
    if stage == "half a file":
        (folder / "train-00004.arrow.77.tmp").write_bytes(last.read_bytes()[:100])
    elif stage == "a file without its facts":
        last.with_suffix(".json").unlink()
    elif stage == "a damaged file":
        last.write_bytes(last.read_bytes()[:-9] + b"!" + last.read_bytes()[-8:])
    assert content(prepare(request(source, root))) == content(whole)
    redone = [name for name, when in kept.items() if (folder / name).stat().st_mtime_ns != when]
    assert redone == ([] if stage in ("half a file", "no manifest") else [last.name])
    assert not list(folder.glob("*.tmp"))


def interrupt_after(request: Request, files: int) -> None:
    """Prepares the first files of train only."""

    def stop(split: str, done: int, total: int) -> None:
        if done == 2 * files:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(request, progress=stop)


def test_a_set_that_was_begun_otherwise_is_left_alone(source: Path, tmp_path: Path) -> None:
    interrupt_after(request(source, tmp_path), files=1)
    with pytest.raises(
        ValueError,
        match=r"splits == \[\] must hold for the set at .*, but got \(splits=\['train'\]\)",
    ):
        prepare(request(source, tmp_path, splits=("train",)))
    prepare(request(source, tmp_path))
    with refusing("skip_unreadable=True"):
        prepare(request(source, tmp_path, skip_unreadable=True))
    with refusing("(v2)"):
        prepare(request(source, tmp_path / "v2", splits=("v2",)))


def test_an_option_that_a_refusal_advises_can_be_given_at_once(
    source: Path, tmp_path: Path
) -> None:
    """For the first file of the set was not finished."""
    first = min((source / "train").rglob("*.jpg"))
    first.write_bytes(b"")
    with refusing(f"{first}: ", "--skip-unreadable"):
        prepare(request(source, tmp_path))
    folder = prepare(request(source, tmp_path, skip_unreadable=True))
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["splits"]["train"]["num_images"] == NUM - 1
    assert facts["request"]["skip_unreadable"]


def test_unreadable_images_stop_or_are_left_out_and_counted(source: Path, tmp_path: Path) -> None:
    (source / "train" / "c1" / "03.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"\(.*train/c1/03.jpg: .*\); --skip-unreadable") as error:
        prepare(request(source, tmp_path))
    assert "\n" not in str(error.value)
    folder = prepare(request(source, tmp_path / "skipped", skip_unreadable=True))
    facts = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    assert facts["num_images"] == NUM - 1 and [line[:15] for line in facts["skipped"]] == [
        "train/c1/03.jpg"
    ]
    with pytest.raises(
        ValueError, match=r"12 training images of tiny-16 must be there, but got \(11\)"
    ):
        load_split(config_of("tiny-16"), "train", tmp_path / "skipped")
    images = load_split(config_of("tiny-16", NUM - 1), "train", tmp_path / "skipped")
    names = [path for path in sorted((source / "train").rglob("*.jpg")) if path.name != "03.jpg"]
    np.testing.assert_array_equal(images[8].permute(1, 2, 0).numpy(), by_hand(names[8]))


def test_a_changed_file_and_another_version_are_named(source: Path, tmp_path: Path) -> None:
    folder = prepare(request(source, tmp_path))
    path, manifest = folder / "train-00002.arrow", folder / "manifest.json"
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])  # one bit
    with pytest.raises(
        ValueError, match=r"sha256 == \w{12}... must hold, but got \(.*train-00002.arrow: \w{12}"
    ):
        verify(folder)
    path.write_bytes(good[:-1])
    with pytest.raises(
        ValueError, match=rf"bytes == {len(good)} must hold .*train-00002.arrow: {len(good) - 1}\)"
    ):
        load_split(config_of("tiny-16"), "train", tmp_path)
    path.unlink()
    with refusing("train-00002.arrow: no file"):
        load_split(config_of("tiny-16"), "train", tmp_path)
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        ValueError, match=r"format == 1 must hold .*, but got \(.*manifest.json: format=2"
    ):
        load_split(config_of("tiny-16"), "train", tmp_path)


UNSPLIT = {"cat": range(10), "dog": range(4), "owl": (0, 7)}
# the smallest of sha256("0\0" + name), by sha256sum: 2 of 10 cats, 1 of 4 dogs, 1 of 2 owls
IN_VAL = {"cat/9.png", "cat/1.png", "dog/2.png", "owl/0.png"}


def unsplit(folder: Path, *, backwards: bool) -> Path:
    """Gray images CLASS/i.png, written in one order or the other."""
    names = [f"{of_class}/{i}.png" for of_class, files in UNSPLIT.items() for i in files]
    for name in reversed(names) if backwards else names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), len(name)).save(folder / name)
    return folder


def names_of(folder: Path, split: str) -> set[str]:
    images = Prepared(folder).read(split)
    assert images.names is not None
    return {name.decode() for name in images.names}


def test_a_share_of_each_class_becomes_val_whatever_order_the_disk_has(tmp_path: Path) -> None:
    """Of two orders in /dev/shm, which lists files as they were written, and of the disk's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        places = [
            unsplit(place / "pets", backwards=backwards)
            for place, backwards in (
                (tmp_path, False),
                (Path(memory) / "a", False),
                (Path(memory) / "b", True),
            )
        ]
        assert os.listdir(places[1] / "cat") != os.listdir(places[2] / "cat")
        sets = [
            prepare(Request(str(place), place.parent / "data", 8, val_fraction=0.2, channels=1))
            for place in places
        ]
        manifests = [json.loads((one / "manifest.json").read_text()) for one in sets]
        assert len({json.dumps(one["splits"]) for one in manifests}) == 1  # checksums, too
        assert names_of(sets[0], "val") == IN_VAL
    request = manifests[0]["request"]
    assert (request["val_fraction"], request["seed"]) == (0.2, 0)
    everything = {str(path.relative_to(places[0])) for path in places[0].rglob("*.png")}
    assert names_of(sets[0], "train") == everything - IN_VAL
    for fields in ({"val_fraction": 0.3}, {"val_fraction": 0.2, "seed": 1}):
        with refusing(f"={list(fields.values())[-1]})"):
            prepare(Request(str(places[0]), tmp_path / "data", 8, channels=1, **fields))
    (tmp_path / "split").mkdir()
    places[0].rename(tmp_path / "split" / "train")  # train/ without val/ is divided alike
    alike = prepare(Request(str(tmp_path / "split"), tmp_path, 8, val_fraction=0.2, channels=1))
    assert names_of(alike, "val") == {f"train/{name}" for name in IN_VAL}


def test_what_cannot_be_divided_is_refused(source: Path, tmp_path: Path) -> None:
    pets = unsplit(tmp_path / "pets", backwards=False)
    lines = [
        (source, {"val_fraction": 0.2}, "tiny: there are train, val"),
        (source.parent, {"val_fraction": 0.2}, "raw: there are tiny"),
        (pets, {"val_fraction": 1.0}, "val_fraction=1.0"),
        (pets, {"seed": 1}, "seed=1"),
        (pets, {}, "no train/; there are: cat, dog, owl"),
        ("torchvision:CIFAR10", {"val_fraction": 0.2}, "torchvision:CIFAR10"),
        (pets, {"val_fraction": 0.2}, "owl: 1"),
    ]
    for folder, fields, value in lines:
        if value == lines[-1][2]:
            (pets / "owl" / "7.png").unlink()
        with refusing(value):
            prepare(Request(str(folder), tmp_path / "data", 8, channels=1, **fields))


def vitscale(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitscale", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_prepares_and_verifies(source: Path, tmp_path: Path) -> None:
    done = vitscale("prepare", source, tmp_path, "--size", SIZE, "--num-workers", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{tmp_path}/tiny-16 train: 12 images, 0 skipped as unreadable",
        f"{tmp_path}/tiny-16 val: 2 images, 0 skipped as unreadable",
        "config fields: dataset='tiny-16', num_images=12, num_classes=2, channels=3, resolution=16",
    ]
    checked = vitscale("prepare", "--verify", tmp_path / "tiny-16")
    assert checked.stdout == f"{tmp_path}/tiny-16: 2 files match their checksums\n"
    wrong = vitscale("prepare", tmp_path / "nothing", tmp_path)
    line = (
        "vitscale: error: a source must be a folder or torchvision:CLASS, but got "
        f"({tmp_path}/nothing)\n"
    )
    assert (wrong.returncode, wrong.stderr) == (2, line)
