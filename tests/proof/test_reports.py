"""What a report says, what may be given, and what is assumed of it."""

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof.provable import NETWORKS, noisy, private, specs_of
from tfdp_layers.proof import prove, prove_rows, prove_sums

SPEC = tf.TensorSpec((None, 6))


def traced(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*(specs or (SPEC,)))


def test_the_layer_at_fault_is_named() -> None:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, name="fine"), keras.layers.BatchNormalization(name="bad")]
    )
    names = [layer.name for layer in model.layers]
    report = prove_rows(lambda x: model(x, training=True), SPEC, layers=names)
    assert (report.status, report.layer, report.type) == ("mixed", "bad", "Mean")
    assert "'bad'" in str(report)
    assert "over the records" in report.reason


def test_every_output_is_reported() -> None:
    report = prove(traced(lambda x: (tf.reduce_sum(x), tf.reduce_mean(x), tf.reduce_sum(tf.unique(x[:, 0]).y))))
    assert [finding.status for finding in report.findings] == ["proved", "mixed", "unknown"]
    assert report.status == "mixed"
    assert report.findings[2].type == "Unique"
    assert str(report.findings[0]).endswith("proved")


def test_some_outputs_and_some_records() -> None:
    concrete = traced(lambda x, w: (tf.reduce_sum(x * w), tf.reduce_mean(x)), SPEC, tf.TensorSpec((6,)))
    x, w = concrete.inputs
    assert not prove(concrete).proved
    assert prove(concrete, records=[x], sums=concrete.outputs[:1]).proved
    assert prove(concrete, records=[x, w], sums=concrete.outputs[:1]).status == "unknown"  # a fixed number of records


def test_a_fixed_number_of_records_is_not_proved() -> None:
    report = prove(traced(lambda x: tf.reduce_sum(x), tf.TensorSpec((4, 6))))
    assert report.status == "unknown"
    assert "unknown" in report.reason


def test_a_graph_that_is_being_traced() -> None:
    reports = []

    def step(x):
        total = tf.reduce_sum(tf.tanh(x), axis=0)
        graph = tf.compat.v1.get_default_graph()
        reports.append(prove(graph, records=[x], sums=[total]))
        reports.append(prove(graph, records=[x], sums=[total / tf.cast(tf.shape(x)[0], tf.float32)]))
        return total

    traced(step)
    assert [report.status for report in reports] == ["proved", "mixed"]


def test_what_is_captured_from_a_function_around_is_not_taken_for_a_constant() -> None:
    reports = []

    def step(x):
        average = tf.reduce_mean(x, axis=0)

        @tf.function(autograph=False)
        def inner(y):
            graph = tf.compat.v1.get_default_graph()
            total = tf.reduce_sum(y - average)
            reports.append(prove(graph, records=[y], sums=[total]))
            return total

        return inner(x)

    traced(step)
    assert reports[0].status == "unknown"


def test_variables_that_records_may_write() -> None:
    count, loss = tf.Variable(0.0), tf.Variable(0.0)

    def step(x):
        loss.assign_add(tf.reduce_mean(x))
        count.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return tf.reduce_sum(x)

    concrete = traced(step)
    assert prove(concrete, may_write=[count, loss]).proved
    report = prove(concrete, may_write=[loss])
    assert report.status == "mixed"
    assert [finding.type for finding in report.writes] == ["AssignAddVariableOp"]
    assert prove(concrete).status == "mixed"


def test_variables_that_records_may_write_are_not_read() -> None:
    loss, table = tf.Variable(0.0), tf.Variable(tf.zeros((4, 6)))

    def step(x):
        loss.assign_add(tf.reduce_mean(x))
        return tf.reduce_sum(x * loss)

    def looked_up(x):
        return tf.reduce_sum(tf.nn.embedding_lookup(table, tf.cast(x > 0.0, tf.int32)))

    assert prove(traced(step), may_write=[loss]).status == "mixed"
    assert prove(traced(looked_up)).proved
    assert prove(traced(looked_up), may_write=[table]).status == "mixed"


def test_a_copy_of_a_handle_is_the_same_variable() -> None:
    loss, other = tf.Variable(0.0), tf.Variable(0.0)
    copies = {variable.ref(): tf.identity(variable.handle) for variable in (loss, other)}

    def step(x, variable):
        loss.assign_add(tf.reduce_mean(x))
        return tf.reduce_sum(x) * tf.raw_ops.ReadVariableOp(resource=copies[variable.ref()], dtype=tf.float32)

    assert prove(traced(lambda x: step(x, loss)), may_write=[loss]).status == "mixed"
    assert prove(traced(lambda x: step(x, other)), may_write=[loss]).proved


def test_state_of_constants_may_be_written() -> None:
    steps = tf.Variable(0)

    def step(x):
        steps.assign_add(1)
        return tf.reduce_sum(x) * tf.cast(steps, tf.float32)

    assert prove(traced(step)).proved


def test_a_variable_put_back_after_a_loop_over_records() -> None:
    seed = tf.Variable([1, 2])

    def step(x):
        before = seed.read_value()

        def body(i, total):
            own = x[i : i + tf.minimum(3, tf.shape(x)[0] - i)]
            own += tf.random.stateless_normal(tf.shape(own), seed)
            seed.assign_add([0, 1])
            return i + 3, total + tf.reduce_sum(tf.tanh(own), axis=0)

        found = tf.while_loop(lambda i, _: i < tf.shape(x)[0], body, [tf.constant(0), tf.zeros(6)])[1]
        if reset:
            seed.assign(tf.add(before, [1, 0]))
        return found

    reset = False
    assert "rounds" not in prove(traced(step)).reason
    assert prove(traced(step)).status == "mixed"  # how often the seed went up tells how many records there were


def test_sums_of_nothing_are_zero() -> None:
    assert prove(traced(lambda x: tf.zeros((3,)))).proved
    assert prove(traced(lambda x: tf.ones((3,)))).status == "unknown"


def test_models_that_are_not_compiled_are_refused() -> None:
    model = tfdp.make_private(NETWORKS["mlp"]())
    with pytest.raises(ValueError, match="Compile the model first"):
        prove_sums(model, SPEC, SPEC)


def test_a_mixing_layer_in_a_private_model() -> None:
    class Gate(keras.layers.Layer):
        """Lets the mean of the batch in as soon as its weight leaves zero."""

        def build(self, shape):
            self.alpha = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            return x + self.alpha * keras.ops.mean(x, axis=0, keepdims=True)

    plain = keras.Sequential([keras.Input((6,)), Gate(name="gate"), keras.layers.Dense(2)])
    model = private(plain, tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0))
    report = prove_sums(model, *specs_of(model))
    assert (report.status, report.layer) == ("mixed", "gate")
    assert noisy()


def test_operations_and_time_are_counted() -> None:
    report = prove(traced(lambda x: tf.reduce_sum(tf.tanh(x))))
    assert 3 <= report.operations <= 6
    assert 0.0 < report.seconds < 1.0
