"""Nothing is released that a ledger of other code counts, and every paid release is counted in one way."""

import ast
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.ledgers import STEP
from tfdp_layers.accounting import Ledger, Statement, calibrate_noise_multiplier, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.selection import SparseVector

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(0).uniform(size=(40, 3)).astype("float32")
Y = np.ones((40, 1), "float32")
FREE = {
    "reserve": lambda token, steps, *_, **__: steps,
    "settle": lambda token, made: None,
    "begin": lambda release: "token",
    "events": lambda: {},
    "merge": lambda *_, **__: None,
}


class FreeLedger(Ledger):
    def reserve(self, token, steps, *_, **__):
        return steps


class LoggedLedger(Ledger):
    """Even one that means well: that it counts would have to be proved."""


def with_method(name):
    ledger = Ledger()
    setattr(ledger, name, FREE[name])
    return ledger


FOREIGN = {**{name: (lambda name=name: with_method(name)) for name in FREE}, "free": FreeLedger, "logged": LoggedLedger}


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def given(model, ledger):
    """Lets a model count in a ledger that is changed afterwards, where it is one whose methods were put on it."""
    put = {name: method for name, method in vars(ledger).items() if name in FREE}
    model.ledger = Ledger() if put else ledger
    vars(model.ledger).update(put)


def adapted(layer, ledger):
    """By the ledger of a model that uses the layer."""
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)]))
    model._settle_accounts()
    given(model, ledger)
    layer.adapt(X)


def adapted_alone(layer, ledger):
    """By the layer's own ledger, which nobody gives: what is put on it is looked at all the same."""
    vars(layer.ledger).update({name: method for name, method in vars(ledger).items() if name in FREE})
    layer.adapt(X)


def fit(ledger):
    model = model_of()
    given(model, ledger)
    model.fit(X, Y, verbose=0)


def search(ledger):
    tfdp.tuning.random_search(
        lambda settings: model_of(), {"a": [1]}, X, Y, budget=(1.0, 1e-5), objective=lambda m: 1.0, ledger=ledger
    )


SPENDING = {
    "release_metric": lambda ledger: tfdp.release_metric(X[:, 0], ledger, stddev=0.1),
    "quantiles": lambda ledger: tfdp.preprocessing.quantiles(
        X, ledger, [0.5], lower=0.0, upper=1.0, noise_multiplier=1.0
    ),
    "vocabulary": lambda ledger: tfdp.preprocessing.vocabulary(["a b"] * 9, ledger, noise_multiplier=1.0, failure=1e-6),
    "fit": fit,
    "DPPCA": lambda ledger: adapted(tfdp.layers.DPPCA(2, noise_multiplier=1.0), ledger),
    "DPWhitening": lambda ledger: adapted(tfdp.layers.DPWhitening(1.0), ledger),
    "PrivateNormalization": lambda ledger: adapted(tfdp.layers.PrivateNormalization(1.0, 0.0, 1.0), ledger),
    "search": search,
    "party": lambda ledger: Party(
        "a", lambda w: w, SparseVector(0.1, 1.0, 0.1, 0.1), np.zeros(9, np.float32), Budget(1.0, 1e-5), ledger
    ),
    "charge": lambda ledger: charge(ledger, STEP),
    "statement": lambda ledger: Statement.from_ledger(ledger, 1e-5),
    "epsilon": lambda ledger: epsilon(ledger, 1e-5),
    "calibrate": lambda ledger: calibrate_noise_multiplier(1.0, 1e-5, tfdp.sampling.Poisson(9), 90, 9, ledger),
}


@pytest.mark.parametrize("name", SPENDING)
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_is_released_or_stated_by_a_ledger_of_other_code(name, kind):
    """A `reserve` put on a ledger let metrics, quantiles, vocabularies, adapted layers and searches go for nothing."""
    with pytest.raises(ValueError, match=r"of its own: whether it counts|a class of your own: whether it counts"):
        SPENDING[name](FOREIGN[kind]())


@pytest.mark.parametrize("name", ["reserve", "settle"])
def test_a_layers_own_ledger_is_looked_at_too(name):
    for layer in (tfdp.layers.DPPCA(2, noise_multiplier=1.0), tfdp.layers.DPWhitening(1.0)):
        with pytest.raises(ValueError, match=rf"has a {name}\(\) of its own"):
            adapted_alone(layer, with_method(name))


class Puts(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.ledger.reserve = FREE["reserve"]


def test_a_callback_that_puts_a_method_on_the_ledger_ends_fit_before_the_step():
    model = model_of()
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"has a reserve\(\) of its own"):
        model.fit(X, Y, verbose=0, callbacks=[Puts()])
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


_COUNTERS = {
    "accounting/charging.py",
    "accounting/ledger.py",
    "tfdp_layers/models/counting.py",
    "tfdp_layers/federated/party.py",
    "tfdp_layers/tf_privacy/run.py",
    "tfdp_layers/tuning/trial_ledger.py",
    "tfdp_layers/optimizers/base.py",  # the optimizer's limit, no ledger
}


def test_every_release_is_reserved_by_charge_or_where_each_step_is_checked():
    """The rule that makes the family impossible: who else reserves may forget to look at the ledger."""
    found = set()
    for folder in ("accounting", "callbacks", "tfdp_layers"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Attribute) and call.attr == "reserve" for call in calls):
                found.add(str(path.relative_to(ROOT)))
    assert found <= _COUNTERS
    for name in ("models/counting.py", "federated/party.py", "tf_privacy/run.py"):
        assert "check_ledger(" in (ROOT / "tfdp_layers" / name).read_text(encoding="utf-8")
