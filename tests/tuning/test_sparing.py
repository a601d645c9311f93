"""While a search makes its trials, nothing but the search charges its ledger."""

import threading

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import NumberOfTrials, SearchFailed, random_search

X = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def release(ledger):
    tfdp.release_metric(np.ones(64), ledger, stddev=0.1, name="share")


@pytest.mark.slow
def test_a_build_that_charges_the_ledger_in_later_calls_is_kept_from_it(monkeypatch):
    ledger, calls = Ledger(), []

    def releasing(settings):
        calls.append(settings)
        if len(calls) > 2:  # after the rehearsal
            release(ledger)
        model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(settings["rate"])), "mse")
        return model

    monkeypatch.setattr(NumberOfTrials, "draw", lambda self, randomness: 2)
    options = {"objective": "val_loss", "validation_data": (X.copy(), Y.copy()), "batch_size": 32, "verbose": 0}
    with pytest.raises(SearchFailed):
        random_search(releasing, {"rate": [0.1]}, X, Y, budget=(3.0, 1e-3), ledger=ledger, trials=2.0, **options)
    assert len(calls) == 4
    assert ledger.steps == 1  # the search alone


def test_a_ledger_is_spared_in_one_thread_and_for_a_while():
    ledger = Ledger()
    with ledger.spared.by("not now"):
        for charge in (release, lambda one: one.merge(Ledger())):
            with pytest.raises(ValueError, match="not now"):
                charge(ledger)
        other = threading.Thread(target=release, args=(ledger,))
        other.start()
        other.join()
    assert ledger.steps == 1
    release(ledger)
    assert ledger.steps == 2
