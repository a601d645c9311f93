"""A training that an error out of a step, or of a draw, ends says so: it may tell of the record that it stumbled on."""

import copy
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(16, 3)).astype("float32"), np.ones((16, 1), "float32")
ENDED, OVER = "A training ended by an error out of a step", "The data of a training ran out"


class Files:
    """Records that are read one by one; the one of this number cannot be read."""

    def __init__(self, bad=None, error=ValueError):
        self.bad, self.error = bad, error

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == self.bad:
            raise self.error("corrupt file patient_5.png")
        return X[index], Y[index]


def private(*layers, shape=(3,), dtype=None):
    model = tfdp.PrivateSequential([keras.Input(shape, dtype=dtype), *layers, keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def notes(model, says=ENDED):
    return [note for note in model.privacy_statement(1e-3).notes if says in note]


def fit(model, x, y=None, **options):
    options = {"sampling": tfdp.sampling.Partition(4), "epochs": 2, "verbose": 0} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y, **options)


@pytest.mark.slow
def test_a_record_that_cannot_be_read_is_noted_once_and_files_say_so(tmp_path):
    model = private()
    with pytest.raises(Exception, match="corrupt file patient_5"):
        fit(model, tfdp.records(Files(5)))
    (note,) = notes(model)
    assert f"after {model.ledger.steps} of its 8 steps" in note
    assert 1 <= model.ledger.steps <= 4
    assert "not covered" in note
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert notes(loaded) == [note]
    fit(loaded, tfdp.records(Files()))
    assert notes(loaded) == [note]


@pytest.mark.few(1)
@pytest.mark.parametrize("made", ["before", "after", "of a copy"])
def test_another_private_model_of_these_layers_says_so(made):
    hidden = keras.layers.Dense(2)
    model, twin = private(hidden), None
    if made == "before":
        twin = private(hidden)
    with pytest.raises(Exception, match="corrupt file patient_5"):
        fit(model, tfdp.records(Files(5)))
    if made == "after":
        twin = private(hidden)
    if made == "of a copy":
        twin = private(copy.deepcopy(model).layers[0])
    assert notes(twin) == notes(model) != []
    assert notes(private(keras.layers.Dense(2))) == []


def test_a_record_that_cannot_be_looked_up_is_noted():
    codes = np.arange(48).reshape(16, 3)
    model = private(
        keras.layers.Lambda(lambda x: keras.ops.maximum(x, 0)),  # else it is refused before the first step
        keras.layers.Embedding(47, 2),
        keras.layers.Flatten(),
        dtype="int32",
    )
    with pytest.raises(Exception, match=r"47 is not in \[0, 47\)"):
        fit(model, codes, Y)
    (note,) = notes(model)
    assert f"after {model.ledger.steps} of its 8 steps" in note


class Draws:
    """Raises at the next draw."""

    def __init__(self, error):
        self.error = error

    def __next__(self):
        raise self.error


def loop(model, draws=None, *, steps=1, error=None):
    """Steps on so many draws, then on these; or raises an error of its own."""
    with model.private_run(X, Y, sampling=tfdp.sampling.Partition(4), verbose=0) as run:
        if draws and not steps:
            run._draws = draws
        for batch in run:
            run.step(batch)
            if error:
                raise error
            run._draws = draws


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("error", "noted"),
    [(ValueError("corrupt"), ENDED), (StopIteration(), OVER), (KeyboardInterrupt(), None), (SystemExit(), None)],
    ids=lambda one: type(one).__name__,
)
def test_of_a_loop_of_ones_own_the_draws_are_noted_and_interruptions_are_not(error, noted):
    model, caught = private(), None
    try:
        loop(model, Draws(error))
    except BaseException as raised:
        caught = raised
    assert caught is (None if isinstance(error, StopIteration) else error)
    found = [*notes(model), *notes(model, OVER)]
    assert [f"after {model.ledger.steps} of its 4 steps" in note and noted in note for note in found] == [True] * bool(
        noted
    )


def test_a_pipeline_that_ends_before_what_it_declares_is_noted_as_that():
    """As one does that reads a stream, which may end at what a record holds; another pass over it gives nothing."""
    stream = iter([(X[:4], Y[:4])] * 3)
    spec = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    batches = tf.data.Dataset.from_generator(lambda: stream, output_signature=spec)
    model = private()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declared = tfdp.declare_sampling(batches, tfdp.sampling.Poisson(4), examples=64)
        model.fit(declared, steps_per_epoch=16, verbose=0)
    assert model.ledger.steps == 4  # paid for before it is drawn
    (note,) = notes(model, OVER)
    assert "after 3 of its 16 steps" in note
    assert notes(model) == []


def test_what_the_body_of_a_loop_or_a_hook_raises_is_none_of_it():
    model = private()
    with pytest.raises(ZeroDivisionError):
        loop(model, error=ZeroDivisionError())
    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(model, X, Y, callbacks=[hook])
    assert model.ledger.steps == 2
    assert notes(model) == []


def test_nothing_is_noted_of_a_training_without_a_step():
    model = private()
    with pytest.raises(ValueError, match="corrupt"):
        loop(model, Draws(ValueError("corrupt")), steps=0)
    assert model.ledger.steps == 0
    assert notes(model) == []
