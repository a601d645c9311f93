"""Dropout inside of a recurrent layer's steps: one mask for all steps, or one for each gate."""

from typing import Any

import tensorflow as tf


class GateMasks:
    """What dropout keeps, and by how much it scales it, where a recurrent cell multiplies by one of its kernels.

    With one mask m a step computes (m * x) K; with one for each gate, and columns K_g of the kernel, (m_g * x) K_g.
    They hold for all steps (Gal and Ghahramani 2016, arXiv:1512.05287), and each record draws its own.

    Args:
        masks: tensors (batch, inputs): none, one, or one for each of the kernel's equal parts of columns.
    """

    def __init__(self, masks: list[tf.Tensor]) -> None:
        self.masks = masks

    def some(self, start: int, stop: int) -> "GateMasks":
        """Those of the gates from start to stop; with one mask or none, all."""
        return GateMasks(self.masks[start:stop]) if self.by_gate else self

    @property
    def by_gate(self) -> bool:
        return len(self.masks) > 1

    def applied(self, values: tf.Tensor) -> tf.Tensor:
        """Values (batch, inputs) or (batch, steps, inputs) under the mask that all gates share, if there is one."""
        return values * along(self.masks[0], values) if len(self.masks) == 1 else values

    def product(self, values: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Masked values times the kernel (inputs, columns): (batch, columns) or (batch, steps, columns)."""
        if not self.by_gate:
            return tf.matmul(self.applied(values), kernel)
        gates = zip(self.masks, tf.split(kernel, len(self.masks), axis=-1), strict=True)
        return tf.concat([tf.matmul(values * along(mask, values), part) for mask, part in gates], -1)

    def gradient(self, values: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        """Each record's gradient at the kernel, (batch, inputs, columns), float32, summed over the steps.

        Of values and upstream, both (batch, steps, ...): sum_t (m_g * x_t) u_gt^T = diag(m_g) sum_t x_t u_gt^T.
        """
        whole = tf.matmul(tf.cast(values, tf.float32), tf.cast(upstream, tf.float32), transpose_a=True)
        if not self.masks:
            return whole
        each = tf.cast(tf.stack(self.masks, -1), tf.float32)
        return whole * tf.repeat(each, whole.shape[-1] // len(self.masks), axis=-1)


NONE = GateMasks([])


def along(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """A mask (batch, inputs), with an axis for steps where the values have one."""
    return mask[:, None, :] if values.shape.rank == 3 else mask


def drawn_masks(cell: Any, sequences: tf.Tensor, training: bool | None) -> tuple[GateMasks, GateMasks]:
    """The cell's own masks for its inputs and for its states, drawn as Keras draws them, for this call alone."""
    if not training:
        return NONE, NONE
    first = sequences[:, 0, :]
    state = tf.repeat(tf.zeros_like(first[:, :1]), cell.units, axis=-1)
    found = []
    for rate, draw, values in (
        (cell.dropout, cell.get_dropout_mask, first),
        (cell.recurrent_dropout, cell.get_recurrent_dropout_mask, state),
    ):
        masks = draw(values) if 0.0 < rate < 1.0 else []
        found.append(GateMasks(list(masks) if isinstance(masks, (list, tuple)) else [masks]))
    cell.reset_dropout_mask()
    cell.reset_recurrent_dropout_mask()
    return found[0], found[1]
