"""One ledger for a data set, as `fit` keeps to it."""

import copy
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.clipped_models import compiled, mlp
from tfdp_layers.accounting import BudgetExhausted, Ledger, LedgerError, epsilon


@pytest.mark.slow
def test_models_of_one_data_set_spend_from_one_budget(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", dataset="twelve", budget=(9.0, 1e-2))
    first, x, y = compiled(mlp(), noise=0.9, run_eagerly=True)
    second, _, _ = compiled(mlp(), noise=1.0, steps_per_execution=5, run_eagerly=True)
    for model in (first, second):
        model.ledger = ledger
    first.fit(x, y, batch_size=4, epochs=4, verbose=0)
    with pytest.warns(UserWarning, match="budget of the data set 'twelve'"):
        second.fit(x, y, batch_size=4, epochs=1000, steps_per_epoch=5, verbose=0)
    assert int(first.optimizer.releases) == 12
    assert ledger.steps == 12 + int(second.optimizer.releases)
    assert 8.0 < epsilon(ledger, 1e-2) <= 9.0
    before = first.get_weights()
    third = tfdp.make_private(second)
    third.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), second.loss, run_eagerly=True)
    for model in (first, second, third):
        with pytest.raises(BudgetExhausted, match="Nothing was released"):
            model.fit(x, y, batch_size=4, verbose=0)
    for old, new in zip(before, first.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    statement = first.privacy_statement(1e-2)
    assert (statement.dataset, statement.budget, statement.steps) == ("twelve", (9.0, 1e-2), ledger.steps)


@pytest.mark.slow
def test_restored_weights_are_charged_to_the_data_set_and_give_nothing_back(tmp_path):
    path = tmp_path / "ledger.json"
    model, x, y = compiled(mlp(), run_eagerly=True)
    model.ledger = Ledger(path, dataset="twelve")
    model.fit(x, y, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    model.fit(x, y, batch_size=4, verbose=0)
    model.ledger.close()
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert loaded.privacy_statement(1e-2).dataset == "twelve"
    copied = copy.deepcopy(model)
    copied.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), model.loss)
    for other in (loaded, copied):
        with pytest.raises(LedgerError, match="copy of the ledger of the data set 'twelve'"):
            other.fit(x, y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="cannot take over"):
        loaded.ledger = Ledger(dataset="another")
    loaded.ledger = Ledger(path)
    assert loaded.ledger.steps == 6
    loaded.fit(x, y, batch_size=4, verbose=0)
    assert Ledger(path).steps == 9


@pytest.mark.slow
def test_a_metric_between_the_steps_counts_towards_every_budget():
    class Releases(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch < 2:
                hits = self.model(x).numpy().argmax(-1) == y
                tfdp.release_metric(hits, self.model.ledger, stddev=0.1, name="accuracy")

    model, x, y = compiled(mlp(), noise=1.0, run_eagerly=True)
    model.ledger = Ledger(dataset="twelve", budget=(50.0, 1e-2))
    budget = tfdp.callbacks.PrivacyBudget(6.0, 1e-2)
    model.fit(x, y, batch_size=4, epochs=30, verbose=0, callbacks=[budget, Releases()])
    assert budget.exhausted
    assert [e.steps for e in model.ledger.entries if e.release.kind == "metric"] == [2]
    assert model.ledger.updates == int(model.optimizer.releases) >= 9
    assert 5.5 < epsilon(model.ledger, 1e-2) <= 6.0


class Interrupted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_fit_that_an_error_holds_keeps_nobody_from_its_ledger(tmp_path):
    """As in a notebook, whose last error holds the frames of the cell that was stopped, and so model and ledger."""
    path, errors, models = tmp_path / "ledger.json", [], []

    def cell(**more):
        model, x, y = compiled(mlp(), run_eagerly=True)
        model.ledger = Ledger(path, dataset="twelve")
        models.append(model)
        model.fit(x, y, batch_size=4, verbose=0, **more)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as held:
            cell(callbacks=[Interrupted()])
        errors.append(held)
    cell()
    assert [model.privacy_statement(1e-2).steps for model in models] == [5, 5, 5]
    assert Ledger.read(path).steps == 5


@pytest.mark.slow
def test_a_fit_that_ends_before_it_began_leaves_its_ledger_free(tmp_path):
    """Warnings made errors, as tests do: of another ledger of these records, say, which the file's lock came before."""
    path = tmp_path / "ledger.json"
    model, x, y = compiled(mlp(), run_eagerly=True)
    model.fit(x, y, batch_size=4, verbose=0)
    other, _, _ = compiled(mlp(), run_eagerly=True)
    other.ledger = Ledger(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Other ledgers")
        with pytest.raises(UserWarning, match="Other ledgers"):
            other.fit(x, y, batch_size=4, verbose=0)
    model.ledger = Ledger(path)
    model.fit(x, y, batch_size=4, verbose=0)
    assert Ledger.read(path).steps == 6
