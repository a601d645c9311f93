"""A party's noise is that of the release which its ledger charges, whatever becomes of its weights."""

import math

import numpy as np
import pytest

from helpers.federation import SIZE, SPARSE, private_party, push, upload
from tfdp_layers.accounting import Ledger
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector

FEWER = [np.zeros(SIZE - 1), np.zeros(SIZE + 1), np.zeros((SIZE, 1)), np.zeros((1, SIZE)), np.zeros(())]


@pytest.mark.parametrize("selection", [SPARSE, LargestValues(1.0)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("weights", FEWER, ids=lambda weights: str(weights.shape))
def test_weights_of_another_shape_are_refused(selection, weights):
    party = private_party(selection=selection)
    with pytest.raises(ValueError, match=rf"shape \({SIZE},\), by which .* another party with the same ledger"):
        party.weights = weights
    party.turn(upload([], []))
    assert party.weights.shape == (SIZE,)


def test_weights_of_the_same_shape_are_gone_on_from():
    party, seen = private_party(train=lambda weights: seen.append(weights) or weights + 0.1), []
    party.weights = given = np.full(SIZE, 3.0)
    given[:] = 7.0
    party.turn(upload([2], [5.0]))
    np.testing.assert_array_equal(seen[0], np.where(np.arange(SIZE) == 2, 5.0, 3.0))
    assert party.weights.dtype == np.float32


def test_nobody_writes_into_them_or_makes_them_fewer():
    party = private_party()
    with pytest.raises(ValueError, match="read-only"):
        party.weights[0] = 1.0
    with pytest.raises(ValueError, match="does not own its data"):
        party.weights.resize(10, refcheck=False)


def test_a_turn_with_the_noise_of_another_release_spends_and_uploads_nothing():
    party = private_party()
    vars(party)["_weights"] = np.zeros(SIZE // 2, np.float32)  # past the rule
    with pytest.raises(RuntimeError, match="noise of another release than the one that its ledger charges"):
        party.turn(upload([], []))
    assert party.ledger.steps == 0


def test_the_ledger_that_was_charged_is_the_one_that_is_stated():
    party = private_party()
    with pytest.raises(AttributeError):
        party.ledger = Ledger()  # type: ignore[misc]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float16, np.float32, np.int64, int])
def test_numbers_of_narrow_types_are_what_they_say(kind):
    narrow = SparseVector(0.5, kind(8), kind(1), kind(0))
    assert narrow == SparseVector(0.5, 8.0, 1.0, 0.0)
    assert all(type(value) is float for value in vars(narrow).values())
    assert LargestValues(1.0, kind(1)) == LargestValues(1.0, 1.0)
    assert RandomAboveThreshold(0.5, kind(1), kind(1)) == RandomAboveThreshold(0.5, 1.0, 1.0)
    party = Party("p", push(1.0), narrow, np.zeros(SIZE), Budget(math.inf, 1e-5))
    party.turn(upload([], []))
    assert party.ledger.steps > 0
