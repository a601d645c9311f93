"""A trial that an error ends, which a record may have caused, ends the search; nothing is told of it, or shown."""

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.searches import CODES, LABELS, build, found, looking_up
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import NoisyMean, SearchFailed

FIT = {"batch_size": 16, "epochs": 1, "verbose": 0}


@pytest.mark.slow
def test_a_step_of_a_trial_that_fails_ends_a_random_search_without_a_best(exactly):
    exactly(3)
    sizes, ledger = iter([48, 48, 48, 47, 48]), Ledger()  # two of the rehearsal, then of the trials
    with pytest.raises(
        SearchFailed, match="no epsilon covers it: so the search ends here, and shows no best"
    ) as raised:
        tfdp.tuning.random_search(
            lambda settings: looking_up(next(sizes)),
            {"rate": [0.1]},
            CODES,
            LABELS,
            budget=(3.0, 1e-3),
            objective=lambda model: 1.0,
            trials=2.0,
            ledger=ledger,
            **FIT,
        )
    assert "47 is not in [0, 47)" in str(raised.value.__cause__)
    assert list(sizes) == [48], "the third trial is not made"
    assert ledger.steps == 1


@pytest.mark.slow
def test_a_noisy_score_that_fails_ends_a_random_search(exactly):
    exactly(2)
    asked = []

    def values(model):
        asked.append(model)
        if len(asked) > 1:  # after the rehearsal
            raise IndexError("a record has no label")
        return np.ones(96)

    with pytest.raises(SearchFailed, match="its score of private records"):
        found(objective=NoisyMean(values, 0.5))
    assert len(asked) == 2


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_a_trial_of_the_lowest_score(exactly):
    exactly(2)
    rates, scored = iter([0.1, 0.1, 1e38, 0.1]), []

    def score(model):
        scored.append(float(model.optimizer.learning_rate))
        return 1.0

    best = found(lambda settings: build({"rate": next(rates), "clip": 1e6}), objective=score)
    assert next(rates, None) is None
    assert scored == [pytest.approx(0.1)] * 2, "of the rehearsal, and of the second trial"
    assert best.score == 1.0
