"""Parties take their turns on the variables of a model one after the other, whichever threads they run in."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, wait

import keras
import numpy as np
import pytest

from helpers.forks import in_fork
from tfdp_layers.federated import CompiledEpochs, KerasTraining, flat_weights, set_flat_weights, turns
from tfdp_layers.federated.keras_training import accuracy
from tfdp_layers.federated.step_state import key_of
from tfdp_layers.federated.turns import one_turn, turns_over

X, Y = np.eye(4, dtype="float32")[[0, 0, 1, 1]], np.zeros(4, "int64")
OTHERS = 1.0 - X  # where these records hold zero


def model_of(*layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Meanwhile(keras.callbacks.Callback):
    """In the middle of a fit has another thread begin something, and gives it time to write."""

    def __init__(self, function):
        super().__init__()
        self.thread, self.found = threading.Thread(target=lambda: self.found.append(function())), []

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.thread.start()
            self.thread.join(0.2)
            assert not self.found, "it waits"


def upload_beside(function, model):
    """What a party's turn returns in whose middle another thread begins something with its model."""
    weights, meanwhile = flat_weights(model), Meanwhile(function)
    found = KerasTraining(model, X, Y, epochs=2, shuffle=False, callbacks=[meanwhile])(weights)
    meanwhile.thread.join(20.0)
    return found, meanwhile.found


def twin_of(model):
    """Another model of the same layers."""
    twin = keras.Sequential([keras.Input((4,)), *model.layers])
    twin.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return twin


BESIDE = {
    "fit": lambda model: KerasTraining(model, OTHERS, Y),
    "compiled": lambda model: CompiledEpochs(model, 4).on(OTHERS, Y),
    "of another model": lambda model: KerasTraining(twin_of(model), OTHERS, Y),
    "set weights": lambda model: lambda weights: set_flat_weights(model, weights + 1.0),
    "evaluated": lambda model: lambda weights: accuracy(model, weights + 1.0, OTHERS, Y),
}


@pytest.mark.parametrize("what", BESIDE)
def test_another_threads_turn_waits(what):
    model = model_of()
    weights = flat_weights(model)
    alone = KerasTraining(model, X, Y, epochs=2, shuffle=False)(weights)
    other = BESIDE[what](model)
    set_flat_weights(model, weights)
    found, answers = upload_beside(lambda: other(weights) is not other, model)
    np.testing.assert_array_equal(found, alone)
    assert answers == [True]


def test_what_is_read_waits_too():
    model = model_of()
    found, (read,) = upload_beside(lambda: flat_weights(model), model)
    np.testing.assert_array_equal(read, found)


def test_statistics_of_a_shared_layer_stay_with_the_party_of_another_model():
    normalization = keras.layers.BatchNormalization()
    model = model_of(normalization)
    before = np.array(normalization.moving_mean.numpy())
    KerasTraining(model, 50.0 * OTHERS, Y)(flat_weights(model))
    assert (normalization.moving_mean.numpy() != before).any()
    twin = twin_of(model)
    normalization.trainable = False
    seen = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(normalization.moving_mean.numpy()))
    KerasTraining(twin, X, Y, callbacks=[look])(flat_weights(twin))
    np.testing.assert_array_equal(seen, [before])


def test_a_turn_in_the_middle_of_another_one_is_refused():
    model = model_of()
    weights = flat_weights(model)
    theirs = KerasTraining(model, OTHERS, Y)
    inside = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: theirs(weights))
    with pytest.raises(RuntimeError, match="A turn of a party runs in this thread"):
        KerasTraining(model, X, Y, callbacks=[inside])(weights)
    assert theirs(weights).shape == weights.shape, "an error ends a turn"


def test_a_callback_reads_what_its_own_turn_trains():
    model = model_of()
    scores = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: scores.append(accuracy(model, flat_weights(model), X, Y))
    )
    KerasTraining(model, X, Y, callbacks=[look])(flat_weights(model))
    assert len(scores) == 1


def test_turns_on_other_variables_run_at_the_same_time():
    both = threading.Barrier(2, timeout=5.0)

    def turn(name):
        with one_turn([name]):
            return both.wait()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(turn, "ab")) == [0, 1], "both stood at the barrier inside of their turns"


def test_two_threads_that_wait_for_each_other_are_told():
    both, refused = threading.Barrier(2, timeout=5.0), []

    def turn(names):
        with one_turn(names[0]):
            both.wait()
            try:
                with turns_over(names[1]):
                    pass
            except RuntimeError as error:
                refused.append(str(error))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(turn, ["ab", "ba"]))
    assert len(refused) == 1
    assert "Two threads wait for each other" in refused[0]


@pytest.mark.parametrize("began", ["before", "while"])
def test_a_thread_is_told_where_a_turn_may_wait_for_it(began, monkeypatch):
    monkeypatch.setattr(turns, "_LONG", 0.01)
    ready, begun, told = threading.Event(), threading.Event(), []

    def reads():
        ready.set()
        begun.wait(5.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with turns_over("a"):
                told.extend(str(one.message) for one in caught)

    thread = threading.Thread(target=reads)
    if began == "before":
        thread.start()
        ready.wait(5.0)
    with one_turn("a"):
        if began == "while":
            thread.start()
        begun.set()
        thread.join(0.2)
    thread.join(5.0)
    assert ["neither ever ends" in one for one in told] == [True] * (began == "while")


class Reader(keras.layers.Layer):
    """Reads another model's variable, which Keras does not list here."""

    def __init__(self, held):
        super().__init__()
        self.held = [lambda: held]  # no variable of this layer

    def call(self, x):
        return x + 0.0 * self.held[0]()[0, 0]


def test_turns_on_what_another_models_step_reads_wait_and_begin_with_what_was_there():
    model = model_of()
    kernel, weights = model.layers[-1].kernel, flat_weights(model)
    before = np.array(kernel)
    KerasTraining(model, X, Y)(weights)
    assert (np.array(kernel) != before).any()
    reader = model_of(Reader(kernel))
    with ThreadPoolExecutor(1) as pool:
        with one_turn({key_of(kernel)}):
            made = pool.submit(KerasTraining, reader, X, Y)
            assert wait([made], 1.0).not_done
        made.result(20.0)(flat_weights(reader))
    np.testing.assert_array_equal(kernel, before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_no_turn_of_its_parents_threads():
    begun, done = threading.Event(), threading.Event()

    def turn():
        with one_turn("a"):
            begun.set()
            done.wait()

    def here():
        with one_turn("ab"):
            return "free"

    thread = threading.Thread(target=turn)
    thread.start()
    begun.wait()
    try:
        assert in_fork(here, 5) == "'free'"
    finally:
        done.set()
        thread.join()
