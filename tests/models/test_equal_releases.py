"""Two trainings that end with equal numbers, as without noise they may, and a step whose count cannot be written."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, LedgerError

X = np.repeat(np.random.default_rng(0).normal(size=(1, 5)), 12, 0).astype("float32")
Y = np.ones((12, 1), "float32")
EACH = np.arange(12)


def trained(model=None, **options):
    """A model whose training has no noise, on records that are all alike, each drawn once."""
    if model is None:
        keras.utils.set_random_seed(1)
        model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 0.0), "mse")
    model.fit(X, np.repeat(Y, 3, 1), sampling=tfdp.sampling.Partition(12), verbose=0, **options)
    return model


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("others", [{"unit_ids": EACH}, {"owners": EACH}], ids=["units", "owners"])
def test_equal_weights_under_other_units_end_in_no_error(others):
    """`fit` ended with the error of a merge of two ledgers, and the model could neither train nor compile after it."""
    records, units = trained(), trained(**others)
    assert np.array_equal(records.get_weights()[0], units.get_weights()[0])
    assert records.privacy_statement(1e-3).unit == "record"
    assert units.privacy_statement(1e-3).unit != "record"
    assert units.ledger.updates == records.ledger.updates == 1
    trained(units, **others)
    copy = tfdp.make_private(keras.models.clone_model(records.to_keras()))
    copy.set_weights(records.get_weights())
    copy.compile(tfdp.optimizers.ClippedOptimizer("sgd", 0.0), "mse")
    with pytest.raises(ValueError, match="ended with equal numbers by themselves"):
        copy.privacy_statement(1e-3)


@pytest.mark.slow
def test_equal_weights_of_two_data_sets_end_in_no_error():
    one, two = (trained_on(name) for name in ("one", "two"))
    assert np.array_equal(one.get_weights()[0], two.get_weights()[0])
    assert one.privacy_statement(1e-3).epsilon == two.privacy_statement(1e-3).epsilon == np.inf


def trained_on(name):
    keras.utils.set_random_seed(1)
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 0.0), "mse")
    model.ledger = Ledger(dataset=name)
    return trained(model)


def test_weights_of_a_step_that_could_not_be_settled_are_known_again(monkeypatch):
    """The count failed after the release: the run had made nothing, so a copy of its weights stated 0."""
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")

    def full(self, token, made):
        raise LedgerError("No space left.")

    monkeypatch.setattr(Ledger, "settle", full)
    with pytest.raises(LedgerError, match="No space left"):
        model.fit(X, np.repeat(Y, 3, 1), batch_size=4, verbose=0)
    monkeypatch.undo()
    copy = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]))
    copy.set_weights(model.get_weights())
    assert copy.privacy_statement(1e-3).epsilon == model.privacy_statement(1e-3).epsilon > 0.0
    assert copy.ledger.updates == 1
