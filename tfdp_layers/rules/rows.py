"""Rules that bound one record's rows: what each does, and what it guarantees."""

import abc
import dataclasses
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.rules.norms import CANCELLING, euclidean_norm, norm_over, number_of, position_sums, summation_error

ROUNDING = 2.0**-16
"""Relative margin below a bound at which rows are scaled to, so that float32 rounding (of the norm, of the scaling and
of products of two scaled tensors) stays inside the stated bound."""

SMALLEST_BOUND = 1e-10
"""Below this, squares of float32 values that underflow to zero could add up to more than the bound."""

LARGEST_BOUND = 1e38
"""Above this, a bound is infinite in float32, and a scale derived from it not a number."""


SMALLEST_SCALE = 2.0**-60
"""Rows that would be scaled down further are refused: the scale may be put on the other factor of a product (see
`AffineLayer`), where it must not push what counts into the denormal numbers, which float32 rounds coarsely."""


FEW = 256
"""Up to so many entries of a record, rows are always gone over by the operation that refuses some of them. It costs
them some microseconds a step; a branch that does without where none is refused costs as much, and 8 ms to trace."""


def check_bound(**bounds: float) -> None:
    """Raises ValueError unless every named bound is a number from `SMALLEST_BOUND` to `LARGEST_BOUND`."""
    for name, value in bounds.items():
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not number or not SMALLEST_BOUND <= value <= LARGEST_BOUND:
            raise ValueError(
                f"`{name}` must be a number from {SMALLEST_BOUND} to {LARGEST_BOUND}: it is the L2 bound from which the"
                f" noise is scaled. Received: {name}={value!r}. Use for example {name}=1.0."
            )


