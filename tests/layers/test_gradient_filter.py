"""GradientFilter: the identity forward, its rule backward, anywhere, without touching a certificate."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.rules.entries import Clamp, Tanh

kl = keras.layers
RULE = Tanh(0.5, 0.1)


@keras.saving.register_keras_serializable(package="tests")
class FilteredLSTMCell(kl.LSTMCell):
    """As in the layer's docstring."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.filter = tfdp.layers.GradientFilter(RULE)

    def call(self, inputs, states, training=False):
        return super().call(inputs, self.filter(states), training)


def value_and_gradient(function, x, jit):
    @tf.function(jit_compile=jit)
    def both(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
            total = tf.reduce_sum(outputs)
        return outputs, tape.gradient(total, inputs)

    return [np.asarray(t) for t in both(tf.constant(x))]


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("rule", [Tanh(2.0, 0.3), Clamp(0.7)], ids=["tanh", "clamp"])
def test_identity_forward_and_the_rule_backward(rule, jit):
    x = np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4)
    layer = tfdp.layers.GradientFilter(rule)
    outputs, gradient = value_and_gradient(lambda t: tf.square(layer(t)), x, jit)
    np.testing.assert_array_equal(outputs, np.square(x))
    expected = 2 * np.tanh(2 * x / 0.3) if isinstance(rule, Tanh) else np.clip(2 * x, -0.7, 0.7)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_does_not_flow_back():
    scale = tf.constant([np.nan, np.inf, -np.inf, 1e30, 1.0], tf.float32)
    layer = tfdp.layers.GradientFilter(RULE)
    _, gradient = value_and_gradient(lambda t: layer(t) * scale, np.ones(5, "float32"), False)
    np.testing.assert_allclose(gradient, [0.0, 0.0, 0.0, 0.5, 0.5])


def test_structures_and_integers():
    layer = tfdp.layers.GradientFilter()
    ids, values = layer([tf.constant([1, 2]), tf.constant([0.5])])
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(ids, [1, 2])
    np.testing.assert_array_equal(values, [0.5])


@pytest.mark.parametrize("rule", [None, 1.0, "relu", tfdp.rules.L2(1.0)], ids=str)
def test_other_rules_are_refused(rule):
    with pytest.raises(ValueError, match="rule"):
        tfdp.layers.GradientFilter(rule)


def explosive(cell, steps=40):
    """A recurrent net whose gradient grows by a factor at every step back, around states of zero."""
    recurrent = keras.initializers.Orthogonal(16.0, seed=1)
    options = {"recurrent_initializer": recurrent, "kernel_initializer": keras.initializers.Orthogonal(1.0, seed=2)}
    return keras.Sequential([keras.Input((steps, 3)), kl.RNN(cell(8, **options)), kl.Dense(1)])


@pytest.mark.parametrize("jit", slow_but([False], [False, True]), ids=["graph", "xla"])
def test_inside_a_cell_gradients_do_not_explode(jit):
    x = np.zeros((4, 40, 3), "float32")
    plain, filtered = explosive(kl.LSTMCell), explosive(FilteredLSTMCell)
    filtered.set_weights(plain.get_weights())
    (out, free), (same, kept) = (value_and_gradient(m, x, jit) for m in (plain, filtered))
    np.testing.assert_allclose(out, same, rtol=1e-5)
    first_free, first_kept = (np.abs(g[:, 0]).max() for g in (free, kept))
    assert first_free > 1e3 > 10 > first_kept > 0


def test_a_saved_model_keeps_its_rule(tmp_path):
    layers = [keras.Input((5, 3)), tfdp.layers.GradientFilter(Clamp(0.3)), kl.RNN(FilteredLSTMCell(4)), kl.Dense(2)]
    model = keras.Sequential(layers)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].rule == Clamp(0.3)
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    for a, b in zip(*(value_and_gradient(m, x, False) for m in (model, loaded)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def private(filtered):
    layers = [keras.Input((6,)), kl.Dense(5, activation="tanh"), *filtered, kl.Dense(3)]
    model = tfdp.PrivateSequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 0.5), loss)
    return model


@pytest.mark.slow
def test_a_private_model_keeps_its_certificate():
    model, other = private([tfdp.layers.GradientFilter(Tanh(10.0, 0.01))]), private([])
    assert [g.bound for g in model.sensitivities()] == [g.bound for g in other.sensitivities()]
    other.set_weights(model.get_weights())
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(5, 6)).astype("float32"), rng.integers(0, 3, 5)
    tfdp.check_independence(model)
    together = model.bounded_gradient_sums(x, y)
    alone = [model.bounded_gradient_sums(x[i : i + 1], y[i : i + 1]) for i in range(5)]
    for whole, *parts in zip(together, *alone, strict=True):
        np.testing.assert_allclose(whole, sum(map(np.asarray, parts)), rtol=1e-4, atol=1e-6)
    for part in alone:
        assert np.sqrt(sum(np.sum(np.square(g)) for g in part)) <= 0.5
    # It acted: what lies below it got another gradient.
    assert not np.allclose(together[0], other.bounded_gradient_sums(x, y)[0], rtol=0.1)
    model.fit(x, y, batch_size=2, verbose=0)
    assert model.ledger.steps == 3
