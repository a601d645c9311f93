"""Principal components of private data, from a noisy second-moment matrix."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.adapted import NormClipped, adapting
from tfdp_layers.layers.second_moments import check_moment_clip, matrix_of, second_moments
from tfdp_layers.noise import NoiseSource


@adapting
@keras.saving.register_keras_serializable(package="tfdp_layers")
class DPPCA(NormClipped):
    """Projects each record on the leading eigenvectors of a noisy matrix sum_i x_i x_i^T; `adapt` releases that matrix.

    Forward: y = x V, V being fixed: columns are orthonormal, and found by `adapt`. Nothing is trained or clipped there.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.
    Derivation: each record is scaled to L2 norm at most C. What is released is the vector w of the matrix's diagonal
    and of sqrt(2) times its entries above it, for which ||w(x x^T)||_2 = ||x x^T||_F = ||x||^2 <= C^2: adding or
    removing a record, or replacing it by an empty one, moves w by at most C^2, attained by every record of norm C.
    (Replacing a record moves it by at most sqrt(2) C^2; it is accounted with 2 C^2.) Noise of standard deviation
    noise_multiplier * C^2 on w is that on the diagonal, and 1 / sqrt(2) of it on each entry above, mirrored below. The
    eigenvectors are post-processing, and do not depend on the number of records.
    The matrix is not centered, as in the sources. A record with a NaN or an infinity counts as zero.

    Shapes: (batch, ...) to (batch, components); a record is flattened.
    Args:
        components: columns of V, at most the number of features.
        noise_multiplier: the noise's standard deviation over C^2, of each `adapt`. 0 adds none: epsilon is infinite.
        l2_norm_clip: C, in units of the data.
        noise_source: "default", "secure" or a `NoiseSource`, for tests `tfdp.noise.SeededNoise(seed)`. It is not saved.
        name, dtype: as in Keras.

    Attributes:
        ledger: what `adapt` released, saved with the weights. Where the layer is used outside of a private model (to
            transform the data before `fit`), merge it yourself: `model.ledger.merge(layer.ledger)`.

    Raises: ValueError for settings out of range.
    Source: Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss", algorithm 1 (there with the same noise on and off the
        diagonal); used before a network by Abadi et al. 2016, arXiv:1607.00133, section 4.
    """

    group = "DP-PCA second moments"
    divides = False

    def __init__(
        self,
        components: int,
        noise_multiplier: float,
        l2_norm_clip: float = 1.0,
        *,
        noise_source: str | NoiseSource = "secure",
        **kwargs: Any,
    ) -> None:
        super().__init__(noise_multiplier, l2_norm_clip, noise_source=noise_source, **kwargs)
        check_moment_clip(self.l2_norm_clip)
        if isinstance(components, bool) or not hasattr(components, "__index__") or components < 1:
            raise ValueError(f"`components` must be an integer of at least 1. Received: components={components!r}.")
        self.components = int(components)

    def build(self, input_shape: Sequence[int | None]) -> None:
        features = math.prod(input_shape[1:])  # type: ignore[arg-type]  # an unknown size is a TypeError
        if self.components > features:
            raise ValueError(f"DPPCA finds at most as many components as features: {self.components} > {features}.")
        shape = (features, self.components)
        self.projection = self.add_weight(shape=shape, name="projection", initializer="zeros", trainable=False)
        self.build_receipt()

    def call(self, inputs: tf.Tensor) -> Any:
        flat = keras.ops.reshape(inputs, (-1, self.projection.shape[0]))
        return keras.ops.matmul(flat, keras.ops.cast(self.projection, flat.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, ...]:
        return (input_shape[0], self.components)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        features = self.projection.shape[0]
        if math.prod(shape) != features:
            raise ValueError(f"adapt got records of {math.prod(shape)} features; the layer has {features}.")

    def total(self, data: Any) -> tf.Tensor:
        return second_moments(data, self.projection.shape[0], self.l2_norm_clip)

    @property
    def sensitivity(self) -> float:
        return self.l2_norm_clip**2

    def use(self, released: np.ndarray, count: float, stddev: float) -> None:
        self.projection.assign(leading_eigenvectors(released, self.projection.shape[0], self.components))

    def plain(self) -> Any:
        flat = keras.layers.Dense(self.components, use_bias=False, trainable=False)
        return keras.Sequential([keras.Input(self.input.shape[1:]), keras.layers.Flatten(), flat], name=self.name)

    def copy_to(self, target: Any) -> None:
        target.set_weights([self.projection])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"components": self.components}


def leading_eigenvectors(moments: np.ndarray, features: int, components: int) -> np.ndarray:
    """Orthonormal columns, from the vector of `second_moments`: (features, components)."""
    _, vectors = np.linalg.eigh(matrix_of(moments, features))
    return vectors[:, : -components - 1 : -1]
