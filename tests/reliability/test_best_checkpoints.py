"""Which weights of a training are the best is decided by all its steps: a file of them states what all of them cost."""

import copy
import warnings
from unittest import mock

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.best_checkpoints import PUBLIC, X, Y, best, fit, forget, load, model_of, printed, stated
from tfdp_layers.accounting import Ledger, LedgerError, stored
from tfdp_layers.models import kept, weight_files


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_a_file_of_the_best_epoch_states_all_that_the_training_planned(name, tmp_path, capsys):
    path = tmp_path / name
    model = fit(model_of(), best(path, save_weights_only="weights" in name))
    _, whole, notes = stated(model)
    assert not notes
    for steps, epsilon, note in (printed(path, capsys), stated(load(path))):
        assert (steps, epsilon) == (6, pytest.approx(whole, abs=1e-9))
        assert "kept as the best of a training, after 2 of its 6 steps" in note
    again = load(path)
    assert again.ledger.holds(model.ledger)
    fit(again, epochs=1)
    assert stated(again)[0] == 8  # and goes on from there


def test_a_file_that_counted_its_own_steps_alone_would_be_seen(tmp_path, capsys, monkeypatch):
    """The planted bug: what files held before. In the process that goes on the statement says that more was counted."""
    monkeypatch.setattr(weight_files, "kept_of", lambda run, ledger: kept.Kept(ledger))
    path = tmp_path / "best.keras"
    model = fit(model_of(), best(path))
    steps, epsilon, notes = printed(path, capsys)
    assert steps == 2
    assert epsilon < stated(model)[1]
    assert "4 more releases since this copy of it was made" in notes


class Own(keras.callbacks.Callback):
    """Does one thing at the end of the first epoch."""

    def __init__(self, do):
        super().__init__()
        self.do, self.found = do, None

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.found = self.do(self.model)


class Better(keras.callbacks.ModelCheckpoint):
    """The user's own, derived of Keras'."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)


class Within(keras.callbacks.Callback):
    """Hands on to another."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def on_epoch_end(this, epoch, logs=None):  # noqa: N805 (whatever it calls itself)
        this.other.set_model(this.model)
        this.other.on_epoch_end(epoch, logs)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["derived", "within another"])
def test_callbacks_that_keep_the_best_by_keras_code_are_seen(kind, tmp_path, capsys):
    path = tmp_path / "best.keras"
    options = {"monitor": "val_same", "mode": "max", "save_best_only": True}
    fit(model_of(), Better(path, **options) if kind == "derived" else Within(best(path)))
    assert printed(path, capsys)[0] == 6


@pytest.mark.slow
def test_the_best_by_a_loop_of_the_callers_own(tmp_path, capsys):
    path, model = tmp_path / "best.keras", model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"batch_size": 8, "epochs": 3, "verbose": 0, "validation_data": PUBLIC, "callbacks": [best(path)]}
        with model.private_run(X, Y, **options) as run:
            for batch in run:
                run.step(batch)
    assert printed(path, capsys)[0] == stated(model)[0] == 6


@pytest.mark.slow
def test_a_training_that_ends_earlier_is_counted_whole_elsewhere_and_as_it_was_where_it_ran(tmp_path, capsys):
    path = tmp_path / "best.weights.h5"
    stop = keras.callbacks.EarlyStopping("val_same", mode="max", patience=1)
    model = fit(model_of(), best(path, save_weights_only=True), stop, epochs=5)
    assert stated(model)[0] == 4
    model.load_weights(path)  # its own ledger counts that very training
    assert stated(model)[0] == 4
    assert "ended after 4 of its 10 planned steps" in " ".join(stated(model)[2].split())
    twin = model_of()
    twin.set_weights(model.get_weights())
    assert stated(twin)[0] == 4
    assert printed(path, capsys)[0] == stated(load(path))[0] == 10


