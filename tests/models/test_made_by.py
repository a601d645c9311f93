"""Layers with constants in the functions of a pipeline: those that were adapted are named, others pass in silence."""

import gc
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
WORDS = ["a", "b", "c", "d"]
TEXTS = np.array([" ".join(RNG.choice(WORDS, 3)) for _ in range(40)])
X, Y = RNG.normal(size=(40, 3)).astype("float32"), np.ones((40, 1), "float32")
TABLE = {"s": RNG.choice(WORDS, 40), "a": X[:, 0], "d": X[:, 1]}


def model_of(size):
    model = tfdp.make_private(keras.Sequential([keras.Input((size,)), kl.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def said(records, size=3, **options):
    """What a training on them warns of layers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(records, tf.data.Dataset):
            size, options = records.element_spec[0].shape[-1], {"batch_size": 8}
            records = tfdp.records(records)
        gc.collect()  # what nobody has but the records is gone
        model_of(size).fit(records, verbose=0, **options)
    return [one for one in caught if "on the way of these records" in str(one.message)]


def texts():
    return tf.data.Dataset.from_tensor_slices((TEXTS, Y))


def rows(of=X):
    return tf.data.Dataset.from_tensor_slices((of, Y))


def vectorizer(adapted=True, **options):
    layer = kl.TextVectorization(output_sequence_length=3, **options)
    if adapted:
        layer.adapt(TEXTS)
    return layer


def floats(*parts):
    return tuple(tf.cast(one, tf.float32) for one in parts)


def adapted(layer, data):
    layer.adapt(data)
    return layer


def by_a_vectorizer():
    layer = vectorizer()
    return texts().map(lambda t, y: floats(layer(t), y))


def by_a_function_elsewhere():
    """A class holds the layer, a bound method calls it."""

    class Preparation:
        def __init__(self):
            self.lookup = adapted(kl.StringLookup(output_mode="one_hot"), WORDS)

        def encode(self, text, y):
            return floats(self.lookup(tf.strings.substr(text, 0, 1))[0], y)

    return texts().map(Preparation().encode)


def by_a_model():
    inputs = keras.Input((3,))
    prepare = keras.Model(inputs, adapted(kl.Normalization(), X)(inputs))
    return rows().batch(8).map(lambda x, y: (prepare(x), y)).unbatch()


def by_edges():
    layer = adapted(kl.Discretization(num_bins=3), X)
    return rows().map(lambda x, y: floats(layer(x), y))


def by_whole_numbers():
    layer = adapted(kl.IntegerLookup(), np.arange(5))
    return rows(RNG.integers(0, 5, (40, 3))).map(lambda x, y: floats(layer(x), y))


def by_frequencies():
    layer = kl.TextVectorization(output_mode="tf_idf")
    layer.adapt(TEXTS)
    return texts().map(lambda t, y: floats(layer(t), y))


def features():
    space = keras.utils.FeatureSpace
    made = space(
        features={"s": space.string_categorical(), "a": space.float_normalized(), "d": space.float_discretized(3)},
        output_mode="concat",
    )
    made.adapt(tf.data.Dataset.from_tensor_slices(TABLE).batch(8))
    return made


def by_a_feature_space():
    made = features()
    return tf.data.Dataset.from_tensor_slices((TABLE, Y)).batch(8).map(lambda x, y: (made(x), y)).unbatch()


def within_another_pipeline():
    layer = vectorizer()
    inner = texts().map(lambda t, y: floats(layer(t), y))
    return tf.data.Dataset.range(1).flat_map(lambda _: inner)


def by_a_compiled_function():
    layer = vectorizer()

    @tf.function
    def encode(text, y):
        return floats(layer(text), y)

    return texts().map(encode)


LEARNED = {
    "a vectorizer": (by_a_vectorizer, "TextVectorization"),
    "a feature space": (by_a_feature_space, "FeatureSpace"),
    "a method": (by_a_function_elsewhere, "StringLookup"),
    "a model": (by_a_model, "Normalization"),
    "edges": (by_edges, "Discretization"),
    "whole numbers": (by_whole_numbers, "IntegerLookup"),
    "frequencies": (by_frequencies, "TextVectorization"),
    "a pipeline within": (within_another_pipeline, "TextVectorization"),
    "a compiled function": (by_a_compiled_function, "TextVectorization"),
}


@pytest.mark.parametrize("name", LEARNED)
def test_layers_that_were_adapted_are_named_though_no_model_holds_them(name):
    make, kind = LEARNED[name]
    (warning,) = said(make())
    assert f"({kind}): its state was learned by adapt()" in str(warning.message)
    assert "tfdp.public" in str(warning.message)
    assert warning.filename == __file__


def test_so_are_those_of_a_declared_pipeline():
    declared = tfdp.declare_sampling(by_a_vectorizer().shuffle(40).batch(8), tfdp.sampling.Partition(8), examples=40)
    assert len(said(declared)) == 1


def test_so_are_those_of_a_transform_of_items():
    layer = vectorizer()
    items = [*zip(TEXTS, Y, strict=True)]

    def encoded(item):
        return np.asarray(layer(tf.constant([item[0]])), np.float32)[0], item[1]

    assert len(said(tfdp.records(items, encoded), batch_size=8)) == 1
    tfdp.public(layer)
    assert said(tfdp.records(items, encoded), batch_size=8) == []


def by_given_words():
    layer = vectorizer(adapted=False, vocabulary=WORDS)
    return texts().map(lambda t, y: floats(layer(t), y))


def by_given_numbers():
    scale, edges = kl.Normalization(mean=[0.0, 1.0, 2.0], variance=[1.0, 2.0, 3.0]), kl.Discretization([0.0, 1.0])
    return rows().batch(8).map(lambda x, y: floats(edges(scale(x)), y)).unbatch()


def by_a_table():
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(4))
    table = tf.lookup.StaticHashTable(keys, -1)
    return (
        texts()
        .map(lambda t, y: floats(table.lookup(tf.strings.split(t)[:3])[:3], y))
        .map(lambda x, y: (tf.ensure_shape(x, (3,)), y))
    )


def by_released_words():
    words = tfdp.preprocessing.vocabulary(list(TEXTS), tfdp.accounting.Ledger(), noise_multiplier=0.3, failure=1e-5)
    layer = vectorizer(adapted=False, vocabulary=[*words] or WORDS)
    return texts().map(lambda t, y: floats(layer(t), y))


def by_public_words():
    layer = tfdp.public(vectorizer())
    return texts().map(lambda t, y: floats(layer(t), y))


def by_public_features():
    made = tfdp.public(features())
    return tf.data.Dataset.from_tensor_slices((TABLE, Y)).batch(8).map(lambda x, y: (made(x), y)).unbatch()


def beside_adapted_ones():
    """Others of the process were adapted; this pipeline uses none of these."""
    others = [vectorizer(), adapted(kl.Normalization(), X), adapted(kl.Discretization(num_bins=3), X)]
    shifted, scale = tf.constant([1.0, 2.0, 3.0]), kl.Rescaling(0.5)
    return rows().map(lambda x, y: (scale(x) + shifted + 0.0 * len(others), y))


def by_hashes():
    layer = kl.Hashing(8)
    return (
        texts()
        .map(lambda t, y: floats(layer(tf.strings.bytes_split(t)[:3]), y))
        .map(lambda x, y: (tf.ensure_shape(x, (3,)), y))
    )


GIVEN = {
    "given words": by_given_words,
    "given numbers": by_given_numbers,
    "a table of TensorFlow": by_a_table,
    "declared words": by_public_words,
    "declared features": by_public_features,
    "adapted layers elsewhere": beside_adapted_ones,
    "hashes": by_hashes,
    "words that were paid for": by_released_words,
}


@pytest.mark.parametrize("name", GIVEN)
def test_constants_that_were_given_declared_or_are_elsewhere_pass_in_silence(name):
    assert said(GIVEN[name]()) == []


def test_what_is_declared_after_the_records_were_read_is_declared():
    layer = vectorizer()
    records = tfdp.records(texts().map(lambda t, y: floats(layer(t), y)))
    tfdp.public(layer)
    assert said(records, batch_size=8) == []
