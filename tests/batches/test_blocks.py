"""Blocks of one long text bring a warning; texts of different people, each cut or padded by itself, don't."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.blocks import warn_of_blocks

RNG = np.random.default_rng(0)
LETTERS = [RNG.integers(1, 50, RNG.integers(20, 80)) for _ in range(300)]
TEXT = np.concatenate(LETTERS)
STEPS = 32


def blocks(series, steps=STEPS):
    count = (len(series) - 1) // steps
    return series[: count * steps].reshape(count, steps), series[1 : count * steps + 1].reshape(count, steps)


def shifted(rows):
    return rows[:, :-1], rows[:, 1:]


def padded(begin=(), end=(), before=False):
    rows = np.zeros((len(LETTERS), 41), int)
    for row, letter in zip(rows, LETTERS, strict=True):
        cut = np.concatenate([begin, letter[:30], end]).astype(int)
        row[slice(-len(cut), None) if before else slice(len(cut))] = cut
    return shifted(rows)


def with_errors(share):
    x, y = (one.copy() for one in blocks(TEXT))
    x[:: round(1 / share), 0] = 0
    return x, y


JOINED = {
    "a text": blocks(TEXT),
    "few blocks": blocks(TEXT[:300]),
    "bytes": blocks(RNG.integers(0, 256, 4000).astype("uint8")),
    "of two tokens": blocks(RNG.integers(0, 2, 4000)),
    "mostly one token": blocks((RNG.random(20_000) < 0.2).astype("int32")),
    "with a last axis": tuple(one[:, :, None] for one in blocks(TEXT)),
    "some of them in another place": with_errors(0.05),
    "a series": blocks(np.cumsum(RNG.normal(size=4000)).astype("float32")),
    "long blocks": blocks(RNG.integers(0, 99, 1 << 21), 1 << 15),
}
APART = {
    "padded": padded(),
    "padded before": padded(before=True),
    "with a beginning": padded(begin=[50]),
    "with a beginning and an end": padded(begin=[50], end=[50]),
    "one token for all that is no text": padded(begin=[0], end=[0]),
    "cut": shifted(np.array([np.resize(one, 41) for one in LETTERS])),
    "of two tokens, cut": shifted(RNG.integers(0, 2, (300, 41))),
    "mostly one token, cut": shifted((RNG.random((300, 41)) < 0.02).astype(int)),
    "nothing": (np.zeros((300, 40)), np.zeros((300, 40))),
    "tags of words": (blocks(TEXT)[0], RNG.integers(0, 5, blocks(TEXT)[0].shape)),
    "too few": blocks(TEXT[: 6 * STEPS]),
    "labels": (blocks(TEXT)[0], RNG.integers(0, 2, (len(blocks(TEXT)[0]), 1))),
    "the same": (blocks(TEXT)[0], blocks(TEXT)[0]),
    "half of them": with_errors(0.5),
    "texts": (np.array([["a", "b"]] * 50), np.array([["b", "a"]] * 50)),
}
_BOTH = np.stack(blocks(TEXT), 1)[RNG.permutation(len(blocks(TEXT)[0]))]
APART["in another order"] = (_BOTH[:, 0], _BOTH[:, 1])


def said(x, y, positions=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_blocks([RNG.normal(size=(len(x), 3)), x], [np.ones((len(x), 1)), y], positions)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", JOINED)
def test_blocks_of_one_text_are_told(name):
    (message,) = said(*JOINED[name])
    assert message.startswith("Records go on in one another: the last target of ")
    assert message.endswith("Where the text is public, nothing is lost.")


@pytest.mark.parametrize("name", APART)
def test_others_are_left_in_peace(name):
    assert said(*APART[name]) == []


def test_of_units_it_is_told_where_one_goes_on_in_another_alone():
    x, y = blocks(TEXT)
    people = np.arange(len(x)) // 4
    assert "the next record of somebody else" in said(x, y, people)[0]
    pieces = [blocks(RNG.integers(1, 50, 4 * STEPS + 1)) for _ in range(50)]
    x, y = (np.concatenate([one[place] for one in pieces]) for place in (0, 1))
    assert said(x, y, np.repeat(np.arange(50), 4)) == []


def test_batches_of_such_blocks_say_it():
    x, y = blocks(TEXT)
    people = np.arange(len(x)) // 4
    for whose in ({}, {"unit_ids": people}):
        with pytest.warns(UserWarning, match=r"as where one long text is cut into blocks.*unit_ids=.*nothing is lost"):
            tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), **whose)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.PrivateBatches(*APART["cut"], tfdp.sampling.Poisson(8))
