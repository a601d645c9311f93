"""Ids that differ in blanks, case or zeros alone bring a warning wherever ids are given; others don't."""

import hashlib
import re
import unicodedata
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tfdp_layers as tfdp
from tfdp_layers.batches.spellings import _WAYS, warn_of_spellings

PEOPLE = np.arange(200) // 4
X = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
ENDS, HYPHENS = ["", " ", "", "\t"], "-\u2010\u2011\u2212"
SEVERAL = {
    "blanks behind": ([f"p{one}{ENDS[row % 4]}" for row, one in enumerate(PEOPLE)], "blanks"),
    "blanks within": ([f"Ann{' ' * (1 + row % 2)}{one}" for row, one in enumerate(PEOPLE)], "blanks"),
    "hard blanks": (
        [f"Ann{chr(160) if row % 2 else ' '}{one}" for row, one in enumerate(PEOPLE)],
        "Unicode's forms of a character",
    ),
    "case": ([f"{'pP'[row % 2]}{one}" for row, one in enumerate(PEOPLE)], "upper and lower case"),
    "sharp s": ([f"{'Weiß' if row % 2 else 'WEISS'}{one}" for row, one in enumerate(PEOPLE)], "upper and lower case"),
    "leading zeros": ([str(one) if row % 2 else f"{one:05d}" for row, one in enumerate(PEOPLE)], "leading zeros"),
    "nothing but zeros": (["0", "000", *map(str, range(1, 199))], "leading zeros"),
    "floats": ([str(one) if row % 2 else f"{one}.0" for row, one in enumerate(PEOPLE)], ".0 at the end"),
    "decimals": ([str(one) if row % 2 else f"{one}.00" for row, one in enumerate(PEOPLE)], ".0 at the end"),
    "below zero": ([f"-{one + 1}" if row % 2 else f"-{one + 1}.0" for row, one in enumerate(PEOPLE)], ".0 at the end"),
    "quotes": ([f"'p{one}'" if row % 2 else f"p{one}" for row, one in enumerate(PEOPLE)], "quotes around"),
    "quotes of a file": ([f'"{one}"' if row % 2 else f"{one}" for row, one in enumerate(PEOPLE)], "quotes around"),
    "composed letters": (
        [unicodedata.normalize("NFC" if row % 2 else "NFD", f"é{one}") for row, one in enumerate(PEOPLE)],
        "Unicode's forms of a character",
    ),
    "blanks and case": (["p1", "P1", "p1 ", *(f"q{one}" for one in range(197))], "blanks and upper and lower case"),
    "byte order mark": ([f"{chr(0xFEFF) * (row % 2)}p{one}" for row, one in enumerate(PEOPLE)], "invisible characters"),
    "soft hyphens": ([f"Ann{chr(0xAD) * (row % 2)}a {one}" for row, one in enumerate(PEOPLE)], "invisible characters"),
    "hyphens": ([f"P{HYPHENS[row % 4]}{one}" for row, one in enumerate(PEOPLE)], "kinds of hyphens"),
    "thousands": (
        [f"{10**7 * one + 1234:{',' * (row % 2)}}" for row, one in enumerate(PEOPLE)],
        "commas between thousands",
    ),
    "exponents": (
        [f"{100_000 + one:.5e}" if row % 2 else str(100_000 + one) for row, one in enumerate(PEOPLE)],
        "exponents of numbers",
    ),
    "exponents of a spreadsheet": (
        [f"{(100_000 + one) / 1e5}E5" if row % 2 else f"{100_000 + one}.0" for row, one in enumerate(PEOPLE)],
        "exponents of numbers and .0 at the end",
    ),
    "a form, and then case": (
        ["\uff21", "a", *(f"q{one}" for one in range(198))],
        "Unicode's forms of a character and upper and lower case",
    ),
    "bytes": ([f"p{one}{' ' * (row % 2)}".encode() for row, one in enumerate(PEOPLE)], "blanks"),
}
DIFFERENT = {
    "one way": [f"p{one} " for one in PEOPLE],
    "padded": [f"{one:05d}" for one in PEOPLE],
    "all in capitals": [f"WARD {one:03d}/P{one % 7}" for one in PEOPLE],
    "floats alone": [f"{one}.0" for one in PEOPLE],
    "parts of one": [f"{one}.{row}" for one in range(10) for row in range(20)],
    "zeros behind": ["1", "10", "100", *(f"{one}0" for one in range(300, 497))],
    "parts with commas": [f"{one},{row}" for one in range(10) for row in range(20)],
    "households": [f"{one},{row}" for one in ("1", "12") for row in range(100, 200)],
    "names with commas": [f"Berg, Ann {one}" for one in PEOPLE],
    "quoted, all of them": [f"'p{one}'" for one in PEOPLE],
    "apostrophes": ["'t Hooft", "O'Brien", "D'", "'", '"', *(f"q{one}" for one in PEOPLE)],
    "versions": ["1.10", "1.1", "1.100", "v1.0", "v1", *(f"q{one}" for one in PEOPLE)],
    "thousands alone": [f"{10**7 * one:,}" for one in PEOPLE],
    "short hexadecimal": [f"{one:x}" for one in range(1000)],
    "capital hexadecimal": [f"{one:X}" for one in range(1000)],
    "dates": [f"2020\u20131\u2013{one}" for one in PEOPLE],
    "Persian names": [f"\u0645\u06cc\u200c{one}" for one in PEOPLE],
    "hexadecimal": [f"{one * 2654435761 % 2**64:016x}" for one in range(200)],
    "digests": [hashlib.blake2b(bytes([one]), digest_size=3).digest() for one in range(200)],
    "integers": PEOPLE.tolist(),
    "one id": ["p1"] * 200,
}


