"""Pipelines of tf.data that are declared to draw each batch afresh, looked at as training reads them."""

import gc
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import declared_words
from tfdp_layers.batches.replayed import Drawn, Reading, Rows, Runs

N, B = 300, 30
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 5)).astype("float32"), RNG.normal(size=(N, 1)).astype("float32")
Poisson, FixedSize, Truncated = tfdp.sampling.Poisson, tfdp.sampling.FixedSize, tfdp.sampling.TruncatedPoisson
TYPES = (tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))


def poisson(seed=None, length=10, n=N, share=B / N):
    rng = np.random.default_rng(seed)
    return (np.flatnonzero(rng.random(n) < share) for _ in range(length))


def cut():
    order = np.random.default_rng().permutation(N)
    return (order[i : i + B] for i in range(0, N, B))


def parts():
    rng = np.random.default_rng()
    return iter(np.split(rng.permutation(N), np.sort(rng.choice(np.arange(1, N), 9, replace=False))))


def choices(length=10, n=N, size=B):
    rng = np.random.default_rng()
    return (rng.choice(n, size, replace=False) for _ in range(length))


def again(seed=3):
    """Starts itself again, without an end."""
    return (rows for _ in itertools.count() for rows in poisson(seed))


def permuted(length):
    """Stored draws, in another order in each pass."""
    stored = [*poisson(42, length)]
    return lambda: (stored[one] for one in np.random.default_rng().permutation(length))


def blocks(length, times, count=40):
    """Blocks of drawn batches, each of which comes several times at once."""
    for _ in range(count):
        block = [*poisson(None, length)]
        yield from block * times


def given(start, x=X, y=Y):
    return tf.data.Dataset.from_generator(lambda: ((x[one], y[one]) for one in start()), output_signature=TYPES)


def by_number(count, afresh=False):
    """Rows that a Python function draws by the number of the step."""

    def rows(number):
        rng = np.random.default_rng(None if afresh else int(number))
        return np.flatnonzero(rng.random(N) < B / N)

    def batch(number):
        drawn = tf.ensure_shape(tf.numpy_function(rows, [number], tf.int64), [None])
        return tf.gather(X, drawn), tf.gather(Y, drawn)

    return count.map(batch)


def by_tensorflow():
    mine = tf.data.Dataset.range(10).map(lambda _: tf.where(tf.random.uniform([N]) < B / N)[:, 0])
    return mine.map(lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)))


def in_dicts(start):
    """Of several types, with weights."""
    kinds = {"a": tf.TensorSpec((None, 5), tf.float16), "b": tf.TensorSpec((None,), tf.bool)}

    def batches():
        for one in start():
            x = {"a": X[one].astype("float16"), "b": X[one, 0] > 0}
            yield x, Y[one], np.ones(len(one), "float32")

    signature = (kinds, tf.TensorSpec((None, 1)), tf.TensorSpec((None,)))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def padded(start):
    def batches():
        for one in start():
            part = np.resize(one, 80) if len(one) else np.zeros(80, int)
            yield X[part], Y[part], (np.arange(80) < len(one)).astype("float32")

    return tf.data.Dataset.from_generator(batches, output_signature=(*TYPES, tf.TensorSpec((None,))))


def said(dataset, sampling, examples=N, batches=60):
    return declared_words.said(dataset, sampling, examples, batches)


