"""What must be proved: networks whose rows are independent, and the sums of private models."""

from typing import Any

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.layer_cases import CASES
from helpers.layer_cases import FEW as KINDS
from helpers.proof.provable import NETWORKS, bounded, noisy, per_record, private, specs_of, sums_proof
from helpers.variants import slow_but
from tfdp_layers.proof import prove, prove_rows
from tfdp_layers.proof.models import prove_traced, traced_sums
from tfdp_layers.rules import rows

OPTIMIZERS = {
    "per layer": lambda: tfdp.optimizers.ClippedOptimizer(sgd(), 1.0, clipping="per_layer"),
    "automatic": lambda: tfdp.optimizers.ClippedOptimizer(sgd(), 1.0, clipping="automatic"),
    "adaptive": lambda: tfdp.optimizers.ClippedOptimizer(sgd(), 1.0, clipping="adaptive"),
    "tanh": lambda: tfdp.optimizers.TanhFilteredOptimizer(sgd(), 1.0),
    "adadp": lambda: tfdp.optimizers.AdaDPOptimizer(0.1, 1.0),
    "adadp by a query": lambda: tfdp.optimizers.AdaDPOptimizer(0.1, 1.0, scale_estimator="query"),
    "adadp as published": lambda: tfdp.optimizers.AdaDPOptimizer(0.1, 1.0, as_published=True),
}
FEW = ["dense", "conv2d", "depthwise", "embedding", "simple rnn", "norms"]


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


