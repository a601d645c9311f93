"""Inputs whose rows come again in other records bring a warning: pairs, and people described in each record."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.people import People
from tfdp_layers.batches.pairs import warn_of_pairs

RNG = np.random.default_rng(0)
IMAGES = RNG.random((300, 8, 8)).astype("float32")
PEOPLE = RNG.integers(0, 300, 1500)
FIRST, SECOND = RNG.integers(0, 300, (2, 1000))
VALUES = RNG.normal(size=(1500, 5))

AGAIN = {
    "pairs": (IMAGES[FIRST], IMAGES[SECOND]),
    "each as often": (IMAGES[np.arange(1200) % 300], RNG.normal(size=(1200, 6))),
    "anchors of triplets": (IMAGES[FIRST], RNG.random((1000, 8, 8)), RNG.random((1000, 8, 8))),
    "first and second once each": (IMAGES, IMAGES[RNG.permutation(300)]),
    "people at each step": (np.repeat(RNG.normal(size=(300, 1, 6))[PEOPLE], 5, axis=1), VALUES),
    "people beside visits": (RNG.normal(size=(300, 6))[PEOPLE], VALUES),
}
ONCE = {
    "one input": (IMAGES[FIRST],),
    "halves of a table": (VALUES[:, :4], VALUES[:, 1:]),
    "the same input twice": (IMAGES, IMAGES.copy()),
    "an image and its flip": (IMAGES, IMAGES[:, ::-1]),
    "ids beside values": (PEOPLE, RNG.integers(0, 40, 1500), VALUES),
    "flags": (RNG.integers(0, 2, (1500, 4)), VALUES),
    "hours since a date": (VALUES, RNG.integers(0, 2000, (1500, 1)) + np.arange(24)),
    "hours of the day": (VALUES, (RNG.integers(0, 24, (1500, 1)) + np.arange(48)) % 24),
    "ages by months": (VALUES, (RNG.integers(216, 1100, (1500, 1)) + np.arange(4)) / 12),
    "sites of a trial": (VALUES, np.eye(25)[np.repeat(np.arange(25), 60)]),
    "no records": (IMAGES[:0], IMAGES[:0]),
}


def said(arrays, people=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_pairs(arrays, people=people)
    return len(caught)


@pytest.mark.parametrize("name", AGAIN)
def test_rows_that_come_again_in_other_records_are_told(name):
    assert said(AGAIN[name]) == 1


@pytest.mark.parametrize("name", ONCE)
def test_others_are_left_in_peace(name):
    assert said(ONCE[name]) == 0


def test_batches_of_pairs_say_it_unless_all_owners_are_given():
    """Ids of one side hide the other side no more than none do: a control of 20 cases moved a sum by 22.9 bounds."""
    x, y = {"a": IMAGES[FIRST], "b": IMAGES[SECOND]}, np.ones((1000, 1))
    for whose in ({}, {"unit_ids": FIRST}, {"owners": SECOND, "records_per_owner": 20}):
        with pytest.warns(UserWarning, match="Rows of one input come again") as caught:
            tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), **whose)
        assert ("Then give all whom a record is of: owners=[[case, control]" in str(caught[0].message)) == bool(whose)
    both = np.stack([FIRST, SECOND], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), owners=both, records_per_owner=40)


VISITS = RNG.normal(size=(300, 6, 5))
OWN = {
    "people beside visits": (AGAIN["people beside visits"], PEOPLE),
    "each visit and the next one": ((VISITS[:, :-1].reshape(-1, 5), VISITS[:, 1:].reshape(-1, 5)), None),
}
OTHERS = {
    "people beside visits, a number each": (AGAIN["people beside visits"], np.arange(1500) // 2),
    "first and second once each": (AGAIN["first and second once each"], np.arange(300) // 2),
    "anchors": (AGAIN["anchors of triplets"], SECOND),
}


@pytest.mark.parametrize("name", OWN)
def test_what_comes_again_within_a_persons_own_records_is_covered(name):
    arrays, whose = OWN[name]
    assert said(arrays) == 1
    assert said(arrays, People.by(np.repeat(np.arange(300), 5) if whose is None else whose)) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_what_comes_again_in_other_peoples_records_is_not(name):
    arrays, whose = OTHERS[name]
    assert said(arrays, People.by(whose)) == 1
