"""While a training runs, its metrics belong to the thread that trains: no other one evaluates with them."""

import os
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.threads import held_elsewhere, in_a_thread
from helpers.watched import PUBLIC, X, Y, model_of
from tfdp_layers.models import owned_metrics

LARGE = (np.ones((8, 3), np.float32), np.full((8, 1), 1e4, np.float32))  # records that any number of theirs shows
REFUSED = {
    "evaluate": lambda model: model.evaluate(*PUBLIC, verbose=0),
    "test_on_batch": lambda model: model.test_on_batch(*PUBLIC),
    "reset_metrics": lambda model: model.reset_metrics(),
    "get_metrics_result": lambda model: model.get_metrics_result(),
    "metrics": lambda model: model.metrics[0].result(),
    "metrics_variables": lambda model: model.metrics_variables,
    "test_function": lambda model: model.make_test_function() or model.test_function,
    "test_step": lambda model: model.test_step(PUBLIC),
}


def plain(model):
    copied = model.to_keras()
    copied.compile(loss="mse", metrics=["mae"])
    return copied.evaluate(*PUBLIC, verbose=0)


TAKEN = {
    "predict": lambda model: model.predict(PUBLIC[0], verbose=0),
    "call": lambda model: model(PUBLIC[0]),
    "to_keras": plain,
    "clone_model": keras.models.clone_model,
    "summary": lambda model: model.summary(print_fn=lambda *_, **__: None),
    "metrics_names": lambda model: model.metrics_names,
}


def meanwhile(model, do, records=(X, Y), **options):
    """What it gives in another thread after each step of a `fit`."""
    found = []
    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: found.append(in_a_thread(do)))
    model.fit(*records, batch_size=4, verbose=0, callbacks=[hook], **options)
    assert not owned_metrics._uses
    return found


def refused(error):
    return isinstance(error, RuntimeError) and "belong to that thread" in str(error) and "to_keras()" in str(error)


@pytest.mark.parametrize("way", REFUSED)
def test_another_thread_neither_asks_nor_sets_the_metrics_of_a_training(way):
    """Un-noised numbers of the records came out of `evaluate` on public data: 9 of 10 records were told."""
    model = model_of()
    model.evaluate(*PUBLIC, verbose=0)  # there is a test_function
    found = meanwhile(model, lambda: REFUSED[way](model))
    assert len(found) == 2
    assert all(map(refused, found))
    assert not isinstance(in_a_thread(REFUSED[way], model), Exception)  # after it


@pytest.mark.parametrize("way", ["evaluate", "test_on_batch"])
def test_it_is_refused_before_anything_of_keras_runs(way, monkeypatch):
    """Its own guard, and not that of what it reaches later: data would be read, and metrics reset, before."""
    model, ran = model_of(), []
    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, way, lambda *_, **__: ran.append(way))
        found = meanwhile(model, lambda: REFUSED[way](model))
    assert all(map(refused, found))
    assert ran == []


