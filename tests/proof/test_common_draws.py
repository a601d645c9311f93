"""Random numbers that several records meet are told from those of each record's own, and from seeds of these."""

import keras
import pytest
import tensorflow as tf

from tfdp_layers.proof import prove

ops, random = keras.ops, keras.random
X = tf.TensorSpec((None, 4))


def looped(x, seeds):
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * random.uniform((), seed=seeds)), [0, x])[1]


def so_many_rounds(x, seeds):
    rounds = random.randint((), 1, 4, seed=seeds)
    return tf.while_loop(lambda i, a: i < rounds, lambda i, a: (i + 1, a * 2.0), [0, x])[1]


def stored(x, seeds):
    seeds.last.assign(random.uniform((), seed=seeds))
    return x


def stored_by_chance(x, seeds):
    tf.cond(random.uniform((), seed=seeds) < 0.5, lambda: seeds.last.assign_add(1.0), lambda: seeds.last.read_value())
    return x


def by_drawn_seeds(x, seeds):
    drawn = random.randint((2,), 0, 2**30, seed=seeds)
    return x * tf.random.stateless_uniform(tf.shape(x), drawn)


COMMON = {
    "a sign": (lambda x, s: x * ops.sign(random.uniform((), -1, 1, seed=s)), "StatelessRandomUniformV2"),
    "a mask": (lambda x, s: random.dropout(x, 0.5, noise_shape=(1, 4), seed=s), "StatelessRandomUniformV2"),
    "of TensorFlow": (lambda x, s: x * tf.random.normal((4,)), "RandomStandardNormal"),
    "an order of features": (lambda x, s: tf.transpose(tf.random.shuffle(tf.transpose(x))), "RandomShuffle"),
    "a branch": (
        lambda x, s: tf.cond(random.uniform((), seed=s) < 0.5, lambda: x, lambda: -x),
        "StatelessRandomUniformV2",
    ),
    "a seed's own number": (lambda x, s: x * ops.cast(s.next()[1] % 2, "float32"), "Mul"),
    "an integer taken for a sign": (
        lambda x, s: x * ops.cast(random.randint((), 0, 2**30, seed=s) % 2, "float32"),
        "StatelessRandomUniformIntV2",
    ),
    "a bound of other numbers": (
        lambda x, s: x * ops.cast(random.randint(tf.shape(x), 0, random.randint((), 1, 9, seed=s), seed=s), "float32"),
        "StatelessRandomUniformIntV2",
    ),
    "in a loop": (looped, "StatelessRandomUniformV2"),
    "a number of rounds": (so_many_rounds, "StatelessRandomUniformIntV2"),
    "stored": (stored, "StatelessRandomUniformV2"),
    "stored by chance": (stored_by_chance, "StatelessRandomUniformV2"),
}
OWN = {
    "dropout": lambda x, s: random.dropout(x, 0.5, seed=s),
    "a depth for each": lambda x, s: x * ops.floor(0.8 + random.uniform((ops.shape(x)[0], 1), seed=s)),
    "drawn seeds": by_drawn_seeds,
    "a seed that never changes": lambda x, s: x @ tf.random.stateless_normal((4, 4), [1, 2]),
    "left unused": lambda x, s: x + 0.0 * tf.cast(tf.shape(random.uniform((3,), seed=s))[0], tf.float32),
    "record by record": lambda x, s: tf.map_fn(lambda row: row * tf.random.uniform(()), x),
}


def found(function):
    seeds = random.SeedGenerator(1)
    seeds.last = tf.Variable(0.0)
    traced = tf.function(lambda x: tf.reduce_sum(function(x, seeds), axis=0), autograph=False)
    report = prove(traced.get_concrete_function(X), secret=[seeds.state])
    assert report.proved, report
    return report.common


@pytest.mark.parametrize("name", COMMON)
def test_what_is_drawn_once_for_all_records_is_named(name):
    function, kind = COMMON[name]
    assert {one.type for one in found(function)} == {kind}


@pytest.mark.parametrize("name", OWN)
def test_what_is_drawn_for_each_record_is_none_of_it(name):
    assert not found(OWN[name])
