"""Pairs, sets and bags in one stacked array bring the warning that the same ones bring as several inputs."""

import warnings

import numpy as np
import pytest
from sklearn import datasets

import tfdp_layers as tfdp
from tfdp_layers.accounting.people import People
from tfdp_layers.batches.pairs import warn_of_pairs

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(100, 6)).astype("float32")
BAGS = np.stack([RNG.choice(100, 3, replace=False) for _ in range(200)])
IMAGES = RNG.random((60, 8, 8, 1)).astype("float32")
COLOURED = RNG.random((90, 12, 12, 3)).astype("float32")
FIRST, SECOND = RNG.integers(0, 60, (2, 150))
CASES = RNG.normal(size=(20, 6))
DIGITS = datasets.load_digits().images

AGAIN = {
    "pairs": ROWS[BAGS[:, :2]],
    "bags": ROWS[BAGS],
    "features first": np.moveaxis(ROWS[BAGS], 1, 2),
    "bags of several sizes": np.where((np.arange(3) < RNG.integers(1, 4, (200, 1)))[..., None], ROWS[BAGS], 0.0),
    "bags, scaled since": (np.where(RNG.random((200, 3, 1)) < 0.7, ROWS[BAGS], 0.0) - 0.1) / ROWS.std(0),
    "images as channels": np.concatenate([IMAGES[FIRST], IMAGES[SECOND]], -1),
    "coloured images as channels": np.concatenate([COLOURED[FIRST], COLOURED[SECOND]], -1),
    "stacked images": np.stack([IMAGES[FIRST], IMAGES[SECOND]], 1),
    "digits": DIGITS[RNG.integers(0, 900, (1500, 2))],
    "cases, each beside 50 controls": np.stack([np.repeat(CASES, 50, 0), RNG.normal(size=(1000, 6))], 1),
}


def tokens(words, texts, length):
    """Of vectors for words, as often as they are in texts (Zipf and Mandelbrot)."""
    often = 1.0 / (np.arange(words) + 2.7)
    return RNG.normal(size=(words, 16))[RNG.choice(words, (texts, length), p=often / often.sum())]


HOUR = RNG.integers(0, 8760, (900, 1)) + np.arange(24)
STEPS = RNG.normal(size=(900, 24, 5))
ONCE = {
    "digits": DIGITS,
    "digits in grey as coloured": np.repeat(DIGITS[..., None], 3, -1),
    "digits, black and white": (DIGITS > 8)[..., None],
    "patches of digits": DIGITS.reshape(-1, 2, 4, 2, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 4, 16),
    "still pictures": np.repeat(DIGITS[:500, None], 6, 1),
    "copies of records": np.concatenate([DIGITS[:800], DIGITS[:200]]),
    "walks": np.cumsum(RNG.normal(size=(900, 24, 3)), 1),
    "walks of whole numbers": np.cumsum(RNG.integers(-1, 2, (900, 24, 5)), 1),
    "what is carried forward": np.repeat(STEPS[:, :6], 4, 1),
    "blank steps": np.where(RNG.random((900, 24, 1)) < 0.5, STEPS, 0.0),
    "imputed steps": np.where(RNG.random((900, 24, 1)) < 0.5, STEPS, RNG.normal(size=5)),
    "imputed numbers": np.where(RNG.random(STEPS.shape) < 0.7, RNG.normal(size=5), STEPS),
    "places in the series": np.concatenate([STEPS, np.broadcast_to(RNG.normal(size=(24, 4)), (900, 24, 4))], -1),
    "values and the time": np.stack([STEPS[..., 0], np.sin(HOUR * np.pi / 12), np.cos(HOUR * np.pi / 12)], -1),
    "the time": np.stack([f(HOUR * np.pi / h) for h in (12, 84) for f in (np.sin, np.cos)], -1),
    "waves": np.sin(np.arange(50)[None, :, None] * RNG.uniform(0.1, 0.3, (900, 1, 3))),
    "what never changes": np.concatenate([STEPS, np.repeat(STEPS[:, :1, :2], 24, 1)], -1),
    "counts": RNG.poisson(2, (900, 12, 6)),
    "answers from 1 to 5": RNG.integers(1, 6, (900, 10, 5)),
    "one-hot texts": np.eye(30)[RNG.integers(0, 30, (900, 20))],
    "a few words": tokens(300, 900, 5),
    "words": tokens(3000, 900, 20),
    "few texts": tokens(3000, 300, 8),
    "few words": tokens(100, 900, 4),
    "amino acids": RNG.normal(size=(20, 8))[RNG.integers(0, 20, (900, 30))],
    "codons": RNG.normal(size=(64, 8))[RNG.integers(0, 64, (900, 12))],
    "features of a network": np.maximum(RNG.normal(size=(900, 7, 7, 8)) - 1.0, 0.0),
    "texts": np.array([[["a", "b", "c", "d"]] * 3] * 50),
    "no records": IMAGES[:0],
}