@pytest.mark.parametrize("way", TAKEN)
def test_what_needs_no_metrics_is_taken_from_any_thread(way):
    model = model_of()
    model.predict(PUBLIC[0], verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = meanwhile(model, lambda: TAKEN[way](model))
    assert not any(isinstance(one, Exception) for one in found)


def test_an_evaluation_of_a_copy_tells_of_public_data_alone():
    model = model_of()
    found = meanwhile(model, lambda: (plain(model), plain(model)), LARGE)
    for one, other in found:
        assert one == other
        assert max(one) < 1e3


def test_no_training_begins_while_another_thread_evaluates():
    """Its steps would come between the evaluation's reset and its result."""
    model, found = model_of(), []

    def rows():
        found.append(in_a_thread(lambda: model.fit(X, Y, batch_size=4, verbose=0)))
        yield PUBLIC

    model.evaluate(rows(), steps=1, verbose=0)
    assert isinstance(found[0], RuntimeError)
    assert "Another thread evaluates" in str(found[0])
    assert model.ledger.steps == 0
    model.fit(X, Y, batch_size=4, verbose=0)


def test_a_twin_with_the_same_metric_is_refused_and_one_with_its_own_is_not():
    metric = keras.metrics.MeanAbsoluteError()
    model, same, other = model_of(), model_of(), model_of()
    for one in (model, same):
        one.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", metrics=[metric])
    assert all(map(refused, meanwhile(model, lambda: REFUSED["evaluate"](same))))
    assert not any(isinstance(one, Exception) for one in meanwhile(model, lambda: REFUSED["evaluate"](other)))
    named, own = f"another model named {model.name!r}", "inside of the function that builds the model"
    same.name = model.name  # as two threads of a search build it
    for do in (lambda: same.fit(X, Y, batch_size=4, verbose=0), lambda: REFUSED["evaluate"](same)):
        said = str(meanwhile(model, do)[0])
        assert named in said
        assert own in said
    assert "Another thread trains" in str(meanwhile(model, lambda: same.fit(X, Y, batch_size=4, verbose=0))[0])
    assert own not in str(meanwhile(model, lambda: REFUSED["evaluate"](model))[0])


def test_loops_own_their_metrics_whichever_thread_steps():
    model = model_of()
    with model.private_run(X, Y, batch_size=4, epochs=2, verbose=0) as run:
        for number, batch in enumerate(run):
            assert refused(in_a_thread(REFUSED["evaluate"], model))
            step = in_a_thread(run.step, batch) if number % 2 else run.step(batch)
            assert "loss" in step
            assert len(model.evaluate(*PUBLIC, verbose=0)) == 2
    assert not owned_metrics._uses
    assert len(in_a_thread(REFUSED["evaluate"], model)) == 2


def test_a_generator_that_a_pool_runs_evaluates_between_its_steps():
    """As Gradio and Starlette run one: each part of it in another thread, and nothing at once."""
    model = model_of()

    def scores():
        with model.private_run(X, Y, batch_size=4, epochs=2, verbose=0) as run:
            for batch in run:
                run.step(batch)
                yield model.evaluate(*PUBLIC, verbose=0)

    running, found = scores(), []
    while not isinstance(one := in_a_thread(next, running, None), Exception) and one is not None:
        found.append(one)
        assert refused(in_a_thread(REFUSED["evaluate"], model))  # of a thread that neither entered nor stepped
    assert len(found) == 4
    assert one is None
    assert not owned_metrics._uses


def test_who_entered_a_loop_evaluates_not_while_another_thread_steps():
    model, found = model_of(), []
    begun, asked = threading.Event(), threading.Event()

    def wait(batch, logs=None):
        begun.set()
        asked.wait(20)

    hook = keras.callbacks.LambdaCallback(on_train_batch_end=wait)
    with model.private_run(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[hook]) as run:
        thread = threading.Thread(target=run.step, args=(next(run),))
        thread.start()
        begun.wait(20)
        try:
            model.evaluate(*PUBLIC, verbose=0)
        except RuntimeError as error:
            found.append(error)
        asked.set()
        thread.join()
        assert len(model.evaluate(*PUBLIC, verbose=0)) == 2
    assert refused(found[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_fork_waits_for_no_thread_of_its_parent():
    with held_elsewhere(owned_metrics._lock), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads beside a fork
        child = os.fork()
        if child == 0:
            os._exit(0 if owned_metrics._lock.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_as_an_evaluation_begins_leaves_nothing_behind(monkeypatch):
    class Interrupting(list):
        def append(self, one):
            super().append(one)
            raise KeyboardInterrupt

    monkeypatch.setattr(owned_metrics, "_uses", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        model_of().evaluate(*PUBLIC, verbose=0)
    assert not owned_metrics._uses


def test_a_loop_is_not_stepped_while_its_own_thread_evaluates():
    model, found = model_of(), []
    with model.private_run(X, Y, batch_size=4, epochs=1, verbose=0) as run:
        batch = next(run)

        def rows():
            found.append(in_a_thread(run.step, batch))
            yield PUBLIC

        model.evaluate(rows(), steps=1, verbose=0)
        assert "Another thread evaluates" in str(found[0])
        run.step(batch)


def test_the_training_s_own_thread_evaluates_and_a_training_that_fails_leaves_nothing_behind():
    model, found = model_of(), []

    def ask(epoch, logs=None):
        found.append(model.evaluate(*PUBLIC, verbose=0))
        if len(found) == 2:
            raise KeyError("of the callback")

    hook = keras.callbacks.LambdaCallback(on_epoch_end=ask)
    with pytest.raises(KeyError):
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[hook], validation_data=PUBLIC)
    assert not owned_metrics._uses
    assert len(in_a_thread(REFUSED["evaluate"], model)) == 2


class Listing(tfdp.PrivateSequential):
    """As Keras' guides write a `compute_metrics` of their own, which replicas run in threads of theirs."""

    @property
    def metrics(self):
        return [*super().metrics]

    def get_metrics_result(self):
        return {one.name: one.result() for one in self.metrics}


@pytest.mark.slow
def test_threads_of_replicas_are_no_others():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = Listing([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, validation_data=PUBLIC)
    assert all(map(refused, meanwhile(model, lambda: REFUSED["evaluate"](model))))


@pytest.mark.parametrize("way", ["export", "saved_model"])
def test_another_thread_exports_nothing_and_the_training_goes_on(way, tmp_path):
    """It took the step away, and `fit` ended: "set so by a callback"."""
    model = model_of()
    write = {"export": lambda path: model.export(path, verbose=False), "saved_model": None}[way]
    write = write or (lambda path: tf.saved_model.save(model, path))
    found = meanwhile(model, lambda: write(str(tmp_path / "served")), epochs=2)
    assert len(found) == 4
    assert all("fit runs on these weights in another thread" in str(one) for one in found)
    assert not (tmp_path / "served").exists()
    write(str(tmp_path / "served"))


class Deciding(keras.callbacks.Callback):
    """Stops, after another thread did something while its hook ran."""

    def __init__(self, do):
        super().__init__()
        self._do = do

    def on_epoch_end(self, epoch, logs=None):
        in_a_thread(self._do, self.model)
        self.model.stop_training = True


def notes_of(do):
    model = model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[Deciding(do)])
    return " ".join(model.privacy_statement(1e-2).notes)


def test_what_another_thread_asks_while_a_hook_runs_is_said_to_be_another_s():
    assert "'predict() of the training records, by code in another thread'" in notes_of(
        lambda m: m.predict(X, verbose=0)
    )
    assert "Deciding read" not in notes_of(lambda m: m.predict(PUBLIC[0], verbose=0))
