"""Noise on the rows of a table that a noisy count selects, and on no others."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp_layers.instances import refuse_class, refuse_own_code
from tfdp_layers.noise.gaussian import add_noise
from tfdp_layers.noise.sources import NoiseSource

Gradient: TypeAlias = Any
"""A `tf.Tensor`, or of a table some rows alone: `tf.IndexedSlices`."""


@dataclass(frozen=True)
class SparsityPreserving:
    """Which rows of large embeddings a step moves: those that enough records of its draw look up, by a noisy count.

    Each record spreads one unit over the distinct rows of a table that it looks up: 1 / sqrt(n) on each of n rows, a
    vector of norm 1. The sum over the draw is released with noise. Rows whose noisy count is above `threshold`
    standard deviations of that noise get their gradient, with noise; all others get exactly zero, and no noise.

    Args:
        noise_share: of the precision 1 / z^2 of a step, what the counts get, all tables together; the gradients get
            the rest. The noise on a count has standard deviation z sqrt(tables / noise_share), and that on the
            gradients is 1 / sqrt(1 - noise_share) times what it is without counts: 1.195 for 0.3. (The
            source's sigma_1 / sigma_2 is sqrt((1 - noise_share) / noise_share) for one table: 1.53.)
        threshold: in standard deviations of the count's noise. Of the rows that no record looks up, a share
            Q(threshold) is selected all the same and gets noise alone, Q the upper tail of a normal number: 2.3% at 2,
            0.003% at 4. A row that m records look up, n rows each, is selected with probability 1/2 where m is
            threshold sqrt(n) times that deviation.
        smallest_table: tables of fewer rows are trained as without this: a count would cost more than it saves.

    Formal guarantee: a step costs what it costs without selection, one Gaussian mechanism of noise multiplier z. Proof:
        let counts and gradients of ALL rows be released with their noise. That is one Gaussian mechanism over groups
        of bounds 1 and S_g, of noise multiplier (sum (bound / stddev)^2)^(-1/2) = z. Zeroing the rows whose released
        count is too small is post-processing. What a step does has the same distribution: the noise of a row is
        independent of all counts, so it need not be drawn where it is thrown away. That holds for every sampler.
    Raises: ValueError for a share that is not above 0 and at most 0.9, a threshold that is negative or not finite, or
        a smallest table that is no integer of at least 1.
    Source: Ghazi et al. 2023, Sparsity-preserving differentially private training of large embedding models,
        arXiv:2311.08357, algorithm 1 ("DP-AdaFEST"), with its contribution clip C1 at 1.
    """

    noise_share: float = 0.3
    threshold: float = 2.0
    smallest_table: int = 1000

    def __post_init__(self) -> None:
        if not is_number(self.noise_share) or not 0.0 < self.noise_share <= 0.9:
            raise ValueError(
                "`noise_share` must be above 0 and at most 0.9: the counts' share of a step's precision, which the"
                f" gradients lack. Received: noise_share={self.noise_share!r}. Use for example noise_share=0.3."
            )
        if not is_number(self.threshold) or not 0.0 <= self.threshold < math.inf:
            raise ValueError(
                "`threshold` must be a finite number, 0 or more: in standard deviations of the count's noise. Received:"
                f" threshold={self.threshold!r}. Use for example threshold=2.0."
            )
        size = self.smallest_table
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
            raise ValueError(
                "`smallest_table` must be an integer of at least 1: the rows from which on a table is counted."
                f" Received: smallest_table={size!r}."
            )

    def config(self) -> dict[str, Any]:
        """What `as_sparsity_preserving` reads back."""
        return asdict(self)


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_sparsity_preserving(given: Any, beside: Any = None) -> SparsityPreserving | None:
    """`SparsityPreserving`, of itself, True, or its config; None of False or None.

    Args:
        beside: the optimizer's `noise`, if it is not independent.

    Raises: ValueError for anything else, or beside correlated noise.
    """
    if given is None or given is False:
        return None
    if beside is not None:
        raise ValueError(
            "`sparsity_preserving` draws noise for the selected rows alone, and correlated noise takes back what every"
            " row got in the step before. Use noise=None, or sparsity_preserving=False."
        )
    if isinstance(given, Mapping) and set(given) == {"noise_share", "threshold", "smallest_table"}:
        return SparsityPreserving(**given)
    if given is True:
        return SparsityPreserving()
    if isinstance(given, SparsityPreserving):
        refuse_own_code(given, [SparsityPreserving], "`sparsity_preserving`")
        return given
    refuse_class(given, "`sparsity_preserving`", "")
    raise ValueError(
        "`sparsity_preserving` is False, True, or tfdp.noise.SparsityPreserving(noise_share=..., threshold=...)."
        f" Received: sparsity_preserving={given!r}."
    )


def add_noise_to_selected(
    source: NoiseSource,
    sums: Sequence[tf.Tensor],
    stddevs: Sequence[float],
    counted: Mapping[int, int],
    threshold: float,
) -> list[Gradient]:
    """As `add_noise`, but counts first; then tables keep, and get noise on, the rows that the NOISY counts select.

    Args:
        sums, stddevs: of `add_noise`. A table is (rows, units), its counts (rows,).
        counted: the place of a table among the sums, to the place of its counts.
        threshold: in standard deviations of the noise on the counts. Where that is 0, rows with a count above 0.

    Returns: one for each sum; of a table the selected rows alone, `tf.IndexedSlices` with no row twice. XLA, which
        knows no such sizes, draws noise for all rows and gives a tensor with zeros in the others.
    """
    places = sorted(set(counted.values()))
    counts = add_noise(source, [sums[i] for i in places], [stddevs[i] for i in places])
    noisy: dict[int, Gradient] = dict(zip(places, counts, strict=True))
    chosen: dict[int, Any] = {table: noisy[count] > threshold * stddevs[count] for table, count in counted.items()}
    others = [i for i in range(len(sums)) if i not in noisy]
    dense = tf.__internal__.get_enclosing_xla_context() is not None
    rows = {} if dense else {table: tf.where(selected)[:, 0] for table, selected in chosen.items()}
    parts = [tf.gather(sums[i], rows[i]) if i in rows else sums[i] for i in others]
    noisy |= zip(others, add_noise(source, parts, [stddevs[i] for i in others]), strict=True)
    for table, selected in chosen.items():
        values = noisy[table]
        if dense:
            noisy[table] = tf.where(selected[:, tf.newaxis], values, tf.zeros_like(values))
        else:
            noisy[table] = tf.IndexedSlices(values, rows[table], tf.shape(sums[table], tf.int64))
    return [noisy[i] for i in range(len(sums))]


def mapped(function: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """The function, which keeps zeros, of each entry: of the rows that there are, where only some are."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def numbers_of(gradients: Iterable[Gradient | None]) -> list[tf.Tensor]:
    """What is to be there, all of it, before anything moves: the gradients' numbers, those of selected rows alone.

    TensorFlow writes a variable after what reads it, yet its graph optimizer drops that order where it rewrites
    products: some public rows met weights that the same step had moved.
    """
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
