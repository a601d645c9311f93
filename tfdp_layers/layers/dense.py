"""Dense layer with a bounded backward pass."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.base import AffineLayer
from tfdp_layers.rules.rows import L2, AffineL2, Rule
from tfdp_layers.sensitivity import sensitivity_of


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedDense(AffineLayer, keras.layers.Dense):
    """`keras.layers.Dense` with each record's gradient bounded: the arguments of Dense, and `gradient_clip`, or two
    clips.

    gradient_clip=C (or "automatic", where no clip is given; then C below is 1):
        Forward and what flows on below: those of Dense.
        Guarantee: one record moves the summed gradient of kernel and bias by at most C each time the layer is used.
            For inputs (batch, features) the product ||(x, 1)|| ||u|| is clipped, the exact norm of the record's
            gradient: ||[x u^T; u]||_F = ||u|| sqrt(||x||^2 + 1). With more axes that norm is taken of X^T U and
            sum_p U[p] over positions p; proof and sources at `GradientClip`.

    input_clip and upstream_clip, backpropagation clipping:
        Forward: activation(clip(x) W + b), the clip scaling each record to ||x||_F <= input_clip.
        Backward: each record's upstream gradient u is scaled to at most upstream_clip, in the Euclidean norm for inputs
        of shape (batch, features), in that of `AffineL2` for inputs with more axes and a bias.
        Guarantee: upstream_clip * sqrt(input_clip^2 + 1), without bias upstream_clip * input_clip:
            ||[x u^T; u]||_F = ||u|| sqrt(||x||^2 + 1).
        Source: Stevens et al. 2022, arXiv:2202.05089, section 4.

    Shapes: (batch, ..., features) -> (batch, ..., units).
    Raises: see `BoundedLayer`.
    """

    @property
    def input_rule(self) -> Rule:
        return L2(self.input_clip)

    @property
    def upstream_rule(self) -> Rule:
        if self.use_bias:
            return AffineL2(self.upstream_clip, self.input_clip, summed=True)
        return L2(self.upstream_clip, summed=True)

    def linear(self, inputs: tf.Tensor) -> Any:
        return keras.ops.matmul(inputs, self.kernel)

    def add_bias(self, outputs: tf.Tensor) -> Any:
        return keras.ops.add(outputs, self.bias) if self.use_bias else outputs


sensitivity_of(ClippedDense)(ClippedDense.sensitivity)