def per_record(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Reshapes `values` of shape (batch,) so that it broadcasts against `rows` of shape (batch, ...)."""
    return tf.reshape(values, [-1] + [1] * (len(rows.shape) - 1))


@dataclass(frozen=True)
class Rule(abc.ABC):
    """Scales each record's rows down until their norm is at most `bound`.

    Shapes: (batch, ...), float32, unchanged.
    Attributes:
        bound: in units of the rows.
        channels_first: whether the channels are axis 1 instead of the last.
        summed: whether the rows are summed over positions afterwards, as a layer's upstream gradient is in the
            gradients of kernel and bias: then they stay below the bound by as much as float32 rounding can add.

    Guarantee: output row i depends on input row i alone; its norm, in exact arithmetic, is at most `bound` whatever
        the input holds; a row with a NaN, an infinity, values whose squares overflow float32, or a norm of more than
        about 1e18 times the bound, becomes zero.
    Raises: ValueError if the bound is not a positive finite number.
    """

    bound: float
    channels_first: bool = dataclasses.field(default=False, kw_only=True)
    summed: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_bound(bound=self.bound)

    @abc.abstractmethod
    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        """The norm of each record: (batch, ...) -> (batch,). Not finite where the record is not."""

    def space(self, rows: tf.Tensor) -> list[int]:
        """The axes of positions: all but the batch and the channels."""
        rank = len(rows.shape)
        return list(range(2, rank)) if self.channels_first else list(range(1, rank - 1))

    def scales(self, rows: tf.Tensor) -> tf.Tensor:
        """The factor in [0, 1] that each record is multiplied by: (batch, ...) -> (batch,)."""
        norm = self.norm(rows)
        margin = ROUNDING + summation_error(rows, self.space(rows)) if self.summed else ROUNDING
        limit = self.bound * (1.0 - margin)
        scales = limit / tf.maximum(norm, limit)
        # False for the NaN of a NaN norm, too; an infinite norm gives 0.
        return tf.where(scales >= SMALLEST_SCALE, scales, 0.0)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        """The bounded rows. Not differentiated through: the scale counts as a constant in the backward pass."""
        return scale_rows(rows, tf.stop_gradient(self.scales(rows)))


@dataclass(frozen=True)
class L2(Rule):
    """Scales each record so that its Euclidean norm over all its entries is at most `bound`.

    Source: Abadi et al. 2016, arXiv:1607.00133, section 3.1, applied to a layer's input or upstream gradient instead
    of the gradient of the weights (Stevens et al. 2022, arXiv:2202.05089, section 4).
    """

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        return euclidean_norm(rows)


@dataclass(frozen=True)
class SpatialL1(Rule):
    """Scales each record so that (sum_k (sum_p |u[p, k]|)^2)^(1/2) is at most `bound`: L1 over positions, L2 over
    channels.

    Shapes: (batch, *space, channels), or (batch, channels, *space) with `channels_first`.
    Units: per-record loss per unit of the layer's linear output.
    Guarantee: with the input x of a convolution bounded by ||x||_F <= t, each record's kernel gradient is at most
        t * bound, and with a bias the joint gradient at most bound * sqrt(t^2 + 1). Proof: the gradient of the kernel
        for input channel c and output channel k is a restriction of the cross-correlation of x_c and (zero-stuffed)
        u_k; Young's inequality gives ||x_c * u_k||_2 <= ||x_c||_2 ||u_k||_1; squares sum over c and k. Padding,
        stride, dilation and groups only embed in zeros or restrict. The bias gradient of channel k is at most
        ||u_k||_1.
    Source: Stevens et al. 2022, arXiv:2202.05089, section 5 (there for valid padding without bias).
    """

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        # As much larger as rounding can have made each channel's sum too small.
        sums = position_sums(tf.abs(rows), self.channels_first)
        return (1.0 + summation_error(rows, self.space(rows))) * euclidean_norm(sums)


@dataclass(frozen=True, eq=False)
class PatchL2(Rule):
    """Scales each record so that the Frobenius norm of its patch matrix is at most `bound`.

    The patch matrix of a convolution has one row a position, holding the patch of the input that the kernel meets
    there. Its squared norm is sum_pixels multiplicity[pixel] * x[pixel]^2, multiplicity being the number of patches
    that hold the pixel.

    Shapes: (batch, *space, channels), or (batch, channels, *space) with `channels_first`; multiplicity: (*space,), or
    a function of the sizes of these rows that gives it, so that it is counted where it is used.
    Guarantee: with P the patch matrix and U the upstream gradient as a (positions, channels) matrix, the kernel
    gradient is
        P^T U, at most ||P||_F ||U||_F <= bound * ||U||_F (sub-multiplicativity of the Frobenius norm).
    """

    multiplicity: np.ndarray | Callable[[tuple[int | None, ...]], np.ndarray] = dataclasses.field(
        default_factory=lambda: np.ones(())
    )

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        pixels = norm_over(rows, [1 if self.channels_first else len(rows.shape) - 1])
        # A NaN or an infinity makes the norm one, also in a pixel that no patch holds: 0 * inf is NaN.
        counts = self.multiplicity
        if callable(counts):
            counts = counts(tuple(rows.shape[axis] for axis in self.space(rows)))
        return euclidean_norm(pixels * tf.constant(np.sqrt(counts)[None], tf.float32))


@dataclass(frozen=True)
class AffineL2(Rule):
    """Scales each record's upstream gradient U of a Dense layer or convolution with bias, over many positions.

    The norm is N(U) = sqrt((t^2 ||U||_F^2 + ||sum_p U[p]||^2) / (t^2 + 1)), t being `input_clip`.

    Shapes: (batch, *space, channels), or (batch, channels, *space) with `channels_first`.
    Guarantee: with the layer's input (for convolutions its patch matrix) X bounded by ||X||_F <= t, the joint gradient
    of
        kernel and bias [X^T U; sum_p U[p]] is at most bound * sqrt(t^2 + 1), whatever the number of positions:
        ||X^T U||^2 + ||sum_p U[p]||^2 <= t^2 ||U||^2 + ||sum_p U[p]||^2 = (t^2 + 1) N(U)^2. For one position N is the
        Euclidean norm. (Bounding ||U||_F alone would need sqrt(t^2 + positions).)
    Where large entries of U cancel, rounding hides part of ||sum_p U[p]|| from the norm, and adds as much to the bias
    gradient: N counts the most that it can. A channel's sum is off by at most e sum_p |u[p]| <= e sqrt(P) ||u||_2, e
    being `summation_error` and P the positions (Cauchy-Schwarz), so all together by e sqrt(P) ||U||_F. Beside a small t
    the weight of ||U||_F^2 is at least `CANCELLING`, or terms that cancel would round those of other records.
    """

    input_clip: float = 1.0

    def norm(self, rows: tf.Tensor) -> tf.Tensor:
        space = self.space(rows)
        norm = euclidean_norm(rows)
        if not space:
            return norm
        hidden = summation_error(rows, space) * tf.sqrt(tf.cast(number_of(rows, space), tf.float32)) * norm
        offset = euclidean_norm(position_sums(rows, self.channels_first)) + hidden
        weight = self.input_clip**2 / (self.input_clip**2 + 1.0)
        return tf.sqrt(max(weight, CANCELLING) * tf.square(norm) + (1.0 - weight) * tf.square(offset))


def few(*rows: tf.Tensor) -> bool:
    """Whether a record's entries in all of these together are known to be at most `FEW`; each (batch, ...)."""
    sizes = [tuple(each.shape[1:]) for each in rows]
    return all(None not in size for size in sizes) and sum(map(math.prod, sizes)) <= FEW


@tf.custom_gradient
def scale_rows(rows: tf.Tensor, scales: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Multiplies row i by scales[i], a constant in the backward pass; where that is 0, NaN and infinity become 0.

    Shapes: rows (batch, ...), scales (batch,) in [0, 1].
    """
    factors = per_record(scales, rows)
    short = few(rows)
    kept = None if short else tf.reduce_all(scales > 0.0)

    def scaled(values: tf.Tensor) -> tf.Tensor:
        if short:
            return tf.math.multiply_no_nan(values, factors)
        # A plain product is twice as fast, and where no row is refused the same.
        product = lambda: values * factors  # noqa: E731
        return tf.cond(kept, product, lambda: tf.math.multiply_no_nan(values, factors))

    return scaled(rows), lambda upstream: (scaled(upstream), None)


@tf.custom_gradient
def select_rows(rows: tf.Tensor, scales: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The rows, zeros where their scale is 0: a row with NaN or infinity must not reach a product.

    Shapes: rows (batch, ...), scales (batch,).
    """
    kept = scales > 0.0

    def selected(values: tf.Tensor) -> tf.Tensor:
        zeros = lambda: tf.where(per_record(kept, values), values, 0.0)  # noqa: E731
        if few(rows):
            return zeros()
        return tf.cond(tf.reduce_all(kept), lambda: tf.identity(values), zeros)

    return selected(rows), lambda upstream: (selected(upstream), None)


def bound_upstream(outputs: tf.Tensor, rule: Rule) -> Any:
    """The identity whose backward pass applies `rule` to each record's upstream gradient.

    What it lets through is both what the layer's weights see and what flows on below. It closes over no variable.

    Args:
        outputs: a layer's linear output, (batch, ...), float32.
        rule: bounds the gradient of the sum of the per-record losses with respect to `outputs`, row by row.
    """

    @tf.custom_gradient
    def identity(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tf.identity(values), rule

    return identity(outputs)
