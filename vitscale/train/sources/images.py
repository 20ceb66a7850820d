"""Images of one split, in memory, memory-mapped or decoded from files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from vitscale.train.sources.shards import Shards

if TYPE_CHECKING:
    import PIL.Image


MODES = {1: "L", 3: "RGB"}  # by number of channels
# Pillow's formats that are read, by their content. Others are no photographs, or run a program.
FORMATS = (
    "AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP",
)  # fmt: skip
# folders that operating systems and file servers add
SYSTEM = frozenset(
    ("__MACOSX", "@eaDir", "#recycle", "#snapshot", "$RECYCLE.BIN", "System Volume Information",
     "lost+found", "__pycache__")
)  # fmt: skip
MAX_ASPECT = 100  # longer over shorter side: else a resized image could take any memory


@dataclass(frozen=True)
class Limits:
    """Limits beyond which images of a dataset are refused.

    The trainer uses the defaults; `vitscale prepare` has options for them.
    """

    # of an encoded image: decoding 100 megapixels takes about 1.5 GB of memory in all
    max_megapixels: float = 100.0
    follow_symlinks: bool = False  # whether links may lead out of the dataset's folder


LIMITS = Limits()


def check_inside(path: Path, folder: Path, limits: Limits) -> None:
    """Raises ValueError for a path that leads out of the dataset's folder through a link."""
    if not limits.follow_symlinks and not Path(os.path.realpath(path)).is_relative_to(
        os.path.realpath(folder)
    ):
        raise ValueError(
            f"a link must stay within its dataset, but got ({path}: {os.path.realpath(path)}); "
            "`vitscale prepare --follow-symlinks` follows it"
        )


class Digest(Protocol):
    """As of hashlib."""

    def update(self, content: bytes, /) -> None: ...


class Decoder(Protocol):
    """Reads single images; picklable."""

    def __call__(self, index: int) -> Tensor:
        """(C, H, W) uint8 of any size."""

    def update(self, digest: Digest) -> None:
        """Adds the encoded images to a digest."""


@dataclass(frozen=True)
class Images:
    """Images and labels of one split; either `pixels` or `decode` is set."""

    labels: Tensor  # (N,) int64; -1: no label, not evaluated (ReaL)
    # (N, C, S, S) uint8, if all have the same size; indexed by ints, slices or (B,)
    pixels: Tensor | Shards | None = None
    decode: Decoder | None = None
    white: int = 255  # the pixel value of white: 16 for digits
    # (N, num_classes) bool: the labels that count as correct; None: only `labels`
    allowed: Tensor | None = None
    # (N,) bytes, file names relative to the source, if images have names
    names: np.ndarray | None = None
    # why files beside the images are none -> (how many, the first one)
    left_out: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tensor:
        """One image, (C, H, W) uint8. Raises ValueError for a file that cannot be decoded."""
        if self.pixels is not None:
            return self.pixels[index]
        assert self.decode is not None
        return self.decode(index)

    def name(self, index: int) -> str:
        """The file name of an image, or "image" and its index."""
        return f"image {index}" if self.names is None else os.fsdecode(self.names[index])

    def select(self, rows: np.ndarray) -> Images:
        """The images at rows (M,), int64, in that order."""
        index = torch.from_numpy(rows)
        pixels = self.pixels
        return replace(
            self,
            labels=self.labels[index],
            pixels=pixels[index] if isinstance(pixels, Tensor) else pixels and pixels.select(rows),
            decode=self.decode and Rows(self.decode, rows),
            allowed=None if self.allowed is None else self.allowed[index],
            names=None if self.names is None else self.names[rows],
        )


def describe_left_out(splits: Mapping[str, Images]) -> str:
    """What was left out of each split: how many files, why, and the first one; "" if nothing was.

    A split held out of another one has what was left out of that one, which is said once.
    """
    said: dict[str, str] = {}
    for name, images in splits.items():
        parts = [
            f"{num} {reason} (first {first!r})" for reason, (num, first) in images.left_out.items()
        ]
        said.setdefault(", ".join(parts), name)
    return "; ".join(f"{name}: {what}" for what, name in said.items() if what)


class Source(Protocol):
    """A dataset on disk."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that `read` can read."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names in the order of labels, or None; may be unknown until train has been read."""

    def read(self, split: str) -> Images:
        """All images of a split in the dataset's order; labels are not checked yet."""


