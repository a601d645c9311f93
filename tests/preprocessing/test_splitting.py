"""Splits by ids: one person more or less moves nobody else, whatever the ids are; shares are about as asked."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdp_layers as tfdp
from tfdp_layers.preprocessing import folds, held_out

TEXT = st.text(min_size=1, max_size=40).filter(lambda one: not one.endswith("\0"))


@pytest.mark.slow
@given(
    st.lists(TEXT, min_size=2, max_size=20) | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=20),
    st.data(),
)
def test_nobody_moves_when_another_record_joins_or_leaves_or_the_order_changes(ids, data):
    whole = dict(zip(ids, zip(held_out(ids, 0.3), folds(ids, 4), strict=True), strict=True))
    rest = data.draw(st.permutations(ids))[:-1]
    assert dict(zip(rest, zip(held_out(rest, 0.3), folds(rest, 4), strict=True), strict=True)).items() <= whole.items()


def test_a_seeded_shuffle_is_caught_by_the_same_comparison():
    def shuffled(ids):
        return dict(zip(np.random.default_rng(0).permutation(ids).tolist(), np.arange(len(ids)) < 30, strict=True))

    ids = list(range(100))
    assert not shuffled(ids[:-1]).items() <= shuffled(ids).items()


@pytest.mark.parametrize(
    "ids",
    [
        [str(one) for one in range(7, 13)],
        np.arange(7, 13),
        np.arange(7, 13, dtype=np.uint8)[:, None],
        np.array([str(one).encode() for one in range(7, 13)]),
        np.array([str(one) for one in range(7, 13)], object),
        np.array([*(str(one) for one in range(7, 13)), "a longer one"])[:-1],
    ],
    ids=["texts", "integers", "a column", "bytes", "objects", "wider"],
)
def test_an_id_is_its_text(ids):
    assert np.array_equal(folds(ids, 100), folds(list(range(7, 13)), 100))


def test_places_stay_what_they_were():
    """A split may not change with a version: who was held out would be trained on."""
    assert folds(["ann", "bob", "cem", "dee"], 1000).tolist() == [467, 693, 937, 705]
    assert folds(["ann", "bob", "cem", "dee"], 1000, salt="second").tolist() == [681, 375, 826, 805]
    for place, one in zip([247, 627, 536, 291], ["ann", "bob", "cem", "dee"], strict=True):
        assert not held_out([one], place / 1000)[0]
        assert held_out([one], (place + 1) / 1000)[0]


def test_shares_are_about_as_asked_and_salts_are_independent():
    people = np.arange(20_000)
    first, second = held_out(people, 0.2), held_out(people, 0.2, salt="second")
    for found, expected in ((first, 0.2), (second, 0.2), (first & second, 0.04)):
        assert abs(np.mean(found) - expected) < 5 * np.sqrt(expected * (1 - expected) / len(people))
    counts = np.bincount(folds(people, 5))
    assert len(counts) == 5
    assert np.sum((counts - 4000) ** 2 / 4000) < 25  # chi-squared, four degrees of freedom


def test_folds_of_those_who_are_not_held_out_are_all_of_about_one_size():
    people = np.arange(5000)
    rest = people[~held_out(people, 0.2)]
    counts = np.bincount(folds(rest, 5), minlength=5)
    assert np.sum((counts - len(rest) / 5) ** 2 / (len(rest) / 5)) < 25
    assert abs(np.mean(held_out(people[folds(people, 5) == 0], 0.2)) - 0.2) < 0.1


def test_a_split_inside_of_another_needs_a_salt_and_says_so():
    people = np.arange(5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, fold = held_out(people, 0.2), folds(people, 5)
        assert abs(np.mean(held_out(people[~out], 0.2, salt="second split")) - 0.2) < 0.05
        assert len(np.bincount(folds(people[fold == 2], 5, salt="second split"))) == 5
        for few in (people[:3], np.repeat(people[:3], 500)):  # of whom nobody may be held out
            held_out(few, 0.01)
            folds(few, 5)
        held_out(people, 1e-9)
    for call in (
        lambda: held_out(people[~out], 0.2),
        lambda: held_out(people[out], 0.2),
        lambda: folds(people[fold == 2], 5),
    ):
        with pytest.warns(UserWarning, match=r"Nobody of [\d,]+ people is .*salt='second split'.*nothing is lost"):
            call()


def test_people_stay_whole_and_records_without_doubles_are_ids_themselves():
    patients = np.repeat(["ann", "bob", "cem"], [3, 1, 4])
    assert all(len(set(folds(patients, 9)[patients == one])) == 1 for one in set(patients))
    assert tfdp.preprocessing.held_out(patients, 0.5).dtype == bool


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: held_out([1, 2], 0), "share must lie between 0 and 1"),
        (lambda: held_out([1, 2], 20), "share must lie between 0 and 1"),
        (lambda: held_out([1, 2], True), "share must lie between 0 and 1"),
        (lambda: held_out([1, 2], salt=3), "salt must be a text"),
        (lambda: folds([1, 2], 1), "count must be at least 2"),
        (lambda: held_out("patient"), "one id for each record"),
        (lambda: held_out(5), "one id for each record"),
        (lambda: held_out(["a", None]), "1 of the 2 `ids` are missing"),
        (lambda: held_out([0.5, 1.5]), "`ids` must be integers or strings"),
        (lambda: held_out([1, "1"]), "all of one kind"),
        (lambda: held_out([["a", "b"], ["c", "d"]]), "`ids` must hold one id for each of the 2 records"),
    ],
)
def test_what_is_no_id_or_share_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("split", [held_out, folds])
@pytest.mark.parametrize("kind", [str, bytes])
def test_numbers_that_pandas_wrote_with_a_point_are_told_of(split, kind):
    """One id that is missing makes its column float, and everybody's text another: the split is a new one."""
    written = [f"{one}.0" if kind is str else b"%d.0" % one for one in range(100, 150)]
    with pytest.warns(UserWarning, match=r"whole numbers with .0 behind them.*'Int64'.*nothing is lost"):
        split(written)


@pytest.mark.parametrize(
    "ids",
    [
        ["1.0", "1.1", "2.0"],
        ["1.2.0", "2.0"],
        ["v1.0", "2.0"],
        ["1.0", "a"],
        [".0", "1.0"],
        [7, 8],
        ["7", "8"],
        [b"7.5"],
    ],
)
def test_other_ids_are_split_without_a_word(ids):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held_out(ids).shape == (len(ids),)
