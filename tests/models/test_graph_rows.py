"""A private model that judges, in a function, what a generator makes is not asked about records; any other one is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.graph_rows import are_generated

CODE, WIDTH = 3, 6
REAL = np.random.default_rng(0).random((64, WIDTH)).astype("float32")
TABLE = np.random.default_rng(0).integers(0, 3, (16, 2))
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
    "a table in a constant": lambda critic, _: tf.function(
        lambda code: critic(tf.reshape(tf.one_hot(TABLE, 3), (16, WIDTH)))
    ),
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


RATES = {
    "poisson": lambda r: tf.random.poisson([], r * 50.0),
    "gamma": lambda r: tf.random.gamma([], r + 1.0),
    "stateless poisson": lambda r: tf.random.stateless_poisson((16, WIDTH), (1, 2), r),
    "binomial of Keras": lambda r: keras.random.binomial((16, WIDTH), counts=100.0 * tf.ones_like(r), probabilities=r),
    "gamma of Keras": lambda r: keras.random.gamma((16, WIDTH), alpha=r + 1.0),
    "truncated": lambda r: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=(16, WIDTH), means=r[:, 0], stdevs=r[:, 1], minvals=r[:, 2], maxvals=r[:, 3] + 1.0
    ),
    "a range": lambda r: tf.cast(
        tf.random.uniform((16, WIDTH), 0, tf.cast(r[0, 0] * 9.0 + 1.0, tf.int32), tf.int32), tf.float32
    ),
    "of a generator": lambda r: tf.cast(DRAWN.binomial((16, WIDTH), 9.0 * tf.ones_like(r), r), tf.float32),
    "shuffled": tf.random.shuffle,
    "shuffled by a seed": lambda r: tf.random.experimental.stateless_shuffle(r, (1, 2)),
    "classes": lambda r: tf.cast(tf.random.categorical(r, WIDTH), tf.float32),
    "added": lambda r: r + tf.random.normal((16, WIDTH)),
}
DRAWS = {
    "poisson": lambda c: tf.random.poisson((16, CODE), 4.0),
    "gamma": lambda c: tf.random.gamma((16, CODE), 2.0),
    "truncated": lambda c: tf.random.truncated_normal((tf.shape(c)[0], CODE)),
    "of a seed": lambda c: tf.random.stateless_uniform((16, CODE), (1, 2)),
    "of Keras": lambda c: keras.random.normal((16, CODE), seed=SEEDS),
    "shuffled": lambda c: tf.random.shuffle(tf.random.normal((16, CODE))),
    "classes": lambda c: tf.one_hot(tf.random.uniform((16,), 0, CODE, tf.int32), CODE),
    "classes of logits": lambda c: tf.one_hot(tf.random.categorical(tf.zeros((1, CODE)), 16)[0], CODE),
    "codes as rates": lambda c: tf.random.poisson([], c),
}
SEEDS = keras.random.SeedGenerator(1)


def is_let_in(way, *shapes, inputs=((WIDTH,),), generator=None, records=None):
    """What is said of the tensors that `way` gives a critic with these inputs, of arguments of these shapes."""
    given = [keras.Input(shape) for shape in inputs]
    flat = [kl.GlobalAveragePooling2D()(one) if None in one.shape[1:] else kl.Flatten()(one) for one in given]
    critic = keras.Model(given, kl.Dense(1)(kl.Concatenate()(flat) if len(flat) > 1 else flat[0]))
    made, said = generator_of() if generator is None else generator, []

    @tf.function(input_signature=[tf.TensorSpec(shape) for shape in shapes])
    def judge(*arguments):
        said.append(are_generated(keras.tree.flatten(way(made, *arguments)), critic, [made], records))

    judge.get_concrete_function()
    return said[0]


@pytest.mark.parametrize("parameter", RATES)
def test_random_numbers_by_parameters_of_records_are_records(parameter):
    """A score of private pictures with Poisson noise told 20 times of 20 who was there, without a note."""
    drawn = RATES[parameter]
    assert not is_let_in(lambda made, r: made(drawn(r)), (16, WIDTH), generator=translating())
    assert not is_let_in(lambda _, r: drawn(r), (16, WIDTH))


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_of_no_record_are_none(draw):
    assert is_let_in(lambda made, c: made(DRAWS[draw](c)), (16, CODE))


def test_a_score_of_noisy_records_is_noted():
    def judge(critic, made):
        return tf.function(lambda r: critic(made(tf.random.poisson([], r * 50.0))))

    with pytest.warns(UserWarning, match="in a function of the caller's"):
        assert note_of(judge, translating, given=(REAL[:16],))


def as_channels(labels, size=4):
    """As in the conditional network of keras.io: one picture of equal numbers for each class."""
    repeated = keras.ops.repeat(labels[:, :, None, None], repeats=[size * size])
    return keras.ops.reshape(repeated, (-1, size, size, labels.shape[1]))


def painting():
    return keras.Sequential([keras.Input((5,)), kl.Dense(16), kl.Reshape((4, 4, 1))])


def one_hot_drawn(rows, classes):
    return tf.one_hot(tf.random.uniform((rows,), 0, classes, tf.int32), classes)


def beside_columns(made, z, labels):
    return tf.concat([made(tf.concat([z, labels], 1)), labels], 1)


def beside_channels(made, z, labels):
    return tf.concat([made(tf.concat([z, labels], 1)), as_channels(labels)], -1)


def an_input_of_its_own(made, z, label):
    return [made(tf.concat([z, label], 1)), label]


CONDITIONED = {
    "beside columns": (beside_columns, [(16, 1), (16, 2)], {"inputs": [(WIDTH + 2,)]}),
    "as channels": (beside_channels, [(16, 2), (16, 3)], {"inputs": [(4, 4, 4)], "generator": painting}),
    "as an input of its own": (an_input_of_its_own, [(16, 2), (16, 1)], {"inputs": [(WIDTH,), (1,)]}),
}
CAPTURED, MEANS, KERNEL = tf.constant(TABLE), tf.constant([0.4, 0.5]), np.array([1.0, 2.0, 1.0], "float32")
ORDINARY = {
    "of pictures of any size": (
        lambda made, z: made(z),
        [(16, 5)],
        {"inputs": [(None, None, 1)], "generator": painting, "records": tf.TensorSpec((None, 4, 4, 1))},
    ),
    "noise of a scale that is given": (
        lambda made, z, scale: made(z) + scale * tf.random.normal((16, WIDTH)),
        [(16, CODE), ()],
        {},
    ),
    "a temperature": (lambda made, z, t: tf.nn.softmax(made(z) / t), [(16, CODE), ()], {}),
    "means of columns": (lambda made, z: made(z)[:, :2] - MEANS, [(16, CODE)], {}),
    "blurred": (
        lambda made, z: tf.nn.conv2d(made(z), KERNEL[:, None, None, None], 1, "SAME"),
        [(16, 5)],
        {"inputs": [(4, 4, 1)], "generator": painting},
    ),
    "labels of an eye": (
        lambda made, z: [made(z), tf.gather(tf.eye(2), tf.random.uniform((16,), 0, 2, tf.int32))],
        [(16, CODE)],
        {"inputs": [(WIDTH,), (2,)]},
    ),
    "moved at random": (lambda made, z: made(z) + tf.random.uniform((16, 1), -0.5, 0.5), [(16, CODE)], {}),
}
BESIDE = {
    "the rest of a record": (
        lambda made, code, r: tf.concat([made(code)[:, :2], r], 1),
        [(16, CODE), (16, WIDTH - 2)],
        {},
    ),
    "an argument alone": (lambda made, r: tf.concat([r, tf.random.normal((16, 1))], 1), [(16, WIDTH - 1)], {}),
    "more than a record in all": (
        lambda made, r: tf.concat([made(r), r], 1),
        [(16, CODE)],
        {"inputs": [(WIDTH + CODE - 3,)]},
    ),
    "records of any size": (
        lambda made, r: made(r),
        [(16, WIDTH)],
        {"inputs": [(None, None, 1)], "generator": translating(), "records": tf.TensorSpec((None, None, None, 1))},
    ),
    "a column that both get": (lambda made, z, r: made(tf.concat([z, r], 1)) * 0.0 + r, [(16, 2), (16, 1)], {}),
    "half of a record twice": (
        lambda made, r: tf.concat([made(tf.pad(r, [[0, 0], [0, 1]]))[:, :4], r], 1),
        [(16, 2)],
        {},
    ),
    "a small picture and a large one": (
        lambda made, r: [made(r), r],
        [(16, CODE)],
        {"inputs": [(4 * WIDTH,), (CODE,)]},
    ),
    "ids of classes": (
        lambda made, z, y: [made(z), tf.one_hot(tf.cast(y, tf.int32), 30)],
        [(16, CODE), (16,)],
        {"inputs": [(99,), (30,)]},
    ),
    "a table, looked up": (lambda made, z: tf.reshape(tf.one_hot(TABLE, 3), (16, 6)), [(16, CODE)], {}),
    "a table that was captured": (
        lambda made, z: tf.reshape(tf.one_hot(CAPTURED, 3), (16, 6)) + 0.0 * made(z),
        [(16, CODE)],
        {},
    ),
    "labels in a constant": (
        lambda made, z: tf.concat([made(z), tf.constant(TABLE, tf.float32)], 1),
        [(16, CODE)],
        {"inputs": [(WIDTH + 2,)]},
    ),
    "labels in a constant, given to both": (
        lambda made, z: beside_columns(made, z, tf.constant(TABLE, tf.float32)),
        [(16, 1)],
        {"inputs": [(WIDTH + 2,)]},
    ),
    "records, enlarged": (
        lambda made, r: keras.ops.repeat(keras.ops.reshape(made(r), (16, 2, 3, 1)), 4, 1),
        [(16, WIDTH)],
        {"inputs": [(None, None, 1)], "generator": translating(), "records": tf.TensorSpec((None, 2, 3, 1))},
    ),
}


@pytest.mark.parametrize("way", CONDITIONED)
def test_labels_that_stand_beside_what_a_generator_makes_are_drawn_inside(way):
    """The critic's answer to private labels, given to both, told what they are: 4 of 4 times right, without a note."""
    judged, shapes, others = CONDITIONED[way]
    others = others | {"generator": others["generator"]()} if "generator" in others else others
    assert not is_let_in(judged, *shapes, **others)

    def drawn(made, z):
        rows, width = shapes[1]
        labels = one_hot_drawn(rows, width) if width > 1 else tf.random.uniform((rows, 1), 0, 2)
        return judged(made, z, labels)

    assert is_let_in(drawn, shapes[0], **others)


@pytest.mark.parametrize("way", ORDINARY)
def test_what_ordinary_steps_do_to_what_a_generator_makes_is_no_record(way):
    judged, shapes, others = ORDINARY[way]
    others = others | {"generator": others["generator"]()} if "generator" in others else others
    assert is_let_in(judged, *shapes, **others)


@pytest.mark.parametrize("way", BESIDE)
def test_whatever_has_rows_beside_what_a_generator_makes_is_noted(way):
    judged, shapes, others = BESIDE[way]
    assert not is_let_in(judged, *shapes, **others)
