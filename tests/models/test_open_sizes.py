"""Sizes that a declared pipeline leaves open are those that the model's inputs state, as in Keras' own training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

Dense = keras.layers.Dense


def declared(x, spec):
    """Four batches of eight, whose x has the shapes of this spec."""
    dataset = tf.data.Dataset.from_generator(
        lambda: ((x, np.ones((8, 1), np.float32)) for _ in range(4)),
        output_signature=(spec, tf.TensorSpec((None, 1))),
    ).apply(tf.data.experimental.assert_cardinality(4))
    return tfdp.declare_sampling(dataset, tfdp.sampling.Partition(8), examples=32)


def trained(model, batches):
    private = tfdp.make_private(model)
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    private.fit(batches, verbose=0)
    return private


def sounds():
    return keras.Sequential(
        [keras.Input((20, 1)), keras.layers.Conv1D(2, 3), keras.layers.GlobalAveragePooling1D(), Dense(1)]
    )


def pictures():
    return keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Conv2D(1, 3), keras.layers.Flatten(), Dense(1)])


def two():
    wave, age = keras.Input((20, 1), name="wave"), keras.Input((3,), name="age")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Conv1D(1, 3)(wave))
    return keras.Model({"wave": wave, "age": age}, Dense(1)(keras.layers.Concatenate()([pooled, age])))


OPEN = tf.TensorSpec((None, None))
"""One object, for several inputs."""


def named():
    taken = {"a": keras.Input((3,), name="a"), "b": keras.Input((4,), name="b")}
    return keras.Model(taken, Dense(1)(keras.layers.Concatenate()([*taken.values()])))


def pair():
    taken = keras.Input((5,)), keras.Input((3,))
    return keras.Model(list(taken), Dense(1)(keras.layers.Concatenate()(taken)))


def zeros(*shape):
    return np.zeros((8, *shape), np.float32)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("build", "x", "spec"),
    [
        (sounds, zeros(20, 1), tf.TensorSpec((None, 20, None))),  # audio_dataset_from_directory
        (pictures, zeros(4, 4, 3), tf.TensorSpec((None, None, None, None))),
        (lambda: keras.Sequential([keras.Input((5,)), Dense(1)]), zeros(5), tf.TensorSpec((None, None))),
        (
            two,
            {"age": zeros(3), "wave": zeros(20, 1)},
            {"age": tf.TensorSpec((None, None)), "wave": tf.TensorSpec((None, 20, None))},
        ),
        (named, {"a": zeros(3), "b": zeros(4)}, {"a": OPEN, "b": OPEN}),
        (pair, (zeros(5), zeros(3)), (OPEN, OPEN)),
    ],
    ids=["sounds", "pictures", "vectors", "two inputs", "one spec by name", "one spec by place"],
)
def test_what_the_pipeline_leaves_open_the_model_states(build, x, spec):
    model = trained(build(), declared(x, spec))
    assert "epsilon" in str(model.privacy_statement(1e-5))


def test_records_of_other_sizes_are_refused_as_they_come():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not compatible with expected shape \[\?,20,1\]"):
        trained(sounds(), declared(zeros(20, 2), tf.TensorSpec((None, 20, None))))


def test_each_model_states_its_own_and_what_both_leave_open_stays_so():
    batches = declared(zeros(20, 1), tf.TensorSpec((None, None, None)))
    lengths = [keras.Input((None, 1)), keras.layers.Conv1D(2, 3), keras.layers.GlobalAveragePooling1D(), Dense(1)]
    trained(keras.Sequential(lengths), batches)
    assert batches.dataset().element_spec[0].shape.as_list()[1:] == [None, 1]
    trained(sounds(), batches)
    assert batches.dataset().element_spec[0].shape.as_list()[1:] == [20, 1]