def said(array, target=None, people=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_pairs([array], labels=[] if target is None else [target], people=people)
    return [str(one.message)[:28] for one in caught]


@pytest.mark.parametrize("name", AGAIN)
def test_parts_that_come_again_in_other_records_are_told(name):
    assert said(AGAIN[name]) == ["Rows of one input come again"]


@pytest.mark.parametrize("name", ONCE)
def test_others_are_left_in_peace(name):
    assert said(ONCE[name]) == []


@pytest.mark.parametrize("rows", [ROWS, IMAGES[..., 0], DIGITS[:900]], ids=["rows", "images", "digits"])
def test_an_input_that_is_a_target_of_another_record_is_told(rows):
    moved = RNG.permutation(len(rows))
    assert len(said(rows, rows[moved])) == len(said(rows[:-1], rows[1:])) == 1
    assert said(rows, rows) == said(rows, RNG.normal(size=rows.shape)) == said(rows[moved], np.ones(rows.shape)) == []


def test_targets_that_many_records_share_are_nobodys():
    vectors_of_classes = RNG.normal(size=(30, 6))[RNG.integers(0, 30, 600)]
    assert said(RNG.normal(size=(600, 6)), vectors_of_classes) == []


def test_what_comes_again_within_a_persons_own_records_is_covered():
    visits = RNG.normal(size=(50, 4, 6))
    own = np.concatenate([visits[:, RNG.permutation(4)[:3]] for _ in range(4)])
    assert len(said(own)) == 1
    assert said(own, people=People.by(np.tile(np.arange(50), 4))) == []
    assert len(said(ROWS[BAGS], people=People.by(np.arange(200) // 2))) == 1


def test_batches_of_bags_say_it_unless_all_owners_are_given():
    x, y = ROWS[BAGS], np.ones((200, 1))
    for whose in ({}, {"unit_ids": BAGS[:, 0]}, {"owners": BAGS[:, 0], "records_per_owner": 20}):
        with pytest.warns(UserWarning, match="Rows of one input come again"):
            tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), **whose)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), owners=BAGS, records_per_owner=40)


@pytest.mark.parametrize("name", ["rows", "images"])
def test_of_many_records_a_sample_is_looked_at(name):
    whole = RNG.random((100_000, 6) if name == "rows" else (12_000, 20, 20)).astype("float32")
    anchors = RNG.permutation(len(whole))[: len(whole) // 4][RNG.integers(0, len(whole) // 4, len(whole))]
    assert len(said(np.stack([whole[anchors], whole], 1 if name == "rows" else -1))) == 1
    assert said(np.stack([whole, RNG.random(whole.shape)], 1)) == []


def test_windows_that_overlap_are_told_of_once():
    series = RNG.normal(size=(400, 5)).astype("float32")
    x = np.stack([series[i : i + 12] for i in range(380)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.PrivateBatches(x, np.ones((380, 1)), tfdp.sampling.Poisson(8))
    assert [str(one.message)[:16] for one in caught] == ["Records overlap:"]
