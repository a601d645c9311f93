"""Ids that protect nobody bring a warning: one that stands for missing ones, and ids that are all different."""

import re
import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3)).astype("float32")
FEW = np.arange(200) // 4


def with_one(value, records=9, ids=FEW):
    found = np.array(ids)
    found[:records] = value
    return found


TEXTS = FEW.astype(str).astype("U20")
NOBODY = {
    "-1": (with_one(-1), "-1"),
    "NaN as an integer": (with_one(np.iinfo(np.int64).min), str(np.iinfo(np.int64).min)),
    "-1 without a sign": (with_one(2**32 - 1, ids=FEW.astype(np.uint32)), str(2**32 - 1)),
    "many nines below zero": (with_one(-999), "-999"),
    "many nines as text": (with_one("-9999", ids=TEXTS), "'-9999'"),
    "a word": (with_one("Unknown", ids=TEXTS), "'Unknown'"),
    "NaN as text": (with_one("nan", ids=TEXTS), "'nan'"),
    "a blank": (with_one(" ", ids=TEXTS), "' '"),
    "bytes": (with_one(b"N/A", ids=TEXTS.astype("S20")), "b'N/A'"),
    "0, of most records": (with_one(0, 120), "0"),
    "a number of most records": (with_one(9999, 120), "9999"),
}
SOMEBODY = {
    "few records each": FEW,
    "one -1": with_one(-1, 1),
    "somebody with many": with_one(0, 30),
    "two who have nearly all": np.where(np.arange(200) < 190, np.arange(200) % 2, FEW + 2),
    "few people": np.arange(200) // 190,
    "a name with a word in it": with_one("Nan Goldin", ids=TEXTS),
}


def batches(ids):
    return tfdp.PrivateBatches(X, sampling=tfdp.sampling.Poisson(2), unit_ids=ids)


@pytest.mark.parametrize("name", NOBODY)
def test_an_id_that_stands_for_missing_ones_is_told_of(name):
    ids, shown = NOBODY[name]
    with pytest.warns(UserWarning, match=f"^The id {re.escape(shown)} owns .*an id of its own.*nothing is lost.$"):
        batches(ids)


@pytest.mark.parametrize("name", SOMEBODY)
def test_others_are_not(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches(SOMEBODY[name])
    assert not [str(one.message) for one in caught]


def test_ids_that_are_all_different_group_nothing():
    with pytest.warns(UserWarning, match=r"Each of the 200 records has an id of its own.*nothing is lost\.$"):
        batches(np.arange(200))
    ledger = tfdp.accounting.Ledger()
    with warnings.catch_warnings():  # a number of each person, beside a training that protects them
        warnings.simplefilter("error")
        tfdp.release_metric(np.arange(200) % 2, ledger, stddev=0.1, unit_ids=np.arange(200))


def owned(owners, **options):
    return tfdp.PrivateBatches(X, sampling=tfdp.sampling.Poisson(2), owners=owners, **options)


def quantiles(ids):
    ledger = tfdp.accounting.Ledger()
    return tfdp.preprocessing.quantiles(
        X, ledger, [0.5], lower=-9.0, upper=9.0, noise_multiplier=9.0, unit_ids=ids, examples=len(set(ids))
    )


def vocabulary(ids):
    ledger, texts = tfdp.accounting.Ledger(), [f"word{one % 7}" for one in range(200)]
    return tfdp.preprocessing.vocabulary(texts, ledger, noise_multiplier=9.0, failure=1e-6, unit_ids=ids)


EVERYWHERE = {
    "quantiles": (quantiles, "unit_ids"),
    "vocabulary": (vocabulary, "unit_ids"),
    "owners": (owned, "owners"),
    "owners in lists": (lambda ids: owned([[one] for one in ids]), "owners"),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_ids_that_are_all_different_are_told_of_everywhere(name):
    call, argument = EVERYWHERE[name]
    with pytest.warns(UserWarning, match=f"Each of the 200 records has an id of its own in `{argument}`"):
        call([f"visit {one}" for one in range(200)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call([f"patient {one // 4}" for one in range(200)]) if argument == "unit_ids" else owned(
            [f"patient {one // 4}" for one in range(200)], records_per_owner=4
        )
    assert not [str(one.message) for one in caught if "id" in str(one.message)]


def test_an_owner_that_stands_for_nobody_is_told_of():
    with pytest.warns(UserWarning, match=r"^The id 'unknown' owns 9"):
        owned([*["unknown"] * 9, *[f"p{one}" for one in range(191)]], records_per_owner=9)


def test_owners_whose_records_have_several_are_no_news():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        owned([[f"a{one}", f"b{one}"] for one in range(200)])
    assert [str(one.message) for one in caught] == []