@pytest.mark.slow
def test_a_best_file_is_loaded_by_the_process_that_wrote_it_with_the_larger_count(tmp_path):
    """Values of the middle of the training, which other models may hold, do not make it less."""
    path, early = tmp_path / "best.keras", Own(lambda model: model.get_weights())
    stop = keras.callbacks.EarlyStopping("val_same", mode="max", patience=1)
    fit(model_of(), early, best(path), stop, epochs=5)
    other = model_of()
    other.set_weights(early.found)
    assert stated(other)[0] == 4
    loaded = tfdp.load_model(path)
    assert stated(loaded)[0] == 10
    assert stated(tfdp.load_model(path))[0] == 10


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["its own save", "its own save_weights", "ModelCheckpoint of every epoch", "a copy"])
def test_what_else_is_kept_in_the_middle_says_what_a_choice_would_cost(way, tmp_path, capsys):
    path = tmp_path / ("first.weights.h5" if "weights" in way else "first.keras")
    if way == "ModelCheckpoint of every epoch":
        keeper = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
        path = tmp_path / "1.keras"
    else:
        ways = {"its own save_weights": lambda m: m.save_weights(path), "a copy": copy.deepcopy}
        keeper = Own(ways.get(way, lambda m: m.save(path)))
    model = fit(model_of(), keeper)
    assert not stated(model)[2]
    words = "while a training ran, after 2 of its 6 steps. If how the training went on decided which were kept"
    assert words in stated(keeper.found if way == "a copy" else load(path))[2]
    if way != "a copy":
        assert printed(path, capsys)[0] == 2
        assert words in printed(path, capsys)[2]
        assert words in stated(load(path))[2]
    if "{epoch}" in str(getattr(keeper, "filepath", "")):
        assert not printed(tmp_path / "3.keras", capsys)[2]  # no step followed


@pytest.mark.slow
def test_what_a_hook_keeps_in_memory_costs_what_the_training_did():
    keeper = Own(lambda model: (model.get_weights(), model.to_keras()))
    fit(model_of(), keeper)
    weights, plain = keeper.found
    twin = model_of()
    twin.set_weights(weights)
    assert stated(twin)[0] == stated(tfdp.make_private(plain))[0] == 6


