"""Records of ordinary networks are proved not to meet; no function in which they do is ever proved."""

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof import mixing, provable, random_graphs
from tfdp_layers.proof import prove, prove_rows

ROWS = tf.TensorSpec((None, 6), tf.float32)


@pytest.mark.parametrize("name", sorted(provable.NETWORKS))
def test_the_rows_of_independent_networks_are_proved(name):
    model = provable.NETWORKS[name]()
    x = provable.specs_of(model)[0]
    function = tf.function(lambda x: model(x, training=True), autograph=False)
    assert (report := prove_rows(function.get_concrete_function(x))).proved, str(report)


@pytest.mark.parametrize("name", sorted(provable.bounded()))
def test_the_sums_of_private_models_are_proved(name):
    report = provable.sums_proof(provable.private(provable.bounded()[name](), provable.noisy()))
    assert report.proved, str(report)


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "adaptive"])
def test_the_sums_of_dp_sgd_are_proved(clipping):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", 1.0, clipping=clipping)
    report = provable.sums_proof(provable.private(model, optimizer))
    assert report.proved, str(report)


@pytest.mark.parametrize("name", sorted(mixing.ROWS))
def test_rows_that_meet_are_not_proved(name):
    function = tf.function(mixing.ROWS[name](), autograph=False)
    assert not prove_rows(function.get_concrete_function(ROWS)).proved


@pytest.mark.parametrize("name", sorted(mixing.SUMS))
def test_sums_that_are_not_additive_are_not_proved(name):
    function = tf.function(mixing.SUMS[name](), autograph=False)
    assert not prove(function.get_concrete_function(ROWS)).proved


def test_what_is_proved_of_random_functions_is_so_in_numbers():
    found = [random_graphs.false_proof(seed) for seed in range(150)]
    assert [fault for fault, _ in found if fault] == []
    assert sum(count for _, count in found) > 20  # proofs that were checked


def test_a_hundred_layers_take_less_than_two_seconds():
    layers = [keras.layers.Dense(8, activation="relu") for _ in range(100)]
    model = provable.private(
        keras.Sequential([keras.Input((8,)), *layers]), tfdp.optimizers.ClippedOptimizer("sgd", 1.0)
    )
    report = provable.sums_proof(model)
    assert report.proved, str(report)
    # The least of two: machines that run tests are busy.
    assert report.seconds < 2.0 or provable.sums_proof(model).seconds < 2.0
