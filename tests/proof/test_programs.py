"""Workers tell by a digest whether they run the same program: by operations and what joins them, not by names."""

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.proof.models import traced_sums
from tfdp_layers.proof.programs import program_of, settings_after_noise

FACTORS = tf.constant([1.0, 2.0, 3.0])


def program(activation="tanh", loss="mse", factors=FACTORS, **options):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation=activation)(keras.layers.Lambda(lambda x: x * factors)(inputs))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(hidden))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, **options), loss)
    return program_of(traced_sums(model, tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))))


OTHERS = [
    {"activation": lambda z: keras.ops.tanh(z) * 2.0},
    {"loss": "mae"},
    {"factors": FACTORS + 1.0},  # a constant from outside of the graph
    {"clipping": "flat"},  # of the same bound
    {"l2_norm_clip": 2.0, "clipping": "automatic"},
]


@pytest.mark.parametrize("other", slow_but([OTHERS[2]], OTHERS))
def test_what_a_record_adds_makes_another_program_and_names_do_not(other):
    found = program()
    assert program() == program(factors=tf.identity(FACTORS)) == found
    assert program(**other) != found


def test_operations_that_are_connected_otherwise_make_another_program():
    variable = tf.Variable(1.0)

    def digest(function):
        spec = tf.TensorSpec((None, 3))
        return program_of(tf.function(function, autograph=False).get_concrete_function(spec, spec))

    def reads(before):
        def function(x, y):
            first = variable.read_value() if before else 0.0
            variable.assign(2.0)
            return x + y + (first if before else variable.read_value())

        return function

    def branches(turned):
        def function(x, y):
            return tf.cond(x[0, 0] > 0.0, lambda: y - x if turned else x - y, lambda: x * y)

        return function

    pairs = [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: (x, y), lambda x, y: (y, x)),
        (reads(False), reads(True)),
        (branches(False), branches(True)),
    ]
    for one, other in pairs:
        assert digest(one) == digest(one) != digest(other)


def test_what_follows_the_noise_is_told_by_its_settings():
    def settings(rate, regularizer="l2"):
        layer = keras.layers.Dense(1, kernel_regularizer=regularizer)
        layer.build((None, 3))
        schedule = keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5)
        return settings_after_noise(keras.optimizers.Adam(schedule), layer.trainable_variables)

    assert settings(0.1) == settings(0.1)
    assert settings(0.1) != settings(0.2)
    assert settings(0.1) != settings(0.1, None)
