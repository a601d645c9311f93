"""Data sets of Grain whose records are made of places, or of one another."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches import grain

ITEMS = [(np.full(2, k, np.float32), np.float32(k % 2)) for k in range(12)]
SOURCE = grain_like.source(ITEMS)
SHUFFLED = grain_like.Shuffle(SOURCE, seed=1)


def zipped(*branches):
    return grain_like.Zip(*branches, length=min(map(len, branches)))


def said(source):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.records(source)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("step", [grain_like.RandomMap, grain_like.MapWithIndex])
def test_what_a_record_holds_by_its_place_is_said(step):
    for source in (step(grain_like.WithSeed(SOURCE, seed=1)), grain_like.Map(step(SHUFFLED))):
        (found,) = said(source)
        assert "depends on the others" in found
        assert "no epsilon covers that" in found


@pytest.mark.parametrize(
    "branches",
    [
        (SOURCE, SHUFFLED),
        (grain_like.cut(SOURCE, 1, 12), grain_like.cut(SOURCE, 0, 11)),
        (grain_like.Map(SHUFFLED), grain_like.Map(grain_like.Shuffle(SOURCE, seed=2))),
        (grain_like.source(ITEMS), grain_like.cut(grain_like.source(ITEMS), 0, 12, 2)),
        (SOURCE, grain_like.Concatenate(SOURCE, SHUFFLED)),
    ],
)
def test_records_of_one_source_beside_others_of_it_are_refused(branches):
    with pytest.raises(ValueError, match="Records meet in this Grain data set"):
        tfdp.records(grain_like.Map(zipped(*branches)))


@pytest.mark.parametrize(
    "source",
    [
        grain_like.Map(SHUFFLED),
        grain_like.WithSeed(grain_like.cut(SOURCE, 0, 9), seed=1),
        zipped(SOURCE, grain_like.source(ITEMS[::-1])),
        zipped(grain_like.Map(SOURCE), SOURCE),
        zipped(SHUFFLED, grain_like.Map(grain_like.Shuffle(SOURCE, seed=1))),
        zipped(grain_like.cut(SOURCE, 1, 9), grain_like.cut(grain_like.source(ITEMS), 1, 9)),
        grain_like.Mine(SOURCE),
    ],
)
def test_records_of_their_own_items_bring_no_word(source):
    assert said(source) == []


def numbers(start=0, stop=12, step=1):
    made = grain_like.Range(length=len(range(start, stop, step)))
    made.start, made.step = start, step
    return made


def test_numbers_of_a_range_beside_others_of_it_bring_a_word():
    taken = grain_like.Map(numbers()), grain_like.Map(grain_like.Shuffle(numbers(), seed=1))
    for branches in (taken, (numbers(0, 11), numbers(1, 12))):
        with pytest.warns(UserWarning, match="puts numbers of one range beside others of it"):
            grain.look_at_grain(zipped(*branches))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grain.look_at_grain(zipped(numbers(), grain_like.Map(numbers())))


def test_of_steps_that_nobody_knows_it_is_said():
    (found,) = said(grain_like.FlatMap(SOURCE))
    assert "not known: what its step 'FlatMap' does" in found


def test_a_stream_whose_batches_nobody_counted_is_told_what_has_a_length():
    """Nothing of tf.data, which cannot help here."""
    stream, sampling = grain_like.Stream(), tfdp.sampling.Partition(4)
    with pytest.raises(ValueError, match=r"unknown number of batches.*give a grain.MapDataset with .batch") as refused:
        tfdp.declare_sampling(stream, sampling, examples=12)
    assert "tf.data" not in str(refused.value)
    with pytest.raises(ValueError, match=r"unknown number of batches.*give an iterable that has a __len__"):
        tfdp.declare_sampling((batch for batch in [ITEMS]), sampling, examples=12)
