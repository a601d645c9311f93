"""Metrics that layers keep: what they hold of records goes where the layers go, so trainings leave nothing in them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(1.0, size=(12, 6)).astype("float32")
Y = np.zeros(12, "int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Watching(keras.layers.Layer):
    """Keeps a mean of what it saw."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        self.seen.update_state(x)
        return x


def watched():
    """A private model, and what its layer keeps."""
    layer = Watching()
    model = tfdp.make_private(
        keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), layer, keras.layers.Dense(2)])
    )
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0), LOSS, metrics=["accuracy"])
    return model, lambda: [float(variable) for variable in layer.seen.variables]


class Calling(keras.callbacks.Callback):
    """Calls a function after every step, and keeps what the layer held when epochs ended."""

    def __init__(self, kept, function=lambda model: None):
        super().__init__()
        self.kept, self.function, self.held = kept, function, []

    def on_train_batch_end(self, batch, logs=None):
        self.function(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self.held.append(self.kept())


def stop(_):
    raise LookupError("stopped")


def test_fit_leaves_nothing_and_the_history_keeps_the_last_epoch():
    model, kept = watched()
    calling = Calling(kept)
    history = model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[calling]).history
    assert [len(history[name]) for name in ("loss", "accuracy", "seen")] == [2, 2, 2]
    np.testing.assert_allclose(history["seen"], [total / count for total, count in calling.held], rtol=1e-5)
    assert all(count > 0 for _, count in calling.held)
    assert kept() == [0.0, 0.0]
    assert float(model.get_metrics_result()["loss"]) == pytest.approx(history["loss"][-1])  # those of compile stay


def test_fit_that_is_broken_off_leaves_nothing():
    model, kept = watched()
    looking = []
    with pytest.raises(LookupError, match="stopped"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Calling(kept, lambda m: looking.append(kept()) or stop(m))])
    assert looking[0][1] > 0
    assert kept() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("broken", [False, True])
def test_a_loop_of_the_callers_own_leaves_nothing(broken):
    model, kept = watched()
    looking = []
    try:
        with model.private_run(X, Y, batch_size=4, verbose=0) as run:
            for batch in run:
                run.step(batch)
                looking.append(kept()[1])
                if broken:
                    stop(model)
    except LookupError:
        assert broken
    assert looking[0] > 0
    assert kept() == [0.0, 0.0]


def around(model):
    return keras.Sequential([keras.Input((6,)), model, keras.layers.Softmax()])


def part(model):
    return keras.Model(model.inputs, model.layers[-2].output)


@pytest.mark.slow
@pytest.mark.parametrize("made", [around, part])
def test_exports_of_models_around_and_of_parts_hold_no_number_of_records(made, tmp_path):
    model, _ = watched()
    model.fit(X, Y, batch_size=4, verbose=0)
    made(model).export(tmp_path / "served", verbose=False)
    held = tf.train.load_checkpoint(str(tmp_path / "served" / "variables" / "variables"))
    shapes = held.get_variable_to_shape_map()
    scalars = [held.get_tensor(one) for one in shapes if shapes[one] == [] and one.endswith("VARIABLE_VALUE")]
    assert scalars
    assert not any(scalars)


CALLS = {
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0, return_dict=True)["seen"],
    "predict": lambda model: model.predict(X, verbose=0),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
    "test_on_batch": lambda model: model.test_on_batch(X, Y, return_dict=True)["seen"],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_computed_outside_of_trainings_is_returned_and_not_kept(name):
    model, kept = watched()
    assert np.any(CALLS[name](model))
    assert kept() == [0.0, 0.0]
    model(X)
    assert kept()[1] == 12  # a bare call is the caller's own: until the next of these, or an export
    CALLS[name](model)
    assert kept() == [0.0, 0.0]


@pytest.mark.slow
def test_a_prediction_inside_of_fit_takes_nothing_from_the_epoch():
    model, kept = watched()
    calling = Calling(kept, lambda model: model.predict(np.zeros((2, 6), "float32"), verbose=0))
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[calling])
    assert calling.held[0][1] > 3 * 2  # rows of three predictions, and the records'
    assert kept() == [0.0, 0.0]
