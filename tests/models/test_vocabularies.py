"""A vocabulary that was copied from the private records brings a warning; words that many share, and lists, don't."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models import vocabularies
from tfdp_layers.models.statistics import warn_of_statistics
from tfdp_layers.models.vocabularies import warn_of_vocabularies

kl = keras.layers
RNG = np.random.default_rng(0)
NUMBERS = RNG.choice(10**9, 60, replace=False)
ACCOUNTS = np.array([f"DE{number}" for number in NUMBERS])
WARDS = RNG.choice([f"ward {number}" for number in range(10)], 60)
NOTES = np.array([f"Good film, says {account}!" for account in ACCOUNTS])
NOTED = sorted({word.strip(",!").lower() for note in NOTES for word in note.split()})
PAIRS = np.stack([NUMBERS, np.roll(NUMBERS, 1)], 1)
Y = np.ones((60, 1), "float32")


def of_strings(words, shape=(1,)):
    """The lookup as the first layer of a Sequential model."""
    return keras.Sequential([keras.Input(shape, dtype="string"), kl.StringLookup(vocabulary=list(words)), kl.Flatten()])


def of_numbers(words, shape=(1,)):
    """The lookup behind one of two inputs of a graph."""
    first, second = keras.Input(shape, dtype="int64"), keras.Input((3,))
    found = kl.Embedding(len(words) + 1, 2)(kl.IntegerLookup(vocabulary=list(words))(first))
    return keras.Model([first, second], kl.Concatenate()([kl.Flatten()(found), second]))


def of_texts(words, **options):
    layer = kl.TextVectorization(output_mode="multi_hot", vocabulary=list(words), **options)
    return keras.Sequential([keras.Input((), dtype="string"), layer])


def named(words):
    """In a Lambda, of whose function Keras does not know."""
    lookup = kl.StringLookup(vocabulary=list(words))
    return keras.Sequential([keras.Input((1,), dtype="string"), kl.Lambda(lambda x: lookup(x))])


COPIED = {
    "strings": (of_strings(sorted(set(ACCOUNTS))), ACCOUNTS),
    "strings in a column": (of_strings(ACCOUNTS), ACCOUNTS[:, None]),
    "bytes": (of_strings(ACCOUNTS), np.array([one.encode() for one in ACCOUNTS], object)),
    "but for a few": (of_strings([*ACCOUNTS[:58], "DE0"]), ACCOUNTS),
    "integers": (of_numbers(np.unique(NUMBERS)), NUMBERS[:, None]),
    "as real numbers": (of_numbers(np.unique(NUMBERS)), NUMBERS.astype("float64")),
    "integers, and more than one a record": (of_numbers(NUMBERS, (3,)), np.c_[NUMBERS, NUMBERS, NUMBERS % 7]),
    "words of texts": (of_texts(NOTED), NOTES),
    "as they stand": (of_texts(sorted({w for t in NOTES for w in t.split()}), standardize=None), NOTES[:, None]),
    "whole texts": (of_texts(NOTES, split=None, standardize=None), NOTES),
    "a layer that a function names": (named(ACCOUNTS), ACCOUNTS),
}
OTHER = {
    "words that many share": (of_strings(sorted(set(WARDS))), WARDS),
    "a public list": (of_strings([*ACCOUNTS, *(f"DE{number}" for number in range(5))]), ACCOUNTS),
    "of other records": (of_strings(ACCOUNTS), np.array([f"FR{number}" for number in NUMBERS])),
    "a few words": (of_strings(ACCOUNTS[:7]), ACCOUNTS),
    "half in more than one": (of_strings(ACCOUNTS[:40]), np.r_[ACCOUNTS[:40], ACCOUNTS[:21]]),
    "in two records each": (of_numbers(NUMBERS, (2,)), PAIRS),
    "numbers without a gap": (of_numbers(np.arange(60)), RNG.permutation(60)),
    "no records in memory": (of_strings(ACCOUNTS), None),
    "numbers of another kind": (of_strings(ACCOUNTS), NUMBERS),
}


def said(model, x, units=None, warn=warn_of_vocabularies):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(model, [] if x is None else [np.zeros((len(x), 3), "float32"), x], units)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", COPIED)
def test_words_of_the_records_are_told(name):
    (message,) = said(*COPIED[name])
    assert "occurs in one record alone" in message
    assert "tfdp.preprocessing.vocabulary" in message
    assert "keras.layers.Hashing" in message


@pytest.mark.parametrize("name", OTHER)
def test_other_vocabularies_are_left_in_peace(name):
    assert said(*OTHER[name]) == []


def test_what_counts_is_how_many_units_have_a_word():
    each = np.repeat(ACCOUNTS, 2)
    assert said(of_strings(ACCOUNTS), each) == []
    (message,) = said(of_strings(ACCOUNTS), each, np.repeat(np.arange(60), 2))
    assert "occurs in one unit alone" in message
    shared = np.tile(np.arange(60), 2)  # with record k of one person and k + 1 of the next
    assert said(of_strings(ACCOUNTS), np.r_[ACCOUNTS, np.roll(ACCOUNTS, 1)], shared) == []


@pytest.mark.parametrize("name", ["_MOST", "_MOST_TEXTS", "_LETTERS"])
def test_more_than_can_be_looked_at_in_a_moment_is_not(name, monkeypatch):
    monkeypatch.setattr(vocabularies, name, 59)
    assert said(of_texts(NOTED), NOTES) == []


def test_a_vocabulary_that_was_released_with_noise_says_nothing():
    words = [f"word{number}" for number in range(12)]
    texts = np.array([" ".join([words[number % 12], account.lower()]) for number, account in enumerate(ACCOUNTS)])
    found = tfdp.preprocessing.vocabulary(
        texts.tolist(), tfdp.accounting.Ledger(), noise_multiplier=0.1, failure=1e-6, most_tokens=2
    )
    assert set(found) == set(words)
    assert said(of_texts(found), texts) == []
    assert said(of_texts([*found, *map(str.lower, ACCOUNTS)]), texts)


@pytest.mark.parametrize("given", [{}, {"unit_ids": np.arange(120) // 2}], ids=["records", "units"])
def test_fit_says_it_before_anything_is_spent(given):
    accounts = np.repeat(ACCOUNTS, 2) if given else ACCOUNTS
    lookup = kl.StringLookup(vocabulary=sorted(set(accounts)), output_mode="one_hot")
    model = tfdp.PrivateSequential([keras.Input((1,), dtype="string"), lookup, kl.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "Layer 'string_lookup.*seems to be copied from these records")
        with pytest.raises(UserWarning, match=f"in one {'unit' if given else 'record'} alone"):
            model.fit(accounts[:, None], np.ones((len(accounts), 1), "float32"), batch_size=30, verbose=0, **given)
    assert model.ledger.steps == 0


def test_it_is_said_where_statistics_are():
    assert said(of_strings(ACCOUNTS), ACCOUNTS, [Y], warn_of_statistics)