WRONG = {
    "a seed in the generator": (lambda: given(lambda: poisson(42)), Poisson(B), "came again"),
    "repeated": (lambda: given(lambda: poisson(42)).repeat(), Poisson(B), "came again"),
    "repeated, then changed": (
        lambda: given(lambda: poisson(42)).repeat().map(lambda x, y: (2.0 * x, y)).prefetch(2),
        Poisson(B),
        "came again",
    ),
    "a loop in the generator": (lambda: given(again), Poisson(B), "came again"),
    "of few batches": (lambda: given(lambda: poisson(42, 3)).repeat().prefetch(1), Poisson(B), "came again"),
    "of one batch": (lambda: padded(lambda: poisson(42, 1)), Truncated(B, 80), "came again"),
    "seeds by numbers": (lambda: by_number(tf.data.Dataset.range(10)), Poisson(B), "came again"),
    "seeds by numbers, repeated": (
        lambda: by_number(tf.data.Dataset.range(10).repeat()).prefetch(1),
        Poisson(B),
        "came again",
    ),
    "stored ones in another order": (lambda: given(lambda: poisson(42)).shuffle(10), Poisson(B), "came again"),
    "shuffled passes": (lambda: given(cut), Poisson(B), "equally many records"),
    "shuffled passes, repeated": (lambda: given(cut).repeat().prefetch(2), Poisson(B), "equally many records"),
    "passes in parts": (lambda: given(parts).repeat(), Poisson(B), "have 300 records in each pass"),
    "dicts": (lambda: in_dicts(lambda: poisson(42)), Poisson(B), "came again"),
    "padded": (lambda: padded(lambda: poisson(42)), Truncated(B, 80), "came again"),
    "three in another order": (lambda: given(permuted(3)), Poisson(B), "came again"),
    "five in another order": (lambda: given(permuted(5)), Poisson(B), "came again"),
    "seven in another order": (lambda: given(lambda: poisson(42, 7)).shuffle(7), Poisson(B), "came again"),
    "each batch twice": (lambda: given(lambda: blocks(1, 2)), Poisson(B), "give each drawn batch once"),
    "each batch four times": (
        lambda: given(choices).flat_map(lambda *one: tf.data.Dataset.from_tensors(one).repeat(4)),
        FixedSize(B),
        "came again",
    ),
    "blocks of four twice": (lambda: given(lambda: blocks(4, 2)), Poisson(B), "came again"),
    "three, each twice": (
        lambda: given(lambda: (rows for rows in poisson(42, 3) for _ in "ab")),
        Poisson(B),
        "came again",
    ),
    "fixed sizes": (
        lambda: given(lambda: (np.random.default_rng(i).choice(N, B, replace=False) for i in range(10))),
        FixedSize(B),
        "came again",
    ),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", WRONG)
def test_a_pipeline_that_is_seen_not_to_draw_as_declared_brings_one_word(name):
    make, sampling, words = WRONG[name]
    (found,) = said(make(), sampling)
    assert words in found


ONES = np.ones((N, 5), "float32"), np.ones((N, 1), "float32")
BITS = np.repeat(np.arange(N)[:, None] % 2, 5, 1).astype("float32")
RIGHT = {
    "a generator": (lambda: given(poisson), Poisson(B), N),
    "repeated": (lambda: given(poisson).repeat().prefetch(2), Poisson(B), N),
    "by numbers": (lambda: by_number(tf.data.Dataset.range(10), afresh=True), Poisson(B), N),
    "a count without an end": (lambda: by_number(tf.data.Dataset.counter()), Poisson(B), N),
    "by TensorFlow": (by_tensorflow, Poisson(B), N),
    "filters": (
        lambda: tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda *_: tf.random.uniform([]) < 0.1).batch(N),
        Poisson(B),
        N,
    ),
    "fixed sizes": (lambda: given(choices), FixedSize(B), N),
    "the first of a shuffle": (
        lambda: tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(N).batch(B).take(1).repeat(),
        FixedSize(B),
        N,
    ),
    "dicts": (lambda: in_dicts(poisson), Poisson(B), N),
    "padded": (lambda: padded(poisson), Truncated(B, 80), N),
    "ten records, one at a time": (lambda: given(lambda: poisson(None, 10, 10, 0.1)), Poisson(1), 10),
    "ten records, two of a size": (lambda: given(lambda: choices(10, 10, 2)), FixedSize(2), 10),
    "ten records, repeated": (lambda: given(lambda: poisson(None, 10, 10, 0.2)).repeat().prefetch(1), Poisson(2), 10),
    "next to no records": (lambda: given(lambda: poisson(None, 10, N, 1 / N)), Poisson(1), N),
    "records that are alike": (lambda: given(poisson, *ONES), Poisson(B), N),
    "records that are alike, one batch in a pass": (lambda: given(lambda: poisson(None, 1), *ONES), Poisson(B), N),
    "records that are alike, repeated": (lambda: given(poisson, *ONES).repeat().prefetch(1), Poisson(B), N),
    "records that are alike, a size": (lambda: given(choices, *ONES).repeat().prefetch(1), FixedSize(B), N),
    "records that are alike, of a size, one batch in a pass": (
        lambda: given(lambda: choices(1), *ONES),
        FixedSize(B),
        N,
    ),
    "records that are alike, shuffled": (
        lambda: tf.data.Dataset.from_tensor_slices(ONES).shuffle(N).batch(B).take(1).repeat(),
        FixedSize(B),
        N,
    ),
    "records of two values": (lambda: given(lambda: choices(3, 20, 2), BITS, BITS[:, :1]), FixedSize(2), 20),
    "blocks that are drawn": (lambda: given(lambda: blocks(4, 1)), Poisson(B), N),
    "all records": (lambda: given(lambda: iter([np.arange(N)])), Poisson(N), N),
    "a partition": (lambda: tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(N).batch(B), None, N),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", RIGHT)
def test_a_pipeline_that_may_draw_as_declared_brings_none(name):
    make, sampling, examples = RIGHT[name]
    assert said(make(), sampling or tfdp.sampling.Partition(B), examples, batches=400) == []


def test_what_was_said_before_it_is_read_is_not_said_again():
    (found,) = said(given(lambda: poisson(42)).cache(), Poisson(B))
    assert ".cache keeps its batches" in found


@pytest.mark.parametrize("dataset", [lambda: given(lambda: poisson(42)), lambda: given(again)])
def test_a_training_says_it_once(dataset):
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    declared = tfdp.declare_sampling(dataset(), Poisson(B), examples=N)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(declared, epochs=4, verbose=0)
    assert sum("came again" in str(one.message) for one in caught) == 1


def test_batches_and_their_types_are_those_of_the_pipeline_and_readings_are_apart():
    declared = tfdp.declare_sampling(given(lambda: poisson(42, 1000)), Poisson(B), examples=N)
    expected = [*itertools.islice(poisson(42, 1000), 20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = iter(declared.dataset()), iter(declared.dataset())
        assert declared.dataset().element_spec == (*TYPES, tf.TensorSpec((None,)))
        for rows in expected[:3]:  # fewer than are compared from reading to reading
            for batch in (next(one), next(other)):
                np.testing.assert_array_equal(batch[0], X[rows])
                np.testing.assert_array_equal(batch[1], Y[rows])


def test_a_second_training_on_the_same_draws_brings_a_word():
    declared = tfdp.declare_sampling(given(lambda: poisson(3, 1000)), Poisson(B), examples=N)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert len([*declared.dataset().take(20)]) == 20
    assert ["Where what was read before was a look" in str(one.message) for one in caught] == [True]


def of(*digests, rows=9, alone=False):
    runs, found = Runs(), False
    for digest in digests:
        runs.read(digest, rows)
        found = found or runs.again(alone)
    return found


def test_a_run_is_of_batches_that_differ_and_came_before_at_one_distance():
    assert of(*range(10), *range(8))
    assert of(*[1, 2] * 9)
    assert not of(*[1, 2] * 8)
    assert of(*range(5000), *range(8))
    assert not of(*range(10), *range(7), 50, 7, 8, 9)
    assert not of(*[1] * 50)
    assert of(*[1] * 50, alone=True)
    assert not of(*[1, 1, 2] * 9)
    assert not of(*range(10), *range(8), rows=1)
    assert not of(*range(10), 3, 1, 2, 0, 7, 6, 5, 4, 9, 8)


def test_blocks_that_come_again_at_once_are_seen_where_they_differ():
    assert of(*np.repeat(range(9), 2))
    assert not of(*np.repeat(range(7), 2))
    assert of(*[one for block in range(0, 12, 3) for _ in "ab" for one in range(block, block + 3)])
    assert not of(*[one for block in range(0, 12, 3) for one in range(block, block + 3)])
    assert not of(*[1, 1, 2, 2] * 20)
    assert of(*[1, 1, 2, 2, 3, 3] * 6)
    assert not of(*[one for block in range(20) for one in (3 * block, 3 * block, 3 * block + 1, 3 * block + 2)])


def read(*passes):
    """What is looked at until no more is; a pass is what its batches hold."""
    drawn = Drawn(Poisson(B), N)
    reading, looked = Reading(drawn), 0
    for one in passes:
        for digest in one:
            if not reading.over:
                reading.see(digest, Rows(20 + digest % 17, 20 + digest % 17, False))
                looked += 1
        reading.ended()
    return looked, drawn.done


def test_a_watch_ends_where_enough_was_read_without_a_word():
    fresh = itertools.count()
    assert read(*([next(fresh) for _ in range(10)] for _ in range(300))) == (1030, False)
    assert read(range(20_000)) == (16_384, False)


def test_of_a_long_pass_the_first_batches_are_looked_at(monkeypatch):
    from tfdp_layers.batches import watched

    monkeypatch.setattr(watched, "LONGEST", 20)
    seen, see = [], Reading.see
    monkeypatch.setattr(Reading, "see", lambda *args: seen.append(see(*args)))
    assert said(given(lambda: poisson(None, 50)), Poisson(B), batches=110) == []
    assert 50 <= len(seen) <= 52  # 20 of each of two passes, and what is read ahead in the third one


def test_an_error_in_place_of_the_word_comes_in_the_next_training_again():
    declared = tfdp.declare_sampling(given(lambda: poisson(42)), Poisson(B), examples=N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batches in (40, 4):
            with pytest.raises(tf.errors.UnknownError, match="came again"):
                [*declared.dataset().take(batches)]


def test_nothing_is_kept_behind_a_training():
    declared = tfdp.declare_sampling(given(poisson), Poisson(B), examples=N)
    assert len([*declared.dataset().take(9)]) == 9
    del declared
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one).__name__ == "_Readings"]


def test_without_a_look_at_pipelines_they_pass(monkeypatch):
    from tfdp_layers.batches import declared

    monkeypatch.setattr(declared, "watched", lambda dataset, drawn: dataset.repeat())
    assert said(given(lambda: poisson(42)), Poisson(B)) == []
