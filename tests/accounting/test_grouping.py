"""Which records belong together is kept as a keyed digest: one for the same groups, no oracle without its secret."""

import gc
import json
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest

from helpers.ledgers import STEP
from tfdp_layers.accounting import Ledger, Statement, TokenSelection, grouping, ledger_format, sightings
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.grouping import (
    GROUPING,
    canonical,
    canonical_sets,
    grouping_of,
    groupings_known,
    know_groupings,
    new_secret,
    sample_of,
)
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.sampling import Poisson

A, B = np.arange(60) // 3, np.arange(60) // 5
X, OTHER = np.arange(60.0)[:, None], np.arange(60.0)[:, None] + 1
SECRET = "7f" * 32
STEP_OF_UNITS = replace(STEP, unit="unit").to_json()


def of(ids, x=X, secret=SECRET):
    return grouping_of(secret, None if x is None else sample_of([x]), [canonical(ids)])


def unit(grouping, **fields):
    return replace(STEP, unit="unit", grouping=grouping, **fields)


def test_the_same_groups_have_one_digest_whatever_they_are_called():
    names = np.array([f"p{one}" for one in A])
    assert GROUPING.fullmatch(of(A))
    assert of(A) == of(A + 7) == of(-A) == of(names)
    moved = A.copy()
    moved[0] = 19  # one record of one person belongs to another
    assert len({of(A), of(moved), of(B), of(A, OTHER), of(A, None), of(A, secret="00" * 32)}) == 6


def test_owners_are_told_by_the_records_that_they_own():
    records, owners = np.array([0, 0, 1, 2, 2, 3]), np.array([0, 1, 1, 0, 2, 2])
    names = np.array([5, 3, 4])  # other names, in another order
    same, other = canonical_sets(records, names[owners]), canonical_sets(records, np.array([0, 1, 1, 1, 2, 2]))
    np.testing.assert_array_equal(canonical_sets(records, owners), same)
    assert same.tobytes() != other.tobytes()


def test_what_leaves_the_holder_of_records_compares_no_groupings():
    """Whether a patient came once more in February stood in the model's file, and in its statement."""

    def world(february):
        ledger = Ledger(dataset="clinic")
        charge(ledger, unit(of(A, secret=ledger.secret)))
        charge(ledger, unit(of(*february, secret=ledger.secret)))
        assert "secret" not in json.loads(ledger.to_json())
        assert ledger.secret not in ledger.to_json() + repr(ledger)
        told = json.loads(ledger.to_json())
        told["uid"], told["digest"], told["entries"] = "", "", [one[1:] for one in told["entries"]]
        statement = Statement.from_ledger(ledger, 1e-5, "patient")
        assert statement.notes == ()
        assert "mean the same patient in all" in " ".join(str(statement).split())
        return told, str(statement), pickle.loads(pickle.dumps(ledger)).entries == ledger.entries

    assert world((A, X)) == world((A, OTHER)) == world((np.r_[A[:-1], 3], OTHER))


@pytest.mark.parametrize("kind", ["step", "vocabulary"])
def test_other_units_of_the_same_records_are_refused(kind):
    """Patients in one fit and hospitals in the next were composed into one epsilon of "one patient"."""

    def release(grouping):
        if kind == "vocabulary":
            return TokenSelection(9, 1.0, 1e-9, Poisson(60), 60, unit="unit", grouping=grouping)
        return unit(grouping)

    ledger, untouched = Ledger(), Ledger()
    charge(ledger, release(of(A)))
    before = ledger.to_json()
    with pytest.raises(ValueError, match="These very records were grouped into other units"):
        charge(ledger, release(of(B)))
    charge(untouched, release(of(B)))
    with pytest.raises(ValueError, match="These very records were grouped into other units"):
        ledger.merge(untouched)
    assert ledger.to_json() == before
    charge(ledger, release(of(A + 7)))
    charge(ledger, release(of(B, OTHER)))
    charge(ledger, release(of(B, None)))
    assert ledger.steps == 4
    with pytest.raises(ValueError, match="These very records were grouped into other units"):
        charge(ledger.copy(), release(of(B)))


def test_files_that_hold_them_in_their_releases_are_read_and_written_anew(tmp_path):
    head = {"format": 2, "uid": "a" * 32, "secret": SECRET, "sequence": 1}
    releases = [json.dumps(STEP_OF_UNITS | {"grouping": one}, sort_keys=True) for one in (of(A), of(B, OTHER))]
    rows = [f'["{one * 32}", {number}, {number + 3}]' for number, one in enumerate("bc")]
    digest = ledger_format._digest([json.dumps(head), *releases, *rows])
    text = f'{json.dumps(head)[:-1]}, "releases": [\n' + ",\n".join(releases) + '\n], "entries": [\n' + ",\n".join(rows)
    path = tmp_path / "ledger.json"
    path.write_text(f'{text}\n], "digest": "{digest}", "log": [\n]}}\n')
    ledger = Ledger(path, restored=True)
    assert [one.steps for one in ledger.entries] == [3, 4]
    assert len(ledger.releases) == 1
    for other in (of(B), of(A, OTHER)):
        with pytest.raises(ValueError, match="These very records"):
            charge(ledger, unit(other))
    charge(ledger, unit(of(A)))
    ledger.close()
    assert '"grouping":' not in path.read_text()
    assert [one.steps for one in Ledger(path).entries] == [3, 4, 1]


