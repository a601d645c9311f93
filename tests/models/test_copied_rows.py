"""Copies of training records that a callback evaluates are noted, and other rows are not: in little work."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models import copied_rows
from tfdp_layers.models.copied_rows import CopiedRows

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)).astype(np.float32), RNG.normal(size=(60, 1)).astype(np.float32)
OTHER = RNG.normal(size=(60, 3)).astype(np.float32)
PLACES = RNG.permutation(60)[:40]
NOTE = "of the training records['\"].* and then stopped the training"


def pipeline(x, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(20)


def outputs_of_batches(model, x):
    return [float(tf.reduce_sum(model(rows))) for rows, _ in pipeline(x)]


WAYS = {
    "evaluate by places": lambda model, x: model.evaluate(x[PLACES], Y[PLACES], verbose=0),
    "evaluate a pipeline": lambda model, x: model.evaluate(pipeline(x), verbose=0),
    "predict a copy": lambda model, x: model.predict(x.copy(), verbose=0),
    "in double precision": lambda model, x: model.predict(x.astype(np.float64), verbose=0),
    "outputs of batches": outputs_of_batches,
}


class Stops(keras.callbacks.Callback):
    def __init__(self, look):
        super().__init__()
        self._look = look

    def on_epoch_end(self, epoch, logs=None):
        self._look(self.model)
        self.model.stop_training = True


def fitted(look):
    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    model.fit(X, Y, batch_size=20, epochs=2, verbose=0, callbacks=[Stops(look)])
    return " ".join(model.privacy_statement(1e-2).notes)


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_callback_that_looks_at_copies_and_stops_is_noted(way):
    """Only views of the arrays were, and the very pipeline of `fit`; of validation data copies are recognised."""
    with pytest.warns(UserWarning, match=NOTE):
        assert "then stopped" in fitted(lambda model: WAYS[way](model, X))


def test_a_callback_that_looks_at_other_rows_is_not():
    assert "then stopped" not in fitted(lambda model: [WAYS[way](model, OTHER) for way in WAYS])


def known(x):
    return CopiedRows(tfdp.PrivateBatches(x, Y, sampling=tfdp.sampling.Poisson(20)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(60,), (60, 5), (60, 4, 4, 2)])
def test_rows_are_known_by_their_numbers_whatever_their_shape_and_type(shape, dtype):
    x = (RNG.normal(size=shape) * 40 + 100).astype(dtype)
    if dtype != "bool" and len(shape) > 1:
        rows = known(x)
        assert rows.hold([x[PLACES]])
        assert not rows.hold([x[PLACES] + 1])
        assert not rows.hold([x[PLACES][:7]])
    few = known(np.zeros(shape, dtype))  # equal rows are no copies
    assert not few.hold([np.zeros(shape, dtype)])


def test_a_public_grid_is_no_copy_of_records_on_it():
    grid = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), -1).reshape(-1, 2)
    assert not known(grid[RNG.permutation(64)[:60]]).hold([grid])


def test_several_inputs_and_what_is_no_array():
    x = {"a": X, "b": OTHER}
    rows = known(x)
    assert rows.hold({"a": X[PLACES], "b": OTHER[PLACES]})
    assert not rows.hold({"a": X[PLACES], "b": OTHER[:40]})
    assert not rows.hold([X])
    for nothing in (None, "x", [], [3.0], np.float32(1.0), iter([X])):
        assert not known(X).hold(nothing)


def test_records_are_looked_through_once_and_most_batches_of_a_loop_are_not(monkeypatch):
    looked, keys_of = [], copied_rows._keys_of
    monkeypatch.setattr(copied_rows, "_keys_of", lambda rows, by: looked.append(len(rows[0])) or keys_of(rows, by))
    rows = known(X)
    assert not any(rows.hold([OTHER[:20]]) for _ in range(816))
    assert sorted(looked)[-2:] == [10, 60]
    assert len(looked) == 1 + 16 + 100
    assert any(rows.hold([X[PLACES]]) for _ in range(8))
