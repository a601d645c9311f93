"""Records that name themselves, so that a batch tells which of them it drew."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers import PrivateBatches

RECORDS = 50
ONES = np.ones(RECORDS)
WAYS = ["stream", "tensors", "rows"]


def numbered(records: int = RECORDS) -> np.ndarray:
    """(records, 2): row i is (i + 1, i + 1), so that a drawn row names its record, and padding names none."""
    return np.repeat(np.arange(1, records + 1, dtype=np.float32)[:, None], 2, axis=1)


def fetched(batches: PrivateBatches, way: str, pad: bool = False) -> Iterator[Any]:
    """NumPy batches by each of the ways that there are."""
    if way == "stream":
        return batches.stream(pad)
    dataset = batches.dataset(pad) if way == "tensors" else batches._dataset(pad, batches._read_by_rows())
    return dataset.as_numpy_iterator()


def drawn(batch: Any) -> tuple[int, ...]:
    """The records of a batch of `numbered`."""
    return tuple(int(row[0]) - 1 for row, weight in zip(batch[0], batch[2], strict=True) if weight > 0)


def pairs(records: int, batch_size: int) -> tf.data.Dataset:
    x = numbered(records)
    return tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(batch_size)
