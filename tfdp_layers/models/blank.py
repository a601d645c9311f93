"""Blank records in raw units before a normalization: their gradients are nothing but rounding."""

from typing import Any

import keras
import numpy as np

from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.heights import PANEL
from tfdp_layers.caller import warn
from tfdp_layers.layers.private_normalization import PrivateNormalization
from tfdp_layers.noise.cores import on_gpus

__all__ = ["panels", "warn_of_blank"]

_LARGE, _FEWEST = 32.0, 2
_BY_CONSTANTS = (keras.layers.Normalization, keras.layers.SpectralNormalization, PrivateNormalization)


def panels(model: Any) -> int | bool:
    """To how many rows batches of this model are filled up: whole panels where a layer divides by its record's spread.

    Such layers alone blow up rounding, so others do not pay for it: 12 rows more in a batch, on average.
    """
    return PANEL if normalizing(model) else False


def normalizing(model: Any) -> list[str]:
    """The layers that normalize each record by itself: by their name, as those of other libraries are called, too."""
    layers = [layer for layer in model._flatten_layers() if not isinstance(layer, _BY_CONSTANTS)]
    return [layer.name for layer in layers if "norm" in type(layer).__name__.lower()]


def warn_of_blank(model: Any, batches: Batches) -> None:
    """Warns where records hold one large number at all positions, and a layer normalizes each record by itself.

    Such a layer divides by sqrt(epsilon) what is 0 but for rounding, and the first kernel's gradient is that times the
    number: the clip brings it to full size, and its last bits, which depend on how many rows a kernel computes at once,
    turn it around. Whole panels of rows prevent that where kernels go by what is left of a panel, and not where they go
    by how large a product is. Blank records of small numbers do not lie there (`benchmarks/blank_records.py`).

    Looked at are arrays in memory; nothing where all kernels are called on one number of rows, in pieces.
    """
    names = [] if _of_one_height(model, batches) else normalizing(model)
    found = [_blank(one) for one in batches.arrays()[0]] if names else []
    count, number = max(found, default=(0, 0.0))
    if count < _FEWEST:
        return
    warn(
        f"{count:,} records of x hold one number at all positions ({number:g}), and layer {names[0]!r} normalizes each"
        " record by itself: what is left of their gradients is rounding, brought to full size by the clip, and where"
        " layers are wide it changes with the number of records that are drawn. One record more may then move a sum by"
        " several times what is stated (16.3 bounds of 97 blank images, before Dense(1024)). Scale x by a public"
        " constant (x / 1024.0), which training needs anyway, or leave out such records, each by itself; or compute"
        f" them in pieces of one height: fit(..., physical_batch_size={PANEL})."
    )


def _of_one_height(model: Any, batches: Batches) -> bool:
    """Whether all pieces of all draws have one number of rows, the last ones filled up: one, or a whole panel."""
    piece = batches.piece
    return piece is not None and (piece * batches.rows_each in (1, PANEL) or bool(model.jit_compile) or on_gpus())


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
