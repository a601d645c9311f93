import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent
from scipy import stats

from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.sampling import (
    Cyclic,
    FixedSize,
    Partition,
    Poisson,
    TruncatedPoisson,
    entropy_generator,
    samplers,
    sampling_from_json,
)

EVERY = [Poisson(30), TruncatedPoisson(30), TruncatedPoisson(30, 35), FixedSize(30), Partition(30), Cyclic(30)]


def draw(sampling, examples, count, seed=0, **options):
    return list(itertools.islice(sampling.draws(examples, entropy_generator(seed), **options), count))


def inclusion_p_value(draws, examples, probability):
    """Chi-square over records: is each drawn equally often, with this probability?"""
    counts = np.bincount(np.concatenate(draws), minlength=examples)
    expected, variance = len(draws) * probability, len(draws) * probability * (1.0 - probability)
    statistic = ((counts - expected) ** 2).sum() / variance
    return 2.0 * min(stats.chi2.cdf(statistic, examples), stats.chi2.sf(statistic, examples))


def size_p_value(draws, distribution):
    """Chi-square of the draws' sizes against a distribution, cells of at least 5 expected draws."""
    sizes = np.bincount([len(indices) for indices in draws])
    edges = np.unique(distribution.ppf(np.linspace(0.02, 0.98, 15)).astype(int))
    cumulative = np.concatenate([[0.0], distribution.cdf(edges), [1.0]])
    observed = np.diff(np.concatenate([[0], np.cumsum(np.pad(sizes, (0, 10_000)))[edges], [len(draws)]]))
    return stats.chisquare(observed, np.diff(cumulative) * len(draws)).pvalue


def pair_p_value(draws, examples, probability):
    """Are two records drawn independently of each other? (A fixed size or a partition fails.)"""
    pairs = [(len(indices) * (len(indices) - 1)) for indices in draws]
    expected = examples * (examples - 1) * probability**2
    if len(set(pairs)) == 1:
        return float(pairs[0] == expected)
    return stats.ttest_1samp(pairs, expected).pvalue


def test_poisson_draws_every_record_independently_with_the_stated_probability():
    draws = draw(Poisson(30), 300, 4000)
    assert inclusion_p_value(draws, 300, 0.1) > 0.01
    assert size_p_value(draws, stats.binom(300, 0.1)) > 0.01
    assert pair_p_value(draws, 300, 0.1) > 0.01


@pytest.mark.parametrize("wrong", [Partition(30), FixedSize(30), Poisson(33), Poisson(27)], ids=str)
def test_another_sampler_is_not_taken_for_poisson(wrong):
    draws = draw(wrong, 300, 4000)
    by_test = [
        inclusion_p_value(draws, 300, 0.1),
        size_p_value(draws, stats.binom(300, 0.1)),
        pair_p_value(draws, 300, 0.1),
    ]
    assert min(by_test) < 1e-6


def test_poisson_draws_the_declared_probability_of_rows_that_differ_from_it():
    draws = draw(Poisson(30), 300, 4000, rows=200)
    assert size_p_value(draws, stats.binom(200, 0.1)) > 0.01
    assert size_p_value(draws, stats.binom(300, 0.1)) < 1e-6
    for sampling in EVERY[1:]:
        with pytest.raises(ValueError, match=r"sampling\.Poisson"):
            sampling.draws(300, entropy_generator(0), rows=200)


def in_any_order(draws):
    """Whether places in a draw say nothing of a record's number, to six deviations of the rank correlation."""
    long = [one for one in draws if len(one) >= 100]
    assert long
    return all(abs(np.corrcoef(one, np.arange(len(one)))[0, 1]) < 6 / math.sqrt(len(one)) for one in long)


@pytest.mark.parametrize("size", [500, 999, 1000])
@pytest.mark.parametrize("kind", [Poisson, TruncatedPoisson, FixedSize, Partition, Cyclic], ids=lambda k: k.__name__)
def test_draws_come_in_random_order_also_where_they_are_all_records(kind, size):
    assert in_any_order(draw(kind(size), 1000, 3))


def test_draws_in_the_order_of_the_data_are_seen(monkeypatch):
    """The planted bug: NumPy's unshuffled subsets: of all records 0, 1, 2, ..., and of half of them nearly sorted."""

    def unshuffled(rows, size, rng):
        return rng.choice(rows, size=size, replace=False, shuffle=False).astype(np.int64)

    monkeypatch.setattr(samplers, "_subset", unshuffled)
    assert not in_any_order(draw(FixedSize(1000), 1000, 1))
    assert not in_any_order(draw(Poisson(500), 1000, 1))


def test_truncated_poisson_cuts_to_a_uniform_subset():
    draws = draw(TruncatedPoisson(30, 33), 300, 4000)
    sizes = np.array([len(indices) for indices in draws])
    binomial = stats.binom(300, 0.1)
    assert sizes.max() == 33
    cut = stats.binomtest(int((sizes == 33).sum()), len(draws), binomial.sf(32))
    assert cut.pvalue > 0.01
    assert size_p_value([indices for indices in draws if len(indices) == 33], stats.binom(300, 0.1)) < 1e-6
    mean = sum(min(size, 33) * binomial.pmf(size) for size in range(301))
    assert inclusion_p_value(draws, 300, mean / 300) > 0.01
    assert inclusion_p_value([np.sort(indices)[:30] for indices in draws], 300, 30 / 300) < 1e-6


