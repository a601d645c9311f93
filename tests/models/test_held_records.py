"""A model that holds private records, or a table of them, brings a warning; tables, grids and public weights don't."""

import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.held_records import warn_of_held_records

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
NODES = np.arange(200)
IMAGES = RNG.integers(0, 255, (60, 4, 4, 3)).astype("uint8")
CLASSES = np.eye(6, dtype="float32")[RNG.integers(6, size=200)]
BITS = RNG.integers(0, 2, (200, 64)).astype("float32")
HOURS = np.stack(np.meshgrid(np.arange(24), np.arange(7)), -1).reshape(-1, 2).astype("float32")
FEW = RNG.integers(0, 2, (200, 3)).astype("float32")


def looked_at(table, shape=(4,), dtype="float32", of=lambda q, table: q @ tf.transpose(table)):
    """A model whose lambda uses a table, and the graph of it."""
    layer = keras.layers.Lambda(lambda q: of(q, table))
    model = keras.Sequential([keras.Input(shape, dtype=dtype), layer])
    call = tf.function(lambda q: model(q), autograph=False)
    return model, call.get_concrete_function(tf.TensorSpec((None, *shape), dtype)).graph


def gathered(table):
    return looked_at(table, (), "int32", lambda q, table: tf.gather(table, q))


def weighed(layer, shape=(4,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), layer]), None


def begun(array, kind=keras.layers.Dense, **options):
    name = "embeddings_initializer" if kind is keras.layers.Embedding else "kernel_initializer"
    return kind(**options, **{name: keras.initializers.Constant(array)})


def moved(images):
    return looked_at(images, (4, 4, 3), of=lambda q, table: tf.einsum("bhwc,khwc->bk", q, tf.cast(table, q.dtype)))


HELD = {
    "memory": lambda: (*looked_at(tf.constant(X)), [X], [Y]),
    "array": lambda: (*looked_at(X), [X], [Y]),
    "turned": lambda: (*looked_at(X.T.copy(), of=lambda q, table: q @ table), [X], [Y]),
    "centres": lambda: (*looked_at(X[::20]), [X], [Y]),
    "in double precision": lambda: (*looked_at(X[::20]), [X.astype("float64")], [Y]),
    "variable": lambda: (*looked_at(tf.Variable(X[40:90], trainable=False)), [X], [Y]),
    "among others": lambda: (*looked_at(np.r_[RNG.normal(size=(900, 4)), X[:5]].astype("float32")), [X], [Y]),
    "with labels": lambda: (*looked_at(np.c_[X, Y], of=lambda q, t: q @ tf.transpose(t)[:4]), [X], [Y]),
    "of two inputs": lambda: (*looked_at(X), [X[:, :1], X[:, 1:]], [Y]),
    "kernel": lambda: (*weighed(begun(X[:30].T, units=30)), [X], [Y]),
    "embedding": lambda: (
        *weighed(begun(X, keras.layers.Embedding, input_dim=200, output_dim=4), (), "int32"),
        [NODES, X],
        [Y],
    ),
    "images": lambda: (*moved(tf.constant(IMAGES[:20])), [IMAGES], []),
    "whole numbers": lambda: (*moved(IMAGES[:20]), [IMAGES], []),
    "bits": lambda: (*looked_at(BITS[:40], (64,)), [BITS], [Y]),
    "nodes": lambda: (*gathered(tf.constant(X)), [NODES], [Y]),
    "some of the nodes": lambda: (*gathered(tf.constant(X)), [NODES[:150]], [Y[:150]]),
    "nodes and neighbours": lambda: (*gathered(tf.constant(X)), [np.stack([NODES, NODES[::-1]], 1)], [Y]),
}
OTHER = {
    "of others": lambda: (*looked_at(RNG.normal(size=(200, 4)).astype("float32")), [X], [Y]),
    "two by chance": lambda: (*looked_at(np.r_[RNG.normal(size=(50, 4)), X[:2]].astype("float32")), [X], [Y]),
    "frozen": lambda: (*weighed(keras.layers.Dense(64, trainable=False)), [X], [Y]),
    "zeros": lambda: (*weighed(keras.layers.Dense(64, kernel_initializer="zeros")), [0.0 * X], [Y]),
    "classes": lambda: (*weighed(keras.layers.Dense(6, kernel_initializer="identity"), (6,)), [CLASSES], [Y]),
    "one number each": lambda: (*weighed(begun(np.eye(200), units=200), (200,)), [np.eye(200)], [Y]),
    "few values": lambda: (*looked_at(RNG.integers(0, 2, (50, 3)).astype("float32"), (3,)), [FEW], [Y]),
    "a grid": lambda: (
        *looked_at(np.linspace(0, 1, 11, dtype="float32")[:, None], (1,)),
        [RNG.integers(0, 11, (200, 1)).astype("float32") / 10],
        [Y],
    ),
    "a row for each hour of each day": lambda: (*looked_at(HOURS[::3], (2,)), [HOURS], [Y]),
    "a vocabulary": lambda: (
        *weighed(keras.layers.Embedding(500, 4, trainable=False), (8,), "int32"),
        [RNG.integers(0, 500, (200, 8))],
        [Y],
    ),
    "items": lambda: (*gathered(X[:50]), [RNG.integers(0, 50, 200)], [Y]),
    "positions": lambda: (
        *looked_at(X, (8,), "int32", lambda q, table: tf.cast(q[:, :1], "float32") * table[:1]),
        [RNG.integers(0, 500, (200, 8))],
        [Y],
    ),
    "texts": lambda: (*looked_at(X), [np.array([["a"]] * 200)], [Y]),
    "not in memory": lambda: (*looked_at(X), [], []),
}


