"""Sums over large batches: what rounding adds to one record's influence, in orders made to hurt."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.private_models import product
from helpers.variants import slow_but
from tfdp_layers.batches.base import LONGEST_IN_ANY_ORDER, LONGEST_SUM

RECORDS = 32 * LONGEST_SUM


def private(layer, optimizer):
    inputs = keras.Input((1,))
    model = tfdp.PrivateModel(inputs, layer(inputs))
    model.compile(optimizer, product)
    model.optimizer.build(model.trainable_variables)
    return model


KINDS = {
    "clipped": lambda: private(
        tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=1.0), tfdp.optimizers.NoisyOptimizer("sgd", 1.0)
    ),
    "ordinary": lambda: private(keras.layers.Dense(1), tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 2.0**0.5)),
}


def sums(model, labels, piece):
    data = tf.ones((len(labels), 1)), tf.constant(labels[:, None], tf.float32), tf.ones(len(labels))
    one_row = types.SimpleNamespace(rows_each=1)
    model._privacy.run = types.SimpleNamespace(
        groups=model.sensitivities(), batches=one_row, compiled=False, replicas=None
    )
    try:
        found = model._piecewise(*data, piece) if piece else model._piece(*data)
    finally:
        model._privacy.run = None
    return np.concatenate([np.ravel(np.asarray(total, np.float64)) for total in found])


def ratio(model, labels, piece):
    """How far one record more, at the front, moves the sums, over its bound."""
    (group,) = model.sensitivities()
    more = np.insert(labels, 0, np.float32(1.0))
    return np.linalg.norm(sums(model, more, piece) - sums(model, labels, piece)) / group.bound


def ties(length):
    """Ones, and then halves of a unit in the last place, which a sum over a power of two ignores."""
    ulp = 2.0 ** (np.floor(np.log2(length / 2)) - 23)
    return np.where(np.arange(length) < length // 2, 1.0, -ulp / 2).astype("float32")


BATCHES = {
    "ties": np.tile(ties(LONGEST_SUM), RECORDS // LONGEST_SUM),
    "long ties": ties(RECORDS),
    "equal": np.full(RECORDS, 0.7, "float32"),
    "any": np.random.default_rng(0).uniform(0, 1, RECORDS).astype("float32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("batch", slow_but([BATCHES["long ties"]], BATCHES.values()), ids=BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_record_moves_a_sum_over_65536_by_its_bound_in_the_order_that_fit_gives(kind, batch):
    drawn = np.random.default_rng(1).permutation(batch)
    assert 0.999 < ratio(KINDS[kind](), drawn, LONGEST_SUM) < 1.001


@pytest.mark.parametrize("kind", KINDS)
def test_planted_bug_one_float32_sum_in_the_given_order_moves_far_more(kind):
    assert ratio(KINDS[kind](), BATCHES["long ties"], None) > 10.0
    assert ratio(KINDS[kind](), BATCHES["ties"][:LONGEST_SUM], None) > 1.01


@pytest.mark.parametrize("kind", KINDS)
def test_short_sums_keep_the_bound_in_any_order(kind):
    assert ratio(KINDS[kind](), ties(LONGEST_IN_ANY_ORDER), None) < 1.001


@pytest.mark.parametrize("given", [None, 512, 10**6])
def test_large_batches_are_worked_off_in_pieces(given):
    x = np.zeros((20_000, 1), "float32")
    large = tfdp.PrivateBatches(x, x, tfdp.sampling.Poisson(10_000), given)
    assert large.piece == min(LONGEST_SUM, given or LONGEST_SUM)
    small = tfdp.PrivateBatches(x, x, tfdp.sampling.Poisson(LONGEST_SUM), given)
    assert small.piece == given


def rows(count, declared):
    x = np.arange(count, dtype="float32")[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(count).repeat()
    batches = tfdp.declare_sampling(data, tfdp.sampling.Poisson(declared), examples=2 * count)
    batch = next(iter(batches.dataset()))
    np.testing.assert_array_equal(batch[0], batch[1])
    np.testing.assert_array_equal(np.sort(batch[0][:count, 0]), x[:, 0])
    return np.asarray(batch[0][:count, 0])


def test_a_declared_pipeline_has_no_say_in_the_order_of_a_large_batch():
    assert (np.diff(rows(1000, LONGEST_IN_ANY_ORDER)) == 1).all()
    assert abs(np.corrcoef(rows(1000, LONGEST_IN_ANY_ORDER + 1), np.arange(1000))[0, 1]) < 0.2


@pytest.mark.parametrize("options", [{}, {"noise_source": "secure"}])
def test_noise_is_added_before_a_float64_sum_is_rounded(options):
    """A float32 of 2^24 + 1 is 2^24: what is released must have known better."""
    model = private(keras.layers.Dense(1, use_bias=False), tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0, **options))
    means = []
    model.optimizer.observe(lambda found: means.append(np.asarray(found[0])))
    model.optimizer._reserve(1)
    total = tf.constant([[2.0**24 + 1.0]], tf.float64)
    with model.optimizer._stepping():
        model.optimizer.release([total], model.trainable_variables, model.sensitivities(), 2)
    assert means[0].dtype == np.float32
    noisy = []
    perturbed = model.optimizer.noise_source.perturbed
    model.optimizer.noise_source.perturbed = lambda *args: noisy.append(perturbed(*args)) or noisy[-1]
    model.optimizer._reserve(1)
    with model.optimizer._stepping():
        model.optimizer.release([total], model.trainable_variables, model.sensitivities(), 2)
    assert noisy[0].dtype == tf.float64
    assert noisy[0].numpy().item() != np.float32(noisy[0]).item()


@pytest.mark.parametrize("jit_compile", slow_but([False], [False, True]))
def test_fit_on_a_large_batch_counts_every_record_once(jit_compile):
    size = 2 * LONGEST_SUM + 100
    inputs = keras.Input((1,))
    model = tfdp.PrivateModel(inputs, tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=1.0)(inputs))
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 0.0), product, jit_compile=jit_compile)
    x = np.ones((size, 1), "float32")
    model.build((None, 1))
    before = float(model.layers[-1].bias[0])
    model.fit(x, x, sampling=tfdp.sampling.Partition(size), epochs=1, verbose=0)
    assert before - float(model.layers[-1].bias[0]) == pytest.approx(1.0, rel=1e-4)
