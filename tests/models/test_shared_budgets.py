"""Trainings that charge one ledger, one within the other, in turns or in threads, keep to the budget of each."""

import threading

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, epsilon
from tfdp_layers.callbacks import PrivacyBudget

DELTA = 1e-5
X, Y = np.zeros((100, 1), "float32"), np.zeros((100, 1), "float32")
OPTIONS = {"batch_size": 10, "epochs": 9, "verbose": 0}

pytestmark = pytest.mark.filterwarnings("ignore:The budget", "ignore:This fit has no PrivacyBudget")


def twins(path=None, noises=(3.0, 3.0), whole=None, **compiled):
    """Two models on one ledger, as it is made, in a file or for a data set."""
    models, inputs = [], keras.Input((1,))
    named = {"dataset": "d", "budget": (whole, DELTA)} if whole else {}
    ledger = Ledger(path, **named)
    for noise in noises:
        models.append(tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(inputs))))
        models[-1].compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise), "mse", **compiled)
        models[-1].ledger = ledger
    return *models, ledger


def budgets(*epsilons):
    return [[PrivacyBudget(one, DELTA)] if one else [] for one in epsilons]


def spent(ledger):
    return float(epsilon(ledger, DELTA))


def within(first, second, ledger, mine, theirs):
    """The second steps in a callback of the first, behind its budget: twice, once, twice..."""

    def step(batch, logs=None):
        for _, drawn in zip(range(1 + batch % 2), run, strict=False):
            run.step(drawn)

    inner = keras.callbacks.LambdaCallback(on_train_batch_begin=step)
    with second.private_run(X, Y, callbacks=theirs, **OPTIONS) as run:
        first.fit(X, Y, callbacks=[*mine, inner], **OPTIONS)
        return spent(ledger)


def in_turns(first, second, ledger, mine, theirs):
    with (
        first.private_run(X, Y, callbacks=mine, **OPTIONS) as run,
        second.private_run(X, Y, callbacks=theirs, **OPTIONS) as other,
    ):
        for one, two in zip(run, other, strict=False):
            run.step(one)
            other.step(two)
        return spent(ledger)


def in_threads(first, second, ledger, mine, theirs):
    both, found = threading.Barrier(2), []

    def fit(model, given):
        hold = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: both.wait(60),
            on_train_end=lambda logs: (both.wait(60), found.append(spent(ledger))),
        )
        model.fit(X, Y, callbacks=[*given, hold], **OPTIONS)

    threads = [threading.Thread(target=fit, args=one) for one in ((first, mine), (second, theirs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    return max(found)


CASES = [
    (within, (0.6, 0.6), None, False),
    (within, (None, 0.5), None, True),
    (in_turns, (0.6, 0.5), None, True),
    (in_threads, (0.5, 0.5), None, True),
    (in_threads, (0.5, None), None, False),
    (in_threads, (None, None), 0.5, True),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES), ids=lambda case: f"{case[0].__name__}-{case[1:]}")
def test_both_together_keep_to_the_budgets_in_force(case, tmp_path):
    train, given, whole, filed = case
    first, second, ledger = twins(tmp_path / "ledger.json" if filed else None, (3.0, 2.0), whole)
    mine, theirs = budgets(*given)
    least = min(one for one in (*given, whole) if one)
    assert 0.8 * least < train(first, second, ledger, mine, theirs) <= least
    assert ledger.steps == int(first.optimizer.releases) + int(second.optimizer.releases)
    assert any(one.exhausted for one in (*mine, *theirs)) or whole or train is in_turns
    if filed:
        assert Ledger.read(ledger.path).steps == ledger.steps


@pytest.mark.slow
def test_calls_of_several_steps_make_those_that_are_left_and_no_more():
    first, second, ledger = twins(noises=(3.0, 2.9), steps_per_execution=4, run_eagerly=True)
    inner = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: second.fit(X, Y, batch_size=10, steps_per_epoch=4, verbose=0)
    )
    (mine,) = budgets(0.6)
    first.fit(X, Y, callbacks=[*mine, inner], **OPTIONS)
    assert mine[0].exhausted
    assert 0.5 < spent(ledger) <= 0.6
    second.fit(X, Y, batch_size=10, steps_per_epoch=4, verbose=0)  # once the first has ended, nothing binds it
    assert spent(ledger) > 0.6


def test_the_logs_bound_what_both_spent():
    first, second, ledger = twins(run_eagerly=True)
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((float(logs["epsilon"]), spent(ledger)))
    )
    (mine,) = budgets(9.0)
    with second.private_run(X, Y, **OPTIONS) as run:
        step = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: run.step(next(run)))
        first.fit(X, Y, batch_size=10, steps_per_epoch=2, verbose=0, callbacks=[*mine, step, watch])
    assert all(logged >= true for logged, true in seen)
    assert len(seen) == 2
