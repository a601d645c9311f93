"""A budget shows what was spent, wherever Keras shows its logs."""

import csv
import time
from typing import Any

import keras
import pytest

import tfdp_layers as tfdp
from helpers.spending import (
    BATCH,
    DELTA,
    SLACK,
    STEPS,
    Stand,
    after,
    fit,
    keeps_to,
    records,
    release_of,
    spent,
    tiny_model,
)
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger
from tfdp_layers.callbacks import PrivacyBudget


class Bar:
    """The numbers after 'epsilon: ' on a captured screen."""

    def __init__(self, text: str) -> None:
        self.values = [float(part.split()[0].strip("\x08\x1b[")) for part in text.split("epsilon: ")[1:]]


@pytest.mark.slow
def test_epsilon_is_in_the_bar_history_csv_and_tensorboard(tmp_path: Any, capsys: Any) -> None:
    model = tiny_model(steps_per_execution=4)
    loggers = [keras.callbacks.CSVLogger(tmp_path / f"{place}.csv") for place in ("before", "after")]
    board = keras.callbacks.TensorBoard(tmp_path / "logs")
    history = fit(model, loggers[0], board, PrivacyBudget(9.0, DELTA), loggers[1], epochs=3, verbose=1)
    shown = history.history["epsilon"]
    release = model.ledger.entries[0].release
    expected = [spent(after(Ledger(), release, epoch * STEPS)) for epoch in (1, 2, 3)]
    assert shown == pytest.approx(expected, rel=1e-3)
    for place in ("before", "after"):
        with open(tmp_path / f"{place}.csv") as file:
            assert [float(row["epsilon"]) for row in csv.DictReader(file)] == shown
    bar = Bar(capsys.readouterr().out).values
    assert bar == sorted(bar)  # Epsilon never falls.
    for one in shown:  # to four decimals, rounded up
        assert any(one <= value < one + 1e-4 for value in bar)
    assert "epoch_epsilon" in (next((tmp_path / "logs/train").glob("events*"))).read_bytes().decode("latin1")


@pytest.mark.slow
@pytest.mark.parametrize("wrap", slow_but(["CallbackList"], ["bare", "tuple", "CallbackList"]))
def test_callbacks_may_come_in_any_form(wrap: str) -> None:
    model, budget = tiny_model(), PrivacyBudget(0.8, DELTA)
    x, y = records()
    forms = {
        "bare": budget,
        "tuple": (budget,),
        "CallbackList": keras.callbacks.CallbackList(
            [budget], add_history=True, model=model, epochs=4, steps=STEPS, verbose=0
        ),
    }
    history = model.fit(x, y, batch_size=BATCH, epochs=4, verbose=0, callbacks=forms[wrap])
    assert budget.exhausted
    assert len(history.history["epsilon"]) == len(history.epoch) < 4
    assert keeps_to(model.ledger, 0.8)


def test_after_each_step_the_shown_epsilon_is_a_bound_within_the_budget() -> None:
    class Shown(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[float, float]] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.rows.append((logs["epsilon"], spent(self.model.ledger)))

    model, shown = Stand(), Shown()
    model.fit(release_of(1.5), 6, STEPS, [PrivacyBudget(1.6, DELTA), shown])
    bounds = [bound for bound, _ in shown.rows]
    assert bounds == sorted(bounds)
    assert all(truth <= bound * SLACK <= 1.6 * SLACK for bound, truth in shown.rows)
    assert all(bound < 1.5 * truth for bound, truth in shown.rows[STEPS:])


def test_the_bound_costs_little() -> None:
    curve = tfdp.accounting.EpsilonCurve(None, release_of(1.5), DELTA)
    curve.bound(100)
    start = time.perf_counter()
    for _ in range(50):
        curve.bound(100)
    assert (time.perf_counter() - start) / 50 < 0.01


def test_early_stopping_may_watch_epsilon() -> None:
    model = tiny_model()
    stopping = keras.callbacks.EarlyStopping("epsilon", mode="min", patience=0)
    fit(model, stopping, PrivacyBudget(9.0, DELTA), epochs=6)
    assert model.ledger.steps == 2 * STEPS


def test_a_budget_that_a_callback_raises_says_what_it_keeps_to() -> None:
    """It kept to the smaller number, and said that one of 50 ended the training."""
    model, budget = tiny_model(), PrivacyBudget(0.8, DELTA)
    raising = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(budget, "epsilon", 50.0))
    with pytest.warns(UserWarning, match=r"The budget epsilon=0\.8 at delta=0\.001 ends training after"):
        fit(model, budget, raising, epochs=4)
    assert keeps_to(model.ledger, 0.8)
    assert repr(budget).startswith("PrivacyBudget(epsilon=50,")