@dataclass(frozen=True)
class Rows:
    """A decoder for a selection of another decoder's images."""

    decode: Decoder
    rows: np.ndarray

    def __call__(self, index: int) -> Tensor:
        return self.decode(int(self.rows[index]))

    def update(self, digest: Digest) -> None:
        self.decode.update(digest)
        digest.update(self.rows.tobytes())


@dataclass(frozen=True)
class Files:
    """A decoder of image files.

    `names` (N,) are bytes relative to the folder; as text they would take four times the memory.
    """

    folder: Path
    names: np.ndarray
    channels: int
    limits: Limits = LIMITS

    def __call__(self, index: int) -> Tensor:
        path = self._path(index)
        return decode_image(read_regular(path), path, self.channels, self.limits)

    def _path(self, index: int) -> Path:
        path = self.folder / os.fsdecode(self.names[index])
        check_inside(path, self.folder, self.limits)
        return path

    def update(self, digest: Digest) -> None:
        """Adds the bytes of all files to a digest, or that one cannot be read."""
        for index in range(len(self.names)):
            try:
                content = read_regular(self._path(index))
            except (OSError, ValueError):
                content = b"unreadable"
            digest.update(hashlib.sha256(content).digest())


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or of an operating system, and so no part of a dataset.

    This holds at every level of a folder.
    """
    return name.startswith(".") or name in SYSTEM


@functools.cache
def formats() -> tuple[str, ...]:
    """Those of FORMATS that the installed Pillow can read."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@functools.cache
def extensions() -> frozenset[str]:
    """Endings of image files, in lower case: those that Pillow registers for `formats`."""
    from PIL import Image

    of_formats = formats()
    return frozenset(
        ending for ending, name in Image.registered_extensions().items() if name in of_formats
    )


def why_no_image(name: str) -> str:
    """Why a file of this name is no image of a dataset; empty if it is one."""
    if is_hidden(name):
        return "hidden"
    ending = os.path.splitext(name)[1].lower()
    return "" if ending in extensions() else f"not an image format ({ending or 'no ending'})"


def read_regular(path: Path) -> bytes:
    """The content of a file. Raises OSError, or ValueError for another kind: nobody may ever write
    to a pipe.
    """
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"a dataset must be of regular files, but got ({path}: another kind)")
        return file.read()


def decode_image(encoded: bytes, name: object, channels: int, limits: Limits = LIMITS) -> Tensor:
    """Decodes an image to uint8 (C, H, W), gray or RGB for 1 or 3 channels.

    Memory is channels-last. Pillow decodes at full size, never in JPEG's draft mode, and without
    EXIF rotation: the pixels equal those of torchvision's ImageFolder. Of an animation, the first
    frame. Of 16-bit grey the high byte, where ImageFolder would clip. Raises ValueError with the
    name if the bytes are no complete image, or an image beyond the limits, or one of integers or
    floats, which have no white.
    """
    from PIL import Image

    if channels not in MODES:
        raise ValueError(
            f"channels in (1, 3) must hold for image files, but got (channels={channels})"
        )
    try:
        with _at_most(limits), Image.open(io.BytesIO(encoded), formats=formats()) as image:
            if max(image.size) > MAX_ASPECT * min(image.size):
                raise ValueError(f"{image.width} x {image.height} pixels, over {MAX_ASPECT} to 1")
            pixels = np.array(_eight_bits(image).convert(MODES[channels]))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(
            f"an image must have at most {limits.max_megapixels:g} megapixels, but got ({name}: "
            f"{error}); `vitscale prepare --max-megapixels` sets the limit"
        ) from error
    except Exception as error:  # on damaged bytes, Pillow's decoders may raise anything
        reason = str(error) if "BytesIO" not in str(error) else "no known image format"
        raise ValueError(
            f"an image must be whole, but got ({name}: {reason.splitlines()[0]})"
        ) from error
    return to_tensor(pixels)


def _eight_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """The image in a mode of at most 8 bits per channel; of 16-bit grey the high byte."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.array(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode}, whose values have no white")
    return image


@contextlib.contextmanager
def _at_most(limits: Limits) -> Iterator[None]:
    """Makes Pillow refuse images above the limit by their header.

    By default it warns, and refuses at twice the limit.
    """
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, int(1e6 * limits.max_megapixels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def to_tensor(pixels: np.ndarray) -> Tensor:
    """A view (C, H, W) of an array (H, W) or (H, W, C)."""
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
