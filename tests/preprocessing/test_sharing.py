"""Records chosen so that nobody owns many: the limit, how many are kept, and on what the choice depends."""

import itertools

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.owners import Owners
from tfdp_layers.preprocessing import limit_owners, sharing


def random_owners(seed, records=9, people=6, most=3):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, people, size=int(rng.integers(1, most + 1))).tolist() for _ in range(records)]


def keeps(owners, chosen, limit):
    """Whether nobody owns more than `limit` of the chosen records, counted the long way round."""
    owned = [one for record in chosen for one in set(owners[record])]
    return all(owned.count(one) <= limit for one in owned)


def most_possible(owners, limit):
    """By trying every choice."""
    for size in range(len(owners), 0, -1):
        if any(keeps(owners, chosen, limit) for chosen in itertools.combinations(range(len(owners)), size)):
            return size
    return 0


@pytest.mark.parametrize("order", ["rare", "random"])
@pytest.mark.parametrize("limit", [1, 2])
def test_nobody_owns_more_nothing_could_be_added_and_a_share_of_the_most_is_kept(limit, order):
    for seed in range(12):
        owners = random_owners(seed)
        kept, report = limit_owners(owners, limit, order=order, seed=seed)
        assert keeps(owners, kept, limit)
        left_out = sorted(set(range(len(owners))) - set(kept.tolist()))
        assert not any(keeps(owners, [*kept, record], limit) for record in left_out)
        largest = max(len(set(one)) for one in owners)
        assert len(kept) * largest >= most_possible(owners, limit)
        assert kept.tolist() == sorted(set(kept.tolist()))
        Owners([owners[record] for record in kept]).refuse_more(limit)
        assert (report.records, report.records_kept) == (len(owners), len(kept))
        assert report.most_kept == max(Owners([owners[record] for record in kept]).counts) <= limit


def test_the_share_is_attained_where_each_record_that_is_left_out_shares_another_owner(monkeypatch):
    monkeypatch.setattr(
        np.random, "default_rng", lambda seed: type("InOrder", (), {"permutation": staticmethod(np.arange)})
    )
    owners = [[1, 2], [1, 3], [2, 4]]
    kept, _ = limit_owners(owners, order="random")
    assert kept.tolist() == [0]
    assert most_possible(owners, 1) == 2


def test_a_limit_that_is_counted_wrongly_would_be_seen(monkeypatch):
    original = sharing._greedy
    monkeypatch.setattr(sharing, "_greedy", lambda owned, limit, sequence: original(owned, limit + 1, sequence))
    owners = [[1, 2], [2, 3], [3, 1]]
    assert not keeps(owners, limit_owners(owners)[0], 1)


def test_a_record_that_names_an_owner_twice_counts_once():
    kept, report = limit_owners([["a", "a"], ["a"]], 2)
    assert kept.tolist() == [0, 1]
    assert (report.most, report.owners) == (2, 1)


def test_the_choice_follows_from_owners_and_seed_alone():
    owners = random_owners(0, records=300, people=80)
    first, report = limit_owners(owners, 2)
    assert np.array_equal(first, limit_owners(owners, 2)[0])
    renamed = [[f"person {one:03d}" for one in record] for record in owners]
    assert np.array_equal(first, limit_owners(renamed, 2)[0])
    assert not np.array_equal(first, limit_owners(owners, 2, seed=1)[0])
    # Without one person's records others are kept: why the choice is public, and part of the statement's assumptions.
    without = [record for record in owners if 5 not in record]
    kept = {number for number in first if 5 not in owners[number]}
    back = np.flatnonzero([5 not in record for record in owners])
    assert {int(back[number]) for number in limit_owners(without, 2)[0]} - {int(k) for k in kept}
    assert str(report).startswith(f"Kept {report.records_kept} of 300 records")


def test_rare_owners_first_keeps_more():
    rng = np.random.default_rng(0)
    owners = np.minimum(rng.zipf(1.6, size=(2000, 3)), 500)
    rare, at_random = (limit_owners(owners, 2, order=order)[1].records_kept for order in ("rare", "random"))
    assert rare > 1.1 * at_random


def test_what_is_kept_trains_as_it_is():
    owners = np.random.default_rng(0).integers(0, 50, size=(200, 2))
    kept, _ = tfdp.preprocessing.limit_owners(owners, 3)
    x = np.zeros((200, 1), np.float32)
    batches = tfdp.PrivateBatches(x[kept], x[kept], tfdp.sampling.Poisson(8), owners=owners[kept], records_per_owner=3)
    assert batches.examples == len(kept)
    with pytest.raises(ValueError, match="limit_owners"):
        tfdp.PrivateBatches(x, x, tfdp.sampling.Poisson(8), owners=owners, records_per_owner=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records_per_owner": 0}, "records_per_owner"),
        ({"records_per_owner": "2"}, "records_per_owner"),
        ({"order": "first"}, "order must be one of"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 0.5}, "seed must be an integer"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        limit_owners([["a"], ["b"]], **options)
