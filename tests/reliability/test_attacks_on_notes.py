"""Notes of a training go where its cost goes: ledgers, their files, the command, all models that count it say them."""

import copy
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.books import RNG, X, Y, compiled, fit, network, notes, private
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.commands import cli

PUBLIC = (RNG.normal(size=(8, 4)).astype("float32"), np.zeros((8, 1), "float32"))


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = logs["loss"] > 0


class Average(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.get_weights())

    def on_train_end(self, logs=None):
        self.model.set_weights([np.mean(each, 0) for each in zip(*self.seen, strict=True)])


class Unreadable:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 20:
            raise RuntimeError("cannot be read")
        return X[index], Y[index]


def breaks_off(model):
    with pytest.raises(Exception, match="cannot be read"):
        model.fit(Unreadable(), batch_size=4, epochs=9, verbose=0)


def leaving(model):
    with model.private_run(X, Y, batch_size=12, epochs=2, verbose=0) as run:
        for batch in run:
            if run.step(batch)["loss"] > 0:
                raise KeyError


def leaves_its_loop(model):
    with pytest.raises(KeyError):
        leaving(model)


CAUSES = {
    "steered": (lambda model: fit(model, epochs=3, callbacks=[Stop()]), "numbers of the private data without noise"),
    "changed": (lambda model: fit(model, epochs=2, callbacks=[Average()]), "it took from records"),
    "broken off": (breaks_off, "ended by an error out of a step"),
    "a loop that was left": (leaves_its_loop, "numbers of the private data without noise"),
}


def by_values(model):
    other = private()
    other.set_weights(model.get_weights())
    return notes(other)


def by_layers(model):
    other = private()
    for mine, theirs in zip(other.layers, model.layers, strict=True):
        mine.set_weights(theirs.get_weights())
    return notes(other)


def cloned(model):
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    return notes(other)


def made_private(model):
    plain = network()
    plain.set_weights(model.get_weights())
    return notes(tfdp.make_private(plain))


def merged(model):
    other = private()
    other.ledger.merge(model.ledger)
    return notes(other)


def on_the_same_ledger(model):
    other = private()
    other.ledger = model.ledger
    return notes(other)


def trained_on_the_same_ledger(model):
    other = private()
    other.ledger = model.ledger
    return notes(fit(other))


def together(model):
    other = fit(private())
    return Statement.from_ledger(tfdp.accounting.together(other.ledger), 1e-2).notes


WAYS = {
    "the model": notes,
    "its ledger": lambda model: Statement.from_ledger(model.ledger, 1e-2).notes,
    "the ledger's file": lambda model: Statement.from_ledger(Ledger.read(model.ledger.path), 1e-2).notes,
    "a copy by set_weights": by_values,
    "a copy by layers": by_layers,
    "a clone": cloned,
    "a plain network made private": made_private,
    "to_keras": lambda model: notes(tfdp.make_private(model.to_keras())),
    "a deep copy": lambda model: notes(copy.deepcopy(model)),
    "a merge": merged,
    "another on the ledger": on_the_same_ledger,
    "another that trains on the ledger": trained_on_the_same_ledger,
    "all ledgers together": together,
}


def trained(cause, path):
    """A model of a data set's ledger, and words of what is said of its training."""
    model, (train, said) = private(), CAUSES[cause]
    model.ledger = Ledger(path / "ledger.json", dataset="people")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model)
    return model, said


CASES = [(way, cause) for way in WAYS for cause in CAUSES]
NOT_SEEN = ("all ledgers together", "broken off")  # that its records, which are read one by one, are the others'


@pytest.mark.few(2)
@pytest.mark.parametrize(("way", "cause"), [case for case in CASES if case != NOT_SEEN])
def test_whoever_states_what_a_training_cost_states_its_notes(way, cause, tmp_path):
    model, said = trained(cause, tmp_path)
    assert [said in one for one in WAYS[way](model)].count(True) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("cause", CAUSES)
def test_the_command_says_it_once_of_both_files(cause, tmp_path, capsys):
    model, said = trained(cause, tmp_path)
    model.save(tmp_path / "model.keras")
    for file in (model.ledger.path, tmp_path / "model.keras"):
        cli.main(["epsilon", "--ledger", str(file), "--delta", "1e-2"])
        assert " ".join(capsys.readouterr().out.split()).count(said) == 1, file


def test_the_model_says_it_in_full_and_what_it_says_no_other_says_for_it(tmp_path):
    model, _ = trained("steered", tmp_path)
    note, early = notes(model)
    assert "Stop read 'loss' and then stopped" in note
    assert "when it ended" in early
    assert not any("Stop" in other for other in by_values(model))


def kept_and_loaded(model, path):
    fit(
        model,
        epochs=2,
        callbacks=[keras.callbacks.ModelCheckpoint(path / "{epoch}.weights.h5", save_weights_only=True)],
    )
    model.load_weights(path / "1.weights.h5")


ORDINARY = {
    "fit": lambda model, path: fit(model, epochs=2),
    "early stopping that never stops": lambda model, path: fit(
        model, epochs=3, validation_data=PUBLIC, callbacks=[keras.callbacks.EarlyStopping(patience=9)]
    ),
    "a callback that only shows": lambda model, path: fit(
        model, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: str(logs))]
    ),
    "two trainings": lambda model, path: fit(compiled(fit(model))),
    "an epoch's weights that were kept, and loaded": kept_and_loaded,
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ORDINARY)
def test_ledgers_of_ordinary_trainings_say_nothing(name, tmp_path):
    model = private()
    model.ledger = Ledger(tmp_path / "ledger.json", dataset="people")
    ORDINARY[name](model, tmp_path)
    assert Statement.from_ledger(Ledger.read(tmp_path / "ledger.json"), 1e-2).notes == ()
    assert on_the_same_ledger(model) == []


def test_weights_kept_in_the_middle_say_so_to_a_ledger_that_counts_less(tmp_path):
    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if not epoch:
                self.model.save_weights(tmp_path / "kept.weights.h5")

    model = fit(private(), epochs=2, callbacks=[Keep()])
    other = private()
    other.load_weights(tmp_path / "kept.weights.h5")
    assert other.ledger.noted == {"kept"}
    assert len([one for one in notes(other) if "while a training ran" in one or "kept in the middle" in one]) == 1
    assert Statement.from_ledger(model.ledger, 1e-2).notes == ()


def test_the_ledger_of_a_search_says_what_its_best_training_does():
    """Whose releases it counts otherwise: nothing is merged."""
    from tfdp_layers.models.accounts import charge_elsewhere

    model, ledger = fit(private(), epochs=3, callbacks=[Stop()]), Ledger()
    charge_elsewhere(model, ledger)
    assert ledger.noted == {"steered", "stopped"}
