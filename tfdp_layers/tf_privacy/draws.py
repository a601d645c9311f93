"""Poisson draws that tensorflow-privacy's `fit` can train on."""

import math
import os
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfdp_layers.sampling import Poisson, entropy_generator
from tfdp_layers.sampling.forks import refuse_fork

__all__ = ["PoissonBatches", "rows_for"]

_LONGER = 1e-25
"""Probability with which a draw may be longer than a batch has rows."""


class PoissonBatches:
    """Batches for a model of `with_ledger`, each record drawn with probability batch_size / examples at every step.

    tensorflow-privacy divides the noisy sum by the rows of the batch, and how many records were drawn is private. So
    every batch has the same number of rows, `rows`: records, each in a row chosen at random, and rows of zeros whose
    sample weight is 0, which add nothing. `rows` is larger than `batch_size`, so the steps are as much shorter: raise
    the learning rate by rows / batch_size where the optimizer's steps grow with the gradient (SGD; not Adam).

    Shapes: x, y: arrays or dicts, lists and tuples of them, all (records, ...); sample_weight (records,). A batch is
    (x, y, sample_weight) with (rows, ...) of each, weights float32. Metrics count the empty rows unless they are given
    as `weighted_metrics`.
    Units: `batch_size` is the expected number of records in a draw; it and the number of records are public.

    Guarantee: add-or-remove one record; one step is a Poisson-subsampled Gaussian mechanism, accounted as
    `tfdp.sampling.Poisson(batch_size)`. A draw of more than `rows` records is cut to a uniformly chosen subset. That
    happens with probability at most p = 1e-25 a step: with m drawn of n records of probability q,
    P[m > rows] <= exp(-n KL(k || q)) for k = (rows + 1) / n > q (Chernoff), and `rows` is the least number where that
    is at most p. The cut changes the distribution of T steps by at most T p in total variation, so it adds at most
    (1 + e^epsilon) T p to delta: below 3e-15 for a million steps at epsilon 10, less than accountants round off.
    One record more takes an empty row, and moves no other: what a random layer (dropout) does to a row may be known to
    whoever knows TensorFlow's seeds, and then a record in another row adds something else.

    Args:
        seed: for tests only: draws that can be predicted void the statement.

    Raises:
        ValueError: a batch_size that is no integer of 1 to the number of records, or arrays of different length.
        TypeError: pickling or copying, since a copied generator would replay its draws.
        RuntimeError: drawing in a forked process, for the same reason.

    Source: Abadi et al. 2016, arXiv:1607.00133; Hoeffding 1963, Theorem 1 (the tail).
    """

    def __init__(self, x: Any, y: Any, batch_size: int, *, sample_weight: Any = None, seed: int | None = None) -> None:
        x, y = tf.nest.map_structure(np.asarray, (x, y))
        self.examples = records_of((x, y))
        self.sampling = Poisson(batch_size)
        self.sampling.check(self.examples)
        weights = np.ones(self.examples) if sample_weight is None else np.asarray(sample_weight)
        weights = weights[:, 0] if weights.shape == (self.examples, 1) else weights  # a column, as Keras takes it
        if weights.shape != (self.examples,):
            raise ValueError(f"sample_weight must be one number a record. Received: shape {weights.shape}.")
        self.rows = rows_for(self.sampling.batch_size, self.examples)
        self.seeded = seed is not None
        self._arrays = (x, y, weights.astype("float32"))
        self._draws = self.sampling.draws(self.examples, entropy_generator(seed))
        self._places = entropy_generator(None if seed is None else seed + 1)
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises AttributeError for what is there: a fit is charged for it, and draws go by what was given."""
        if name in vars(self):
            raise AttributeError(
                f"PoissonBatches.{name} stays what it was made with: a fit is charged for it before it draws. Make"
                " another PoissonBatches."
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Steps that draw every record once on average."""
        return self.sampling.steps_per_epoch(self.examples)

    def dataset(self) -> tf.data.Dataset:
        """Endless fresh batches."""
        signature = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec((self.rows, *leaf.shape[1:]), leaf.dtype), self._arrays
        )
        return tf.data.Dataset.from_generator(self._batches, output_signature=signature).prefetch(2)

    def _batches(self) -> Iterator[Any]:
        while True:
            refuse_fork(self._process, "PoissonBatches makes draws", "Construct it in that process.")
            with self._lock:  # whoever starts a second iterator replays nothing
                drawn = next(self._draws)[: self.rows]  # in random order, so that this is a uniform subset
                places = self._places.choice(self.rows, size=len(drawn), replace=False)
            yield tf.nest.map_structure(lambda leaf: self._filled(leaf[drawn], places), self._arrays)  # noqa: B023

    def _filled(self, leaf: np.ndarray, places: np.ndarray) -> np.ndarray:
        filled = np.zeros((self.rows, *leaf.shape[1:]), leaf.dtype)
        filled[places] = leaf
        return filled

    def __reduce__(self) -> NoReturn:
        raise TypeError("PoissonBatches cannot be pickled or copied: a copy of its generator would replay its draws.")


def records_of(arrays: Any) -> int:
    """The number of records that all arrays hold. Raises ValueError where they differ, or for single numbers."""
    lengths = {leaf.shape[0] if len(leaf.shape) else None for leaf in tf.nest.flatten(arrays)}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(f"x and y must hold the same records, along their first axis. Received lengths: {lengths}.")
    (records,) = lengths
    assert records is not None
    return int(records)


def rows_for(batch_size: int, examples: int) -> int:
    """Rows that a Poisson draw exceeds with probability at most 1e-25: see `PoissonBatches`."""
    q, rows = batch_size / examples, batch_size
    while rows < examples and -examples * _divergence((rows + 1) / examples, q) > math.log(_LONGER):
        rows += 1
    return rows


def _divergence(k: float, q: float) -> float:
    """KL(k || q) of two coins, for 0 < q <= k <= 1."""
    rest = (1.0 - k) * math.log((1.0 - k) / (1.0 - q)) if k < 1.0 else 0.0
    return k * math.log(k / q) + rest
