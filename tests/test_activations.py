"""The table of derivative bounds holds, and is attained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.activations import (
    _DERIVATIVE_BOUNDS,
    derivative_bound,
    known_slope,
    rounded_at_zero,
    steeper_values,
    tempered_sigmoid,
)
from tfdp_layers.rules.rows import ROUNDING


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


# What TensorFlow computes, where functions have kinks and numbers are taken for equal

KNOWN = {name: getattr(keras.activations, name) for name in _DERIVATIVE_BOUNDS} | {
    "tempered sigmoid": tempered_sigmoid(),
    "steep tempered sigmoid": tempered_sigmoid(1.0, 40.0, 0.0),
    "flat tempered sigmoid": tempered_sigmoid(1e3, 1e-4, 500.0),
    "coarse tempered sigmoid": tempered_sigmoid(3.0, 1.0, 1.5),
}
KINKS = (0.0, 0.5, 1.0, 2.5, 3.0, 6.0, 20.0, 88.0, 88.72, 104.0, 1e10, 1e18)
TYPES = {"float32": ROUNDING, "float64": ROUNDING, "bfloat16": 2.0**-6, "float16": 2.0**-8}
"""How much coarse types round by. Lipschitz layers compute in float32 alone."""


def hostile_numbers() -> np.ndarray:
    """Kinks of functions, the float32 numbers beside them, and numbers of every size, of both signs."""
    kinks = np.float32(KINKS)
    beside = [np.nextafter(kinks, np.float32(end)) for end in (-np.inf, np.inf)]
    first = np.linspace(2.0**-27, 2.0**-21, 4001)  # where 1 + x, rounded, is another number than 1
    found = np.concatenate([kinks, *beside, first, np.geomspace(1e-45, 1e18, 4001), np.linspace(0.0, 12.0, 4001)])
    return np.concatenate([found, -found]).astype(np.float32)


def values_and_slopes(function, numbers, compiled):
    @tf.function(jit_compile=compiled, autograph=False)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x)

    return [np.abs(np.asarray(tf.cast(one, tf.float64))) for one in both(numbers)]


def steeper_than_stated(function, compiled=False, dtype="float32"):
    """The numbers at which TensorFlow's gradient, or in float32 the value, exceeds what Lipschitz layers count by."""
    numbers = hostile_numbers()
    if dtype == "float16":
        numbers = numbers[np.abs(numbers) < 200.0]  # it holds no squares of more
    values, slopes = values_and_slopes(function, tf.cast(numbers, dtype), compiled)
    slope = known_slope(function)
    too_steep = ~(slopes <= slope * (1.0 + TYPES[dtype]))
    if dtype == "float32":
        at_zero = abs(float(np.asarray(function(tf.zeros((1, 1))))[0, 0])) + rounded_at_zero(function)
        sizes = np.abs(numbers.astype(np.float64))
        too_steep |= ~(values <= (slope * sizes + at_zero) * (1.0 + ROUNDING))
        if at_zero == rounded_at_zero(function) and steeper_values(function) < np.inf:
            too_steep |= ~(values <= slope * steeper_values(function) * sizes * (1.0 + ROUNDING))
    return numbers[too_steep]


@pytest.mark.parametrize("name", KNOWN)
def test_no_gradient_that_tensorflow_computes_exceeds_the_slope_that_bounds_rest_on(name):
    assert steeper_than_stated(KNOWN[name]).size == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_nor_does_one_under_xla_or_in_another_type(name):
    for dtype in TYPES:
        for compiled in (False, True):
            assert steeper_than_stated(KNOWN[name], compiled, dtype).size == 0, (dtype, compiled)


@pytest.mark.parametrize("arguments", [(2.0, 2.0, 1.0), (1.0, 1.0, 0.5), (1.0, 4.0, 0.5)])
def test_xla_takes_sigmoids_further_off_and_twice_the_slope_would_not_do(arguments):
    function = tempered_sigmoid(*arguments)
    x = np.full(100_000, 1.5 * 2.0**-24 * (1.0 + 2.0**-23) / arguments[1], np.float32)
    values, _ = values_and_slopes(function, tf.constant(x), True)
    assert 2.0 < values.max() / x[0] / known_slope(function) <= steeper_values(function)


def test_values_just_beside_0_are_twice_what_a_slope_says():
    for name, factor in {"elu": 2.0, "selu": 2.0, "tempered sigmoid": 4.0, "flat tempered sigmoid": 4.0}.items():
        x = tf.constant(-np.geomspace(2.0**-29, 2.0**-4, 400_001).astype(np.float32))
        times = np.max(np.abs(np.asarray(KNOWN[name](x), np.float64) / np.asarray(x))) / known_slope(KNOWN[name])
        assert 1.99 < times <= factor == steeper_values(KNOWN[name])
    assert steeper_values(tempered_sigmoid(2.0, 2.0, 1.0 + 1e-9)) == np.inf
    assert steeper_values(tempered_sigmoid(1e-40, 1.0, 0.5e-40)) == np.inf


def test_ties_are_attained_and_a_slope_of_mathematics_would_be_found(monkeypatch):
    celu = keras.activations.celu
    assert known_slope(celu) == 2.0 == 2 * derivative_bound(celu)
    x = tf.Variable([0.0, -0.0, 1e-45, -1e-45, 1.0])
    with tf.GradientTape() as tape:
        y = celu(x)
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 2.0, 2.0, 2.0, 1.0])
    monkeypatch.setattr("tfdp_layers.activations._COMPUTED_AT_TIES", {})
    assert 0.0 in steeper_than_stated(celu)
    monkeypatch.setattr("tfdp_layers.activations._ROUNDED_AT_ZERO", {})
    assert np.max(np.abs(steeper_than_stated(keras.activations.elu))) < 1e-2
