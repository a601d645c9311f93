"""TensorFlow's own debugging is refused by what it is, and not as a metric that runs Python."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof.outside import outside, refuse_outside


@pytest.fixture
def debugging() -> Iterator[None]:
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


def fit() -> None:
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss="mse")
    try:
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    except ValueError:
        assert model.ledger.entries == ()
        raise
    assert model.ledger.entries


@pytest.mark.usefixtures("debugging")
def test_checks_of_all_numbers_are_refused_with_how_to_switch_them_off() -> None:
    with pytest.raises(ValueError, match=r"TensorFlow's debugging is .* tf\.debugging\.disable_check_numerics\(\)"):
        fit()
    tf.debugging.disable_check_numerics()
    fit()


@pytest.mark.parametrize("kind", [tf.raw_ops.DebugIdentityV2, tf.raw_ops.DebugNumericSummaryV2])
def test_what_writes_all_numbers_into_files_is_refused_so(kind: object) -> None:
    graph = tf.function(lambda x: kind(input=x)).get_concrete_function(tf.TensorSpec(())).graph
    assert outside(graph.get_operations())
    with pytest.raises(ValueError, match=r"disable_dump_debug_info\(\)"):
        refuse_outside(graph.get_operations(), "A metric")