def product(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_sum(y_true * y_pred, axis=list(range(1, len(y_pred.shape))))


@pytest.mark.parametrize("name", slow_but(list(NETWORKS)[::2], NETWORKS))
def test_rows_of_independent_networks(name: str) -> None:
    model = NETWORKS[name]()
    report = prove_rows(lambda x: model(x, training=True), specs_of(model)[0])
    assert report.proved, report


@pytest.mark.parametrize("name", bounded())
def test_sums_of_layers_that_bound_themselves(name: str) -> None:
    report = sums_proof(private(bounded()[name](), noisy()))
    assert report.proved, report


@pytest.mark.few(4)
@pytest.mark.parametrize("name", slow_but(KINDS, CASES))
def test_sums_of_clipped_records(name: str) -> None:
    optimizer = tfdp.optimizers.ClippedOptimizer(sgd(), 1.0, allow_generic=True)
    report = sums_proof(private(per_record(name), optimizer, product))
    assert report.proved, report


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", slow_but(["dense"], FEW))
def test_sums_of_every_way_to_bound(name: str, optimizer: str) -> None:
    report = sums_proof(private(per_record(name), OPTIMIZERS[optimizer](), product))
    assert report.proved, report


@pytest.mark.parametrize("name", [*FEW[:2], "clipped dense", "clipped dense, wide input", "clipped conv2d by patches"])
def test_sums_behind_branches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of layers as wide as in use, which a branch goes over only where some are refused."""
    monkeypatch.setattr(rows, "FEW", -1)
    own = name not in FEW
    model = private(bounded()[name](), noisy()) if own else private(per_record(name), noisy_clipping(), product)
    traced = traced_sums(model, *specs_of(model))
    assert any(node.op in ("If", "StatelessIf") for node in traced.graph.as_graph_def().node)
    report = prove_traced(model, traced)
    assert report.proved, report


LOSSES = {
    "mean squared error": keras.losses.MeanSquaredError(),
    "huber": keras.losses.Huber(),
    "log cosh": keras.losses.LogCosh(),
    "cosine": keras.losses.CosineSimilarity(),
    "kl": keras.losses.KLDivergence(),
    "hinge": keras.losses.CategoricalHinge(),
    "cross-entropy": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    "focal": keras.losses.CategoricalFocalCrossentropy(),
    "binary": keras.losses.BinaryCrossentropy(from_logits=True),
}


@pytest.mark.parametrize("name", slow_but(["huber", "cosine", "cross-entropy"], LOSSES))
def test_losses(name: str) -> None:
    report = sums_proof(private(NETWORKS["mlp"](), noisy_clipping(), LOSSES[name]))
    assert report.proved, report


def test_a_sparse_loss() -> None:
    model = private(NETWORKS["mlp"](), noisy_clipping(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, _, weights = specs_of(model)
    report = tfdp.proof.prove_sums(model, x, tf.TensorSpec((None,), tf.int64), weights)
    assert report.proved, report


def noisy_clipping() -> Any:
    return tfdp.optimizers.ClippedOptimizer(sgd(), 1.0)


def segments(ids: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Each record's entries put into three segments of its own."""
    found = tf.math.unsorted_segment_sum(x, ids + tf.range(tf.shape(x)[0])[:, tf.newaxis] * 3, tf.shape(x)[0] * 3)
    return tf.reduce_sum(tf.tanh(tf.reshape(found, (-1, 3))) ** 2, axis=0)


def gathered(x: tf.Tensor) -> tf.Tensor:
    """The gradient of entries picked by the record's own indices: TensorFlow adds them up by places in the batch."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        own = tf.clip_by_value(tf.cast(x * 100.0, tf.int32), 0, 5)
        picked = tf.gather(x, own, batch_dims=1)
        total = tf.reduce_sum(picked**2)
    return tf.reduce_sum(tape.gradient(total, x), axis=0)


def from_the_end(x: tf.Tensor, size: int) -> tf.Tensor:
    """Places, of which those below 0 are counted from the end, as Keras does."""
    ids = tf.clip_by_value(tf.cast(x * 9.0, tf.int32), -size, size - 1)
    return tf.where(ids < 0, ids + size, ids)


def along_axis(x: tf.Tensor) -> tf.Tensor:
    """The gradient of Keras' entries along an axis, from either end."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        places = tf.clip_by_value(tf.cast(x[:, :2] * 9.0, tf.int32), -6, 5)
        total = tf.reduce_sum(keras.ops.take_along_axis(x, places, axis=1) ** 2)
    return tf.reduce_sum(tape.gradient(total, x), axis=0)


CONTROLS = {
    "segments of ids from the end": lambda x: segments(from_the_end(x, 3), x),
    "taken along an axis": along_axis,
    "segments of clipped ids": lambda x: segments(tf.clip_by_value(tf.cast(x * 9.0, tf.int32), 0, 2), x),
    "segments of shifted ids": lambda x: segments(1 - tf.clip_by_value(tf.cast(x * 9.0, tf.int32), -1, 1), x),
    "gathered by clipped ids": gathered,
    "rows swapped and back": lambda x: tf.reduce_sum(x * 2.0, axis=0),
    "number of records cancels": lambda x: tf.reduce_sum(tf.reshape(x, (tf.shape(x)[0], 2, 3)), axis=0),
    "counted by ones": lambda x: tf.reduce_sum(tf.ones((tf.shape(x)[0], 2)), axis=0),
    "copies": lambda x: tf.reduce_sum(tf.concat([x, x], 0), axis=0),
    "one of two copies": lambda x: tf.reduce_sum(tf.tile(x, [2, 1])[: tf.shape(x)[0]], axis=0),
    "gram matrix": lambda x: tf.matmul(x, x, transpose_a=True),
    "segments": lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0] > 0.0, tf.int32), 2),
    "scattered": lambda x: tf.scatter_nd(tf.cast(x[:, :1] > 0.0, tf.int32), x, (2, 6)),
    "map over the batch": lambda x: tf.reduce_sum(tf.map_fn(lambda r: r / (1.0 + tf.norm(r)), x), axis=0),
    "chosen by a constant": lambda x: tf.cond(tf.constant(1) > 0, lambda: tf.reduce_sum(x), lambda: tf.zeros(())),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_sums_that_look_as_if_records_met(name: str) -> None:
    traced = tf.function(CONTROLS[name], autograph=False).get_concrete_function(tf.TensorSpec((None, 6)))
    report = prove(traced)
    assert report.proved, report


@pytest.mark.slow
def test_a_hundred_layers_take_a_few_seconds() -> None:
    layers = [keras.layers.Dense(8, activation="relu") for _ in range(100)]
    model = private(keras.Sequential([keras.Input((8,)), *layers]), noisy_clipping())
    report = sums_proof(model)
    assert report.proved, report
    # The least of three, and twice what it takes: machines that run tests are busy.
    assert min(report.seconds, sums_proof(model).seconds, sums_proof(model).seconds) < 4.0