def test_the_default_cap_is_six_deviations_above_the_mean():
    assert TruncatedPoisson(2048).largest(60_000) == math.ceil(2048 + 6 * math.sqrt(2048 * (1 - 2048 / 60_000)))
    assert TruncatedPoisson(90).largest(100) == 100
    assert TruncatedPoisson(100).largest(100) == 100
    assert TruncatedPoisson(30, 500).largest(100) == 100
    assert TruncatedPoisson(30).event(1.0, 300).truncated_batch_size == TruncatedPoisson(30).largest(300)


def test_fixed_size_draws_every_subset_equally_often():
    draws = draw(FixedSize(2), 5, 5000)
    assert {len(set(indices.tolist())) for indices in draws} == {2}
    pairs = [tuple(sorted(indices.tolist())) for indices in draws]
    counts = [pairs.count(pair) for pair in itertools.combinations(range(5), 2)]
    assert sum(counts) == 5000
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize(("batch", "examples"), [(30, 300), (30, 100), (7, 7), (1, 5)])
def test_a_partition_is_disjoint_and_covers_in_every_epoch(batch, examples):
    sampling = Partition(batch)
    steps = sampling.steps_per_epoch(examples)
    draws = draw(sampling, examples, 3 * steps)
    epochs = [np.concatenate(draws[start : start + steps]) for start in range(0, 3 * steps, steps)]
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(examples))
    assert {len(indices) for indices in draws} <= {batch, examples % batch}
    if examples >= 100:
        assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize("sampling", EVERY, ids=str)
def test_draws_are_distinct_indices_within_the_largest_shape(sampling):
    largest = sampling.largest(300)
    for indices in draw(sampling, 300, 200):
        assert indices.dtype == np.int64
        assert len(np.unique(indices)) == len(indices)
        assert len(indices) == 0 or (indices.min() >= 0 and indices.max() < 300)
        assert largest is None or len(indices) <= largest


def test_empty_draws_happen():
    assert any(len(indices) == 0 for indices in draw(Poisson(1), 300, 50))


@pytest.mark.parametrize("sampling", EVERY, ids=str)
def test_the_whole_data_set_is_a_batch(sampling):
    whole = type(sampling)(300)
    for indices in draw(whole, 300, 3):
        assert np.array_equal(np.sort(indices), np.arange(300))


@pytest.mark.parametrize("sampling", EVERY, ids=str)
def test_nothing_is_replayed_without_a_seed_and_a_seed_repeats(sampling):
    def same(first, second):
        streams = (itertools.islice(sampling.draws(300, entropy_generator(seed)), 5) for seed in (first, second))
        return all(np.array_equal(a, b) for a, b in zip(*streams, strict=True))

    assert not same(None, None)
    assert same(7, 7)
    assert not same(7, 8)


def test_a_global_seed_does_not_reach_the_draws():
    first, second = [], []
    for draws in (first, second):
        np.random.seed(0)
        draws.extend(entropy_generator().integers(0, 2**32, 4))
    assert first != second


@pytest.mark.parametrize("sampling", EVERY, ids=str)
def test_json_round_trip(sampling):
    assert sampling_from_json(json.loads(json.dumps(sampling.to_json()))) == sampling


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"kind": "subprocess"},
        {"kind": ["poisson"]},
        {"kind": "poisson"},
        {"kind": "poisson", "batch_size": 0},
        {"kind": "poisson", "batch_size": 2.0},
        {"kind": "poisson", "batch_size": True},
        {"kind": "poisson", "batch_size": 2, "maximum": 3},
        {"kind": "truncated_poisson", "batch_size": 2, "maximum": 1},
    ],
)
def test_reading_validates_every_field(value):
    with pytest.raises(ValueError, match=r"."):
        sampling_from_json(value)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "30", None, True])
def test_batch_sizes_out_of_range(batch_size):
    for kind in (Poisson, TruncatedPoisson, FixedSize, Partition, Cyclic):
        with pytest.raises(ValueError, match="batch_size must be"):
            kind(batch_size)


@pytest.mark.parametrize("sampling", EVERY, ids=str)
def test_data_sets_that_cannot_be_drawn_from(sampling):
    with pytest.raises(ValueError, match="larger than the data"):
        sampling.check(29)
    for examples in (0, -5, 300.0, None):
        with pytest.raises(ValueError, match="examples must be"):
            sampling.check(examples)
    with pytest.raises(ValueError, match="larger than the data"):
        sampling.draws(29, entropy_generator(0))  # At once, not at the first draw.
    sampling.check(30)


def test_multipliers_out_of_range():
    for multiplier in (-1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier must be at least 0"):
            Poisson(30).event(multiplier, 300)


@pytest.mark.parametrize("kind", [Poisson, TruncatedPoisson, FixedSize, Partition])
def test_extreme_multipliers_cost_at_least_what_they_cost(kind):
    """Accountants overflow there; less noise costs more, and none is infinite."""
    for least in (1e-300, 1e-160, 1e-13):
        assert type(kind(60).event(least, 60_000)) is NonPrivateDpEvent
    for most in (1e8, 1e30, 1e160, 1e300):
        event = kind(60).event(most, 60_000)
        assert event == kind(60).event(1e7, 60_000)
        assert 0.0 <= smallest_epsilon({event: 10}, kind.relation, 1e-9)[0] < 1e-3


def test_steps_and_charges():
    assert [Poisson(30).steps_per_epoch(n) for n in (30, 31, 60, 100)] == [1, 2, 2, 4]
    assert [s.charges(9, 100) for s in EVERY] == [9, 9, 9, 9, 3, 3]


@pytest.mark.slow
def test_sampling_loads_no_tensorflow():
    program = (
        "import sys; import tfdp_layers.sampling;"
        " assert not {name.split('.')[0] for name in sys.modules} & {'tensorflow', 'keras'}"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
