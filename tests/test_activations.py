"""The table of derivative bounds holds, and is attained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.activations import _DERIVATIVE_BOUNDS, derivative_bound, tempered_sigmoid


def steepest(activation) -> float:
    """The largest |derivative| found on a grid, refined around its maximum, in float64."""
    low, high = -60.0, 60.0
    for _ in range(4):
        x = tf.constant(np.linspace(low, high, 200_001))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activation(x)
        slopes = np.abs(tape.gradient(y, x))
        best, width = float(x[int(np.argmax(slopes))]), (high - low) / 1000
        low, high = best - width, best + width
    return float(np.max(slopes))


@pytest.mark.parametrize("name", _DERIVATIVE_BOUNDS)
def test_no_derivative_exceeds_its_bound_and_the_bound_is_its_supremum(name):
    found, bound = steepest(getattr(keras.activations, name)), derivative_bound(name)
    assert found <= bound * (1 + 1e-12)
    # sup of 1 - 1/cosh^2, of 1/(1 + e^-x) and the like is reached in the limit only.
    assert found >= bound * (1 - 1e-3)
    assert derivative_bound(getattr(keras.activations, name)) == bound


def test_aliases_and_none():
    assert derivative_bound("swish") == derivative_bound("silu")
    assert derivative_bound(None) == 1.0


@pytest.mark.parametrize("arguments", [(2.0, 2.0, 1.0), (-3.0, 0.5, 0.2), (1.0, 1.0, 0.0)])
def test_tempered_sigmoid(arguments):
    activation = tempered_sigmoid(*arguments)
    assert steepest(activation) == pytest.approx(derivative_bound(activation), rel=1e-6)
    again = keras.activations.deserialize(keras.activations.serialize(activation))
    assert again == activation
    assert hash(again) == hash(activation)
    x = np.linspace(-3, 3, 7)
    scale, inverse_temperature, offset = arguments
    np.testing.assert_allclose(activation(x), scale / (1 + np.exp(-inverse_temperature * x)) - offset, atol=1e-12)
    with pytest.raises(ValueError, match="finite"):
        tempered_sigmoid(scale=np.inf)


def test_the_default_tempered_sigmoid_is_tanh():
    np.testing.assert_allclose(tempered_sigmoid()(np.linspace(-3, 3, 7)), np.tanh(np.linspace(-3, 3, 7)), atol=1e-12)


def test_what_has_no_known_bound_is_refused():
    def square(x):
        return x**2

    with pytest.raises(ValueError, match="'square'"):
        derivative_bound(square)
    with pytest.raises(ValueError, match="no upper bound"):
        derivative_bound("exponential")
    with pytest.raises(ValueError, match="softmax"):
        derivative_bound("softmax")
    for invalid in (0.0, -1.0, np.inf, np.nan, "x"):
        square.derivative_bound = invalid
        with pytest.raises(ValueError, match="positive finite"):
            derivative_bound(square)
    square.derivative_bound = 3
    assert derivative_bound(square) == 3.0
