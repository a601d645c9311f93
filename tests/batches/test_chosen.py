"""People of a mean who were chosen by what their records hold bring a warning; hold-outs and folds do not."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import BudgetExhausted, Ledger
from tfdp_layers.batches import chosen

NUMBERS = np.arange(40) + 2**24  # of which float32 knows every other one
IDS = np.array([f"p{k}" for k in range(40)])
SICK = np.arange(40) % 3 == 0
ALL, SOME = slice(None), {"name": "recall"}


def mean(which, ledger, **options):
    return tfdp.release_metric(SICK[which], ledger, stddev=0.05, **({"unit_ids": IDS[which]} | options))


def told(*calls, ledger=None):
    """How many warnings of chosen groups these releases on one ledger bring: (which records, options) each."""
    ledger = Ledger() if ledger is None else ledger
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for which, options in calls:
            mean(which, ledger, **options)
    return sum("a mean over" in str(one.message) for one in said)


def by(ids):
    return [(ALL, {"unit_ids": ids}), (SICK, {"unit_ids": ids[SICK]})]


def test_a_mean_over_a_part_of_the_units_of_an_earlier_one_is_told_of_once():
    ledger = Ledger()
    assert told((ALL, {}), (SICK, SOME), (~SICK, SOME), ledger=ledger) == 1
    assert ledger not in chosen._groups  # nothing is kept for what is never said again


@pytest.mark.parametrize("ids", [IDS, NUMBERS, NUMBERS.astype("uint64"), IDS.astype("S"), IDS.astype(object)])
def test_so_it_is_of_ids_of_every_kind(ids):
    assert told(*by(ids)) == 1


def test_so_it_is_of_several_records_each():
    twice, kept = np.repeat(np.arange(20), 2), np.arange(40) < 14
    assert told((ALL, {"unit_ids": twice}), (kept, {"unit_ids": twice[kept]})) == 1


UMLAUTS = np.array([f"Ä{k}" for k in range(40)])


@pytest.mark.parametrize(
    ("ids", "later"),
    [
        (NUMBERS.astype("int64"), NUMBERS.astype("uint64")),
        (NUMBERS.astype("uint64"), NUMBERS.astype("int32")),
        (IDS, IDS.astype("S")),
        (np.char.encode(UMLAUTS, "utf-8"), UMLAUTS),
    ],
    ids=["signed and not", "other widths", "bytes", "bytes of letters that ASCII lacks"],
)
def test_the_same_ids_are_known_however_they_are_kept(ids, later):
    assert told(by(ids)[0], by(later)[1]) == 1


def test_a_mean_that_was_divided_by_a_public_number_is_a_whole_as_well():
    assert told((ALL, {"examples": 40}), (SICK, {})) == 1


def test_a_release_that_was_refused_leaves_nothing():
    spent = Ledger(dataset="spent", budget=(0.01, 1e-5))
    with pytest.raises(BudgetExhausted):
        mean(ALL, spent)
    spent.set_budget(100.0, 1e-5)
    assert told((SICK, {}), ledger=spent) == 0
    assert len(chosen._groups[spent]) == 1


def test_an_error_of_the_warning_comes_before_the_charge_and_again():
    ledger = Ledger()
    mean(ALL, ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="a mean over 40 units"):
                mean(SICK, ledger)
    assert len(ledger.entries) == 1


def test_what_is_kept_are_hashes_that_tell_nobody():
    ledger = Ledger()
    told((ALL, {}), (ALL, SOME), ledger=ledger)
    (kept,) = chosen._groups[ledger]
    assert kept.dtype == np.uint64
    assert kept.shape == (40,)
    for number in range(2 * chosen._MOST):
        mean(np.arange(40) % 40 <= number, ledger, examples=40)
    assert len(chosen._groups[ledger]) == chosen._MOST


FOLDS = [(np.arange(40) % 4 == fold, {}) for fold in range(4)]


@pytest.mark.parametrize(
    "calls",
    [
        [(ALL, {}), (ALL, {"name": "recall"}), (slice(None, None, -1), {})],
        FOLDS,
        [*FOLDS, (ALL, {})],
        [FOLDS[0], (ALL, {})],
        [(slice(0, 20), {}), (slice(20, 40), {}), (ALL, {})],
        [(slice(0, 30), {}), (slice(0, 38), {}), (ALL, {})],
        [(ALL, {}), (slice(0, 39), {})],
        [(SICK, {}), (~SICK, {})],
        [(ALL, {}), (SICK, {"examples": 14})],
        [(ALL, {"unit_ids": None}), (SICK, {"unit_ids": None})],
        [(slice(0, 25), {}), (slice(15, 40), {})],
    ],
    ids=[
        "several metrics",
        "folds",
        "folds, then pooled",
        "a hold-out, then all",
        "hospitals, then overall",
        "data that grew",
        "one who withdrew",
        "other people",
        "a public number",
        "no ids",
        "some in both",
    ],
)
def test_ordinary_groups_bring_no_word(calls):
    assert told(*calls) == 0
