"""The images that a trial's final weights misclassify: a file with one bit per image.

The file is named by a digest of its content, and the sealed facts of the rows contain this name. So
the seal covers the bits as well, and no later worker can replace them. Parquet packs booleans:
50,000 images take at length 6.9 KB per set and kind of weights, and 5.4 KB at 20% error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitscale.plan.metrics import column

if TYPE_CHECKING:
    import numpy as np

WRONG = "wrong"  # the fact that names the file, and the suffix of its columns
IMAGES = b"vitscale.images"


@dataclass(frozen=True)
class Misclassified:
    """Whether the top-1 prediction for each image was wrong, for some evaluation sets.

    `bits`: column, such as "val_wrong" or "val_ema_wrong", -> (N,) bool in the order of the set,
    without images that have no label. Without an average there is no column of averaged weights.
    `images`: evaluation set -> a digest of its images, since datasets may share a name.
    """

    bits: Mapping[str, np.ndarray]
    images: Mapping[str, str]

    def bits_of(self, split: str, weights: str) -> np.ndarray | None:
        """The bits of a set for "" (raw) or "ema_" weights; None if they were not stored."""
        raw = self.bits.get(column(split, "", WRONG))
        return self.bits.get(column(split, weights, WRONG), raw)


def encode(misclassified: Misclassified) -> tuple[str, bytes]:
    """(name, content) of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    length = max(len(bits) for bits in misclassified.bits.values())
    table = pa.table(
        {name: _padded(bits, length) for name, bits in misclassified.bits.items()},
        metadata={IMAGES: json.dumps(dict(misclassified.images), sort_keys=True).encode()},
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    content = sink.getvalue().to_pybytes()
    return _name(content), content


def decode(name: str, content: bytes) -> Misclassified:
    """The bits in a file.

    Raises ValueError, or an exception of pyarrow, if the content does not match the name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name != _name(content):
        raise ValueError(f"bits must match the checksum in their name, but got (name={name!r})")
    table = pq.read_table(pa.BufferReader(content))
    bits = {
        column: table[column].drop_null().to_numpy().astype(bool) for column in table.column_names
    }
    return Misclassified(bits, json.loads(table.schema.metadata[IMAGES]))


def _padded(bits: np.ndarray, length: int) -> Any:
    """A column of `length`, padded with nulls: sets have different numbers of images."""
    import pyarrow as pa

    return pa.chunked_array([pa.array(bits), pa.nulls(length - len(bits), pa.bool_())])


def _name(content: bytes) -> str:
    return f"{WRONG}-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
