"""Records read from strings, and numbers put between edges."""

from typing import Any

import tensorflow as tf

from helpers.proof.mixing.base import copies, raw, rows, size
from helpers.proof.mixing.texts import beside, texts

EDGES = tf.constant([[0.0, 0.5, 1.0]])


def features(x: Any, **kinds: Any) -> Any:
    return tf.io.parse_example(texts(x), kinds)


@rows
def default_of_the_sum_in_examples(x):
    none: dict[str, Any] = {"names": [], "sparse_keys": [], "ragged_keys": [], "sparse_types": []}
    found = raw.ParseExampleV2(
        **none,
        serialized=texts(x),
        dense_keys=["a"],
        dense_defaults=[tf.reduce_sum(x[:, :2], 0)],
        dense_shapes=[[2]],
        num_sparse=0,
        ragged_value_types=[],
        ragged_split_types=[],
    )
    return beside(x, found.dense_values[0][:, :1])


@rows
def as_long_as_the_longest_list(x):
    found = features(x, a=tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True))["a"]
    return beside(x, tf.shape(found)[1])


@rows
def lists_one_after_the_other(x):
    return beside(x, features(x, a=tf.io.VarLenFeature(tf.float32))["a"].values[:, None])


@rows
def default_of_the_sum_in_fields(x):
    (found,) = raw.DecodeCSV(records=texts(x), record_defaults=[tf.reduce_sum(x[:, :1], 0)])
    return beside(x, found[:, None])


@rows
def as_many_bytes_as_records(x):
    return beside(x, tf.reduce_sum(tf.io.decode_raw(texts(x), tf.int32, fixed_length=4 * size(x)), 1, keepdims=True))


@rows
def among_the_batch(x):
    own = tf.reshape(x[:, 0], [1, -1])
    return beside(x, tf.reshape(raw.LowerBound(sorted_inputs=own, values=own), [-1, 1]))


@rows
def among_four_own_edges(x):
    return beside(x, raw.UpperBound(sorted_inputs=tf.tile(EDGES, [4, 1]), values=x))


@rows
def among_edges_of_other_copies(x):
    edges, numbers = copies(x)
    return beside(x, raw.LowerBound(sorted_inputs=edges, values=numbers)[: size(x)])


@rows
def copies_from_a_drawn_place(x):
    start = tf.random.uniform((), maxval=2**31 - 1, dtype=tf.int32) % 2
    return tf.slice(tf.tile(x, [2, 1]), tf.stack([start, 0]), tf.stack([size(x), 6]))
