"""Threads that adapt one layer keep the budget of its model's data set, wherever one of them stands still."""

import contextlib
import threading
import time

import keras
import numpy as np

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.limits import Limit

DELTA = 1e-3
RECORDS = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")


def adapted_by_two_threads(monkeypatch, turns=True):
    """Epsilon of a ledger whose budget affords one `adapt`; the other reserves where the first has asked the budget."""
    ledger = Ledger(dataset="people", budget=(4.0, DELTA))
    layer = tfdp.layers.PrivateNormalization(noise_multiplier=1.0, lower=-3.0, upper=3.0)
    if not turns:
        layer._paid.alone = contextlib.nullcontext()
    model = tfdp.PrivateSequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 3.0, 1.0), "mse")
    model.ledger = ledger
    asked, refuse, reserve, outcomes, calls = threading.Event(), Limit.refuse, Ledger.reserve, [], []

    def until(happened):
        end = time.monotonic() + 1.0  # it never does where one waits for the other
        while not happened() and time.monotonic() < end:
            time.sleep(0.01)

    def stands_still(self, *args):
        refuse(self, *args)
        if not asked.is_set():
            asked.set()
            until(lambda: layer.ledger.steps == 2)

    def reserves(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            asked.wait(10)
            return reserve(self, *args, **kwargs)
        counted = reserve(self, *args, **kwargs)
        until(lambda: len(calls) == 2)
        return counted

    def adapt():
        try:
            layer.adapt(RECORDS)
            outcomes.append("made")
        except tfdp.accounting.BudgetExhausted:
            outcomes.append("refused")

    monkeypatch.setattr(Limit, "refuse", stands_still)
    monkeypatch.setattr(Ledger, "reserve", reserves)
    threads = [threading.Thread(target=adapt) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sorted(outcomes), float(tfdp.accounting.epsilon(ledger, DELTA))


def test_of_two_threads_that_adapt_one_is_refused_and_not_counted(monkeypatch):
    outcomes, epsilon = adapted_by_two_threads(monkeypatch)
    assert outcomes == ["made", "refused"]
    assert epsilon <= 4.0


def test_without_turns_the_refused_one_would_be_counted(monkeypatch):
    _, epsilon = adapted_by_two_threads(monkeypatch, turns=False)
    assert epsilon > 4.0
