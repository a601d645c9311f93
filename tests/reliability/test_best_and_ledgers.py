"""What a file of the best weights counts beside ledgers in files, budgets, and ledgers that were put back."""

import shutil

import keras
import pytest

import tfdp_layers as tfdp
from helpers.best_checkpoints import DELTA, Same, best, fit, forget, load, model_of, printed, stated
from tfdp_layers.accounting import Ledger, LedgerError, stored
from tfdp_layers.models import weight_files


@pytest.mark.slow
@pytest.mark.few(1)
def test_as_many_steps_are_counted_as_the_budget_allows(tmp_path, capsys):
    ledger = Ledger()
    probe = fit(model_of(ledger), epochs=2)
    limit = stated(probe)[1]  # of four steps
    path = tmp_path / "best.keras"
    model = fit(model_of(), best(path), tfdp.callbacks.PrivacyBudget(limit + 1e-6, DELTA), epochs=9)
    steps, epsilon, _ = printed(path, capsys)
    assert steps == stated(model)[0] == 4
    assert epsilon <= limit + 1e-6


def test_the_ledger_of_a_data_set_counts_its_own_trainings_itself(tmp_path):
    file, path = tmp_path / "ledger.json", tmp_path / "best.weights.h5"
    stop = keras.callbacks.EarlyStopping("val_same", mode="max", patience=1)
    ledger = Ledger(file, dataset="clinic")
    fit(model_of(ledger), best(path, save_weights_only=True), stop, epochs=5)
    ledger.close()
    forget()
    again = model_of(Ledger(file))
    again.load_weights(path)
    assert stated(again)[0] == 4
    assert "as of when this copy" not in " ".join(str(again.privacy_statement(DELTA)).split())
    elsewhere = load(path)
    assert stated(elsewhere)[0] == 10
    text = " ".join(str(elsewhere.privacy_statement(DELTA)).split())
    assert "'clinic': all that was charged to its ledger" in text
    assert "as of when this copy of it was made" in text


def test_an_older_ledger_put_back_takes_the_files_count(tmp_path):
    """It lacks some of what was made when the file was saved: so its own count is not that of the training."""
    path = tmp_path / "best.weights.h5"
    model = fit(model_of(), best(path, save_weights_only=True))
    saved, notes = stored.ledger_of_model_file(path), stored._variable_of(path, stored.STORED_NOTES)
    counted = stored.read_stored_notes({stored.STORED_NOTES: notes})[1]
    assert (counted.made, saved.steps) == (2, 6)
    behind = Ledger()
    assert weight_files.counted_by(behind, saved, counted).steps == 6
    assert weight_files.counted_by(model.ledger, saved, counted).steps == 6
    assert weight_files.counted_by(model.ledger.copy(), saved, counted) is saved  # a copy counts nothing itself


@pytest.mark.slow
@pytest.mark.parametrize("restored", [False, True])
def test_a_ledger_of_which_an_earlier_file_was_restored_counts_no_training_itself(restored, tmp_path):
    """Not when it is opened again, either: of the training it lacks what came after the file that was put back."""
    file, older, path = tmp_path / "ledger.json", tmp_path / "older", tmp_path / "best.weights.h5"

    def copies(epoch, logs):
        if epoch == 1:
            shutil.copy(file, older)  # four steps

    copier = keras.callbacks.LambdaCallback(on_epoch_end=copies)
    stop = keras.callbacks.EarlyStopping("val_same", mode="max", patience=2)
    ledger = Ledger(file, dataset="clinic")
    fit(model_of(ledger), best(path, save_weights_only=True), copier, stop, epochs=5)
    assert ledger.steps == 6
    ledger.close()
    if restored:
        shutil.copy(older, file)
        with pytest.warns(UserWarning, match="restored=True goes on"):
            Ledger(file, restored=True).close()
    forget()
    reopened = Ledger(file)
    assert reopened.steps == (4 if restored else 6)
    again = model_of(reopened)
    again.load_weights(path)
    assert stated(again)[0] == (10 if restored else 6)
    assert ("restored" in reopened.copy().to_json()) == restored


@pytest.mark.slow
def test_budgets_of_other_trainings_end_with_them_and_take_nothing_off_what_was_planned(tmp_path, capsys):
    """Another model's training on the same ledger, in a hook, keeps its budget while the best file is written."""
    path, ledger = tmp_path / "best.keras", Ledger()
    limit = stated(fit(model_of(), epochs=2))[1]  # of four steps

    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                other = ledger.begin(next(iter(ledger.entries)).release)
                ledger.keep_to(other, (limit, DELTA))
                keeper.set_model(self.model)
                keeper.on_epoch_end(epoch, logs)
                ledger.end(other)

    keeper = best(path)
    assert stated(fit(model_of(ledger), Keeps(), epochs=5))[0] == printed(path, capsys)[0] == 10


def test_a_budget_is_not_raised_while_a_training_counts_on_it(tmp_path):
    """A file of the best weights counts the steps that the budget affords."""
    ledger = Ledger(tmp_path / "ledger.json", dataset="patients", budget=(9.0, DELTA))
    raised = []

    def raises(epoch, logs):
        with pytest.raises(LedgerError, match=r"within its budget \((9\.0|8\.9), 0\.001\).*Raise .* when it has ended"):
            ledger.set_budget(10.0, DELTA)
        ledger.set_budget(8.9, DELTA)  # a smaller one, or the same, may be
        raised.append(epoch)

    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 30.0), "mse", metrics=[Same()])
    model.ledger = ledger
    fit(model, keras.callbacks.LambdaCallback(on_epoch_begin=raises), epochs=2)
    assert raised == [0, 1]
    assert ledger.budget == tfdp.accounting.Budget(8.9, DELTA)
    ledger.set_budget(10.0, DELTA)


@pytest.mark.slow
def test_a_budget_raised_elsewhere_after_the_file_was_closed_ends_the_training(tmp_path):
    file = tmp_path / "ledger.json"
    ledger = Ledger(file, dataset="patients", budget=(300.0, DELTA))

    def raises(epoch, logs):
        if epoch == 1:
            ledger.close()
            other = Ledger(file)
            other.set_budget(400.0, DELTA)
            other.close()

    with pytest.raises(LedgerError, match=r"within its budget \(300\.0, 0\.001\).*Raise .* when it has ended"):
        fit(model_of(ledger), keras.callbacks.LambdaCallback(on_epoch_begin=raises), epochs=4)
    assert ledger.steps == 2
    assert stated(fit(model_of(ledger), epochs=1))[0] == 4
