"""Places within a record that come from the data: lengths, positions, labels."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates.measuring import measure
from tfdp_layers.certificates.synthetic import on_valid_integers
from tfdp_layers.proof.models import traced_sums

RNG = np.random.default_rng(0)
X, LENGTHS = RNG.normal(size=(8, 7, 3)).astype("float32"), RNG.integers(0, 7, (8, 1))
Y = RNG.integers(0, 2, 8)
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def along(x, place):
    return keras.ops.take_along_axis(x, place[:, None, None], axis=1)[:, 0]


PICKS = {
    "take_along_axis": lambda x, place: along(x, keras.ops.clip(place, 0, 6)),
    "clipped": lambda x, place: tf.gather(x, keras.ops.clip(place, 0, 6), batch_dims=1),
}
KEPT = {
    "last word": lambda h, n: along(h, keras.ops.sum(keras.ops.cast(h[:, :, 0] > 0, "int32"), axis=1) - 1),
    "last word, of truth values": lambda h, n: along(h, keras.ops.count_nonzero(h[:, :, 0] > 0, axis=1) - 1),
    "largest": lambda h, n: along(h, keras.ops.max(keras.ops.argsort(h[:, :, 0], axis=1), axis=1)),
}
"""Places that follow from bounded integers of the record's own, and are proved without a clip."""
UNKEPT = {
    "along": lambda x, place: along(x, place),
    "a word too far": lambda h, n: along(h, keras.ops.sum(keras.ops.cast(h[:, :, 0] > 0, "int32"), axis=1)),
    "words of two": lambda h, n: along(h, keras.ops.sum(keras.ops.cast(h[:, :, :2] > 0, "int32"), axis=(1, 2)) - 1),
    "along, of 64 bits": lambda x, place: along(x, keras.ops.cast(place, "int64")),
    "along, clipped too wide": lambda x, place: along(x, keras.ops.clip(place, 0, 7)),
    "anywhere": lambda x, place: tf.gather(x, place, batch_dims=1),
    "of all": lambda x, place: tf.gather(x, place)[:, 0],
    "indices": lambda x, place: tf.gather_nd(x, place[:, None], batch_dims=1),
    "pairs": lambda x, place: tf.gather_nd(x, tf.stack([tf.range(tf.shape(x)[0]), place], 1)),
    "record by record": lambda x, place: tf.map_fn(lambda a: a[0][a[1]], (x, place), fn_output_signature=tf.float32),
    "vectorized": lambda x, place: keras.ops.vectorized_map(lambda a: a[0][a[1]], (x, place)),
}
"""What is at a place of each record, which may be written so that it is not proved to be inside of the record."""


class Picks(keras.layers.Layer):
    """The state at a place of each record, as of the last word of a text."""

    def __init__(self, pick):
        super().__init__()
        self.pick = pick

    def call(self, x, place):
        return self.pick(x, keras.ops.cast(place[:, 0], "int32"))

    def compute_output_shape(self, x_shape, place_shape):
        return x_shape[0], x_shape[2]


def picking(pick):
    inputs = [keras.Input((7, 3)), keras.Input((1,), dtype="int32")]
    hidden = keras.layers.Dense(4)(inputs[0])
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(Picks(pick)(hidden, inputs[1]))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), SPARSE)
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("pick", ["take_along_axis", "clipped"])
def test_no_table_tells_how_large_a_place_may_be(pick):
    """Made-up integers of up to 99 ended `fit` in TensorFlow's error that 74 is not in [0, 7)."""
    model = picking(PICKS[pick])
    model.fit([X, LENGTHS], Y, batch_size=4, epochs=1, verbose=0, accept_measured=True)
    assert model.ledger.steps == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("pick", UNKEPT)
def test_a_place_that_may_lie_in_another_record_says_how_to_keep_it_inside(pick):
    with pytest.raises(
        ValueError, match=r"not independent.*tf\.gather\(h, keras\.ops\.clip\(n, 0, T - 1\), batch_dims=1\)"
    ):
        picking(UNKEPT[pick]).fit([X, LENGTHS], Y, batch_size=4, epochs=1, verbose=0)


@pytest.mark.parametrize("pick", KEPT)
def test_a_place_that_is_counted_or_sorted_is_proved(pick):
    assert tfdp.check_independence(picking(KEPT[pick])).proved


def test_what_the_advice_says_is_proved():
    model = picking(lambda h, n: tf.gather(h, keras.ops.clip(n, 0, h.shape[1] - 1), batch_dims=1))
    assert tfdp.check_independence(model).proved


def test_other_records_are_no_places():
    with pytest.raises(ValueError, match="not independent") as e:
        tfdp.check_independence(picking(lambda x, place: x[:, 0] - tf.reduce_mean(x[:, 0], axis=0)))
    assert "gather" not in str(e.value)


def test_an_integer_that_is_valid_nowhere_is_tensorflows_own_error():
    model = picking(lambda x, place: tf.gather(x, keras.ops.clip(place, 0, 6) + 7, batch_dims=1))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tfdp.check_independence(model)


def test_labels_as_places_are_of_deterministic_operations():
    """As TensorFlow computes it after tf.config.experimental.enable_op_determinism(), which a process cannot undo."""

    def loss(labels, logits):
        with tf.name_scope("SparseSoftmaxCrossEntropyWithLogits"):
            return -tf.gather(tf.nn.log_softmax(logits), tf.cast(labels, tf.int32), batch_dims=1)

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
    with pytest.raises(ValueError, match=r"enable_op_determinism.*one-hot.*measured, not proved"):
        model.fit(X[:, 0], Y, batch_size=4, epochs=1, verbose=0)
    assert model.ledger.steps == 0


@pytest.mark.parametrize("first", [0, 1])
def test_labels_that_a_loss_looks_up_are_measured_within_its_table(first):
    """Made-up labels up to the width of the output, 4, ended in TensorFlow's error that 3 is not in [0, 3)."""
    centers = tf.Variable(np.ones((3, 4), "float32"), trainable=False)

    def loss(labels, outputs):
        return tf.reduce_sum(
            (outputs - tf.gather(centers, tf.cast(tf.reshape(labels, (-1,)), tf.int32) - first)) ** 2, -1
        )

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
    x, y = tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.int64)
    sums = traced_sums(model, x, y)
    assert on_valid_integers(lambda: measure(model, sums, x, y, model.sensitivities(), True)) is not None
