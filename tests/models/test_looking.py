"""Whatever way a callback, or a loop, asks a model for numbers of the records that it trains on, is noted."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.watched import PUBLIC, X, Y, model_of

WAYS = {
    "metrics": lambda model: model.metrics[0].result(),
    "metrics_variables": lambda model: model.metrics_variables[0],
    "get_metrics_result": lambda model: model.get_metrics_result()["loss"],
}
NOTE = "read 'metrics of the training' and then stopped the training"


class Asking(keras.callbacks.Callback):
    """Stops where a number of the model's is small enough, as it always is."""

    def __init__(self, way, first=lambda model: None):
        super().__init__()
        self._way, self._first = way, first

    def on_epoch_end(self, epoch, logs=None):
        self._first(self.model)
        if float(self._way(self.model)) < 1e9:
            self.model.stop_training = True


def notes_after(callback):
    model = model_of()
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])
    return str(" ".join(model.privacy_statement(1e-2).notes))


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_metrics_of_the_training_are_private_by_whichever_name(way):
    """`metrics_variables` hold the same sums, and were not noted."""
    with pytest.warns(UserWarning, match=NOTE):
        assert NOTE in notes_after(Asking(WAYS[way]))


def test_metrics_of_public_data_are_public():
    evaluating = Asking(WAYS["metrics_variables"], lambda model: model.evaluate(*PUBLIC, verbose=0))
    assert NOTE not in notes_after(evaluating)


def left_early(model):
    with model.private_run(X, Y, batch_size=4, epochs=2, verbose=0) as run:
        for batch in run:
            run.step(batch)
            if float(model.metrics_variables[0]) < 1e9:
                break


def test_a_loop_that_looks_at_the_variables_of_metrics_and_leaves_is_noted():
    with pytest.warns(UserWarning, match="The loop read 'metrics of the training' and then left before its last step"):
        left_early(model_of())


DRAWN = np.random.default_rng(0)
RECORDS, LABELS = DRAWN.normal(size=(64, 3)).astype("float32"), np.zeros((64, 1), np.float32)
OTHERS = DRAWN.normal(size=(64, 3)).astype("float32")


class Rows(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return self.x[16 * number : 16 * number + 16], LABELS[:16]


def generated(x):
    for number in range(4):
        yield Rows(x)[number]


def pipeline(x):
    spec = (tf.TensorSpec((16, 3)), tf.TensorSpec((16, 1)))
    return tf.data.Dataset.from_generator(lambda: generated(x), output_signature=spec)


def stepped(model, x):
    model.make_test_function(force=True)
    return model.test_function(iter([(tf.constant(x), tf.constant(LABELS))]))["loss"]


def stateless(model, x):
    return model.stateless_call(model.trainable_variables, model.non_trainable_variables, x)[0]


CARRIED = {
    "a PyDataset": lambda model, x: model.evaluate(Rows(x), verbose=0)[0],
    "a prediction of a PyDataset": lambda model, x: model.predict(Rows(x), verbose=0),
    "a generator": lambda model, x: model.evaluate(generated(x), steps=4, verbose=0)[0],
    "a pipeline of a generator": lambda model, x: model.evaluate(pipeline(x), steps=4, verbose=0)[0],
    "call": lambda model, x: model.call(tf.constant(x)),
    "stateless_call": stateless,
    "test_function": stepped,
}
IN_FUNCTIONS = {
    "a function": lambda model, x: tf.function(lambda rows: model(rows))(x),
    "a pipeline": lambda model, x: next(iter(tf.data.Dataset.from_tensors(x).map(model))),
}


def notes_of(way, x):
    model = model_of()
    asking = Asking(lambda model: np.sum(way(model, x)))
    model.fit(RECORDS, LABELS, batch_size=16, epochs=2, verbose=0, callbacks=[asking])
    return " ".join(model.privacy_statement(1e-2).notes)


@pytest.mark.few(3)
@pytest.mark.parametrize("way", CARRIED)
def test_records_are_known_again_whatever_carries_them_and_others_are_not(way):
    """A PyDataset, a generator and methods beside `__call__` were not looked at: one record told 20 times of 20."""
    with pytest.warns(UserWarning, match="of the training records"):
        assert "of the training records" in notes_of(CARRIED[way], np.array(RECORDS))
    assert "Asking" not in notes_of(CARRIED[way], OTHERS)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", IN_FUNCTIONS)
def test_a_model_in_a_function_of_a_hook_is_asked(way):
    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert "in a function of the caller's" in notes_of(IN_FUNCTIONS[way], OTHERS)


WRITTEN = {
    "exported": lambda model, path: model.export(path / "exported", verbose=False),
    "saved by TensorFlow": lambda model, path: tf.saved_model.save(model, path / "saved"),
    "another model": lambda model, path: keras.Model(model.inputs, model(model.inputs)),
    "its graph": lambda model, path: tf.function(model).get_concrete_function(tf.TensorSpec((4, 3))),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WRITTEN)
def test_a_model_that_is_written_in_a_hook_is_not_asked(way, tmp_path):
    """It was noted as a look at the metrics of the training."""
    assert "Asking" not in notes_of(lambda model, x: (WRITTEN[way](model, tmp_path), 0.0)[1], OTHERS)


def once(x):
    """A pipeline whose batches can be drawn once."""
    left = generated(x)
    spec = (tf.TensorSpec((16, 3)), tf.TensorSpec((16, 1)))
    return tf.data.Dataset.from_generator(lambda: left, output_signature=spec)


class Counts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_test_batch_end(self, batch, logs=None):
        self.batches += 1


@pytest.mark.parametrize(("x", "known"), [(RECORDS, True), (OTHERS, False)], ids=["records", "others"])
def test_no_batch_of_a_pipeline_is_lost_to_a_look_at_it(x, known):
    """Its first batch was drawn for that: of four, three were evaluated, or two."""
    counts = Counts()

    def way(model, rows):
        return model.evaluate(once(rows), verbose=0, callbacks=[counts])[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ("of the training records" in notes_of(way, np.array(x))) == known
    assert counts.batches == 4


def test_a_pydataset_is_read_ahead_where_somebody_is_watched_alone():
    """Its first batch was made once more at each call, outside of `fit` too."""
    asked = []

    class Asked(Rows):
        def __getitem__(self, number):
            asked.append(number)
            return super().__getitem__(number)

    model = model_of()
    model.evaluate(Asked(OTHERS), verbose=0)
    own, plain = list(asked), keras.Sequential([keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    asked.clear()
    plain.evaluate(Asked(OTHERS), verbose=0)
    assert own == asked


@pytest.mark.few(2)
@pytest.mark.parametrize("way", ["a PyDataset", "a generator", "a prediction of a PyDataset", "stateless_call"])
def test_an_objective_is_refused_records_whatever_carries_them(way):
    from tfdp_layers.models.looking import choosing

    model = model_of()
    model.fit(RECORDS, LABELS, batch_size=16, epochs=1, verbose=0)
    with choosing(tfdp.PrivateBatches(RECORDS, LABELS, tfdp.sampling.Poisson(16))):
        assert np.isfinite(np.sum(CARRIED[way](model, OTHERS)))
        with pytest.raises(ValueError, match="training records"):
            CARRIED[way](model, RECORDS)
