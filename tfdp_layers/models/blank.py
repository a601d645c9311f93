"""Blank records in raw units before a normalization: their gradients are nothing but rounding."""

from typing import Any

import keras
import numpy as np

from tfdp_layers.batches.base import Batches
from tfdp_layers.caller import warn

__all__ = ["warn_of_blank"]

_LARGE, _FEWEST = 32.0, 2
_NORMALIZES = (keras.layers.GroupNormalization, keras.layers.LayerNormalization)


def warn_of_blank(model: Any, batches: Batches) -> None:
    """Warns where records hold one large number at all positions, and a layer normalizes each record by itself.

    Such a layer divides by sqrt(epsilon) what is 0 but for rounding, and the first kernel's gradient is that times the
    number: the clip brings it to full size, and its last bits, which depend on how many rows a kernel computes at once,
    turn it around. Blank records of small numbers do not lie there (`benchmarks/blank_records.py`).

    Looked at are arrays in memory; nothing where each record is computed by itself.
    """
    names = [layer.name for layer in model._flatten_layers() if isinstance(layer, _NORMALIZES)]
    found = [_blank(one) for one in batches.arrays()[0]] if names and batches.piece != 1 else []
    count, number = max(found, default=(0, 0.0))
    if count < _FEWEST:
        return
    warn(
        f"{count:,} records of x hold one number at all positions ({number:g}), and layer {names[0]!r} normalizes each"
        " record by itself: what is left of their gradients is rounding, brought to full size by the clip, and it"
        " changes with the number of records that are drawn. One record more may then move a sum by several times what"
        " is stated (2.99 bounds of 16 blank images). Scale x by a public constant (x / 1024.0), which training needs"
        " anyway, or leave out such records, each by itself; or compute each record by itself:"
        " fit(..., physical_batch_size=1)."
    )


def _blank(array: np.ndarray) -> tuple[int, float]:
    """How many rows have one number, of each channel, at all positions, the largest of them large; and one of these."""
    pixels = array.dtype.kind in "uf" or (array.dtype.kind == "i" and array.dtype.itemsize <= 2)  # others: words
    if not pixels or array.ndim < 2 or not array.size or isinstance(array, np.memmap):
        return 0, 0.0
    rows = array.reshape(len(array), -1, array.shape[-1] if array.ndim > 2 else 1)
    if rows.shape[1] < 2:
        return 0, 0.0
    likely = np.flatnonzero((rows[:, 0] == rows[:, -1]).all(-1) & (np.abs(rows[:, 0]).max(-1) >= _LARGE))
    found = [place for place in likely.tolist() if (rows[place] == rows[place, :1]).all()]
    return len(found), float(rows[found[0], 0].flat[np.abs(rows[found[0], 0]).argmax()]) if found else 0.0
