"""Mixing in front of layers whose bounds ask for shapes; bounds of real numbers that Grappler, XLA or kernels break."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof.mixing.narrowing import codes
from tfdp_layers.proof import prove_rows

kl = keras.layers
LAYERS = {
    "Conv2D": (lambda: kl.Conv2D(1, 2), (3, 3, 1)),
    "Conv3D": (lambda: kl.Conv3D(1, 2), (3, 3, 3, 1)),
    "DepthwiseConv2D": (lambda: kl.DepthwiseConv2D(2), (3, 3, 1)),
    "SeparableConv2D": (lambda: kl.SeparableConv2D(1, 2), (3, 3, 1)),
    "Conv2DTranspose": (lambda: kl.Conv2DTranspose(1, 2), (3, 3, 1)),
    "Dense": (lambda: kl.Dense(1), (3,)),
}


class Crowd(kl.Layer):
    """Turns all records around where one of them is rare."""

    def call(self, x):
        rare = tf.clip_by_value(tf.reduce_sum(tf.nn.relu(x - 1e3)), 0.0, 1.0)
        return tf.clip_by_value(x, -1.0, 1.0) * (1.0 - 2.0 * rare)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LAYERS)
def test_what_mixes_in_front_of_a_layer_is_refused_whatever_its_bound_asks_for(name):
    layer, shape = LAYERS[name]
    network = keras.Sequential([keras.Input(shape), Crowd(), layer(), kl.Flatten(), kl.Dense(1)])
    model = tfdp.make_private(network)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    with pytest.raises(ValueError, match="a sum over records is not additive"):
        tfdp.check_independence(model)
    rare = np.ones((65, *shape), "float32")
    rare.reshape(65, -1)[-1, 0] = 2000.0
    sums = [
        np.concatenate([np.ravel(t) for t in model.bounded_gradient_sums(rare[:n], np.zeros((n, 1)))]) for n in (64, 65)
    ]
    assert np.linalg.norm(sums[1] - sums[0]) > 2.0 * sum(one.bound for one in model.sensitivities())


def clip(x, low, high):
    return tf.clip_by_value(tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)), low, high)


def half(x):
    return tf.cast(x, tf.float16)


def times(x, *factors):
    for factor in factors:
        x = x * tf.constant(factor, x.dtype)
    return x


BROKEN = {
    "constants that make infinity": lambda x: times(clip(x, 0.0, 2e-38), 1e20, 1e20, 0.5),
    "in half precision": lambda x: times(clip(half(x), 0.0, 1e-3), 300.0, 300.0),
    "one by one": lambda x: times(clip(half(x), 0.0, 1e-3), 1000.0, 100.0),
    "rounding that nothing gives back": lambda x: 1.0 / (clip(x, -1e8, -1e8) + 1e8 + 1.0) - 1.0 / (x * 0.0 + 1.0),
    "an inverse next to zero": lambda x: 1.0 / (clip(x, 1e38, 1.2e38) / 2e38) - 1.0 / (clip(-x, 1e38, 1.2e38) / 2e38),
    "numbers next to zero": lambda x: 1.0 / (clip(x, 1e-40, 1e-39) * 1e38) - 1.0 / (clip(-x, 1e-40, 1e-39) * 1e38),
    "what is left of them": lambda x: clip(x, 0.0, 1.0) % clip(x, 1e-40, 1e-39),
    "sums beyond the type": lambda x: clip(x, -2e38, 0.0) + 2e38 + 2e38 - 4e38,
}
UNSIGNED = {
    "windows of no numbers": lambda x: times(tf.nn.max_pool1d(clip_nan(x)[..., None], 2, 2, "VALID"), 1e-36),
    "ends the wrong way round": lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=100.0, clip_value_max=-300.0),
}


def clip_nan(x):
    return tf.clip_by_value(x, 0.0, 255.0)


@pytest.mark.parametrize("name", [*BROKEN, *UNSIGNED])
def test_bounds_that_other_orders_of_the_same_products_break_are_not_believed(name):
    function, kind = (BROKEN[name], tf.int8) if name in BROKEN else (UNSIGNED[name], tf.uint8)
    traced = tf.function(lambda x: codes(function(x), kind), autograph=False)
    assert not prove_rows(traced.get_concrete_function(tf.TensorSpec((None, 6)))).proved
