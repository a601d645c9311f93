"""Of several workers the chief finds the noise, from its ledger; all others add none of their own finding."""

from typing import Any

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.collectives import on_both
from helpers.spending import DELTA, EXAMPLES
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget
from tfdp_layers.models.calibrating import settle_noise
from tfdp_layers.models.planning import Plan
from tfdp_layers.models.workers import ChiefStoppedError
from tfdp_layers.sensitivity import SensitivityGroup

PARTS = tfdp.sampling.Partition(8)
SPENT = Release((GroupNoise("all", 1.0, 9.0),), PARTS, EXAMPLES)


def settled(budget: float | None, chiefs: Any = "calibrate") -> tuple[list[Any], list[Any]]:
    """What each worker's `settle_noise` raised, or None, and its optimizer; the chief's ledger alone holds releases."""
    ledgers = [Ledger(), Ledger()]
    ledgers[0].reserve(ledgers[0].begin(SPENT), 8)
    optimizers = [tfdp.optimizers.NoisyOptimizer("sgd", noise) for noise in (chiefs, "calibrate")]
    batches = tfdp.PrivateBatches(np.zeros((EXAMPLES, 2)), None, PARTS)

    def work(workers: Any) -> None:
        number = int(not workers.chief)
        optimizers[number].workers = workers
        callbacks = [] if budget is None else [PrivacyBudget(budget, DELTA)]
        groups = [SensitivityGroup("all", (), 1.0)]
        arguments = {"callbacks": callbacks, "verbose": 0}
        settle_noise(optimizers[number], ledgers[number], batches, groups, Plan(0, 4, 8), arguments)

    return on_both(work), optimizers


def test_both_get_the_chiefs_number() -> None:
    found, (chief, other) = settled(1.5)
    assert found == [None, None]
    assert chief.noise_multiplier == other.noise_multiplier
    both = Ledger()
    for release, steps in ((SPENT, 8), (Release((GroupNoise("all", 1.0, other.noise_multiplier),), PARTS, 64), 32)):
        both.reserve(both.begin(release), steps)
    assert 1.48 < epsilon(both, DELTA) <= 1.5


def test_a_number_that_the_chief_was_given_is_heard_as_well() -> None:
    found, (_, other) = settled(None, chiefs=1.25)
    assert found == [None, None]
    assert other.noise_multiplier == 1.25


@pytest.mark.parametrize(("budget", "error"), [(None, ValueError), (0.01, BudgetExhausted)])
def test_where_the_chief_refuses_the_others_end(budget: float | None, error: type[Exception]) -> None:
    found, _ = settled(budget)
    assert [type(one) for one in found] == [error, ChiefStoppedError]
