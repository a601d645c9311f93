"""Embeddings of positions, looked up by ids of no record, in layers of one's own: as keras.io's examples have them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import influences
from helpers.private_models import private, sums_of
from helpers.variants import slow_but

kl, ops = keras.layers, keras.ops
LENGTH, WIDTH, WORDS = 4, 3, 9


class Placed(kl.Layer):
    """Tokens and their places, by a function of this layer, the ids and how many there are in a record."""

    def __init__(self, compute, places=None):
        super().__init__()
        self.tokens, self.compute = kl.Embedding(WORDS, WIDTH), compute
        if places is not None:
            self.places = places

    def call(self, ids):
        return self.compute(self, ids, ops.shape(ids)[-1])


class Places(kl.Layer):
    """Gives the places as they are: where they meet the records is not to be seen in its call."""

    def __init__(self):
        super().__init__()
        self.table = kl.Embedding(WORDS, WIDTH)

    def call(self, ids):
        return self.table(ops.arange(ops.shape(ids)[-1]))


CASES = {
    "added": lambda s, ids, n: s.tokens(ids) + s.places(ops.arange(start=0, stop=n, step=1)),
    "for all records": lambda s, ids, n: s.tokens(ids) + ops.expand_dims(s.places(ops.arange(n)), 0),
    "scaled": lambda s, ids, n: s.tokens(ids) * ops.sigmoid(2.0 * s.places(ops.arange(n))),
    "one table for both": lambda s, ids, n: s.tokens(ids) + s.tokens(ops.arange(n)),
    "backwards": lambda s, ids, n: s.tokens(ids) + ops.flip(s.places(ops.arange(n)), axis=0)[:n],
    "two tables": lambda s, ids, n: s.tokens(ids) + s.places(ops.arange(n)) + s.tokens(ops.zeros((n,), "int32")),
    "given out by an inner layer": lambda s, ids, n: s.tokens(ids) + s.places(ids),
}


def model_of(name, shape=(LENGTH,), **options):
    places = {"one table for both": None, "given out by an inner layer": Places()}.get(name, kl.Embedding(WORDS, WIDTH))
    ids = keras.Input(shape, dtype="int32")
    hidden = kl.Dense(5, activation="tanh")(Placed(CASES[name], places)(ids))
    return private(keras.Model(ids, kl.Dense(1)(kl.GlobalAveragePooling1D()(hidden))), **options)


def records(count=5, length=LENGTH):
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (count, length)), rng.normal(size=(count, 1)).astype("float32")


def gap(model, x, y, mode="graph"):
    """Between the sums of an optimizer that clips nothing and Keras' gradient of the summed losses."""
    sums = sums_of(model, mode)(x, y, np.ones(len(x), "float32"))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model.per_record_losses(x, y))
    exact = [np.asarray(tf.convert_to_tensor(g)) for g in tape.gradient(total, model.trainable_variables)]
    assert all(np.abs(one).max() > 0 for one in exact)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(sums, exact, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(["added", "one table for both", "given out by an inner layer"], CASES))
def test_the_sums_are_keras_gradients_and_proved(name):
    model, (x, y) = model_of(name, clip=1e6), records()
    assert gap(model, x, y) < 1e-4
    assert tfdp.check_independence(model, x, y).proved


@pytest.mark.parametrize("name", slow_but(["added"], CASES))
def test_no_record_exceeds_its_bound_whatever_it_holds(name):
    found = influences(model_of(name, clip=1e-3))
    assert 0.99 < max(found) <= 1 + SLACK


@pytest.mark.parametrize("mode", slow_but(["eager"], ["eager", "xla"]))
def test_other_modes_and_texts_of_any_length(mode):
    model, (x, y) = model_of("added", shape=(None,), clip=1e6), records(length=6)
    assert gap(model, x, y, mode) < 1e-4


@pytest.mark.slow
def test_fit_says_that_it_is_proved_and_frozen_places_stay():
    model, (x, y) = model_of("added"), records(40)
    model.layers[1].places.trainable = False
    before = model.layers[1].places.get_weights()[0]
    model.fit(x, y, batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.layers[1].places.get_weights()[0], before)
    assert "is proved" in str(model.privacy_statement(1e-3))


def test_what_no_layer_around_shows_is_refused_by_name():
    """A loop keeps what it does with the places to itself."""

    def looped(s, ids, n):
        places = s.places(ops.arange(n))
        return s.tokens(ids) + ops.fori_loop(0, 2, lambda _, held: held * 0.5, places)

    CASES["looped"] = looped
    with pytest.raises(ValueError, match="no formula gives their per-record gradients, nor does its call show") as said:
        model_of("looped").sensitivities()
    assert "Exception encountered when calling" not in str(said.value)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_ids_may_be_written_as_floats(dtype):
    """As `keras.Input((LENGTH,))` takes them, which says of no type; synthetic ones then lie within the table."""
    ids = keras.Input((LENGTH,))
    model = private(
        keras.Model(ids, kl.Dense(1)(kl.Flatten()(Placed(CASES["added"], kl.Embedding(WORDS, WIDTH))(ids))))
    )
    x, y = records(40)
    model.fit(x.astype(dtype), y, batch_size=8, verbose=0)
    assert tfdp.check_independence(model).proved


@pytest.mark.parametrize("ids", [lambda ids: ops.max(ids), lambda ids: ops.max(ids, 0)], ids=["one", "one a place"])
def test_ids_of_all_records_together_are_refused(ids):
    CASES["of all"] = lambda s, given, n: s.tokens(given) + s.places(ids(given))
    with pytest.raises(ValueError, match=r"no formula gives|not independent"):
        tfdp.check_independence(model_of("of all"))
