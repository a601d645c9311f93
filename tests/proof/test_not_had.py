"""Functions whose graphs are not to be had, of TensorFlow 1 say: nobody outside of a proof ends by not knowing them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.function import Defun

import tfdp_layers as tfdp
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import numbers_held, outside
from tfdp_layers.proof.retraced import same_computation
from tfdp_layers.proof.state import handles_written_by, written_handles
from tfdp_layers.proof.values import UnknownError

VARIABLE = tf.Variable([1.0, 2.0])
HELD = np.array([0.25, 3.5, -7.0], np.float32)


@Defun(tf.float32)
def old(x: Any) -> Any:
    """A function of TensorFlow 1, as those of the loops in TensorFlow's CTC loss."""
    return x * tf.constant(HELD)


def called(x: Any) -> Any:
    return tf.ensure_shape(tf.raw_ops.PartitionedCall(args=[x], Tout=[tf.float32], f=old)[0], (None, 3))


def graph_of(function: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((None, 3))).graph


GRAPHS = {
    "itself": lambda: graph_of(called),
    "in a function": lambda: graph_of(tf.function(lambda x: called(x) + 1.0)),
    "in a loop": lambda: graph_of(lambda x: tf.while_loop(lambda x: x[0, 0] < 9.0, lambda x: [called(x)], [x])[0]),
}


def ask(graph: Any) -> str:
    try:
        graph_named(graph, old.name)
    except UnknownError:
        return "unknown"
    return "known"


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_asked_of_such_a_graph_is_answered(name: str) -> None:
    graph, again = GRAPHS[name](), GRAPHS[name]()
    assert ask(graph) == "unknown"
    assert any(np.array_equal(one, HELD) for one in numbers_held(graph))
    assert outside(graph.get_operations()) is not None
    assert written_handles(graph) == set()
    assert not same_computation(graph, again, lambda one: one.outputs)


class Unknown:
    """An operation that hands a variable to a function that is not to be had."""

    type = "PartitionedCall"

    def __init__(self, graph: Any) -> None:
        self.graph, self.inputs = graph, [graph.capture(VARIABLE.handle)]

    def get_attr(self, _: str) -> Any:
        return type("Function", (), {"name": "nowhere"})


def test_such_a_function_may_write_all_that_it_is_given() -> None:
    operation = Unknown(graph_of(called))
    assert [one.name for one in handles_written_by([operation])] == [operation.inputs[0].name]


def test_ctc_is_refused_by_its_name() -> None:
    model = tfdp.make_private(keras.Sequential([keras.Input((5, 2)), keras.layers.Dense(4)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss=keras.losses.CTC())
    with pytest.raises(ValueError, match=r"operation Empty, '.*ctc.*Keras' CTC loss, which cannot be trained"):
        model.fit(np.ones((8, 5, 2)), np.ones((8, 2), int), batch_size=4, verbose=0, accept_measured=True)
    assert model.ledger.entries == ()
