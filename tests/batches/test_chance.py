"""What random numbers changed in a record decides nothing; what is drawn alone, or is one number for a record, may."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.batches.chance import CHANGED, DRAWN, NONE, Chance
from tfdp_layers.batches.cut import warn_of_cut
from tfdp_layers.sampling import Poisson

X, Y = np.arange(80, dtype=np.float32).reshape(40, 2), np.arange(40)
ALL = tf.data.Dataset.from_tensor_slices((X, Y))
WEIGHT = tf.Variable(2.0)


def augmented(x: Any, y: Any) -> Any:
    return x + tf.random.normal(tf.shape(x)), y


def loaded(x: Any, y: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda one: 2 * one, [x], tf.float32), (2,)), y


def weighed(x: Any, y: Any) -> Any:
    return WEIGHT * x, y


def kept(x: Any, y: Any) -> Any:
    return tf.random.uniform(()) < 0.01 * tf.reduce_sum(x), y


def masked(x: Any, y: Any) -> Any:
    return tf.random.uniform(tf.shape(x)) < 0.5, y


def scored(x: Any, y: Any) -> Any:
    return tf.reduce_sum(x) + tf.random.uniform(()), y


PARTS: dict[str, tuple[Callable[..., Any], int]] = {
    "what weights make of a record": (weighed, NONE),
    "an augmented record": (augmented, CHANGED),
    "one that Python loads": (loaded, CHANGED),
    "numbers drawn alone": (lambda x, y: (tf.random.uniform(tf.shape(x)), y), DRAWN),
    "a mask": (masked, DRAWN),
    "a flag by a record's own probability": (kept, DRAWN),
    "a score": (scored, DRAWN),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_chance_did_to_a_part(name: str) -> None:
    function, level = PARTS[name]
    made = ALL.map(function)
    assert Chance().parts(made) == [level, NONE]
    assert Chance().parts(made.shuffle(9).batch(4).map(lambda x, y: (y, x)).unbatch()) == [NONE, level]


def finite(x: Any, y: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(x))


def doubled(x: Any, y: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((2 * x, y))


def windows(x: Any, y: Any) -> Any:
    return tf.data.Dataset.zip((x, y))


PASSES = {
    "augmented, and a filter": lambda: ALL.map(augmented).filter(finite),
    "loaded, and a filter": lambda: ALL.map(loaded).filter(finite),
    "features of weights, and a filter": lambda: ALL.map(weighed).filter(finite),
    "augmented, and changed row by row": lambda: ALL.map(augmented).batch(4).flat_map(doubled),
    "augmented, in windows": lambda: ALL.map(augmented).window(4).flat_map(windows),
}
DRAWS = {
    "a flag": lambda: ALL.map(lambda x, y: (x, y, kept(x, y)[0])).filter(lambda x, y, one: one),
    "a score, in batches": lambda: (
        ALL.map(lambda x, y: (x, y, scored(x, y)[0])).batch(8).unbatch().filter(lambda x, y, one: one > 9)
    ),
    "of augmented records": lambda: ALL.map(augmented).filter(lambda x, y: tf.random.uniform(()) < 0.2),
}


@pytest.mark.parametrize("name", [*PASSES, *DRAWS])
def test_cut_passes_bring_a_warning_and_draws_do_not(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_cut((PASSES | DRAWS)[name]().batch(8), Poisson(8), 40)
    assert [".batch(8) cuts passes" in str(one.message) for one in caught] == [True] * (name in PASSES)
