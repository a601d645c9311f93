"""Private vocabularies: one record's influence, how often a token of one record alone shows, and the cost."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers.accounting import BudgetExhausted, Ledger, Statement, TokenSelection, epsilon
from tfdp_layers.batches.units import Units
from tfdp_layers.preprocessing import tokens
from tfdp_layers.sampling import FixedSize, Poisson

GRID, DELTA, MOST = 1 << 30, 1e-5, 16
TEXTS = [["a", "b"], ["a"], ["a", "c", "b"], []] * 10


def moved(record, most=MOST):
    """How far a record moves the weights of all tokens, in the L2 norm."""
    before, after = tokens.summed_weights(TEXTS, most), tokens.summed_weights([*TEXTS, record], most)
    return math.sqrt(sum((after[name] - before.get(name, 0)) ** 2 for name in after)) / GRID


HOSTILE = {
    "empty": [],
    "one": ["a"],
    "one, often": ["a"] * 100_000,
    "new": [f"n{i}" for i in range(MOST)],
    "known and new": ["a", "b", "c", "d"],
    "too many": [f"t{i}" for i in range(100_000)],
    "empty tokens": ["", " ", "\x00", "\ud800"],
    "long": ["x" * 1_000_000, "y"],
    "seven": list("abcdefg"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("most", [1, 3, MOST])
def test_no_record_moves_the_weights_by_more_than_one(name, most):
    record = HOSTILE[name]
    assert moved(record, most) <= 1.0
    if record:
        assert moved(record, most) >= 1.0 - 2.0**-26  # each that has a token attains it


def test_tokens_that_count_in_full_or_without_end_would_exceed_it(monkeypatch):
    """The planted bugs: a weight of 1 for each token; all tokens of a record at the weight of `most` of them."""
    monkeypatch.setattr(tokens.math, "isqrt", lambda value: GRID)
    assert moved(HOSTILE["known and new"]) == 2.0
    monkeypatch.setattr(tokens.math, "isqrt", lambda value: GRID // 4)
    assert moved(HOSTILE["too many"], most=10**6) > 2.0


def release_of(noise=1.0, failure=0.05, most=MOST):
    return TokenSelection(most, noise, failure, Poisson(40), 40)


def shown(release, count, runs=2000):
    """How often some token of one record alone, of `count` tokens, is released."""
    weights = tokens.summed_weights([[f"n{i}" for i in range(count)]], release.tokens)
    many = {f"{name} {run}": weight for run in range(runs) for name, weight in weights.items()}
    source = tfdp.noise.SeededNoise(5)
    source.rekey()
    return len({name.split()[1] for name in tokens.passing(many, release, source)}) / runs


@pytest.mark.parametrize("noise", [0.5, 1.0, 20.0])
def test_tokens_of_one_record_show_as_seldom_as_is_said_and_the_worst_count_does(noise):
    release = release_of(noise)
    found = [shown(release, count) for count in (1, 2, 4, MOST)]
    deviation = math.sqrt(0.05 * 0.95 / 2000)
    assert max(found) <= 0.05 + 5 * deviation
    assert max(found) >= 0.05 - 5 * deviation


def test_a_threshold_for_one_token_would_show_more(monkeypatch):
    """The planted bug: the threshold of a record with a single token, for one with many."""
    single = release_of(20.0, most=1).threshold
    monkeypatch.setattr(TokenSelection, "threshold", single)
    assert shown(release_of(20.0), MOST) > 0.3


def test_the_noise_is_what_the_ledger_says(monkeypatch):
    kept = []
    original = tokens.add_noise

    def spy(source, sums, stddevs):
        (noisy,) = original(source, sums, stddevs)
        kept.append(np.asarray(noisy) - np.asarray(sums[0]))
        return [noisy]

    monkeypatch.setattr(tokens, "add_noise", spy)
    ledger = Ledger()
    texts = [" ".join(f"t{50 * i + j}" for j in range(50)) for i in range(40)]
    for source in ("default", "secure"):
        tfdp.preprocessing.vocabulary(texts, ledger, noise_multiplier=3.0, failure=1e-6, noise_source=source)
    assert [entry.release.noise_multiplier for entry in ledger.entries] == [3.0, 3.0]
    for noise in kept:
        assert_normal(noise, 3.0)


def corpus(records=3000):
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(500)])
    often = 1.0 / np.arange(1, 501)
    return [" ".join(rng.choice(words, 8, p=often / often.sum())) + f" name{i}" for i in range(records)]


def test_it_finds_what_many_records_share_and_no_names():
    texts, ledger = corpus(), Ledger()
    words = tfdp.preprocessing.vocabulary(texts, ledger, noise_multiplier=4.0, failure=1e-6, most_tokens=9)
    weights = tokens.summed_weights([text.split() for text in texts], 9)
    threshold = ledger.entries[0].release.threshold
    clear = [name for name, weight in weights.items() if weight / GRID > threshold + 6 * 4.0]
    assert len(clear) > 20
    assert set(clear) <= set(words)
    assert not any(word.startswith("name") for word in words)
    assert words[0] == "w0"
    lookup = keras.layers.StringLookup(vocabulary=words)
    assert np.asarray(lookup(["w0", "name7"])).tolist() == [1, 0]
    text = " ".join(str(Statement.from_ledger(ledger, DELTA)).split())
    assert "once the tokens of 3000 records" in text
    assert "at most 9 tokens" in text


@pytest.mark.slow
def test_a_model_pays_for_its_vocabulary():
    x = np.ones((40, 3), "float32")
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
    tfdp.preprocessing.vocabulary(TEXTS, model.ledger, noise_multiplier=5.0, failure=1e-6)
    alone = float(epsilon(model.ledger, DELTA))
    model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(3.0, DELTA)])
    assert 0 < alone < 2.9 < float(epsilon(model.ledger, DELTA)) <= 3.0
    assert (model.ledger.steps, model.ledger.updates) == (6, 5)


def test_units_give_their_tokens_together():
    ledger, owners = Ledger(), np.arange(40) // 4
    tfdp.preprocessing.vocabulary(TEXTS, ledger, noise_multiplier=5.0, failure=1e-6, unit_ids=owners)
    (entry,) = ledger.entries
    assert (entry.release.unit, entry.release.examples, ledger.unit) == ("unit", 10, "unit")
    joined = tokens._by_unit(TEXTS, Units(owners, 40), str.split)
    assert joined == [["a", "b", "a", "a", "c", "b"]] * 10
    with pytest.raises(ValueError, match="one unit"):
        tfdp.preprocessing.vocabulary(TEXTS, ledger, noise_multiplier=5.0, failure=1e-6)
    assert ledger.steps == 1


def test_it_follows_the_relation_of_the_ledger():
    ledger = Ledger()
    model = tfdp.layers.DPCentering(3.0)
    model.adapt(np.ones((40, 2), "float32"), FixedSize(8))
    ledger.merge(model.ledger)
    tfdp.preprocessing.vocabulary(TEXTS, ledger, noise_multiplier=5.0, failure=1e-6)
    assert ledger.entries[1].release.relation is FixedSize(8).relation


def test_a_budget_that_is_spent_lets_nothing_out(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "passing", lambda *_: pytest.fail("released"))
    ledger = Ledger(tmp_path / "ledger.json", dataset="notes", budget=(0.1, DELTA))
    with pytest.raises(BudgetExhausted):
        tfdp.preprocessing.vocabulary(TEXTS, ledger, noise_multiplier=1.0, failure=1e-6)
    assert ledger.steps == 0


@pytest.mark.parametrize(
    ("records", "options"),
    [
        ("one text", {}),
        ([], {}),
        ([["a", 1]], {}),
        ([b"a"], {"noise_multiplier": 0.0}),
        (["a"], {"failure": 0.0}),
        (["a"], {"most_tokens": 0}),
        (["a"], {"unit_ids": [1, 2]}),
        (["a"], {"examples": 0}),
        (["a"], {"noise_source": 3}),
    ],
    ids=str,
)
def test_bad_records_and_settings_are_refused_and_cost_nothing(records, options):
    ledger = Ledger()
    settings = {"noise_multiplier": 1.0, "failure": 1e-6} | options
    with pytest.raises((ValueError, TypeError)):
        tfdp.preprocessing.vocabulary(records, ledger, **settings)
    assert ledger.steps == 0


def test_bytes_and_tokens_of_a_function_of_ones_own_are_read():
    ledger = Ledger()
    texts = [b"A,b \xff", "a,B"] * 400
    words = tfdp.preprocessing.vocabulary(
        texts, ledger, noise_multiplier=1.0, failure=1e-6, tokens_of=lambda text: text.lower().split(",")
    )
    assert {"a", "b"} <= set(words)
    assert tfdp.preprocessing.vocabulary([[], []], ledger, noise_multiplier=1.0, failure=1e-6) == []
    assert ledger.steps == 2


def test_tokens_in_an_array_are_taken():
    found = tfdp.preprocessing.vocabulary([np.array(["a", "b"])] * 400, Ledger(), noise_multiplier=1.0, failure=1e-6)
    assert sorted(found) == ["a", "b"]


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_an_empty_cell_of_pandas_is_said_to_be_missing(hole):
    ledger = Ledger()
    with pytest.raises(ValueError, match=r"Record 1 is missing.*fillna"):
        tfdp.preprocessing.vocabulary(["a b", hole], ledger, noise_multiplier=5.0, failure=1e-6)
    assert not ledger.entries


NOTES = np.array(["Severe Pain, fever.", "Fever! (No) cough?", "ÄRZTE: \\o/ e-mail_it's"] * 60, object)


def found(records, ledger=None, **options):
    """Their words, next to without noise."""
    ledger = Ledger() if ledger is None else ledger
    return tfdp.preprocessing.vocabulary(records, ledger, noise_multiplier=0.01, failure=1e-6, **options)


@pytest.mark.parametrize("standardize", ["lower_and_strip_punctuation", "lower", "strip_punctuation", None])
def test_words_are_those_that_a_layer_of_the_same_standardize_meets(standardize):
    words = found(NOTES, standardize=standardize)
    layer = keras.layers.TextVectorization(standardize=standardize, output_mode="int", output_sequence_length=8)
    layer.adapt(NOTES)
    assert set(words) == set(layer.get_vocabulary()[2:])


def test_every_character_is_standardized_as_keras_does():
    characters = "".join(map(chr, [*range(33, 127), 0xC4, 0xDF, 0x130, 0x2019, 0x1F600]))
    keras_way = keras.layers.TextVectorization(split=None, output_mode="int")
    keras_way.adapt([characters])
    assert keras_way.get_vocabulary()[2:] == found([characters] * 60, standardize="lower_and_strip_punctuation")


def test_a_function_standardizes_each_text_by_itself():
    assert found([f"A{number}" for number in range(60)], standardize=lambda text: text[0].lower()) == ["a"]
    assert found([b"FEVER"] * 60, standardize=str.lower) == ["fever"]


@pytest.mark.parametrize(
    ("records", "standardize", "says"),
    [
        (["a"] * 60, "lowercase", "standardize must be None, one of"),
        (["a"] * 60, True, "standardize must be None, one of"),
        (TEXTS, "lower", "record 0 is a collection of tokens"),
        (["a"] * 60, tf.strings.lower, "must give a text of one text"),
    ],
)
def test_a_standardize_that_cannot_be_is_refused_and_costs_nothing(records, standardize, says):
    ledger = Ledger()
    with pytest.raises(ValueError, match=says):
        found(records, ledger, standardize=standardize)
    assert ledger.steps == 0


SOME = ["to be", "or not", "to be"]


class Frame:
    """As data frames do it, of pandas, Polars and Arrow."""

    columns = ("text", "more")

    def __iter__(self):
        return iter(self.columns)


Data = tf.data.Dataset
READ = {
    "tensor": lambda: tf.constant(SOME),
    "pipeline": lambda: Data.from_tensor_slices(SOME),
    "its elements": lambda: [*Data.from_tensor_slices(SOME)],
    "its arrays": lambda: Data.from_tensor_slices(SOME).as_numpy_iterator(),
    "arrays of one text": lambda: [np.array(text) for text in SOME],
    "iterator": lambda: iter(SOME),
}
REFUSED = {
    "frame": (Frame, r"A Frame gives .* frame\['text'\]"),
    "dict": (lambda: {"to be": 1, "or not": 2}, "A dict gives the names"),
    "batches": (lambda: Data.from_tensor_slices(SOME).batch(2), r"leave \.batch out"),
    "labels": (lambda: Data.from_tensor_slices((SOME, [0, 1, 0])), "Take the texts alone"),
    "endless": (lambda: Data.from_tensor_slices(SOME).repeat(), "endless"),
    "one tensor": (lambda: tf.constant("to be"), "got one text"),
    "one array": (lambda: np.array("to be"), "got one text"),
    "lists of tensors": (lambda: [tf.constant(SOME)], "token of type bytes.*Of a batch of texts give each text"),
    "ragged": (lambda: tf.ragged.constant([["a", "b"], ["c"]]), r"of bytes, token\.decode"),
}


@pytest.mark.parametrize("name", READ)
def test_texts_of_tensors_and_pipelines_are_read_one_by_one(name):
    ledger = Ledger()
    found = tfdp.preprocessing.vocabulary(
        READ[name](), ledger, noise_multiplier=1e-3, failure=0.5, most_tokens=2, noise_source="secure"
    )
    assert {"to", "be"} <= {*found}
    assert ledger.entries[-1].release.examples == 3


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_texts_is_refused_before_anything_is_charged(name):
    (made, says), ledger = REFUSED[name], Ledger()
    with pytest.raises(ValueError, match=says):
        tfdp.preprocessing.vocabulary(made(), ledger, noise_multiplier=1.0, failure=1e-6)
    assert not ledger.entries


def test_arrays_of_tokens_are_not_standardized_either():
    with pytest.raises(ValueError, match="record 0 is a collection of tokens"):
        tokens.vocabulary([np.array(["A"])], Ledger(), noise_multiplier=1.0, failure=1e-6, standardize="lower")
