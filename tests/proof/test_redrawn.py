"""Random rows of a size that is written as a number: drawn as the batch's own number, and nothing else is changed."""

from typing import Any

import pytest
import tensorflow as tf

from helpers.proof import mutants
from tfdp_layers.proof import redrawn, retraced

RECORDS = 16
BY = tf.Variable(2.0)


@tf.function
def helped(x: Any) -> Any:
    return tf.map_fn(lambda row: row * BY, x)


DRAWN = {
    "noise": lambda x: x + tf.random.normal((RECORDS, 6)),
    "by the shape": lambda x: x + tf.random.uniform((tf.shape(x)[0], 1)),
    "seeds of a variable": lambda x: x + tf.random.stateless_normal(x.shape, tf.cast(tf.stack([BY, BY]), tf.int32)),
    "beside functions": lambda x: helped(x) + tf.random.truncated_normal(x.shape, 1.0, 2.0),
}
NOT_DRAWN = {
    "nothing": lambda x: x + tf.ones((RECORDS, 6)),
    "columns": lambda x: x + tf.random.normal((6,)),
    "fewer rows": lambda x: x + tf.tile(tf.random.normal((RECORDS // 2, 6)), (2, 1)),
}


def traced(function: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((RECORDS, 6))).graph


def again(function: Any) -> tuple[Any, Any]:
    graph = traced(function)
    return graph, redrawn.with_drawn_rows(graph, graph.inputs[0], RECORDS)


@pytest.mark.parametrize("name", DRAWN)
def test_both_graphs_compute_the_same(name: str) -> None:
    graph, made = again(DRAWN[name])
    assert [one.shape.as_list() for one in made.outputs] == [[RECORDS, 6]]
    assert len(made.captures) == len(graph.captures)
    assert retraced.same_computation(graph, made, lambda each: each.outputs)


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_other_random_numbers_stay_constants(name: str) -> None:
    assert again(NOT_DRAWN[name])[1] is None


def test_an_edit_is_seen() -> None:
    """Fewer rows than records, each for several of these, would pass for one of each record's own."""
    edited = mutants.edited("redrawn", "and shape[0] == records", "and shape[0] <= records")
    with mutants.mutant("redrawn", edited), pytest.raises((AssertionError, ValueError)):
        test_other_random_numbers_stay_constants("fewer rows")
