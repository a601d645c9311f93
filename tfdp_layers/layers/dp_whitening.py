"""Whitening of private data, by a noisy second-moment matrix of its channels."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.adapted import NormClipped, adapting
from tfdp_layers.layers.second_moments import check_moment_clip, matrix_of, second_moments
from tfdp_layers.noise import NoiseSource
from tfdp_layers.rules.rows import check_bound

SMALLEST_DAMPING = 0.01
"""Of the mean eigenvalue: smaller ones are few records' business, whatever the noise."""


@adapting
@keras.saving.register_keras_serializable(package="tfdp_layers")
class DPWhitening(NormClipped):
    """Turns and scales the channels so that they vary about equally; `adapt` releases their second moments with noise.

    Forward: y = x A on the last axis, A being fixed: found by `adapt`, not trained; the identity before. A is the
    inverse square root of S / s + damping * I, where S is the noisy second-moment matrix of the channels and s its mean
    eigenvalue, times a number that gives y a mean square of about 1. Where channels of the inputs are correlated, as
    features of a fixed network are, noisy gradient descent learns along the few directions in which they vary most, and
    the noise of the others is added all the same; whitened, it learns along all of them within the same steps. Center
    the data first (`DPCentering`): a common mean is a direction like any other.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.
    Derivation: M = mean over the positions p of x_p x_p^T is each record's matrix, scaled to Frobenius norm at most
    C^2. What is released is the vector w of the diagonal of their sum and of sqrt(2) times its entries above it, for
    which ||w(M)||_2 = ||M||_F <= C^2: adding or removing a record, or replacing it by an empty one, moves w by at most
    C^2, attained by every record with ||M||_F >= C^2. (Replacing a record is accounted with 2 C^2.) All the rest is
    post-processing, and uses the number of records only as it is declared: where `adapt` counts them by itself, a noisy
    number is released beside the moments (see `adapt`). A record with a NaN or an infinity counts as zero.

    Shapes: (batch, ..., channels), unchanged; all axes between are positions.
    Args:
        noise_multiplier: the noise's standard deviation over C^2, of each `adapt`. 0 adds none: epsilon is infinite.
        l2_norm_clip: C, in units of the data: for records without positions a bound on their L2 norm.
        damping: in units of the mean eigenvalue; None takes what the noise moves eigenvalues by,
            noise_multiplier * C^2 * sqrt(2 * channels) over the mean eigenvalue of the noisy sum, and at least 0.01.
        noise_source: "default", "secure" or a `NoiseSource`, for tests `tfdp.noise.SeededNoise(seed)`. It is not saved.
        name, dtype: as in Keras.

    Attributes:
        whitener: the weight A, (channels, channels).
        ledger: what `adapt` released, saved with the weights. Where the layer is used outside of a private model (to
            transform the data before `fit`), merge it yourself: `model.ledger.merge(layer.ledger)`.

    Raises: ValueError for settings out of range.
    Source: the release is that of Dwork, Talwar, Thakurta and Zhang 2014, "Analyze Gauss". That second-order
        information helps private training on features: Mehta, Krichene, Thakurta, Kurakin and Cutkosky 2022,
        arXiv:2211.13403, whose DP-FC takes the features' covariance in the place of the Hessian; here of the channels
        alone, once.
    """

    group = "noisy second moments"

    def __init__(
        self,
        noise_multiplier: float,
        l2_norm_clip: float = 1.0,
        damping: float | None = None,
        *,
        noise_source: str | NoiseSource = "secure",
        **kwargs: Any,
    ) -> None:
        super().__init__(noise_multiplier, l2_norm_clip, noise_source=noise_source, **kwargs)
        check_moment_clip(self.l2_norm_clip)
        if damping is not None:
            check_bound(damping=damping)
        self.damping = damping

    def build(self, input_shape: Sequence[int | None]) -> None:
        channels = input_shape[-1]
        if channels is None:
            raise ValueError(f"DPWhitening needs a known number of channels. Received: shape {tuple(input_shape)}.")
        shape = (channels, channels)
        self.whitener = self.add_weight(shape=shape, name="whitener", initializer="identity", trainable=False)
        self.build_receipt()

    def call(self, inputs: tf.Tensor) -> Any:
        return keras.ops.matmul(inputs, keras.ops.cast(self.whitener, inputs.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, ...]:
        return tuple(input_shape)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        channels = self.whitener.shape[0]
        if shape[-1] != channels:
            raise ValueError(f"adapt got records of {shape[-1]} channels; the layer has {channels}.")

    def total(self, data: Any) -> tf.Tensor:
        return second_moments(data, self.whitener.shape[0], self.l2_norm_clip)

    @property
    def sensitivity(self) -> float:
        return self.l2_norm_clip**2

    def use(self, released: np.ndarray, count: float, stddev: float) -> None:
        channels = self.whitener.shape[0]
        edge = stddev * math.sqrt(2.0 * channels)
        self.whitener.assign(whitener_of(matrix_of(released, channels) / count, edge / count, self.damping))

    def plain(self) -> Any:
        channels = self.whitener.shape[0]
        return keras.layers.Dense(channels, use_bias=False, trainable=False, name=self.name)

    def copy_to(self, target: Any) -> None:
        target.set_weights([self.whitener])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"damping": self.damping}


def whitener_of(moments: np.ndarray, edge: float, damping: float | None) -> np.ndarray:
    """The inverse square root of a noisy matrix over its mean eigenvalue, damped, scaled to outputs of mean square 1.

    Args:
        moments: (channels, channels), symmetric; it may have negative eigenvalues.
        edge: by how much the noise moves eigenvalues.
        damping: None for that of the noise.

    Returns: the identity where the noise left no positive mean.
    """
    values, vectors = np.linalg.eigh(moments)
    mean = float(np.mean(values))
    if not mean > 0.0:
        return np.eye(len(moments))
    values = np.maximum(values, 0.0)
    damping = max(SMALLEST_DAMPING, edge / mean) if damping is None else damping
    scales = (values / mean + damping) ** -0.5
    scales /= math.sqrt(float(np.mean(values * scales**2)))
    return (vectors * scales) @ vectors.T
