"""Operations that take or keep numbers where no variable shows it are told from those that do not."""

import keras
import pytest
import tensorflow as tf

from tfdp_layers.proof.outside import outside

VARIABLE = tf.Variable(1.0)
TABULAR = tf.Variable([[1.0], [2.0]])
GENERATOR = tf.random.Generator.from_seed(1)


QUEUE = tf.queue.FIFOQueue(9, [tf.float32], shapes=[[]])
TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
FIXED = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)
ITERATOR = iter(tf.data.Dataset.range(9))
SUMS = tf.raw_ops.ResourceConditionalAccumulator(dtype=tf.float32, shape=[])
DEBUG = {"tensor_name": "sum:0", "debug_urls": ["file:///nowhere"]}


def python():
    return tf.numpy_function(lambda: 1.0, [], tf.float64)


OUTSIDE = {
    "PyFunc": python,
    "EagerPyFunc": lambda: tf.py_function(lambda: 1.0, [], tf.float32),
    "Timestamp": tf.timestamp,
    "Stage": lambda: tf.raw_ops.Stage(values=[tf.constant(1.0)], shared_name="here"),
    "Unstage": lambda: tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name="here"),
    "WriteFile": lambda: tf.io.write_file("there", "1"),
    "ReadFile": lambda: tf.io.read_file("there"),
    "AnonymousMutableHashTableOfTensors": lambda: tf.raw_ops.AnonymousMutableHashTableOfTensors(
        key_dtype=tf.int64, value_dtype=tf.float32
    ),
    "QueueEnqueueV2": lambda: QUEUE.enqueue(VARIABLE),
    "QueueDequeueV2": QUEUE.dequeue,
    "QueueSizeV2": QUEUE.size,
    "LookupTableInsertV2": lambda: TABLE.insert(tf.constant([1], tf.int64), [VARIABLE]),
    "IteratorGetNext": lambda: next(ITERATOR),
    "TensorSliceDataset": lambda: tf.data.Dataset.from_tensor_slices([VARIABLE]).cache("there").get_single_element(),
    "ResourceAccumulatorApplyGradient": lambda: tf.raw_ops.ResourceAccumulatorApplyGradient(
        handle=SUMS, local_step=tf.constant(0, tf.int64), gradient=VARIABLE
    ),
    "PrintV2": lambda: tf.print(VARIABLE, output_stream="file:///nowhere"),
    "DebugNumericSummary": lambda: tf.raw_ops.DebugNumericSummary(input=VARIABLE, **DEBUG),
    "DebugIdentity": lambda: tf.raw_ops.DebugIdentity(input=VARIABLE, **DEBUG),
}
INSIDE = {
    "variables": lambda: VARIABLE.assign_add(VARIABLE * 2.0),
    "random numbers": lambda: (
        tf.random.shuffle(tf.random.normal((4,))) + tf.random.uniform((4,)) + GENERATOR.normal(())
    ),
    "tables": lambda: (FIXED.lookup(tf.constant([1])), TABLE.lookup(tf.constant([1], tf.int64)), TABLE.size()),
    "updates": lambda: (VARIABLE.assign(2.0), keras.ops.scatter_update(tf.zeros(3), [[1]], [VARIABLE])),
    "rows": lambda: TABULAR.scatter_nd_add([[0]], [tf.gather(TABULAR, [1])[0]]),
    "messages and checks": lambda: (tf.print(VARIABLE), tf.debugging.assert_positive(VARIABLE)),
    "a Cholesky factor": lambda: keras.ops.cholesky(VARIABLE * tf.eye(3)),  # Keras checks its numbers
    "loops": lambda: tf.while_loop(lambda i: i < 3.0, lambda i: (i + VARIABLE,), [0.0]),
    "arithmetic": lambda: tf.linalg.inv(tf.eye(3)) + keras.ops.softmax(tf.eye(3)),
}
WITHIN = {
    "itself": lambda build: build(),
    "of a function": lambda build: tf.function(lambda: (build(), tf.constant(1))[1])(),
    "of a branch": lambda build: tf.cond(VARIABLE > 0.0, lambda: (build(), 1)[1], lambda: 2),
}


def found_in(build):
    function = tf.function(lambda: (build(), tf.constant(1))[1], autograph=False)
    return outside(function.get_concrete_function().graph.get_operations())


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_goes_past_variables_is_found_in_every_function_that_is_called(kind, within):
    assert found_in(lambda: WITHIN[within](OUTSIDE[kind])) == kind


@pytest.mark.parametrize("kind", INSIDE)
def test_what_is_followed_by_handles_or_reads_nothing_is_let_in(kind):
    assert found_in(INSIDE[kind]) is None