def said(ids, argument="unit_ids"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_spellings(np.array(ids).tolist(), argument)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", SEVERAL)
def test_one_person_written_in_several_ways_is_told_of_and_the_fix_writes_them_in_one(name):
    ids, what = SEVERAL[name]
    (message,) = said(ids)
    found = re.fullmatch(
        r"The (\d+) different ids in `unit_ids` become (\d+) if one overlooks (.*), so some .*: (\[.*\])\."
        r" Where these are different people, nothing is lost\.",
        message,
    )
    assert found is not None
    assert found[3] == what
    assert int(found[1]) == len(set(ids))
    fixed = eval(found[4], {"re": re, "unicodedata": unicodedata, "ids": ids})
    assert len(set(fixed)) == int(found[2])
    assert said(fixed) == []
    assert not any(repr(one) in message for one in set(ids) if len(one) > 3)  # ids are private


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_people_are_left_in_peace(name):
    assert said(DIFFERENT[name]) == []


OBJECTS = {
    "bytes beside text": [str(b"p1"), "p1"],
    "bytes alone": [str(b"p1"), str(b"p'2")],
    "texts of NumPy": [repr(np.str_("p1")), "p1"],
    "numbers of NumPy": [repr(np.int64(1)), "1"],
    "tensors": [str(tf.constant("p1")), "p1"],
    "tensors as they are shown": [repr(tf.constant(1)), "1"],
    "objects": [str(object()), "p1"],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_ids_that_say_what_object_held_them_are_told_of(name):
    (message,) = said(OBJECTS[name])
    assert "are what str(...) makes of bytes" in message
    assert "p1" not in message
    assert "each name `one` in owners as one.decode()" in said(OBJECTS[name], "owners")[0]


def test_names_that_look_a_little_so_are_left_in_peace():
    assert said(["b'", "np.1", "tf", "<p1>", "Bob 'b' Lee", "b", '"p1"', "'p2'"]) == []


IDS = SEVERAL["case"][0]
CALLS = {
    "batches": ("unit_ids", lambda: tfdp.PrivateBatches(X, sampling=tfdp.sampling.Poisson(2), unit_ids=IDS)),
    "owners": (
        "owners",
        lambda: tfdp.PrivateBatches(X, sampling=tfdp.sampling.Poisson(2), owners=IDS, records_per_owner=4),
    ),
    "records": (
        "unit_ids",
        lambda: tfdp.PrivateBatches(
            tfdp.records([(row, 0.0) for row in X], unit_ids=IDS), sampling=tfdp.sampling.Poisson(2)
        ),
    ),
    "a metric": (
        "unit_ids",
        lambda: tfdp.release_metric(PEOPLE % 2, tfdp.accounting.Ledger(), stddev=0.1, unit_ids=IDS),
    ),
    "held_out": ("ids", lambda: tfdp.preprocessing.held_out(IDS)),
    "folds": ("ids", lambda: tfdp.preprocessing.folds(IDS)),
    "limit_owners": ("owners", lambda: tfdp.preprocessing.limit_owners([[one, "z"] for one in IDS], 4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_said_wherever_ids_are_given(name):
    argument, call = CALLS[name]
    with pytest.warns(UserWarning, match=rf"different ids in `{argument}` become .*nothing is lost\.$"):
        call()


@given(
    st.lists(
        st.text(st.sampled_from("aAß\u00e9\u0301 \t\n\r\x1c\x85\xa0.0١7\u200b\u2010,e+") | st.characters(), min_size=1),
        min_size=1,
    )
)
@settings(max_examples=60, deadline=None)
@example([" ", "a b"])
@example(["1,234\n", "1.5e5", "1e+05"])
@example(["a\nb"])
@example(["a\0 b"])
def test_whether_any_is_written_so_is_asked_of_all_at_once(texts):
    """Nothing is overlooked by what makes it fast."""
    for way, any_so, _, _ in _WAYS:
        if any(way(one) != one for one in texts):
            assert any_so("\0".join(["", *texts, ""]))
