"""Two traces of one function, for a number of records and for any: whether they compute the same."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.proof import mutants
from tfdp_layers.proof import retraced

RECORDS = 32
COUNT = tf.Variable(0.0)
ONE, OTHER = tf.constant([1.0] * 6), tf.constant([2.0] * 6)
Function = Callable[..., Any]


def same(function: Function) -> bool:
    made = tf.function(function, autograph=False)
    fixed, free = (made.get_concrete_function(tf.TensorSpec((n, 6))).graph for n in (RECORDS, None))
    return retraced.same_computation(fixed, free, lambda graph: graph.outputs)


def either(known: Function, unknown: Function) -> Function:
    """One function where the number of records is known, another where it is not."""
    return lambda x: known(x) if x.shape[0] is not None else unknown(x)


def layer(made: Any) -> Function:
    return lambda x: made(x, training=True)


def counted(x: Any) -> Any:
    COUNT.assign_add(1.0)
    return 2.0 * x


def drawn(x: Any) -> Any:
    return x + tf.random.normal(tf.shape(x))


def helper(by: float) -> Function:
    inner = tf.function(lambda x: x * by)
    return lambda x: inner(x)


def mapped(by: Function) -> Function:
    return lambda x: tf.map_fn(by, x)


def chosen(one: Function, other: Function) -> Function:
    return lambda x: tf.cond(tf.reduce_sum(x[0]) > 0.0, lambda: one(x), lambda: other(x))


def once(x: Any) -> Any:
    noise, _ = tf.random.normal((6,)), tf.random.normal((6,))
    return x + noise - noise


def twice(x: Any) -> Any:
    noise, other = tf.random.normal((6,)), tf.random.normal((6,))
    return x + noise - other


def double(x: Any) -> Any:
    return 2.0 * x


def triple(x: Any) -> Any:
    return 3.0 * x


SAME: dict[str, Function] = {
    "doubled": double,
    "its own mean": lambda x: x - tf.reduce_mean(x, 0),
    "a shape": lambda x: tf.reshape(x, (tf.shape(x)[0], 2, 3)),
    "a shape with -1": lambda x: tf.reshape(x, (-1, 2, 3)),
    "as many ones": lambda x: x + tf.ones((tf.shape(x)[0], 1)),
    "over their number": lambda x: x / tf.cast(tf.shape(x)[0], tf.float32),
    "drawn": drawn,
    "counted": counted,
    "a map": mapped(lambda row: row / tf.norm(row)),
    "a choice": chosen(double, triple),
    "a function": helper(2.0),
    "texts": lambda x: tf.strings.length(tf.strings.as_string(x) + "a"),
    "a layer": layer(keras.layers.Dropout(0.5, seed=1)),
    "written twice alike": either(lambda x: x + ONE, lambda x: x + ONE),
}
DIFFERENT: dict[str, Function] = {
    "the mean": either(lambda x: x - tf.reduce_mean(x, 0), lambda x: x),
    "the mean elsewhere": either(lambda x: x - tf.reduce_mean(x, 0), lambda x: x - tf.reduce_mean(x, 1, True)),
    "another attribute": either(lambda x: tf.cumsum(x, 1), lambda x: tf.cumsum(x, 1, reverse=True)),
    "other operands": either(lambda x: x - 2.0 * x, lambda x: 2.0 * x - x),
    "another constant": either(double, triple),
    "another text": either(lambda x: tf.strings.as_string(x) + "a", lambda x: tf.strings.as_string(x) + "b"),
    "what is captured": either(lambda x: x + ONE, lambda x: x + OTHER),
    "another number": either(lambda x: x * 32.0, lambda x: x * tf.cast(tf.shape(x)[0] + 1, tf.float32)),
    "one draw for two": either(once, twice),
    "a write more": either(counted, double),
    "another round": either(mapped(double), mapped(triple)),
    "another loop": either(mapped(double), mapped(lambda row: row * tf.constant(2.5))),
    "another branch": either(chosen(double, triple), chosen(triple, double)),
    "another function": either(helper(2.0), helper(3.0)),
    "another output": either(lambda x: (x, double(x))[0], lambda x: (x, double(x))[1]),
    "an unknown loop": either(
        lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y[::-1]), (0, x))[1],
        lambda x: tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y[::-1]), (0, x))[1],
    ),
    "another large constant": either(
        lambda x: x[:, :1] + np.arange(9000.0, dtype=np.float32), lambda x: x[:, :1] + np.ones(9000, np.float32)
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_is_seen(name: str) -> None:
    assert same(SAME[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_seen(name: str) -> None:
    assert not same(DIFFERENT[name])


def test_what_is_the_same_for_one_number_alone() -> None:
    function = either(lambda x: x * 32.0, lambda x: x * tf.cast(tf.shape(x)[0], tf.float32))
    assert same(function)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("found.append((name, value.SerializeToString()))", "pass", "another attribute"),
        ("whole = self.number(kind, given,", "whole = self.number(kind, sorted(given).__len__(),", "other operands"),
        ("return one == other and first.stateful == second.stateful", "return one == other", "a write more"),
        ("return one == other and first", "return first", "the mean elsewhere"),
        (" + stateful\n", "\n", "one draw for two"),
        ("v.shape, v.tobytes()) for", "v.shape) for", "another constant"),
        ("tuple(after[i] for i in turns))", "())", "another round"),
        ("goes_on, tuple(", "(), tuple(", "an unknown loop"),
        ("resource_key(outer) if outer.dtype == tf.resource else id(outer)", "0", "what is captured"),
    ],
)
def test_an_edit_is_seen(old: str, new: str, name: str) -> None:
    with mutants.mutant("retraced", mutants.edited("retraced", old, new)):
        assert same(DIFFERENT[name])
    assert not same(DIFFERENT[name])
