"""Crosses of features are those of each record alone, as the proof assumes, and train proved."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof import prove_rows

kl = keras.layers
WORDS, PLACES = np.array([["a"], ["b"], ["a"], [""], ["b"], ["c"]]), np.arange(6, dtype="int64")[:, None] % 4


@pytest.mark.few(1)
@pytest.mark.parametrize("features", [(WORDS, WORDS[::-1]), (WORDS, PLACES, WORDS), (PLACES, PLACES)])
def test_a_cross_of_features_one_wide_is_of_its_row(features):
    found = tf.sparse.cross_hashed([tf.constant(one) for one in features], 1000)
    assert found.indices.numpy().tolist() == [[i, 0] for i in range(6)]
    alone = [tf.sparse.cross_hashed([tf.constant(one[i : i + 1]) for one in features], 1000) for i in range(6)]
    assert found.values.numpy().tolist() == [int(one.values[0]) for one in alone]


@pytest.mark.few(1)
@pytest.mark.parametrize("second", [WORDS, PLACES], ids=["texts", "numbers"])
def test_fits_on_crossed_texts_are_proved(second):
    inputs = [keras.Input((1,), dtype="string"), keras.Input((1,), dtype=tf.as_dtype(second.dtype).name)]
    crossed = kl.HashedCrossing(7, output_mode="one_hot")(inputs)
    model = tfdp.make_private(keras.Model(inputs, kl.Dense(1)(crossed)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "mse")
    data = [tf.constant(WORDS), tf.constant(second)]
    model.fit(data, np.zeros((6, 1)), batch_size=2, epochs=1, verbose=0)
    assert model.ledger.entries[0].release.independence == "proved"


def test_a_word_of_a_cross_beside_another_is_no_evidence():
    """What is done with the parts of a cross is measured, as ever."""

    def call(x):
        found = tf.sparse.cross_hashed([x], 7)
        return tf.sparse.to_dense(tf.sparse.map_values(tf.add, found, tf.ones_like(found.values)))

    graph = tf.function(call).get_concrete_function(tf.TensorSpec((None, 1), tf.string))
    assert prove_rows(graph).status == "unknown"
