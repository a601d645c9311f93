"""Weights that anything but the training changes while `fit` runs are in the statement, whoever changes them."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from helpers.watched import PUBLIC, X, Y, model_of
from tfdp_layers.models import fingerprints
from tfdp_layers.models.fingerprints import held_of


def trains_in_public(model):
    """A plain model on the same layers, fitted without noise."""
    layer = model.layers[-1]
    inputs = keras.Input((3,))
    twin = keras.Model(inputs, layer(inputs))
    twin.compile("sgd", "mse")
    twin.fit(X, Y + 1.0, verbose=0)


MOVES = {
    "fit of a plain model on its layers": trains_in_public,
    "a layer": lambda model: model.layers[-1].set_weights([w + 1.0 for w in model.layers[-1].get_weights()]),
    "a variable, by one bit": lambda model: model.weights[0].assign(np.nextafter(np.array(model.weights[0]), 9.0)),
    "the model": lambda model: model.set_weights([w + 1.0 for w in model.get_weights()]),
}
WHERE = ["on_train_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end"]
PLACES = [f"{at}/{way}" for at in WHERE for way in MOVES]
QUICK = [f"on_epoch_end/{way}" for way in MOVES] + ["on_train_batch_end/a layer"]


def notes_of(model):
    return [
        note
        for note in model.privacy_statement(1e-2).notes
        if "changed the weights while fit ran" in note or "The weights changed" in note
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", slow_but(QUICK, PLACES))
def test_a_callback_that_changes_weights_is_in_the_statement_once(case):
    """Nothing of what it took from records for that is in a ledger; and nothing is refused, or warned of."""
    at, way = case.split("/")
    model, hooked = model_of(), keras.callbacks.Callback()
    setattr(hooked, at, lambda *args, **kwargs: MOVES[way](model))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[hooked])
    assert not [one for one in caught if "changed" in str(one.message)]
    (note,) = notes_of(model)
    assert "The callback Callback changed" in note


KINDS = ["float32", "bfloat16", "float64", "uint8", "float8_e4m3fn", "complex64", "bool", "int32"]


@pytest.mark.parametrize("few", [16, 0])
@pytest.mark.parametrize("where", ["here", "as on a GPU"])
@pytest.mark.parametrize("dtype", KINDS)
def test_what_many_weights_held_differs_by_one_bit_of_one(dtype, where, few, monkeypatch):
    if where != "here":
        monkeypatch.setattr(fingerprints, "_in_memory", lambda tensor: False)
    kind = tf.dtypes.as_dtype(dtype).as_numpy_dtype
    monkeypatch.setattr(fingerprints, "_FEW", few)
    many = [tf.Variable(np.ones((1 + 2**18,)).astype(kind)), tf.Variable(np.ones(3).astype(kind))]
    look = held_of(many)
    before = look()
    assert look() == before
    changed = many[0].numpy()
    changed[7:8].view(np.uint8)[0] ^= 1
    many[0].assign(changed)
    assert look() != before
    changed[7:8].view(np.uint8)[0] ^= 1
    many[0].assign(changed)
    assert look() == before


def test_what_lies_where_it_lay_is_not_looked_at_on_a_gpu(monkeypatch):
    """There each comparison of bits is waited for, at every hook."""
    asked = []
    monkeypatch.setattr(fingerprints, "_in_memory", lambda tensor: False)
    monkeypatch.setattr(fingerprints, "_equal", lambda these, those: asked.append(these) or True)
    many = [tf.Variable(tf.ones(3)), tf.Variable(tf.ones(2, tf.bfloat16))]
    look = held_of(many)
    before = look()
    assert look() == before
    assert not asked
    many[0].assign(tf.ones(3))
    assert look() == before
    assert len(asked) == 1


def test_numbers_that_are_none_and_numbers_of_another_sign_are_what_they_are():
    """NaN is itself, and -0 is not 0."""
    one = tf.Variable([np.nan, 0.0])
    look = held_of([one])
    before = look()
    one.assign([np.nan, 0.0])
    assert look() == before
    one.assign([np.nan, -0.0])
    assert look() != before


WRITES = {
    "assign": lambda one: one.assign(tf.ones_like(one) * 3),
    "assign_add": lambda one: one.assign_add(tf.ones_like(one)),
    "scatter": lambda one: one.scatter_nd_update([[0]], [7.0]),
    "slice": lambda one: one[1:2].assign([7.0]),
    "training": lambda one: tf.raw_ops.ResourceApplyGradientDescent(var=one.handle, alpha=1.0, delta=tf.ones(4)),
}


@pytest.mark.parametrize("where", ["here", "as on a GPU"])
@pytest.mark.parametrize("few", [16, 0])
@pytest.mark.parametrize("compiled", [None, False, True])
@pytest.mark.parametrize("way", WRITES)
def test_no_way_to_write_reaches_what_was_held(way, compiled, few, where, monkeypatch):
    """What the comparison of places rests on: TensorFlow writes into no tensor that somebody has."""
    if where != "here":
        monkeypatch.setattr(fingerprints, "_in_memory", lambda tensor: False)
    monkeypatch.setattr(fingerprints, "_FEW", few)
    one = tf.Variable(tf.ones(4))
    look = held_of([one])

    def write():
        WRITES[way](one)

    if compiled is not None:
        write = tf.function(write, jit_compile=compiled)
    for _ in range(3):
        before, numbers = look(), one.numpy()
        write()
        assert look() != before
        np.testing.assert_array_equal(before[0]._tensors[0], numbers)
        one.assign(tf.ones(4))


def test_replicas_are_compared_copy_by_copy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        one = tf.Variable(1.0)
    look = held_of([one])
    before = look()
    assert look() == before
    one.values[0].assign(2.0)
    assert look() != before


@pytest.mark.slow
def test_a_loop_that_changes_weights_is_in_the_statement_and_others_are_not():
    model, other = model_of(), model_of()
    for one, ways in ((model, MOVES["a layer"]), (other, lambda model: model.predict(X, verbose=0))):
        with one.private_run(X, Y, batch_size=4, epochs=1) as run:
            for batch in run:
                run.step(batch)
                ways(one)
    assert "The loop changed" in notes_of(model)[0]
    assert notes_of(other) == []


@pytest.mark.slow
def test_callbacks_that_leave_the_weights_alone_are_in_no_statement():
    model, hooked = model_of(), keras.callbacks.Callback()
    for at in WHERE:
        setattr(hooked, at, lambda *args, **kwargs: model.evaluate(*PUBLIC, verbose=0))
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[hooked])
    assert notes_of(model) == []


def trained_by(method):
    """A model that trains, unseen by any hook, in a method of its class."""

    def call(self, *args, **kwargs):
        for weight in self.trainable_variables if self.built else ():
            weight.assign_add(tf.ones_like(weight))
        return getattr(super(kind, self), method)(*args, **kwargs)

    kind = type("Mine", (tfdp.PrivateSequential,), {method: call})
    return kind


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["test_step", "evaluate", None])
def test_weights_that_change_in_the_validation_are_in_the_statement(method):
    layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)
    kind = tfdp.PrivateSequential if method is None else trained_by(method)
    model = kind([keras.Input((3,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    early = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, baseline=0.0, restore_best_weights=True)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, validation_data=PUBLIC, callbacks=[early])
    assert len(notes_of(model)) == (method is not None)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", [None, "test_step", "evaluate"])
def test_averages_that_keras_swaps_in_for_a_validation_are_no_change_and_others_are(method):
    layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)
    kind = tfdp.PrivateSequential if method is None else trained_by(method)
    model = kind([keras.Input((3,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1, use_ema=True), 1.0), "mse")
    swap = keras.callbacks.SwapEMAWeights()
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, validation_data=PUBLIC, callbacks=[swap])
    assert len(notes_of(model)) == (method is not None)
    assert not {name for name in vars(swap) if name.startswith("on_")}
