"""A private model that judges, in a function, what a generator makes is not asked about records; any other one is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

CODE, WIDTH = 3, 6
REAL = np.random.default_rng(0).random((64, WIDTH)).astype("float32")
HELD, CODES = tf.Variable(REAL), tf.ones((16, CODE))
kl = keras.layers


def generator_of():
    return keras.Sequential([keras.Input((CODE,)), kl.Dense(8, "relu"), kl.BatchNormalization(), kl.Dense(WIDTH)])


def recurrent():
    return keras.Sequential([keras.Input((CODE, 1)), kl.GRU(4), kl.Dense(WIDTH)])


def translating():
    return keras.Sequential([keras.Input((WIDTH,)), kl.Dense(WIDTH)])


def with_gradient(judge, generator):
    def step(*given):
        with tf.GradientTape() as tape:
            cost = tf.reduce_mean(judge(*given))
        return tape.gradient(cost, generator.trainable_variables)

    return tf.function(step)


def note_of(way, make=generator_of, feeds=True, given=(CODES,)):
    """What the critic's statement says of public rows, where `way` gave it tensors in a function before."""
    critic = tfdp.make_private(keras.Sequential([keras.Input((WIDTH,)), kl.Dense(4, "relu"), kl.Dense(1)]))
    critic.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0), "mse")
    generator = make()
    with critic.private_run(REAL, np.ones((64, 1)), batch_size=16, epochs=1, verbose=0) as run:
        if feeds:
            run.feeds(generator)
        judged = way(critic, generator)
        for number, batch in enumerate(run):
            if number == 2:
                judged(*given)
            rows = np.zeros((16, WIDTH), "float32"), np.zeros((16, 1), "float32")
            run.step(batch, public=rows if number > 2 else None)
    return " ".join(note for note in critic.privacy_statement(1e-2).notes if "gave public rows" in note)


DRAWN = tf.random.Generator.from_seed(1)
QUIET = {
    "a code": lambda critic, made: tf.function(lambda code: critic(made(code))),
    "through gradients": lambda critic, made: with_gradient(lambda code: critic(made(code, training=True)), made),
    "drawn inside": lambda critic, made: tf.function(lambda _: critic(made(tf.random.normal((16, CODE))))),
    "drawn by a generator": lambda critic, made: tf.function(lambda _: critic(made(DRAWN.normal((16, CODE))))),
    "scaled": lambda critic, made: tf.function(lambda code: critic(2.0 * made(code) - 1.0)),
    "in a function of its own": lambda critic, made: tf.function(lambda code: critic(tf.function(made)(code))),
    "of a condition": lambda critic, made: tf.function(lambda c: critic(made(tf.concat([c[:, :1], c[:, 1:]], 1)))),
}
NOTED = {
    "records": lambda critic, _: tf.function(lambda code: critic(tf.constant(REAL))),
    "a variable": lambda critic, _: tf.function(lambda code: critic(HELD)),
    "rows of a variable": lambda critic, _: tf.function(lambda code: critic(tf.gather(HELD, [0, 1]))),
    "beside what is made": lambda critic, made: tf.function(lambda c: critic(tf.concat([made(c), REAL[:16]], 0))),
    "added to what is made": lambda critic, made: tf.function(lambda code: critic(made(code) + REAL[:16])),
    "of Python": lambda critic, made: tf.function(
        lambda code: critic(
            made(tf.ensure_shape(tf.numpy_function(lambda: REAL[:, :CODE], [], tf.float32), (64, CODE)))
        )
    ),
    "in a branch": lambda critic, _: tf.function(
        lambda code: critic(tf.cond(tf.reduce_sum(code) > 0.0, lambda: tf.constant(REAL), lambda: 0.0 * REAL))
    ),
    "in a function": lambda critic, _: tf.function(lambda code: critic(tf.function(lambda: tf.constant(REAL))())),
    "one row": lambda critic, _: tf.function(lambda code: critic(tf.reshape(tf.tile(code[0], [2]), (1, WIDTH)))),
    "widened": lambda critic, _: tf.function(lambda code: critic(tf.one_hot(tf.cast(code[:, 0], tf.int32), WIDTH))),
    "captured and scaled": lambda critic, made: tf.function(lambda code: critic(tf.constant(REAL) / 255.0)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("way", QUIET)
def test_what_a_generator_makes_is_no_record(way):
    """The loop of docs/loops.md had a note that the guarantee does not cover it."""
    assert note_of(QUIET[way]) == ""


@pytest.mark.slow
def test_what_a_recurrent_generator_makes_is_no_record():
    assert note_of(QUIET["a code"], recurrent, given=(tf.ones((16, CODE, 1)),)) == ""


@pytest.mark.few(3)
@pytest.mark.parametrize("way", NOTED)
def test_whatever_else_is_given_in_a_function_is_noted(way):
    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert "in a function of the caller's" in note_of(NOTED[way])


def test_a_generator_that_changes_records_is_noted():
    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert note_of(QUIET["a code"], translating, given=(REAL[:16],))


TRANSLATED = {
    "one record as a column": (
        lambda critic, made: tf.function(lambda r: critic(made(tf.reshape(r, (1, WIDTH))))),
        REAL[0],
    ),
    "turned around": (lambda critic, made: tf.function(lambda r: critic(made(tf.transpose(r)))), REAL[:5].T),
    "in two constants": (
        lambda critic, made: tf.function(lambda _: critic(made(tf.concat([REAL[:5, :3], REAL[:5, 3:]], 1)))),
        REAL[:1, :1],
    ),
}


@pytest.mark.parametrize("way", TRANSLATED)
def test_records_that_a_generator_changes_are_noted_however_they_lie(way):
    judge, given = TRANSLATED[way]
    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert note_of(judge, translating, given=(given,))


def test_a_generator_that_the_run_does_not_feed_is_noted():
    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert note_of(QUIET["a code"], feeds=False)
