"""Which images a trial's final weights got wrong: a bit for each image, in a file beside the rows.

The file is named by a digest of its content, and the rows' facts, which are sealed, say that name:
so the seal of the rows holds for the bits too, and no later worker can put others in their place.
Parquet packs booleans: 50,000 images take 6.9 KB at most for each set and kind of weights, and
5.4 KB at 20% error.
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

WRONG = "wrong"  # the fact of a trial that names the file, and the last word of its columns
IMAGES = b"vitscale.images"


@dataclass(frozen=True)
class Wrong:
    """Of some evaluation sets, whether the prediction (top-1) for each image was wrong.

    `bits`: column, such as "val_wrong" or "val_ema_wrong", -> (N,) bool in the order of the set,
    without images that have no label. Without an average there is no column of averaged weights.
    `images`: evaluation set -> a digest that tells its images from others of that name.
    """

    bits: Mapping[str, np.ndarray]
    images: Mapping[str, str]

    def of(self, split: str, weights: str) -> np.ndarray | None:
        """The bits of a set for "" (raw) or "ema_" weights; None where they were not kept."""
        raw = self.bits.get(column(split, "", WRONG))
        return self.bits.get(column(split, weights, WRONG), raw)


def encode(wrong: Wrong) -> tuple[str, bytes]:
    """(name, content) of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    most = max(len(bits) for bits in wrong.bits.values())
    table = pa.table(
        {name: _padded(bits, most) for name, bits in wrong.bits.items()},
        metadata={IMAGES: json.dumps(dict(wrong.images), sort_keys=True).encode()},
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    content = sink.getvalue().to_pybytes()
    return _name(content), content


def decode(name: str, content: bytes) -> Wrong:
    """The bits in a file.

    Raises ValueError, or what pyarrow does, for a content that is not the one of that name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name != _name(content):
        raise ValueError("its bits are not those that were written")
    table = pq.read_table(pa.BufferReader(content))
    bits = {
        column: table[column].drop_null().to_numpy().astype(bool) for column in table.column_names
    }
    return Wrong(bits, json.loads(table.schema.metadata[IMAGES]))


def _padded(bits: np.ndarray, most: int) -> Any:
    """Sets have different numbers of images: the shorter columns end in nulls."""
    import pyarrow as pa

    return pa.chunked_array([pa.array(bits), pa.nulls(most - len(bits), pa.bool_())])


def _name(content: bytes) -> str:
    return f"{WRONG}-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
