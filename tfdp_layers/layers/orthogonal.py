"""The constraint that keeps a kernel near an orthogonal matrix."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.rules.spectral import spectral_bound


@keras.saving.register_keras_serializable(package="tfdp_layers")
class Orthogonal(keras.constraints.Constraint):
    """Moves all singular values of a kernel towards 1: a `kernel_constraint`, applied after each update.

    Orthogonal kernels keep norms, in both directions, up to what fewer units leave out: with `GroupSort` between them
    records use the bounds of their layers nearly whole, where kernels that are merely of norm 1 shrink most of them.
    A kernel of more than two axes is taken as the matrix (all but the last, last).

    It is post-processing of released weights and costs no privacy. No bound rests on it: a Lipschitz layer certifies in
    each call the kernel that it uses. Not for a kernel that starts at zeros, whose small noise would grow to norm 1.

    Args:
        iterations: how often W becomes W (3 I - W^T W) / 2, after a division by its norm where that is above 1. A
            singular value s becomes s (3 - s^2) / 2: one near 1 comes quadratically nearer, one near 0 grows by half.

    Shapes: (..., units), unchanged.
    Raises: ValueError unless `iterations` is an integer of at least 1.
    Source: Bjorck and Bowie 1971, SIAM Journal on Numerical Analysis 8(2); Anil, Lucas and Grosse 2019,
        arXiv:1811.05381, section 4.3.
    """

    def __init__(self, iterations: int = 6) -> None:
        if not isinstance(iterations, int | np.integer) or isinstance(iterations, bool) or iterations < 1:
            raise ValueError(f"`iterations` must be an integer of at least 1. Received: iterations={iterations!r}.")
        self.iterations = int(iterations)

    def __call__(self, w: Any) -> Any:
        kernel = tf.convert_to_tensor(w)
        matrix = tf.reshape(kernel, [-1, kernel.shape[-1]])
        wide = matrix.shape[0] < matrix.shape[1]
        matrix = tf.transpose(matrix) if wide else matrix
        matrix /= tf.cast(tf.maximum(spectral_bound(tf.cast(matrix, tf.float64)), 1.0), matrix.dtype)
        for _ in range(self.iterations):
            matrix = 1.5 * matrix - 0.5 * tf.matmul(matrix, tf.matmul(matrix, matrix, transpose_a=True))
        return tf.reshape(tf.transpose(matrix) if wide else matrix, kernel.shape)

    def get_config(self) -> dict[str, int]:
        return {"iterations": self.iterations}
