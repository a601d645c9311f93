"""Several rows of each drawn record or unit: which records they hold, how they lie, and what they weigh."""

from itertools import islice

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.batches.slices import Share
from tfdp_layers.batches.units import Units
from tfdp_layers.proof.specs import flat_specs

IDS = np.repeat(np.arange(8), [1, 2, 3, 4, 5, 6, 7, 12])[np.random.default_rng(0).permutation(40)]
X = np.arange(40, dtype=np.float32)[:, None]
SAMPLERS = [
    tfdp.sampling.Poisson(4),
    tfdp.sampling.TruncatedPoisson(4),
    tfdp.sampling.FixedSize(4),
    tfdp.sampling.Partition(4),
    tfdp.sampling.Cyclic(4),
]


class Source:
    """The same records by index."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return X[index], np.float32(index)


def batches(sampling, source=False, **options):
    options = {"unit_ids": IDS, "records_per_unit": 3, "seed": 3} | options
    given = (tfdp.records(Source()),) if source else (X, X[:, 0])
    return tfdp.PrivateBatches(*given, sampling=sampling, **options)


def fetched(made, way):
    if way == "items":
        return (made[0] for _ in iter(int, 1))
    return made.stream() if way == "stream" else made.dataset().as_numpy_iterator()


WAYS = [(sampling, "stream") for sampling in SAMPLERS]
WAYS += [(SAMPLERS[place], way) for place, way in enumerate(("dataset", "items", "source"))]


@pytest.mark.parametrize(("sampling", "way"), slow_but(WAYS[:5], WAYS, several=True))
def test_a_unit_enters_with_different_records_of_its_own_and_padding_weighs_nothing(sampling, way):
    made = batches(sampling, source=way == "source")
    for x, y, weights in islice(fetched(made, "dataset" if way == "source" else way), 10):
        assert x.shape == (*weights.shape, 1) == (*y.shape, 1)
        assert weights.shape[1] == 3
        assert np.array_equal(x[..., 0], y)
        entered = []
        for rows, held in zip(x[..., 0].astype(int), weights > 0, strict=True):
            if not held.any():
                assert not rows.any()  # no unit
                continue
            (unit,) = set(IDS[rows])  # rows without a weight hold records of the same unit
            entered.append(unit)
            assert held.sum() == len(set(rows[held])) == min(3, np.sum(unit == IDS))
        assert len(set(entered)) == len(entered)


def test_every_set_of_a_units_records_is_chosen_alike():
    units, rng = Units(np.zeros(5, int), 5), np.random.default_rng(0)
    chosen = np.sort(units.choose_several(np.zeros(10_000, int), 2, rng), axis=1)
    pairs, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(pairs) == 10
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(900))


def test_records_drawn_twice_would_be_seen(monkeypatch):
    """Planted: with replacement."""

    def twice(self, units, count, rng):
        return np.stack([self.choose(units, rng) for _ in range(count)], axis=1)

    monkeypatch.setattr(Units, "choose_several", twice)
    with pytest.raises(AssertionError):
        test_a_unit_enters_with_different_records_of_its_own_and_padding_weighs_nothing(SAMPLERS[0], "stream")


def test_views_are_the_same_record_several_times():
    made = batches(tfdp.sampling.Poisson(4), views=2)
    assert made.rows_each == 6
    for x, _, weights in islice(made.stream(), 5):
        assert np.array_equal(x[:, ::2], x[:, 1::2])
        assert np.array_equal(weights[:, ::2], weights[:, 1::2])
    x, _, weights = batches(tfdp.sampling.FixedSize(40), unit_ids=None, records_per_unit=1, views=3)[0]
    assert weights.shape == (40, 3)
    assert sorted(x[:, 2, 0]) == list(range(40))


def test_weights_stay_those_of_the_records():
    made = batches(tfdp.sampling.FixedSize(8), sample_weight=np.arange(40) + 1.0)
    x, _, weights = next(made.dataset().as_numpy_iterator())
    held = weights > 0
    assert np.array_equal(weights[held], x[held][:, 0] + 1)


def test_slices_for_replicas_hold_whole_units_and_all_of_them():
    made, same = batches(SAMPLERS[0]), batches(SAMPLERS[0])
    slices = iter(made.slices(Share(0, 2, 2)).as_numpy_iterator())
    for x, _, weights in islice(same.dataset().as_numpy_iterator(), 4):
        parts = [next(slices)[0] for _ in range(2)]
        found = np.concatenate([part[2] for part in parts])[: len(weights)]
        assert np.array_equal(found, weights)
        assert np.array_equal(np.concatenate([part[0] for part in parts])[: len(weights)], x)


def test_pieces_are_of_rows_and_shapes_are_known():
    made = batches(tfdp.sampling.TruncatedPoisson(4), physical_batch_size=7)
    assert made.piece == 2
    x, y, weights = made.dataset(pad=True).element_spec
    assert x.shape[1:] == (3, 1)
    assert y.shape[1:] == weights.shape[1:] == (3,)
    assert x.shape[0] % made.piece == 0
    assert [spec.shape.as_list() for spec in flat_specs((x, y, weights), 3)] == [[None, 1], [None], [None]]
    assert batches(tfdp.sampling.Poisson(4), physical_batch_size=1).piece == 1


def test_one_row_each_is_drawn_as_ever():
    plain = tfdp.PrivateBatches(X, X, tfdp.sampling.Poisson(4), unit_ids=IDS, seed=5)
    one = tfdp.PrivateBatches(X, X, tfdp.sampling.Poisson(4), unit_ids=IDS, records_per_unit=1, views=1, seed=5)
    for a, b in islice(zip(plain.stream(), one.stream(), strict=False), 5):
        assert all(np.array_equal(m, n) for m, n in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": 0}, r"`views`.*at least 1"),
        ({"views": 2.0}, r"`views`.*an integer"),
        ({"records_per_unit": True}, r"`records_per_unit`.*an integer"),
        ({"records_per_unit": 2, "unit_ids": None}, r"needs to know which records belong to one unit.*unit_ids"),
    ],
)
def test_counts_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        batches(tfdp.sampling.Poisson(4), **options)


def test_they_stay_what_they_were_made_with():
    with pytest.raises(AttributeError, match="Make another"):
        batches(tfdp.sampling.Poisson(4)).views = 3
