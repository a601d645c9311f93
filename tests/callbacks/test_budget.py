"""A budget holds, whatever is asked for, and little of it is left over."""

import math
import warnings
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.spending import (
    BATCH,
    DELTA,
    EXAMPLES,
    STEPS,
    Stand,
    after,
    fit,
    forget,
    keeps_to,
    release_of,
    spent,
    tiny_model,
)
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, Release
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget

FINER = 1 - 1e-3  # The one here is a little tighter; one step in a hundred is worth 5e-3.
MULTIPLIERS = (1.1, 1.5, 2.5)


def uses_up(ledger: Ledger, release: Release, budget: float) -> bool:
    """At least 99% of the steps that the budget affords were made: a hundredth more would exceed it."""
    return spent(after(ledger, release, ledger.steps // 99 + 1)) > budget * FINER


def check_stopped(budget: PrivacyBudget, ledger: Ledger, release: Release, made: int, asked: int) -> None:
    assert keeps_to(ledger, budget.epsilon)
    assert budget.exhausted == (made < asked)
    assert made == asked or uses_up(ledger, release, budget.epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_runs_keep_to_their_budget_and_use_it_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        model, goal, multiplier = Stand(), 0.0, rng.choice(MULTIPLIERS)
        for _ in range(rng.integers(1, 4)):  # Resumed with more budget, another call length, sometimes other noise.
            goal += rng.uniform(0.3, 1.5)
            multiplier = rng.choice(MULTIPLIERS) if rng.random() < 0.1 else multiplier
            model.steps_per_execution = int(rng.integers(1, 12))
            epochs, steps = int(rng.integers(1, 30)), int(rng.integers(1, 20))
            budget, before = PrivacyBudget(goal, DELTA), model.ledger.steps
            release = release_of(float(multiplier))
            try:
                model.fit(release, epochs, steps, [budget])
            except BudgetExhausted:
                assert model.ledger.steps == before
                assert spent(after(model.ledger, release, 1)) > goal
                continue
            asked = epochs * -(-steps // model.steps_per_execution) * model.steps_per_execution
            check_stopped(budget, model.ledger, release, model.ledger.steps - before, asked)


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 3, 4])
def test_random_keras_runs_keep_to_their_budget_and_use_it_up(steps_per_execution: int) -> None:
    rng = np.random.default_rng(steps_per_execution)
    model = tiny_model(1.3, steps_per_execution=steps_per_execution)
    for _ in range(4):
        forget(model)
        goal = rng.uniform(0.7, 2.0)
        for _ in range(rng.integers(1, 3)):
            epochs, before = int(rng.integers(1, 4)), model.ledger.steps
            budget = PrivacyBudget(goal, DELTA)
            fit(model, budget, epochs=epochs)
            asked = epochs * -(-STEPS // steps_per_execution) * steps_per_execution
            check_stopped(budget, model.ledger, model.ledger.entries[0].release, model.ledger.steps - before, asked)
            goal += rng.uniform(0.4, 1.0)


def test_the_checks_reject_a_budget_that_is_overspent_or_left_lying() -> None:
    class Forgetful(PrivacyBudget):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer._lift_limit()
            self.model.ledger.end(self.model.token)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    class Hasty(PrivacyBudget):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    overspent, hasty = Stand(), Stand()
    overspent.fit(release_of(1.1), 10, STEPS, [Forgetful(1.5, DELTA)])
    assert not keeps_to(overspent.ledger, 1.5)
    hasty.fit(release_of(1.1), 10, STEPS, [Hasty(1.5, DELTA)])
    assert not uses_up(hasty.ledger, release_of(1.1), 1.5)


@pytest.mark.parametrize(
    "sampling",
    [tfdp.sampling.FixedSize(BATCH), tfdp.sampling.TruncatedPoisson(BATCH), tfdp.sampling.Partition(BATCH)],
    ids=lambda s: s.kind,
)
def test_other_samplings_keep_to_their_budget_and_use_it_up(sampling: Any) -> None:
    model, release = Stand(), release_of(3.0, sampling)
    model.steps_per_execution = 3
    first = float(tfdp.accounting.EpsilonCurve(None, release, DELTA).at(2 * STEPS + 3))
    for goal in (first, first * 1.5):  # The second fit of a partition starts a permutation of its own.
        budget = PrivacyBudget(goal, DELTA)
        model.fit(release, 20, STEPS, [budget])
        probe = after(model.ledger, release, STEPS)
        assert budget.exhausted
        assert tfdp.accounting.epsilon(model.ledger, DELTA) <= goal < tfdp.accounting.epsilon(probe, DELTA)


@pytest.mark.parametrize("kind", [tfdp.sampling.Poisson, tfdp.sampling.Partition], ids=lambda kind: kind.kind)
def test_what_owners_of_several_records_cost_is_planned_as_it_is_charged(kind: Any) -> None:
    """Planned as one record's it would be announced, and refused by the ledger step by step."""
    release = replace(release_of(3.0, kind(BATCH)), unit="owner", records_per_owner=4)
    each = [
        float(tfdp.accounting.EpsilonCurve(None, one, DELTA).at(1)) for one in (release_of(3.0, kind(BATCH)), release)
    ]
    model, budget = Stand(), PrivacyBudget((each[0] + each[1]) / 2, DELTA)  # a step of one record is affordable
    with pytest.raises(BudgetExhausted, match="smaller than what one release costs"):
        model.fit(release, 20, STEPS, [budget])
    assert model.ledger.steps == 0
    budget = PrivacyBudget(3 * each[1], DELTA)
    model.fit(release, 200, STEPS, [budget])
    probe = after(model.ledger, release, STEPS)
    assert budget.exhausted
    assert tfdp.accounting.epsilon(model.ledger, DELTA) <= budget.epsilon < tfdp.accounting.epsilon(probe, DELTA)


def state(model: Any) -> list[np.ndarray]:
    return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


MODES = [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 3}]


class Watch(keras.callbacks.Callback):
    """Remembers the weights and the optimizer's state after each call."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit, self.states = limit, []

    def on_train_begin(self, logs: Any = None) -> None:
        if self.limit is not None:
            self.model.optimizer.limit_releases(self.limit)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.states.append(state(self.model))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    slow_but([MODES[1], MODES[3]], MODES),
    ids=["graph", "xla", "eager", "three steps a call"],
)
def test_a_callback_that_never_stops_still_releases_nothing_past_the_limit(options: dict[str, Any]) -> None:
    model, watch, limit = tiny_model(**options), Watch(limit=5), 5
    fit(model, watch, epochs=2)
    together = options.get("steps_per_execution", 1)
    calls = -(-limit // together)
    assert model.ledger.steps == limit == int(model.optimizer.releases.numpy())
    assert len(watch.states) == 2 * -(-STEPS // together) > calls
    assert all(same(watch.states[calls - 1], after) for after in watch.states[calls:])
    assert not any(same(a, b) for a, b in zip(watch.states[: calls - 1], watch.states[1:calls], strict=True))


def test_a_fit_without_budget_has_no_limit_left_from_an_earlier_one() -> None:
    model = tiny_model()
    fit(model, PrivacyBudget(0.8, DELTA))
    limited = model.ledger.steps
    assert model.optimizer.releases_left() == 0  # The limit stays until the next fit begins.
    fit(model, epochs=1)
    assert model.ledger.steps == limited + STEPS


@pytest.mark.parametrize("before", ["search", "settings"])
def test_a_budget_holds_behind_what_no_one_accountant_bounds(before: str, monkeypatch: Any) -> None:
    """A search has Renyi divergences alone, truncated draws privacy loss distributions, of few settings quickly."""
    cut, model = tfdp.sampling.TruncatedPoisson(BATCH), tiny_model(4.0)
    if before == "search":
        held: Any = tfdp.accounting.Selection((((release_of(8.0), 3),),), 2.0)
        model.ledger.reserve(model.ledger.begin(held), 1)
    else:
        monkeypatch.setattr(tfdp.accounting.loss_distributions, "_MOST_PLDS", 2)
        for noise in (5.0, 6.0, 7.0):
            model.ledger.reserve(model.ledger.begin(release_of(noise, cut)), 2)
    spent_before, steps = float(tfdp.accounting.epsilon(model.ledger, DELTA)), model.ledger.steps
    curve = tfdp.accounting.EpsilonCurve(model.ledger, release_of(4.0, cut), DELTA)
    budget = PrivacyBudget((curve.at(11) + curve.at(12)) / 2.0, DELTA)
    fit(model, budget, epochs=9, sampling=cut)
    found = tfdp.accounting.epsilon(model.ledger, DELTA)
    assert budget.exhausted
    assert model.ledger.steps == steps + 11
    assert spent_before < found <= budget.epsilon
    assert tfdp.accounting.epsilon(after(model.ledger, model.ledger.entries[-1].release, 1), DELTA) > budget.epsilon
    assert f"(by {found.accountant})" in str(model.privacy_statement(delta=DELTA))


def test_fit_raises_and_changes_nothing_when_nothing_is_left() -> None:
    model = tiny_model()
    fit(model, PrivacyBudget(0.8, DELTA))
    before, steps = state(model), model.ledger.steps
    with pytest.raises(BudgetExhausted, match=rf"epsilon=0.8 at delta=0.001.*the {steps} releases"):
        fit(model, PrivacyBudget(0.8, DELTA))
    assert same(before, state(model))
    assert model.ledger.steps == steps
    with pytest.raises(BudgetExhausted):
        fit(tiny_model(), PrivacyBudget(1e-4, DELTA))


@pytest.mark.slow
def test_the_budget_goes_on_after_saving_and_loading(tmp_path: Any) -> None:
    model = tiny_model(steps_per_execution=3)
    fit(model, PrivacyBudget(1.0, DELTA))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.ledger.steps == model.ledger.steps > 0
    with pytest.raises(BudgetExhausted):
        fit(loaded, PrivacyBudget(1.0, DELTA))
    budget = PrivacyBudget(1.7, DELTA)
    fit(loaded, budget, epochs=9)
    assert budget.exhausted
    assert keeps_to(loaded.ledger, 1.7)
    assert uses_up(loaded.ledger, loaded.ledger.entries[-1].release, 1.7)


@pytest.mark.slow
def test_what_a_callback_restores_is_counted(tmp_path: Any) -> None:
    """BackupAndRestore loads weights, and what they cost, after the budget was planned."""

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.load_weights(tmp_path / "run.weights.h5")

    model = tiny_model()
    fit(model, epochs=1)
    again = tiny_model().optimizer  # It counts its releases from 0, unlike the ledger.
    model.compile(optimizer=again, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, epochs=1)
    model.save_weights(tmp_path / "run.weights.h5")
    fresh, budget = tiny_model(steps_per_execution=3), PrivacyBudget(2.0, DELTA)
    fit(fresh, Restore(), budget, epochs=9)
    assert budget.exhausted
    assert fresh.ledger.steps > model.ledger.steps
    assert keeps_to(fresh.ledger, 2.0)
    assert uses_up(fresh.ledger, fresh.ledger.entries[-1].release, 2.0)


def test_what_another_process_wrote_into_the_ledgers_file_is_counted(tmp_path: Any) -> None:
    model = tiny_model()
    model.ledger = Ledger(tmp_path / "ledger.json")
    model.ledger.close()
    other = Ledger(tmp_path / "ledger.json")
    other.reserve(other.begin(release_of(1.3)), 40)
    other.close()
    with pytest.raises(BudgetExhausted, match="the 40 releases"):
        fit(model, PrivacyBudget(1.5, DELTA))
    model.ledger.close()
    assert Ledger(tmp_path / "ledger.json").steps == 40
    assert not keeps_to(model.ledger, 1.5)


@pytest.mark.slow
def test_a_seeded_run_keeps_to_the_number_and_its_statement_is_void() -> None:
    model = tiny_model(seeded=True)
    fit(model, PrivacyBudget(0.8, DELTA))
    assert keeps_to(model.ledger, 0.8)
    assert model.privacy_statement(DELTA).void


def test_a_run_without_noise_is_refused() -> None:
    model = tiny_model(noise_multiplier=0.0)
    before = state(model)
    with pytest.raises(ValueError, match="epsilon is infinite"):
        fit(model, PrivacyBudget(8.0, DELTA))
    assert same(before[:2], state(model)[:2])


def test_two_budgets_and_models_that_are_not_private_are_refused() -> None:
    with pytest.raises(ValueError, match="two PrivacyBudget"):
        fit(tiny_model(), PrivacyBudget(1.0, DELTA), PrivacyBudget(2.0, DELTA))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="make_private"):
        fit(model, PrivacyBudget(1.0, DELTA))


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, True, "2", None])
def test_an_epsilon_out_of_range_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        PrivacyBudget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, None])
def test_a_delta_out_of_range_is_refused(delta: Any) -> None:
    with pytest.raises(ValueError, match="delta"):
        PrivacyBudget(1.0, delta)


def test_a_delta_above_one_over_n_warns_when_training_starts() -> None:
    with pytest.warns(UserWarning, match="one over the number of records"):
        Stand().fit(release_of(1.5), 1, 1, [PrivacyBudget(9.0, 2 / EXAMPLES)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Stand().fit(release_of(1.5), 1, 1, [PrivacyBudget(9.0, 0.5 / EXAMPLES)])
