"""No file is written while another thread trains: its ledger comes first, and its weights would be of later steps."""

import threading

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.threads import in_a_thread

X, Y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")


def trainable():
    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def raised_in_a_thread(do, *given):
    """What it raises in a thread of its own; None where it ends well."""
    found = in_a_thread(do, *given)
    return found if isinstance(found, Exception) else None


def head_of(model):
    head = tfdp.PrivateSequential([keras.Input((3,)), model.layers[0], keras.layers.Dense(1)])
    head.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    head.fit(X, Y, batch_size=4, verbose=0)  # now they share a ledger
    return head


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("sharing", [False, True], ids=["itself", "a head on its layers"])
@pytest.mark.parametrize("way", ["save", "save_weights", "keras.saving"])
def test_another_thread_saves_nothing_of_a_model_that_is_trained(way, sharing, tmp_path):
    model = trainable()
    saved = head_of(model) if sharing else model
    path = tmp_path / ("model.weights.h5" if way == "save_weights" else "model.keras")
    do = {"save": saved.save, "save_weights": saved.save_weights}.get(
        way, lambda path: keras.saving.save_model(saved, path)
    )
    found = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(raised_in_a_thread(do, path))
    )
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[watch])
    assert len(found) == 2
    for error in found:
        assert isinstance(error, RuntimeError)
        assert "fit runs on these weights in another thread" in str(error)
    assert not path.exists() or way == "keras.saving"  # which leaves half a file, without a ledger
    assert raised_in_a_thread(do, path) is None  # after it


@pytest.mark.slow
def test_callbacks_of_the_training_itself_save_as_ever(tmp_path):
    model = trainable()
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras", save_freq=1)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[checkpoint])
    assert tfdp.load_model(tmp_path / "model.keras").ledger.steps == model.ledger.steps


def test_fit_does_not_begin_while_another_thread_saves(tmp_path, monkeypatch):
    model, saves, goes_on = trainable(), threading.Event(), threading.Event()
    before = model.ledger.steps
    dense = model.layers[1]
    write = type(dense).save_own_variables

    def slow(store):
        saves.set()
        goes_on.wait(30)
        return write(dense, store)

    monkeypatch.setattr(dense, "save_own_variables", slow)
    thread = threading.Thread(target=model.save_weights, args=(tmp_path / "model.weights.h5",))
    thread.start()
    assert saves.wait(30)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="Another thread is saving the weights that fit would train"):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.steps == before
    goes_on.set()
    thread.join()
    model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.steps == before + 4