@pytest.mark.slow
def test_a_backup_is_exact_and_says_nothing(tmp_path):
    """Whoever goes on from it makes the other steps."""

    def crash(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    crashing = keras.callbacks.LambdaCallback(on_epoch_begin=crash)
    with pytest.raises(InterruptedError):
        fit(model_of(), keras.callbacks.BackupAndRestore(str(tmp_path)), crashing)
    forget()
    model = fit(model_of(), keras.callbacks.BackupAndRestore(str(tmp_path)))
    assert stated(model)[0] == 6
    assert not stated(model)[2]


class Chosen(keras.callbacks.BackupAndRestore):
    """Backs up the epochs that it likes: here the first."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            super().on_epoch_end(epoch, logs)


def chosen_within(path):
    backup = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
    return Own(lambda model: (backup.set_model(model), backup.on_epoch_end(0)))


def chosen_by_a_function(path):
    backup, model = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False), model_of()
    backup.set_model(model)
    return model, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: epoch or backup.on_epoch_end(epoch))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["derived", "within another", "by a function"])
def test_a_backup_that_somebody_chose_says_what_the_choice_would_cost(way, tmp_path, capsys):
    """Its file stated the epochs up to the best one alone: 2.51 of 5.71."""
    made = {
        "derived": lambda path: (model_of(), Chosen(path, delete_checkpoint=False)),
        "within another": lambda path: (model_of(), chosen_within(path)),
        "by a function": chosen_by_a_function,
    }
    fit(*made[way](str(tmp_path)))
    (kept_file,) = tmp_path.rglob("*.weights.h5")
    steps, _, notes = printed(kept_file, capsys)
    assert steps == 2
    assert "saved while a training ran, after 2 of its 6 steps" in notes


def test_early_stopping_that_puts_the_best_back_states_the_whole_training(tmp_path, capsys):
    stop = keras.callbacks.EarlyStopping("val_same", mode="max", patience=1, restore_best_weights=True)
    model = fit(model_of(), stop, epochs=5)
    model.save(tmp_path / "model.keras")
    assert stated(model)[0] == printed(tmp_path / "model.keras", capsys)[0] == 4
    for notes in (stated(model)[2], printed(tmp_path / "model.keras", capsys)[2]):
        assert "ended after 4 of its 10 planned steps" in " ".join(notes.split())
        assert "kept" not in notes


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
@pytest.mark.parametrize("kept_in", ["memory", "a file"])
def test_a_checkpoint_of_several_fits_is_warned_of_and_the_way_out_counts_all(name, kept_in, tmp_path, capsys):
    path, weights = tmp_path / name, "weights" in name
    model, keeper = model_of(Ledger(tmp_path / "ledger.json") if kept_in == "a file" else None), None
    keeper = best(path, save_weights_only=weights)
    warned = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, Y, batch_size=8, verbose=0, validation_data=PUBLIC, callbacks=[keeper])
        warned.append([str(one.message) for one in caught if "the best of an earlier training" in str(one.message)])
    assert [len(said) for said in warned] == [0, 1, 1]
    assert "(val_same 0)" in warned[1][0]
    assert printed(path, capsys)[0] == 2  # what the warning is about
    other = model_of()
    other.load_weights(path) if weights else None
    loaded = other if weights else tfdp.load_model(path)
    loaded.ledger.merge(model.ledger)
    (loaded.save_weights if weights else loaded.save)(path)
    assert printed(path, capsys)[0] == stated(load(path))[0] == 6


@pytest.mark.parametrize("there", [False, True])
def test_a_threshold_beside_a_file_is_warned_of(there, tmp_path):
    path = tmp_path / "best.keras"
    if there:
        fit(model_of(), best(path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept.warn_of_earlier_best([best(path, initial_value_threshold=0.5), best(path), keras.callbacks.History()])
    assert len(caught) == there


@pytest.mark.parametrize("best_so_far", ["none yet", {}, 0.5, np.float32(0.5)])
def test_checkpoints_of_ones_own_say_what_they_will_of_their_best(best_so_far, tmp_path):
    class Own(keras.callbacks.Callback):
        save_best_only, best, filepath = True, best_so_far, str(tmp_path)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept.warn_of_earlier_best([Own(), mock.Mock(), mock.MagicMock()])
    assert sum(one.category is UserWarning for one in caught) == (not isinstance(best_so_far, str | dict))


def test_a_tuners_callback_that_keeps_its_best_epoch_counts_as_well():
    module = {"__module__": "keras_tuner.engine.tuner_utils"}
    saver = type("SaveBestEpoch", (keras.callbacks.Callback,), module)()
    assert not kept.keeps_best(saver)
    saver.objective = None
    assert not kept.keeps_best(saver)  # keeps every epoch
    saver.objective = "val_loss"
    assert kept.keeps_best(saver)
    assert not kept.keeps_best(keras.callbacks.BackupAndRestore("here"))


@pytest.mark.slow
def test_notes_travel_with_a_file(tmp_path, capsys):
    """That something else changed the weights, here an ordinary training of a model around them."""
    path = tmp_path / "model.keras"
    model = fit(model_of(), epochs=1)
    outer = keras.Sequential([keras.Input((3,)), model, keras.layers.Dense(1)])
    outer.compile("sgd", "mse")
    outer.fit(X, Y, verbose=0)
    model.save(path)
    loaded = load(path)
    assert "something else changed them" in stated(loaded)[2]
    assert "something else changed them" in printed(path, capsys)[2]
    loaded.save(path)
    assert stated(load(path))[2] == stated(loaded)[2]
    fit(model_of(), epochs=1).save(path)
    assert not printed(path, capsys)[2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"notes": [1], "counted": null}', '{"notes": [], "counted": [1, 2]}'])
def test_damaged_notes_are_refused(text):
    with pytest.raises(LedgerError, match="damaged"):
        stored.read_stored_notes({stored.STORED_NOTES: np.frombuffer(text.encode(), np.uint8)})
