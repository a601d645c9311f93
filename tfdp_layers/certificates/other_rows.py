"""Gradients of one record's loss in the rows of others, which are zero where records do not meet."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.certificates.synthetic import ROWS
from tfdp_layers.certificates.uses import recorded

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining


def cross_gradients(model: "PrivateTraining", x: Any, y: Any) -> list[np.ndarray]:
    """The gradients of row 0's loss in the other rows of floating-point inputs."""
    floats = [t for t in keras.tree.flatten(x) if t.dtype.is_floating]
    if not floats:
        return []
    with tf.GradientTape() as tape:
        tape.watch(floats)
        first = model.per_record_losses(x, y)[0]
    return rows_of(tape.gradient(first, floats), range(1, ROWS))


def cross_upstreams(model: "PrivateTraining", x: Any, y: Any) -> list[np.ndarray]:
    """The upstream gradients of a row's loss in other rows, where the optimizer clips each row.

    Of what is the same in all rows (an embedding of positions) one row may stand for all, or their mean: additivity
    does not see that where nothing is clipped, and no input leads there.
    """
    if model.optimizer.bounding is None:
        return []
    found = []
    for mine in (0, ROWS - 1):
        with tf.GradientTape() as tape, recorded(model, tape, model.optimizer.bounding, records=ROWS) as record:
            loss = model.per_record_losses(x, y)[mine]
        found += rows_of(tape.gradient(loss, record.watched), [i for i in range(ROWS) if i != mine])
    return found


def rows_of(gradients: Sequence[Any], rows: Sequence[int]) -> list[np.ndarray]:
    """These rows of each gradient that there is."""
    tensors = [tf.convert_to_tensor(g) for g in gradients if g is not None]
    return [np.asarray(tf.gather(t, rows)) for t in tensors]
