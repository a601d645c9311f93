"""Which records belong together is kept as a keyed digest: one for the same groups, no oracle without its secret."""

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.ledgers import STEP
from tfdp_layers.accounting import Ledger, Statement, TokenSelection
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.grouping import (
    GROUPING,
    canonical,
    canonical_sets,
    differing,
    grouping_of,
    new_secret,
    sample_of,
)
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.sampling import Poisson

A, B = np.arange(60) // 3, np.arange(60) // 5
X, OTHER = np.arange(60.0)[:, None], np.arange(60.0)[:, None] + 1
SECRET = "7f" * 32


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


def test_without_the_secret_a_guess_of_the_ids_cannot_be_tried_out():
    """A digest with a salt that lies beside it would tell who knows all ids but one which id that is."""
    ledger = Ledger()
    charge(ledger, unit(of(A, secret=ledger.secret)))
    text = ledger.to_json()
    assert ledger.secret not in text
    assert ledger.secret not in repr(ledger)
    assert "secret" not in json.loads(text)
    given = json.loads(text)["releases"][0]["grouping"]
    known = {hex(n)[2:].rjust(64, "0") for n in range(9)} | {ledger.uid * 2, given[:16] * 4, given[-32:] * 2}
    assert given not in {of(A, secret=one) for one in known}


@pytest.mark.parametrize("kind", ["step", "vocabulary"])
def test_other_units_of_the_same_records_are_refused_and_of_others_noted(kind):
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
    assert Statement.from_ledger(ledger, 1e-5, "patient").notes == ()
    charge(ledger, release(of(A + 7)))
    assert Statement.from_ledger(ledger, 1e-5, "patient").notes == ()
    charge(ledger, release(of(B, OTHER)))
    (note,) = Statement.from_ledger(ledger, 1e-5, "patient").notes
    assert note.startswith("What was released here was given different groupings of records into patients.")


def test_what_cannot_be_compared_is_said():
    assert differing([]) == differing([""]) == differing([of(A), of(A, OTHER), of(A, None)]) == "not"
    assert differing([of(A), of(A, secret="00" * 32)]) == differing([of(A), ""]) == "perhaps"
    assert differing([of(A), of(B, OTHER), ""]) == "surely"
    ledger = Ledger()
    charge(ledger, unit(of(A)))
    charge(ledger, unit(""))
    (note,) = Statement.from_ledger(ledger, 1e-5).notes
    assert "whether it was the same each time cannot be told" in note


def test_it_survives_files_and_other_processes(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    charge(ledger, unit(of(A, secret=ledger.secret)))
    ledger.close()
    new_secret.cache_clear()  # as in another process
    again, copy = Ledger(tmp_path / "ledger.json"), Ledger.read(tmp_path / "ledger.json").copy()
    assert again.secret == ledger.secret != new_secret()
    assert copy.secret == new_secret()
    assert copy.releases == again.releases == ledger.releases
    with pytest.raises(ValueError, match="These very records"):
        charge(again, unit(of(B, secret=again.secret)))


def test_only_what_grouping_of_gives_is_read():
    good = unit(of(A))
    assert release_from_json(good.to_json()) == good
    assert "grouping" not in unit("").to_json()
    for wrong in ("x", 3, of(A)[:-1], of(A).upper()):
        with pytest.raises(ValueError, match="grouping must be"):
            unit(wrong)
    with pytest.raises(ValueError, match="empty for records"):
        replace(STEP, grouping=of(A))
