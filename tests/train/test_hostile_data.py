"""Datasets of people who mean harm: pickles that run code,
images that fill the memory, links out of the root.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_sets import (
    arrays,
    config_of,
    stacked,
    write_cifar100,
    write_folders,
    write_pickles,
)
from support.refusals import refusing

from vitscale.__main__ import main
from vitscale.train.prepare import Request, prepare
from vitscale.train.sources import load_split, open_folder
from vitscale.train.sources.arrays_only import load_arrays
from vitscale.train.sources.folders import _list
from vitscale.train.sources.images import decode_image
from vitscale.train.sources.prepared import read_manifest

Say = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The one line with which `vitscale ...` refuses."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["vitscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        told = said.err or str(ended.value.code)
        assert (
            ended.value.code not in (0, None)
            and said.out == ""
            and told.rstrip("\n").count("\n") == 0
        )
        return told

    return run


class Payload:
    """Unpickling it calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


PAYLOADS: dict[str, Callable[[Path], Payload]] = {
    "os.system": lambda proof: Payload(os.system, f"touch '{proof}'"),
    "open": lambda proof: Payload(open, str(proof), "w"),
    "eval": lambda proof: Payload(eval, f"open({str(proof)!r}, 'w')"),
    "pickle.loads": lambda proof: Payload(
        pickle.loads, pickle.dumps(Payload(os.mkdir, str(proof)))
    ),
    "numpy.save": lambda proof: Payload(np.save, f"{proof}", np.zeros(1)),
}


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_pickle_of_a_dataset_runs_no_code(
    tmp_path: Path, refused: Say, name: str, protocol: int
) -> None:
    """The payload makes a file, as it shows when pickle itself
    loads it; from a dataset's folder it makes none.
    """
    proof = tmp_path / "proof.npy"
    content = pickle.dumps({"data": PAYLOADS[name](proof), "labels": [0]}, protocol)
    pickle.loads(content)
    assert proof.exists()
    proof.rmdir() if proof.is_dir() else proof.unlink()
    folder = tmp_path / "scratch" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / batch).write_bytes(content)
    line = refused("prepare", tmp_path / "scratch", tmp_path / "made", "--size", "8")
    assert (
        f"a CIFAR file must hold numpy arrays alone, but got ({folder / 'data_batch_1'}: " in line
    )
    line = refused(
        "prepare", "torchvision:CIFAR10", tmp_path / "made", "--source-root", tmp_path / "scratch"
    )
    assert (
        f"a CIFAR file must hold numpy arrays alone, but got ({folder / 'data_batch_1'}: " in line
    )
    with refusing("cifar-10-batches-py/data_batch_1: "):
        load_split(config_of("scratch"), "train", tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_plain_values_come_out_as_pickle_has_them(protocol: int) -> None:
    batch = {
        "data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "labels": [np.int64(4), 5],
        "names": [b"a\xff", "b"],
        "order": np.asfortranarray(np.eye(3)),
    }
    found, expected = (
        load_arrays(pickle.dumps(batch, protocol)),
        pickle.loads(pickle.dumps(batch, protocol)),
    )
    assert found["labels"] == expected["labels"] and found["names"] == expected["names"]
    for name in ("data", "order"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_pickle_of_python_2_and_the_numpy_of_its_time(tmp_path: Path) -> None:
    """The opcodes of the published files (2009): text is
    bytes, and numpy's core has its old name.
    """
    old = (
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntS'b'\ntRp4\n"
        b"(I1\n(I1\nI3\ntcnumpy\ndtype\np5\n(S'u1'\nI0\nI1\ntRp6\n(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x01\\xff\\x03'\n"
        b"tbsS'labels'\n(lp7\nI7\nas."
    )
    found = load_arrays(old)
    assert (
        found["labels"] == [7]
        and found["data"].tolist() == [[1, 255, 3]]
        and found["data"].dtype == np.uint8
    )


@pytest.mark.parametrize(
    ("name", "kind", "write"),
    [("CIFAR10", "", write_pickles), ("CIFAR100", "cifar-100-python", write_cifar100)],
)
def test_cifar_by_its_torchvision_name_is_what_lies_in_its_folder(
    tmp_path: Path, name: str, kind: str, write: Callable[[Path, str], None]
) -> None:
    for split in ("train", "val"):
        write(tmp_path / kind, split)
        images = open_folder(tmp_path, 3).read(split) if split == "val" else None
    config = config_of(f"torchvision:{name}", num_classes=10 if name == "CIFAR10" else 100)
    assert images is not None and config.channels == 3
    named = load_split(config, "val", tmp_path)
    assert torch.equal(named.pixels, images.pixels) and torch.equal(named.labels, images.labels)
    np.testing.assert_array_equal(stacked(named), arrays("val")[0])


def test_other_torchvision_classes_that_unpickle_are_refused(tmp_path: Path, refused: Say) -> None:
    import torchvision.datasets

    class Tidied(torchvision.datasets.LSUN):
        """A later version that takes a split, and reads its
        list of keys by pickle.load all the same.
        """

        def __init__(self, root: str, split: str = "train") -> None:
            super().__init__(root, split)

    torchvision.datasets.Tidied = Tidied
    try:
        line = refused("prepare", "torchvision:Tidied", tmp_path, "--source-root", tmp_path)
    finally:
        del torchvision.datasets.Tidied
    assert "a dataset must be read without pickle, which may run any code" in line


# --- images and links -----------------------------------------------------------------------------


def folders(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        write_folders(tmp_path / "tiny", split)
    return tmp_path / "tiny"


def header_of_png(width: int, height: int) -> bytes:
    """An image that says how large it is, and has no pixel."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + b"\0\0\0\4IDAT"
    )


@pytest.mark.parametrize("size", [(10_001, 10_000), (100_000, 1_700), (60_000, 60_000)])
def test_an_image_of_many_pixels_is_refused_by_its_header(
    tmp_path: Path, refused: Say, size: tuple[int, int]
) -> None:
    path = folders(tmp_path) / "train" / "c0" / "00.png"
    path.write_bytes(header_of_png(*size))
    line = refused("prepare", tmp_path / "tiny", tmp_path / "made", "--size", "8")
    assert (
        f"an image must have at most 100 megapixels, but got ({path}: " in line
        and "--max-megapixels" in line
    )
    with refusing(f"{path}: "):
        load_split(config_of("tiny"), "train", tmp_path)[0]
    before = Image.MAX_IMAGE_PIXELS
    # within the limit it is read, and found to be cut
    with refusing("tiny/train/c0/00.png: "):
        decode_image(header_of_png(10_000, 10_000), path, 3)
    assert before == Image.MAX_IMAGE_PIXELS


def test_the_limit_of_pixels_can_be_set_and_its_images_skipped(
    tmp_path: Path, refused: Say
) -> None:
    source = folders(tmp_path)
    small = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    for split in ("train", "val"):
        for label in range(10):
            small.save(source / split / f"c{label}" / "small.png")
    wide = ("--size", "8", "--max-megapixels", "0.001")  # of 32 x 32 = 1,024 pixels
    assert "at most 0.001 megapixels" in refused("prepare", source, tmp_path / "made", *wide)
    request = Request(
        str(source), tmp_path / "skipped", 8, skip_unreadable=True, max_megapixels=0.001
    )
    assert read_manifest(prepare(request))["splits"]["train"]["num_images"] == 10
    for wrong in ("0", "-1", "nan", "1e9"):
        assert "max_megapixels" in refused(
            "prepare", source, tmp_path / "made", "--max-megapixels", wrong
        )


def test_a_link_out_of_a_dataset_is_refused_unless_it_is_followed(
    tmp_path: Path, refused: Say
) -> None:
    source = folders(tmp_path)
    path = source / "train" / "c0" / "00.png"
    other = tmp_path / "secret.png"
    path.rename(other)
    path.symlink_to(other)
    line = refused("prepare", source, tmp_path / "made", "--size", "8")
    assert f"a link must stay within its dataset, but got ({path}: {other})" in line
    with refusing(f"{path}: {other}"):
        load_split(config_of("tiny"), "train", tmp_path)[0]
    request = Request(str(source), tmp_path / "skipped", 8, skip_unreadable=True)
    (skipped,) = read_manifest(prepare(request))["splits"]["train"]["skipped"]
    assert skipped.startswith("train/c0/00.png: a link must stay within its dataset")
    followed = prepare(
        dataclasses.replace(request, data_root=tmp_path / "followed", follow_symlinks=True)
    )
    assert read_manifest(followed)["splits"]["train"]["skipped"] == []
    path.unlink()
    path.symlink_to("01.png")  # within
    assert (
        read_manifest(prepare(dataclasses.replace(request, data_root=tmp_path / "in")))["splits"][
            "train"
        ]["skipped"]
        == []
    )


def test_a_class_folder_that_leads_elsewhere_is_refused_before_it_is_listed(
    tmp_path: Path, refused: Say
) -> None:
    source = folders(tmp_path)
    (source / "train" / "c0").rename(tmp_path / "elsewhere")
    (source / "train" / "c0").symlink_to(tmp_path / "elsewhere")
    line = refused("prepare", source, tmp_path / "made", "--size", "8", "--skip-unreadable")
    assert (
        f"a link must stay within its dataset, but got ({source}/train/c0: {tmp_path}/elsewhere)"
        in line
    )
    with refusing(f"{source}/train/c0: {tmp_path}/elsewhere"):
        load_split(config_of("tiny"), "train", tmp_path)
    folder = prepare(Request(str(source), tmp_path / "followed", 8, follow_symlinks=True))
    assert read_manifest(folder)["splits"]["train"]["num_images"] == 20
    _list.cache_clear()  # a process lists a folder once
    (source / "train" / "c1" / "again").symlink_to(source / "train")
    line = refused("prepare", source, tmp_path / "made", "--size", "8", "--follow-symlinks")
    assert f"a link must not lead around itself, but got ({source}/train/c1/again: " in line


def test_labels_of_real_that_lie_elsewhere_are_not_copied(tmp_path: Path, refused: Say) -> None:
    source = folders(tmp_path)
    (source / "real.json").symlink_to("/etc/hostname")
    assert "real.json: /etc/hostname" in refused(
        "prepare", source, tmp_path / "made", "--size", "8"
    )


def test_a_pipe_in_place_of_an_image_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """In a process of its own, as users run it: one line, and nothing of what libraries say."""
    source = folders(tmp_path)
    command = [sys.executable, "-m", "vitscale", "prepare", str(source), str(tmp_path / "made")]
    whole = subprocess.run([*command, "--size", "8"], capture_output=True, text=True, timeout=120)
    assert (whole.returncode, whole.stderr) == (0, "")
    path = sorted((source / "train" / "c0").iterdir())[0]
    path.unlink()
    os.mkfifo(path)
    command[-1] = str(tmp_path / "again")
    said = subprocess.run([*command, "--size", "8"], capture_output=True, text=True, timeout=120)
    assert said.returncode == 2
    (line,) = said.stderr.splitlines()
    assert f"a dataset must be of regular files, but got ({path}: another kind)" in line
