"""Several owners in one text are told of; names, and ids of several fields, are not."""

import json
import warnings
from typing import Any

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.joined import warn_of_joined

PEOPLE = ["ann", "bob", "eve", "joe", "kim", "leo"]
FIRST, LAST = ["Martin", "Thomas", "Anna", "Maria", "Jose", "Paul"], ["Smith", "Thomas", "Martin", "Miller", "Jones"]
CHINESE = ["Li", "Wei", "Wang", "Lin", "Yang", "He", "Zhang"]
MANY = range(60)
PLACES = [f"{row}{column}" for row in "ABC" for column in range(1, 5)]

LISTS = {
    "addresses": (";", [f"alice{i % 5}@x.org;bob{i}@x.org" for i in MANY]),
    "addresses and commas": (",", [f"alice{i % 5}@x.org, bob{i}@x.org" for i in MANY]),
    "commas": (",", [f"p{i % 7}, p{i}" for i in MANY]),
    "spaces": (" ", [f"p{i % 7} p{i}" for i in MANY]),
    "bars": ("|", [f"{PEOPLE[i % 6]}|{PEOPLE[i // 7 % 6]}" for i in MANY if i % 6 != i // 7 % 6]),
    "names": (";", [f"{PEOPLE[i % 6]};{PEOPLE[i // 7 % 6]}" for i in MANY if i % 6 != i // 7 % 6]),
    "names, some alone": (",", [*PEOPLE, "ann,bob", "eve, joe", "ann,kim,leo"]),
    "numbers, some alone": (",", [*map(str, MANY), "3,17", "17,5", "4,9,11"]),
    "numbers and semicolons, some alone": (";", [*map(str, range(200)), *[f"{i % 7};{100 + i % 11}" for i in MANY]]),
    "a list of Python": (",", [str([f"p{i % 7}", f"p{i}"]) for i in MANY]),
    "a list of JSON": (",", [json.dumps([f"p{i % 7}", f"p{i}"]) for i in MANY]),
    "a list of JSON, some of one": (
        ",",
        [*[json.dumps([one]) for one in PEOPLE], '["ann","bob"]', '["eve", "joe"]', '["ann", "leo"]'],
    ),
    "a tuple": (",", [str((f"p{i % 7}", f"p{i}")) for i in MANY]),
    "a set": (",", [f"{{'p{i % 7}', 'p{i}'}}" for i in MANY]),
    "tabs": ("\t", [f"p{i % 7}\tp{i}" for i in MANY]),
    "lines": ("\n", [f"p{i % 7}\np{i}" for i in MANY]),
    "bytes": (",", [f"p{i % 7},p{i}".encode() for i in MANY]),
}
PLAIN: dict[str, list[Any]] = {
    "numbers": [*MANY],
    "ids": [f"p{i}" for i in MANY],
    "ids of two words": [f"patient {i}" for i in MANY],
    "last and first names": [f"{last}, {first}" for last in LAST for first in FIRST],
    "first and last names": [f"{first} {last}" for last in LAST for first in FIRST],
    "Chinese names": [f"{one} {two}" for one in CHINESE for two in CHINESE if one != two],
    "one address each": [f"alice{i}@x.org" for i in MANY],
    "addresses with names": [f"Alice, {i} <alice{i}@x.org>" for i in MANY],
    "wards and beds": [f"ward {i % 7}|bed {i}" for i in MANY],
    "sites and people": [f"site{i % 7}|p{i}" for i in MANY],
    "two numbers": [f"{10 + i % 7},{10 + i % 11}" for i in MANY],
    "two numbers and a semicolon": [f"{i // 9};{i % 9}" for i in range(81)],
    "hours and minutes": [f"{i // 60:02d};{i % 60:02d}" for i in range(1440)],
    "places on two plates": [f"{one}|{other}" for one in PLACES for other in PLACES],
    "codes of two blocks": [f"{one} {other}" for one in PLACES for other in PLACES],
    "households and their members": [*map(str, range(50)), *[f"{i // 3} {i % 3}" for i in range(150)]],
    "names and first names": [*CHINESE, *[f"{one} {two}" for one in CHINESE for two in CHINESE]],
    "a word of all": [f"p{i} of p{7 * i % 60}" for i in MANY],
    "two numbers and a space": [f"{10 + i % 7} {10 + i % 11}" for i in MANY],
    "wards of letters": [f"{'ABCD'[i % 4]} bed {'ABCD'[i // 4 % 4]}" for i in range(16)],
    "streets": [f"{i % 9 + 1} Main Street {i % 7 + 1}, Springfield" for i in MANY],
    "one strange id": [*[f"p{i}" for i in MANY], "p1, p2"],
    "digests": [bytes([200, 255, i]) for i in MANY],
    "dates": [f"2024-01-{i % 28 + 1:02d} 1{i % 9}:30" for i in MANY],
}


def told(names: list[Any], argument: str = "owners") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert warn_of_joined(names, argument) == bool(caught)
    return [str(one.message) for one in caught]


@pytest.mark.few(40)
@pytest.mark.parametrize("name", LISTS)
def test_lists_in_one_text_are_told_of(name: str) -> None:
    between, names = LISTS[name]
    (message,) = told(names)
    assert f"one.split({between!r})" in message
    assert message.endswith("Where each is the id of one person, nothing is lost.")


@pytest.mark.few(40)
@pytest.mark.parametrize("name", PLAIN)
def test_names_and_ids_of_several_fields_are_not(name: str) -> None:
    assert told(PLAIN[name]) == []


def test_the_fix_makes_owners() -> None:
    owners = LISTS["commas"][1]
    kept, _ = tfdp.preprocessing.limit_owners([[part.strip() for part in one.split(",")] for one in owners])
    assert 0 < len(kept) < 10  # each of 7 people is in every seventh record


CALLS = {
    "owners": lambda names: tfdp.PrivateBatches(np.zeros((60, 2)), sampling=tfdp.sampling.Poisson(2), owners=names),
    "owners in lists": lambda names: tfdp.PrivateBatches(
        np.zeros((60, 2)), sampling=tfdp.sampling.Poisson(2), owners=[[one] for one in names]
    ),
    "unit_ids": lambda names: tfdp.PrivateBatches(np.zeros((60, 2)), sampling=tfdp.sampling.Poisson(2), unit_ids=names),
    "limit_owners": tfdp.preprocessing.limit_owners,
    "release_metric": lambda names: tfdp.release_metric(
        np.zeros(60), tfdp.accounting.Ledger(), stddev=0.1, unit_ids=names
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_whoever_takes_ids_says_so(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[name](LISTS["commas"][1])
        CALLS[name]([f"p{i}" for i in MANY])
    assert len([one for one in caught if "several people in one text" in str(one.message)]) == 1
    assert all(one.filename == __file__ for one in caught)