def said(model, graph, inputs, labels):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = warn_of_held_records(model, graph, inputs, labels)
    assert found == bool(caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", HELD)
def test_records_that_a_model_holds_are_told(name):
    (message,) = said(*HELD[name]())
    assert message.endswith("nothing is lost.")


@pytest.mark.parametrize("name", OTHER)
def test_other_numbers_are_left_in_peace(name):
    assert said(*OTHER[name]()) == []


def test_it_says_where_they_are():
    assert "A constant of shape (200, 4) in layer 'lambda" in said(*HELD["memory"]())[0]
    assert "/kernel' begins at rows that are private records" in said(*HELD["kernel"]())[0]
    assert "has a row for each record" in said(*HELD["nodes"]())[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_fit_says_it(options):
    memory = tf.constant(X)
    layer = keras.layers.Lambda(lambda q: tf.nn.softmax(q @ tf.transpose(memory)) @ Y)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", **options)
    with pytest.warns(UserWarning, match="holds rows that are private records"):
        model.fit(X, Y, batch_size=20, verbose=0)


def test_many_records_and_weights_that_are_none_of_them_take_no_time():
    records = RNG.random((60_000, 784), "float32")
    model, _ = weighed(keras.layers.Dense(256), (784,))
    began = time.perf_counter()
    assert said(model, None, [records], [Y]) == []
    assert time.perf_counter() - began < 2.0


FEATURES = RNG.normal(size=(200, 4)).astype("float32")  # of the records, which x does not hold


def embedding(shape=(), **options):
    return weighed(keras.layers.Embedding(output_dim=4, **options), shape, "int32")


class Given(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return tf.constant(FEATURES)


class Drawn(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.random.normal(shape, dtype=dtype) * 0.1


@pytest.mark.parametrize(
    "by",
    [keras.initializers.Constant(FEATURES), Given(), lambda shape, dtype=None: tf.constant(FEATURES)],
    ids=["constant", "class", "function"],
)
def test_a_trained_table_that_begins_at_a_row_for_each_record_is_told(by):
    (message,) = said(*embedding(input_dim=200, embeddings_initializer=by), [NODES], [Y])
    assert "has a row for each record" in message


@pytest.mark.parametrize(
    "of",
    [
        lambda: (*embedding(input_dim=200), [NODES]),
        lambda: (*embedding(input_dim=200, embeddings_initializer=keras.initializers.Constant(0.1)), [NODES]),
        lambda: (
            *weighed(begun(FEATURES, keras.layers.Embedding, input_dim=200, output_dim=4), (8,), "int32"),
            [RNG.integers(0, 200, (300, 8))],
        ),
        lambda: (
            *weighed(begun(FEATURES, keras.layers.Embedding, input_dim=200, output_dim=4), (8,), "int32"),
            [RNG.integers(0, 200, (200, 8))],
        ),
        lambda: (*embedding(input_dim=200, embeddings_initializer=Given()), [RNG.integers(0, 200, 200)]),
        lambda: (*embedding(input_dim=200, embeddings_initializer=Drawn()), [NODES]),
        lambda: (*embedding(input_dim=200, embeddings_initializer=lambda shape, dtype=None: tf.ones(shape)), [NODES]),
    ],
    ids=["drawn", "one number", "word vectors", "a text a word", "codes", "own draws", "own function"],
)
def test_trained_tables_that_are_drawn_or_public_are_not(of):
    assert said(*of(), [Y]) == []
