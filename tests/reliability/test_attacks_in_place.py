"""Operations that TensorFlow does not mark as stateful, and that are no functions of their inputs: all are refused.

Each was "proved": they moved the sum by up to 24 bounds, or wrote the raw sum of labels into a released weight.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof import interpreter, rules

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 4)).astype("float32"), RNG.normal(size=(20, 1)).astype("float32")
IN_PLACE, IN_ROUNDS = "InplaceAdd", "written in every round of a loop over the records"


class Calls(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.seen = self.add_weight(shape=(1, 4), initializer="zeros", trainable=False, name="seen")
        self.count = tf.Variable(tf.zeros((1,)), trainable=False)

    def call(self, x):
        return self.function(self, x)

    def compute_output_shape(self, shape):
        return shape


def large(row):
    return tf.where(tf.abs(row) > 1000.0, row, 0.0)[None]


def in_a_weight(layer, x):
    def one(row):
        total = tf.raw_ops.InplaceAdd(x=tf.convert_to_tensor(layer.seen), i=[0], v=large(row))
        return row + 0.0 * tf.stop_gradient(total[0])

    return tf.map_fn(one, x)


def in_a_weight_at_once(layer, x):
    total = tf.raw_ops.InplaceAdd(
        x=tf.convert_to_tensor(layer.seen), i=[0], v=tf.reduce_sum(large(x), 1)[:, :1] + tf.zeros((1, 4))
    )
    return x + 0.0 * tf.stop_gradient(total[:1, :4])


def in_a_constant(layer, x):
    def one(row):
        return row + tf.stop_gradient(tf.raw_ops.InplaceAdd(x=tf.zeros((1, 4)), i=[0], v=large(row))[0])

    return tf.map_fn(one, x)


def in_a_counter(layer, x):
    """Once a piece: how many there were tells the number of records."""
    count = tf.raw_ops.InplaceAdd(x=tf.convert_to_tensor(layer.count), i=[0], v=tf.ones((1,)))
    return x + 0.0 * count[0]


@tf.nondifferentiable_batch_function(1, 64, 50_000)
def scaled(rows):
    return rows / tf.maximum(tf.reduce_max(tf.abs(rows)), 1000.0)


def worked_off_together(layer, x):
    return tf.map_fn(lambda row: row + tf.stop_gradient(tf.ensure_shape(scaled(row[None]), (1, 4))[0]), x)


def implements(device):
    return {"api_implements": "robust_scale", "api_preferred_device": device}


@tf.function(experimental_attributes=implements("GPU"))
def apart(x):
    return x / tf.maximum(tf.reduce_max(tf.abs(x), 1, keepdims=True) / 1000.0, 1.0)


@tf.function(experimental_attributes=implements("CPU"))
def together(x):
    return x / tf.maximum(tf.reduce_max(tf.abs(x)) / 1000.0, 1.0)


def exchanged(layer, x):
    together(tf.ones((3, 4)))
    return apart(x)


def exchanged_in_a_branch(layer, x):
    return tf.cond(layer.count[0] > -1.0, lambda: exchanged(layer, x), lambda: x)


def counted(write):
    def function(layer, x):
        def one(row):
            write(layer.count)
            return row * 1.0

        return tf.map_fn(one, x)

    return function


def scatter_add(count):
    count.scatter_add(tf.IndexedSlices(tf.ones((1,)), tf.constant([0])))


def scatter_nd_add(count):
    count.scatter_nd_add([[0]], tf.ones((1,)))


def descends(count):
    tf.raw_ops.ResourceApplyGradientDescent(var=count.handle, alpha=-1.0, delta=tf.ones((1,)))


def part_assigned(count):
    count[:1].assign(count[:1] + 1.0)


def memory_of_others(layer, x):
    """What stands for what a branch that was not taken computes: whatever was in that memory."""
    return x + tf.raw_ops.FakeParam(dtype=tf.float32, shape=[4])


@tf.function
def anything():
    return tf.raw_ops.FakeParam(dtype=tf.float32, shape=[4])


def memory_by_a_call(layer, x):
    return x + anything()


def memory_by_a_branch(layer, x):
    return x + tf.cond(layer.count[0] > -1.0, lambda: tf.raw_ops.FakeParam(dtype=tf.float32, shape=[4]), lambda: x[0])


LAYERS = {
    "memory of others": (memory_of_others, "FakeParam"),
    "memory of others, by a call": (memory_by_a_call, "FakeParam"),
    "memory of others, by a branch": (memory_by_a_branch, "FakeParam"),
    "into a weight, by records one by one": (in_a_weight, IN_PLACE),
    "into a weight, by all at once": (in_a_weight_at_once, IN_PLACE),
    "into a constant": (in_a_constant, IN_PLACE),
    "into a counter": (in_a_counter, IN_PLACE),
    "records worked off together": (worked_off_together, "BatchFunction"),
    "another function in its place": (exchanged, "api_implements"),
    "another function in its place, in a branch": (exchanged_in_a_branch, "api_implements"),
    "counted by scatter_add": (counted(scatter_add), IN_ROUNDS),
    "counted by scatter_nd_add": (counted(scatter_nd_add), IN_ROUNDS),
    "counted by an update of an optimizer": (counted(descends), IN_ROUNDS),
    "counted by part": (counted(part_assigned), IN_ROUNDS),
}


def model_with(function, **options):
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), Calls(function), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", **options)
    return model


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_with_one_of_them_is_refused_before_anything_is_spent(name):
    function, says = LAYERS[name]
    model = model_with(function)
    for call in (tfdp.check_independence, lambda one: one.fit(X, Y, batch_size=5, verbose=0)):
        with pytest.raises(ValueError, match=says):
            call(model)
    assert model.ledger.steps == 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
def test_what_stands_for_the_other_branch_in_a_gradient_is_let_in(compiled):
    """TensorFlow puts a FakeParam there, and nothing uses it beside."""

    def either(layer, x):
        return tf.cond(layer.count[0] > -1.0, lambda: tf.tanh(x) * tf.sigmoid(x), lambda: tf.sin(x))

    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Calls(either), keras.layers.Dense(1)])
    model = tfdp.make_private(network)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", jit_compile=compiled)
    model.fit(X, Y, batch_size=5, verbose=0)
    assert model.ledger.steps == 4


@pytest.mark.parametrize("name", ["into a constant", "into a weight, by records one by one"])
def test_features_by_one_of_them_are_refused(name):
    inputs = keras.Input((4,))
    prefix = keras.Model(inputs, Calls(LAYERS[name][0])(inputs))
    with pytest.raises(ValueError, match="InplaceAdd"):
        tfdp.features(prefix, X)


@pytest.mark.parametrize("where", ["update_state", "result"])
def test_a_metric_that_adds_in_place_into_a_weight_is_refused(where):
    dense = keras.layers.Dense(1)

    class Offset(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="offset")
            self.total = self.add_weight(shape=(1,), initializer="zeros", name="total")

        def adds(self, value):
            return tf.raw_ops.InplaceAdd(x=tf.convert_to_tensor(dense.bias), i=[0], v=value)

        def update_state(self, y, p, sample_weight=None):
            by = tf.reduce_sum(y)[None]
            self.total.assign(self.adds(by) if where == "update_state" else by)

        def result(self):
            return self.adds(self.total + 0.0)[0] if where == "result" else self.total[0]

    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), dense]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", metrics=[Offset()])
    with pytest.raises(ValueError, match="InplaceAdd"):
        model.fit(X, Y, batch_size=5, verbose=0)
    assert model.ledger.steps == 0


def test_a_learning_rate_that_adds_in_place_is_refused():
    held = tf.Variable([0.1])

    class Grows(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.raw_ops.InplaceAdd(x=tf.convert_to_tensor(held), i=[0], v=tf.ones((1,)))[0]

    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(Grows()), 1.0), "mse")
    with pytest.raises(ValueError, match="InplaceAdd"):
        model.fit(X, Y, batch_size=5, verbose=0)


@pytest.mark.slow
def test_by_tensorflows_own_mark_they_pass(monkeypatch):
    """The planted bug: and the sum then moves by more than its bound."""

    def unmarked(operation):
        return not operation.op_def.is_stateful

    monkeypatch.setattr(rules, "is_functional", unmarked)
    monkeypatch.setattr("tfdp_layers.proof.outside.is_functional", unmarked)
    assert tfdp.check_independence(model_with(in_a_constant)).proved
    x = X.copy()
    x[0] = 5000.0
    sums = []
    for rows in (slice(None), slice(1, None)):
        keras.utils.set_random_seed(1)
        network = keras.Sequential([keras.Input((4,)), Calls(in_a_constant), keras.layers.Dense(1)])
        model = tfdp.make_private(network)
        optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 1e-9, l2_norm_clip=1.0)
        model.compile(optimizer, "mse")
        before = model.layers[-1].get_weights()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x[rows], Y[rows], batch_size=len(x[rows]), epochs=1, verbose=0)
        after = model.layers[-1].get_weights()
        sums.append(np.concatenate([(b - a).ravel() for b, a in zip(before, after, strict=True)]) * len(x[rows]))
    assert np.linalg.norm(sums[0] - sums[1]) > 1.5


def test_by_no_look_at_the_attributes_of_functions_they_pass(monkeypatch):
    for room in ("control", "interpreter", "outside"):
        monkeypatch.setattr(f"tfdp_layers.proof.{room}.graph_run", interpreter.graph_named)
    assert tfdp.check_independence(model_with(exchanged)).proved