def test_those_that_are_used_are_known():
    groupings = [f"{'0' * 16}:{one:032x}:{'1' * 32}" for one in range(12_000)]
    assert know_groupings("some", groupings[:10_000])
    assert not know_groupings("some", [groupings[0], f"{'0' * 16}::{'1' * 32}"])
    assert know_groupings("some", groupings)
    assert know_groupings("some", [groupings[0]])
    known = groupings_known("some")
    assert len(known) == 10_000
    assert known[-1] == groupings[0]
    text = json.loads(Ledger().to_json())
    assert "groupings" not in text


def test_they_show_in_no_text_of_releases_and_are_summed_with_none_of_other_units():
    """`together` added patients and hospitals of the same records up."""
    one, other = Ledger(), Ledger()
    charge(one, unit(of(A)))
    charge(other, unit(of(B)))
    assert of(A) not in repr(one.releases) + repr(one.entries)
    seen = [sightings.Sighting(None, other, next(iter(other._segments)))]
    with pytest.raises(ValueError, match="These very records"):
        sightings.sum_of(one, seen)
    summed = sightings.sum_of(other, seen)
    assert summed.steps == other.steps
    uid = summed.uid
    assert groupings_known(uid) == groupings_known(other.uid) != []
    del summed
    gc.collect()
    assert groupings_known(uid) == []  # fit makes a sum each time


def test_it_survives_files_and_other_processes(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    charge(ledger, unit(of(A, secret=ledger.secret)))
    ledger.close()
    new_secret.cache_clear()  # as in another process
    again, copy = Ledger(tmp_path / "ledger.json"), Ledger.read(tmp_path / "ledger.json").copy()
    assert again.secret == ledger.secret != new_secret()
    assert copy.secret == new_secret()
    assert copy.releases == again.releases == ledger.releases
    assert '"grouping' not in copy.to_json()
    grouping._known.clear()
    again.close()
    again = Ledger(tmp_path / "ledger.json")
    with pytest.raises(ValueError, match="These very records"):
        charge(again, unit(of(B, secret=again.secret)))


def test_only_what_grouping_of_gives_is_read():
    good = unit(of(A))
    assert release_from_json(good.to_json()) == good == unit("")
    assert "grouping" not in good.to_json()
    for wrong in ("x", 3, of(A)[:-1], of(A).upper()):
        with pytest.raises(ValueError, match="grouping must be"):
            unit(wrong)
    with pytest.raises(ValueError, match="empty for records"):
        replace(STEP, grouping=of(A))


def regrouped(*ids_and_looks):
    """What is told of charges for 60 records, whose ids and looks these are, on one ledger."""
    ledger, told = Ledger(), []
    for ids, x in ids_and_looks:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            charge(ledger, unit(of(ids, x, ledger.secret)))
        told.append(any("charged before for as many records" in str(one.message) for one in caught))
        assert all(one.filename == __file__ for one in caught)
    return told


FOLD = np.random.default_rng(0).permutation(A)
TABLE, SCALED = np.random.default_rng(1).normal(size=(2, 60, 3))


@pytest.mark.few(40)
@pytest.mark.parametrize(
    ("charges", "expected"),
    [
        ([(A, TABLE), (A, None), (A, X), (A + 7, SCALED)], [False] * 4),
        ([(A, TABLE), (B, None)], [False, True]),  # a metric
        ([(A, TABLE), (B, X)], [False, True]),  # of a column
        ([(A, None), (B, TABLE)], [False, True]),
        ([(A, TABLE), (np.arange(60), SCALED)], [False, True]),  # far more of them, in what looks alike
        ([(A, None), (np.arange(60), None)], [False, True]),
        ([(A, TABLE), (FOLD, SCALED), (FOLD, None), (A, None)], [False] * 4),  # folds
        ([(A, None), (FOLD, None), (B, None)], [False] * 3),
        ([(A, TABLE), (B[:50], None), (np.arange(61), None)], [False] * 3),  # other numbers of records
    ],
)
def test_other_groups_of_as_many_records_bring_a_warning(charges, expected):
    assert regrouped(*charges) == expected


def test_other_ledgers_are_not_compared_and_owners_are():
    assert regrouped((A, TABLE)) == regrouped((B, None)) == [False]
    ledger, records = Ledger(), np.arange(60)
    for owners, told in ((A, False), (B, True)):
        given = grouping_of(ledger.secret, [b"x"] if told else None, [np.array(60), canonical_sets(records, owners)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            charge(ledger, replace(STEP, unit="owner", grouping=given))
        assert [f"they were in other owners: {20}" in str(one.message) for one in caught] == [True] * told
