"""Rules for layers over sequences: tokens that share a row of a table, and einsum products with any bias."""

from dataclasses import dataclass

import tensorflow as tf

from tfdp_layers.rules.norms import summation_error
from tfdp_layers.rules.rows import L2, AffineL2, Rule

_UNDERFLOW = 2.0**-126
"""The largest square that float32 may flush to zero."""


@dataclass(frozen=True)
class TokenL1(Rule):
    """Scales each record so that sum_t ||u[t]||_2 is at most `bound`: L1 over tokens, L2 over units.

    Shapes: (batch, *tokens, units); (batch, units) is one token.
    Units: per-record loss per unit of the embedding.
    Guarantee: the gradient of an embedding table, sum_t onehot(token t) u[t]^T, is at most `bound` in the Frobenius
        norm, by the triangle inequality. Attained where all tokens are the same; by distinct tokens it is not (then
        the norm is (sum_t ||u[t]||^2)^(1/2)), but which tokens a record repeats is its own affair.
    """

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        last = len(rows.shape) - 1
        # Squares that underflow count as the most that they can have been.
        squares = tf.reduce_sum(tf.square(rows) + _UNDERFLOW, axis=last)
        total = tf.sqrt(squares)
        for axis in sorted(self.space(rows), reverse=True):
            total = tf.reduce_sum(total, axis=axis)
        # As much larger as rounding can have made the two sums too small.
        return (1.0 + summation_error(rows, [last]) + summation_error(rows, self.space(rows))) * total


@dataclass(frozen=True)
class EinsumL2(Rule):
    """Scales each record's upstream gradient U of an einsum product with a bias of any axes.

    The norm is N(U) = sqrt((t^2 ||U||_F^2 + ||sum_Q U||^2) / (t^2 + 1)), t being `input_clip` and Q the axes that the
    bias lacks; without bias the Euclidean norm.

    Shapes: (batch, ...) as the layer puts out.
    Attributes:
        input_clip: the bound t on the Euclidean norm of the record's input X.
        positions: the axes of U that the kernel lacks, over which its gradient is a sum.
        bias_positions: Q; None without bias.

    Guarantee: with ||X||_F <= t the joint gradient of kernel and bias is at most bound * sqrt(t^2 + 1), without bias
        bound * t. Proof: each entry of the kernel's gradient is a sum of products of an entry of X and one of U over
        the labels that the kernel lacks. For fixed values of the labels that input, kernel and output share it is a
        matrix product X_s^T U_s over positions, so ||dK||^2 <= sum_s ||X_s||^2 ||U_s||^2 <= ||X||^2 ||U||^2
        (sub-multiplicativity of the Frobenius norm). The bias' gradient is sum_Q U, and
        t^2 ||U||^2 + ||sum_Q U||^2 = (t^2 + 1) N(U)^2. Attained by a one-hot U where X is at the same position.
    """

    input_clip: float = 1.0
    positions: tuple[int, ...] = ()
    bias_positions: tuple[int, ...] | None = None

    def space(self, rows: tf.Tensor) -> list[int]:
        """All axes that either sum goes over."""
        return sorted({*self.positions, *(self.bias_positions or ())})

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        if self.bias_positions is None:
            return L2(self.bound).norm(rows)
        return AffineL2(self.bound, self.input_clip).norm(as_matrix(rows, self.bias_positions))


def as_matrix(rows: tf.Tensor, summed: tuple[int, ...]) -> tf.Tensor:
    """(batch, ...) -> (batch, product of the summed axes, product of the others)."""
    kept = [axis for axis in range(1, len(rows.shape)) if axis not in summed]
    order = [0, *summed, *kept]
    ordered = rows if order == sorted(order) else tf.transpose(rows, order)
    shape = [rows.shape[axis] if rows.shape[axis] is not None else tf.shape(rows)[axis] for axis in order]
    sizes = [1, 1]
    for axis, size in zip(order[1:], shape[1:], strict=True):
        sizes[axis not in summed] *= size
    return tf.reshape(ordered, [shape[0], *sizes])
