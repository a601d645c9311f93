"""The white-box attack: what each step released, compared with what each canary would have added to it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdp_layers.audit.canaries import Canaries
from tfdp_layers.sensitivity import SensitivityGroup

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["CanaryScores"]

_BASE_ROWS = 4096
_NUISANCE_ROWS = 128
_ROWS_AT_ONCE = 512
_FAR = 60.0  # of a log-likelihood ratio, where exponentials end
_MOST_ENTRIES = 250_000_000


class CanaryScores:
    """Adds up, over the steps of a training, how much what was released looks as if a canary had been there.

    In a step with weights w, canary i adds a bounded gradient c_i(w) to a sum that is released with noise, if it was
    drawn, with probability q. With r the released sum less what all records add on average, and R the covariance of
    the noise and of what the other records add, the step's log-likelihood ratio is about
        log(1 - q + q exp(c_i' R^-1 r - c_i' R^-1 c_i / 2)),
    exactly so where the rest is normal: by Neyman and Pearson no attack on such a step is stronger. R is that of the
    noise, of all other canaries and of 128 records that stand for the rest; of the noise alone where their gradients
    together would take more than a gigabyte. Any score makes a valid audit; this one a strong one. The attack knows
    the other records, weights, noise scales and sampling, as differential privacy assumes, but not coins and draws.

    Args:
        model: compiled, private, in or before a `fit`.
        x, y: the other records; up to 4096 of them stand for all.
        canaries: their alternatives are used where `paired`.
        probability: q.
        paired: a canary that is left out is replaced by its alternative rather than missing; c_i is then the
            difference of the two.
        groups: (name, variables, ...) of the model, with `stddevs` of their noise.
        batch_size: the expected batch size, by which sums were divided.
    """

    def __init__(
        self,
        model: "PrivateTraining",
        x: np.ndarray,
        y: np.ndarray,
        canaries: Canaries,
        *,
        probability: float,
        paired: bool,
        groups: Sequence[SensitivityGroup],
        stddevs: Sequence[float],
        batch_size: int,
    ) -> None:
        self._model, self._canaries, self._paired = model, canaries, paired
        self._probability, self._batch_size = float(probability), batch_size
        rows = np.linspace(0, len(y) - 1, min(len(y), _BASE_ROWS)).astype(int)
        self._weight = len(y) / len(rows)
        self._base = (x[rows], y[rows])
        scale = {id(v): s for group, s in zip(groups, stddevs, strict=True) for v in group.variables}
        noises = [scale[id(v)] for v in model.trainable_variables]
        noises += [s for group, s in zip(groups, stddevs, strict=True) if not group.variables]
        # What is released without noise gives everything away, up to its rounding.
        smallest = min([s for s in noises if s > 0.0], default=1.0)
        self._noises = [s if s > 0.0 else 1e-3 * smallest for s in noises]
        rows = np.linspace(0, len(y) - 1, min(len(y), _NUISANCE_ROWS)).astype(int)
        self._nuisance = (x[rows], y[rows])
        self._share = len(y) / len(rows)
        weights = sum(math.prod(v.shape) for v in model.trainable_variables)
        self._joint = (len(canaries) + len(rows)) * weights <= _MOST_ENTRIES
        with tf.init_scope():
            self._total = tf.Variable(tf.zeros(len(canaries)), trainable=False, name="canary_scores")

    def observe(self, means: list[tf.Tensor]) -> None:
        """Called inside the step, before it moves the weights."""
        canaries, q = self._canaries, self._probability
        expected = [self._weight * s for s in self._sums(*self._base)]
        places = [(canaries.x, canaries.y)] + [(canaries.other_x, canaries.other_y)] * self._paired
        for place in places:
            expected = [e + 0.5 * s for e, s in zip(expected, self._sums(*place), strict=True)]
        residual = self._white([self._batch_size * m - q * e for m, e in zip(means, expected, strict=True)])
        ratio = tf.clip_by_value((self._jointly if self._joint else self._alone)(residual), -_FAR, _FAR)
        gain = tf.math.log1p(q * tf.math.expm1(ratio))
        self._total.assign_add(tf.where(tf.math.is_finite(gain), gain, tf.zeros_like(gain)))

    def array(self) -> np.ndarray:
        """(canaries,) float64: the scores so far."""
        return self._total.numpy().astype(np.float64)

    def _sums(self, x: np.ndarray, y: np.ndarray) -> list[tf.Tensor]:
        """The bounded sums of these records, statistics included, at the current weights."""
        totals: list[tf.Tensor] | None = None
        for start in range(0, len(y), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            found = self._at(tf.convert_to_tensor(x[rows]), tf.convert_to_tensor(y[rows]))
            totals = found if totals is None else [a + b for a, b in zip(totals, found, strict=True)]
        assert totals is not None
        return totals

    def _at(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return self._model._sums_and_losses(x, y, tf.ones(tf.shape(y)[:1]))[0]

    def _white(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        """All in one vector, in units in which the noise is standard normal: (weights,)."""
        return tf.concat([tf.reshape(t, (-1,)) / s for t, s in zip(tensors, self._noises, strict=True)], 0)

    def _rows(self, *arrays: np.ndarray) -> tf.Tensor:
        """What each canary adds, white: (canaries, weights). Four arrays: less what stands in its place."""

        def one(rows: tuple[tf.Tensor, ...]) -> tf.Tensor:
            added = self._white(self._at(rows[0][None], rows[1][None]))
            return added - self._white(self._at(rows[2][None], rows[3][None])) if len(rows) == 4 else added

        leaves = tuple(tf.convert_to_tensor(a) for a in arrays)
        return tf.map_fn(one, leaves, fn_output_signature=tf.float32, parallel_iterations=4)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        canaries = self._canaries
        return (canaries.x, canaries.y) + (canaries.other_x, canaries.other_y) * self._paired

    def _alone(self, residual: tf.Tensor) -> tf.Tensor:
        """Log-likelihood ratios of having been drawn, R being the noise alone: (canaries,)."""

        def one(rows: tuple[tf.Tensor, ...]) -> tf.Tensor:
            added = self._rows(*[row[None] for row in rows])[0]
            return tf.reduce_sum(added * (residual - 0.5 * (1.0 - self._probability) * added))

        leaves = tuple(tf.convert_to_tensor(a) for a in self._arrays)
        return tf.map_fn(one, leaves, fn_output_signature=tf.float32, parallel_iterations=4)

    def _jointly(self, residual: tf.Tensor) -> tf.Tensor:
        """The statistic of all canaries together, R being the noise, the other canaries and the rest: (canaries,).

        In white units R = I + A'A, the rows of A being all contributions times the deviations v^1/2 of their draws.
        With K = A A' and H = K (I + K)^-1, leaving canary i itself out of R (Sherman and Morrison) gives
            c_i' R_i^-1 r = v^-1/2 ((I + K)^-1 A r)_i / (1 - H_ii),    c_i' R_i^-1 c_i = v^-1 H_ii / (1 - H_ii).
        """
        q, count = self._probability, len(self._canaries)
        drawn = 0.5 * q * (1.0 - 0.5 * q) if not self._paired else 0.25 * q  # u B, or (u - 1/2) B, u a fair coin
        rest = max(q * (1.0 - q), 1e-6) * self._share
        parts = [math.sqrt(drawn) * self._rows(*self._arrays), math.sqrt(rest) * self._rows(*self._nuisance)]
        a = tf.concat(parts, 0)
        kernel = tf.matmul(a, a, transpose_b=True)
        eye = tf.eye(count + len(self._nuisance[1]))
        inverse = tf.linalg.inv(eye + kernel)[:count]
        products = tf.linalg.matvec(inverse, tf.linalg.matvec(a, residual)) / math.sqrt(drawn)
        inside = tf.linalg.diag_part(inverse)  # 1 - H_ii
        return products / inside - 0.5 * (1.0 - q) * (1.0 - inside) / inside / drawn  # r lacks its mean, q c_i / 2
