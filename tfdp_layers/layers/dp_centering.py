"""Centering of private data, by a noisy mean."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.adapted import NormClipped, adapting, chunks
from tfdp_layers.rules.rows import L2


@adapting
@keras.saving.register_keras_serializable(package="tfdp_layers")
class DPCentering(NormClipped):
    """Subtracts the mean of private data from each record; `adapt` releases that mean with noise.

    Forward: y = x - m, m being fixed: found by `adapt`, not trained. What all records have in common says nothing about
    a class, yet fills their norm: a gradient x u^T that is clipped by its norm has room for what differs once it is
    gone. A layer with a bias above it loses nothing.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.
    Derivation: each record is scaled to L2 norm at most C and what is released is their sum plus noise of standard
    deviation noise_multiplier * C on each number: adding or removing a record, or replacing it by an empty one, moves
    the sum by at most C, attained by every record of norm C. (Replacing a record is accounted with 2 C.) The division
    by the declared number of records, which is public, is post-processing; where `adapt` counts them by itself, a noisy
    number is released beside the sum (see `adapt`). A record with a NaN or an infinity counts as zero. The noise on the
    mean of n records has standard deviation noise_multiplier * C / n on each number. With a noisy n that of the sums is
    1.118 times as large, and the mean is off by a part of itself as well, of standard deviation
    2.24 noise_multiplier / n.

    Shapes: (batch, ...), unchanged.
    Args:
        noise_multiplier: the noise's standard deviation over C, of each `adapt`. 0 adds none: epsilon is infinite.
        l2_norm_clip: C, in units of the data; the largest norm that records have, where there is one.
        noise_source: "default", "secure" or a `NoiseSource`, for tests `tfdp.noise.SeededNoise(seed)`. It is not saved.
        name, dtype: as in Keras.

    Attributes:
        mean: the weight m, without the batch axis.
        ledger: what `adapt` released, saved with the weights. Where the layer is used outside of a private model (to
            transform the data before `fit`), merge it yourself: `model.ledger.merge(layer.ledger)`.

    Raises: ValueError for settings out of range.
    Source: Sun, Suresh and Menon 2023, arXiv:2307.11106 (features centered by a private mean before DP-SGD).
    """

    group = "noisy mean"

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = tuple(input_shape[1:])
        self.mean = self.add_weight(shape=shape, name="mean", initializer="zeros", trainable=False)
        self.build_receipt()

    def call(self, inputs: tf.Tensor) -> Any:
        return keras.ops.subtract(inputs, keras.ops.cast(self.mean, inputs.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, ...]:
        return tuple(input_shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if shape != tuple(self.mean.shape):
            raise ValueError(f"adapt got records of shape {shape}; the layer has {tuple(self.mean.shape)}.")

    def total(self, data: Any) -> tf.Tensor:
        return clipped_sum(data, self.l2_norm_clip)

    @property
    def sensitivity(self) -> float:
        return self.l2_norm_clip

    def use(self, released: np.ndarray, count: float, stddev: float) -> None:
        self.mean.assign(np.reshape(released / count, self.mean.shape))

    def plain(self) -> Any:
        axes = tuple(range(1, len(self.mean.shape) + 1))
        return keras.layers.Normalization(axis=axes, name=self.name)

    def copy_to(self, target: Any) -> None:
        shape = tuple(target.adapt_mean.shape)
        target.set_weights([np.reshape(self.mean, shape), np.ones(shape), np.zeros((), "int32")])
        target.finalize_state()


def clipped_sum(data: Any, clip: float) -> tf.Tensor:
    """The sum of the records, each scaled to norm at most `clip`, in float64: (features,).

    `L2` keeps a relative margin of 2^-16 below the clip, which float64 rounding does not use up before 1e10 records.
    """
    features, rule = math.prod(data.shape[1:]), L2(clip)
    total = tf.zeros((features,), tf.float64)
    for rows in chunks(data):
        clipped = rule(tf.reshape(tf.cast(rows, tf.float32), (-1, features)))
        total += tf.reduce_sum(tf.cast(clipped, tf.float64), axis=0)
    return total
