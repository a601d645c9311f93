"""Batches: every row is drawn as it is accounted for, and no draw is replayed."""

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers.numbered_records import RECORDS, WAYS, drawn, fetched, numbered
from tfdp_layers import PrivateBatches
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, Sampling, entropy_generator


def chi_square_p_value(batches: PrivateBatches, probability: float, draws: int = 3000) -> float:
    """That each row was in each of `draws` draws independently with `probability`."""
    rows = len(batches._store)
    counts = np.zeros(rows)
    for batch in islice(batches.stream(), draws):
        counts[list(drawn(batch))] += 1
    statistic = ((counts - draws * probability) ** 2 / (draws * probability * (1 - probability))).sum()
    return 2 * min(stats.chi2.sf(statistic, rows), stats.chi2.cdf(statistic, rows))


@pytest.mark.parametrize("examples", [RECORDS // 2, RECORDS, 2 * RECORDS])
def test_poisson_draws_each_row_with_the_declared_probability(examples: int) -> None:
    def batches() -> PrivateBatches:
        return PrivateBatches(numbered(), sampling=Poisson(5), examples=examples, seed=1)

    probability = 5 / examples
    assert chi_square_p_value(batches(), probability) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert chi_square_p_value(batches(), probability * wrong) < 1e-9


@pytest.mark.parametrize("examples", [RECORDS - 1, RECORDS + 1])
@pytest.mark.parametrize("sampling", [FixedSize(8), Partition(8), Cyclic(8)], ids=lambda s: s.kind)
def test_a_fixed_number_of_records_must_be_the_number_of_rows(sampling: Sampling, examples: int) -> None:
    with pytest.raises(ValueError, match=f"{examples}"):
        PrivateBatches(numbered(), sampling=sampling, examples=examples)


def sampled(batches: PrivateBatches, way: str) -> list[tuple[int, ...]]:
    if way == "items":
        return [drawn(batches[0]) for _ in range(6)]
    return [drawn(batch) for batch in islice(fetched(batches, way), 6)]


@pytest.mark.parametrize("way", ["items", *WAYS])
@pytest.mark.parametrize("sampling", [FixedSize(25), Partition(25), Poisson(25)], ids=lambda s: s.kind)
def test_nothing_is_replayed_and_a_seed_repeats(sampling: Sampling, way: str) -> None:
    # Two draws of 25 among 50 are equal with probability below 1e-13.
    one, other = (PrivateBatches(numbered(), sampling=sampling) for _ in range(2))
    seen = sampled(one, way) + sampled(other, way) + sampled(one, way) + sampled(one, "items")
    assert len(set(map(frozenset, seen))) == len(seen)
    seeded = [sampled(PrivateBatches(numbered(), sampling=sampling, seed=5), way) for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_one_dataset_iterated_twice_does_not_replay_even_with_a_seed() -> None:
    for pad in (False, True):
        dataset = PrivateBatches(numbered(), sampling=FixedSize(25), seed=5).dataset(pad)
        seen = [frozenset(drawn(batch)) for _ in range(2) for batch in islice(dataset.as_numpy_iterator(), 6)]
        assert len(set(seen)) == 12


def test_threads_share_the_draws_without_replay() -> None:
    batches = PrivateBatches(numbered(), sampling=FixedSize(25), seed=2)
    with ThreadPoolExecutor(8) as pool:
        seen = {frozenset(drawn(batch)) for batch in pool.map(batches.__getitem__, [0] * 400)}
    one_by_one = sampling_draws(FixedSize(25), 400)
    assert seen == one_by_one


def sampling_draws(sampling: Sampling, count: int) -> set[frozenset[int]]:
    return {frozenset(draw.tolist()) for draw in islice(sampling.draws(RECORDS, entropy_generator(2)), count)}


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_are_refused(duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="replay"):
        duplicate(PrivateBatches(numbered(), sampling=Poisson(8)))


def test_a_forked_process_is_refused() -> None:
    batches = PrivateBatches(numbered(), sampling=Poisson(8))
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            batches[0]
        except RuntimeError as error:
            outcome = 0 if "fork" in str(error) else 2
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("batch_size", [7, 10])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_partition_starts_afresh_and_covers_every_record_once_an_epoch(way: str, pad: bool, batch_size: int) -> None:
    batches = PrivateBatches(numbered(), sampling=Partition(batch_size))
    orders = []
    for _ in range(2):  # the second iteration starts anew, though the first stopped, and read ahead, within an epoch
        stream = fetched(batches, way, pad)
        for _ in range(2):
            epoch = [drawn(next(stream)) for _ in range(len(batches))]
            assert [len(batch) for batch in epoch[:-1]] == [batch_size] * (len(batches) - 1)
            orders.append(sum(epoch, ()))
            assert sorted(orders[-1]) == list(range(RECORDS))
        next(stream)
    assert len(set(orders)) == 4
