"""Casts of real numbers to integers of few bits: what kernels make of a number by its place, and what is said of it."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.proof import mixing
from helpers.proof.mixing.narrowing import codes
from helpers.variants import slow_but
from tfdp_layers.proof import prove_rows
from tfdp_layers.proof.frames import CALL, Frame
from tfdp_layers.proof.interpreter import Prover
from tfdp_layers.proof.narrowing import narrows
from tfdp_layers.proof.reals import reals_of
from tfdp_layers.proof.settling import limits
from tfdp_layers.proof.values import Constant

SPEC = tf.TensorSpec((None, 6))
NAN = float("nan")
ODD = [NAN, math.inf, -math.inf, 3e38, -3e38, 6e4, 300.0, -300.0, 255.6, 128.0, -1.5, 7e4, -4e4, 3e9, 5e9, 1e19, -1e19]
REAL = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
WHOLE = [tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64, tf.bool]
PAIRS = [(a, b) for a in REAL for b in WHOLE]


def filled(number, count, kind):
    with np.errstate(all="ignore"):
        return tf.cast(tf.fill([count], tf.constant(number, tf.float64)), kind)


def differ(number, before, after):
    """Whether a cast gives the number otherwise in some place of some length."""
    found = {float(n) for count in (1, 5, 33, 40) for n in np.ravel(tf.cast(filled(number, count, before), after))}
    return len(found) > 1


@pytest.mark.parametrize(("before", "after"), slow_but(PAIRS[::5], PAIRS, several=True))
def test_what_is_let_through_is_cast_alike_everywhere(before, after):
    """Of types that do not count as few bits every number; of the others those within, and no number in those without
    a sign.
    """
    assert narrows(before, after) or not any(differ(n, before, after) for n in ODD)
    least, most = limits(after)
    inside = [least, most, least - 0.75, most + 0.75, *([NAN] if after in (tf.uint8, tf.uint16) else [])]
    rounded = [float(filled(n, 1, before)[0]) for n in inside]
    kept = [n for n in rounded if math.isnan(n) or least - 1 < n < most + 1]
    assert not narrows(before, after) or not any(differ(n, before, after) for n in kept)


def test_what_is_refused_differs_by_its_place_on_this_machine():
    assert {after for before, after in PAIRS if any(differ(n, before, after) for n in ODD)} <= {
        after for before, after in PAIRS if narrows(before, after)
    }
    if not any(differ(300.0, before, tf.uint8) for before in REAL):
        pytest.skip("this machine's kernels cast alike everywhere")
    assert differ(300.0, tf.float32, tf.uint8)
    assert differ(NAN, tf.float32, tf.int8)


def clipped(x, low=0.0, high=255.0):
    return tf.clip_by_value(x, low, high)


PROVED = {
    "clipped": lambda x: codes(clipped(x), tf.uint8),
    "clipped by Keras": lambda x: codes(keras.ops.clip(x, 0, 255), tf.uint8),
    "clipped to 255.9": lambda x: codes(clipped(x, 0.0, 255.9), tf.uint8),
    "a ReLU with a largest value": lambda x: codes(keras.layers.ReLU(max_value=1.0)(x) * 255.0, tf.uint8),
    "relu6": lambda x: codes(tf.nn.relu6(x) * 40.0, tf.uint8),
    "a sigmoid": lambda x: codes(tf.sigmoid(x) * 255.0, tf.uint8),
    "a softmax": lambda x: codes(tf.nn.softmax(x) * 255.0, tf.uint16),
    "a mean of bytes": lambda x: codes(tf.reduce_mean(clipped(x), -1, keepdims=True), tf.uint8),
    "a pool of bytes": lambda x: codes(tf.nn.avg_pool1d(clipped(x)[..., None], 2, 2, "VALID")[..., 0], tf.uint8),
    "a picture of bytes made larger": lambda x: codes(
        tf.image.resize(tf.reshape(clipped(x), (-1, 2, 3, 1)), (4, 4))[:, :, 0, 0], tf.uint8
    ),
    "its root": lambda x: codes(tf.sqrt(clipped(x)), tf.uint8),
    "its square": lambda x: codes(tf.square(clipped(x, -15.0, 15.0)), tf.uint8),
    "saturated": lambda x: codes(tf.cast(tf.saturate_cast(x, tf.uint8), tf.float32), tf.uint8),
    "an image": lambda x: tf.cast(tf.image.convert_image_dtype(x, tf.uint8, saturate=True), tf.float32),
    "by way of int32": lambda x: codes(tf.cast(x, tf.int32), tf.uint8),
    "bytes again": lambda x: codes(tf.cast(tf.cast(x, tf.int64), tf.int8), tf.float64),
    "a comparison": lambda x: codes(tf.cast(x > 0.0, tf.float32) * 2.0 - 1.0, tf.int8),
    "numbers alone": lambda x: codes(clipped(keras.ops.nan_to_num(x), -127.0), tf.int16),
    "what is finite": lambda x: codes(clipped(tf.where(tf.math.is_finite(x), x, 0.0), -127.0, 127.0), tf.int8),
    "what is not none": lambda x: codes(
        clipped(tf.where(tf.logical_not(tf.math.is_nan(x)), x, 0.0), 0.0, 9.0), tf.uint32
    ),
    "not finite": lambda x: codes(clipped(tf.where(~tf.math.is_finite(x), 0.0, x), 0.0, 9.0), tf.uint32),
    "quantized": lambda x: tf.cast(keras.quantizers.abs_max_quantize(keras.ops.nan_to_num(x), -1)[0], tf.float32),
    "in a function": lambda x: tf.function(lambda y: codes(y, tf.uint8), autograph=False)(clipped(x)),
    "clipped in a function": lambda x: codes(tf.function(clipped, autograph=False)(x), tf.uint8),
    "moved about": lambda x: codes(tf.concat([clipped(x)[:, :2], tf.zeros_like(x)[:, :4]], 1), tf.uint8),
    "remainders": lambda x: codes(x % 100.0, tf.uint8),
    "halves": lambda x: codes(tf.cast(clipped(x, 0.0, 255.0), tf.bfloat16), tf.uint8),
    "one at a time": lambda x: tf.map_fn(lambda row: codes(row, tf.uint8), x),
}


@pytest.mark.parametrize("name", PROVED)
def test_a_cast_of_what_is_within_the_type_is_proved(name):
    report = prove_rows(PROVED[name], SPEC)
    assert report.proved, report


@pytest.mark.parametrize("name", PROVED)
def test_and_keeps_records_apart_in_numbers(name):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((39, 6)) < 0.3, rng.choice(ODD, (39, 6)), rng.normal(0, 200, (39, 6))).astype("float32")
    whole = np.asarray(PROVED[name](tf.constant(x)))
    alone = np.concatenate([PROVED[name](tf.constant(x[i : i + 1])) for i in range(len(x))])
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("name", ["bytes_by_place", "bytes_up_to_256", "bytes_of_remainders", "words_by_place"])
def test_the_refusal_says_what_to_do(name):
    report = prove_rows(mixing.ROWS[name](), SPEC)
    assert (report.status, report.type) == ("mixed", "Cast")
    assert "clip it first, keras.ops.clip(x, 0, " in report.reason


# Bounds of real numbers -----------------------------------------------------------------------------------------------

COMPUTED = {
    "sum": lambda x: clipped(x) + clipped(x, -3.0, 2.0),
    "difference": lambda x: clipped(x, -1.0, 1.0) - clipped(x, -3.0, 2.0),
    "product": lambda x: clipped(x, -2.0, 3.0) * clipped(-x, -5.0, 4.0),
    "quotient": lambda x: clipped(x, -2.0, 3.0) / clipped(x, 0.5, 3.0),
    "absolute": lambda x: tf.abs(clipped(x, -2.0, 1.0)),
    "rounded": lambda x: tf.round(clipped(x, -2.6, 2.5)) + tf.floor(clipped(x, -2.6, 2.5)),
    "chosen": lambda x: tf.where(x > 0.0, clipped(x, -9.0, 9.0), tf.tanh(x)),
    "smaller": lambda x: tf.minimum(2.0, tf.maximum(x, -3.0)),
    "nothing to divide by": lambda x: 1.0 / x,
    "largest": lambda x: tf.reduce_max(tf.nn.relu(x), 1, keepdims=True) * 1e30,
    "numbers alone": keras.ops.nan_to_num,
    "halves": lambda x: tf.cast(clipped(x, -70000.0, 70000.0), tf.float16),
    "small": lambda x: clipped(x, 1e-30, 1e-20) * 1e-20,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_bounds_hold_in_numbers(name):
    concrete = tf.function(COMPUTED[name], autograph=False).get_concrete_function(SPEC)
    graph = concrete.graph
    prover, values = Prover([]), {tensor.name: Constant((7, 6)) for tensor in graph.inputs}
    frame = Frame("", CALL, graph, values=values)
    prover.run(frame)
    found = reals_of(prover.frames, frame, graph.outputs[0])
    rng = np.random.default_rng(1)
    for scale in (1.0, 1e3, 1e-25):
        x = np.where(rng.random((99, 6)) < 0.3, rng.choice([*ODD, 0.0], (99, 6)), rng.normal(0, scale, (99, 6)))
        numbers = np.asarray(concrete(tf.constant(x, tf.float32)), np.float64)
        assert found.nan or not np.isnan(numbers).any()
        there = numbers[~np.isnan(numbers)]
        assert found.low <= there.min()
        assert there.max() <= found.high
    assert found.finite or name in ("nothing to divide by", "largest", "halves", "small")
