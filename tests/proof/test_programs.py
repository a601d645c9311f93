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


def looking_up(table):
    """A digest of a function that looks up in the table, in branches."""

    def function(x):
        return tf.cond(tf.size(x) > 3, lambda: table.lookup(x), lambda: table.lookup(x) + 1.0)

    return program_of(tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((None,), tf.int64)))


def table_of(**numbers):
    keys = tf.constant([ord(name) for name in numbers], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([*numbers.values()])), 0.0)


def test_tables_are_told_by_what_they_hold_and_those_that_may_be_written_to_are_refused():
    found = looking_up(table_of(a=1.0, b=2.0))
    assert found == looking_up(table_of(b=2.0, a=1.0)) != looking_up(table_of(a=2.0, b=1.0))
    with pytest.raises(ValueError, match=r"a table that may be written to.*add_weight"):
        looking_up(tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0))


def test_words_in_another_order_make_another_program():
    def digest(words):
        lookup = tf.function(keras.layers.StringLookup(vocabulary=words), autograph=False)
        return program_of(lookup.get_concrete_function(tf.TensorSpec((None, 1), tf.string)))

    assert digest(["a", "b", "c"]) == digest(["a", "b", "c"]) != digest(["b", "a", "c"])


def test_what_a_graph_opens_by_a_name_or_takes_of_a_pipeline_is_refused():
    variant = tf.data.Dataset.range(3)._variant_tensor

    def opened(x):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), shared_name="of_this_process")
        return x + tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

    def counted(x):
        return x + tf.cast(tf.raw_ops.DatasetCardinality(input_dataset=variant), tf.float32)

    for function, what in (opened, "VarHandleOp opens"), (counted, "variant"):
        traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((None,)))
        with pytest.raises(ValueError, match=f"{what}.*holds the same on all workers cannot be compared"):
            program_of(traced)
