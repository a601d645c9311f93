"""A model without a loss of single records says so before anything is traced, also where there are no labels."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.certificates.interactions import specs
from tfdp_layers.models import opening

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1]


class Endpoint(keras.layers.Layer):
    """As in Keras' guide: it takes the labels, and adds the loss."""

    def call(self, targets, logits):
        self.add_loss(keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits))
        return keras.ops.sigmoid(logits)


class Divergence(keras.layers.Layer):
    def call(self, moments):
        mean, log_variance = moments
        self.add_loss(-0.5 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance)))
        return mean


def endpoint():
    inputs, targets = keras.Input((6,)), keras.Input((1,))
    return keras.Model([inputs, targets], Endpoint()(targets, keras.layers.Dense(1)(inputs)))


def autoencoder():
    inputs = keras.Input((6,))
    moments = [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)]
    return keras.Model(inputs, keras.layers.Dense(6)(Divergence()(moments)))


def plain():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])


def of_two():
    inputs = keras.Input((6,))
    return keras.Model(inputs, [keras.layers.Dense(1, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)])


def stream():
    return tfdp.records(tf.data.Dataset.from_tensor_slices(X))


CASES = {
    "endpoint": (endpoint, {}, lambda: ([X, Y],), r"add_loss in \['endpoint"),
    "autoencoder": (autoencoder, {}, lambda: (X,), r"add_loss in \['divergence"),
    "autoencoder with a loss": (autoencoder, {"loss": "mse"}, lambda: (X, X), r"add_loss in \['divergence"),
    "x alone": (plain, {}, lambda: (X,), "compiled without a loss"),
    "x and y": (plain, {}, lambda: (X, Y), "compiled without a loss"),
    "a pipeline of x": (plain, {}, lambda: (stream(),), "compiled without a loss"),
    "a list of none": (of_two, {"loss": [None, None]}, lambda: (X, [Y, Y]), "compiled without a loss"),
    "a loss, and no y": (plain, {"loss": "mse"}, lambda: (X,), "There are no labels for the outputs"),
}
WAYS = {"graph": {}, "eager": {"run_eagerly": True}, "xla": {"jit_compile": True}}


@pytest.mark.few(3)
@pytest.mark.parametrize("way", slow_but(["graph"], WAYS))
@pytest.mark.parametrize("case", CASES)
def test_it_is_said_before_the_step_is_traced(case, way, monkeypatch):
    monkeypatch.setattr(opening, "traced_sums", None)
    make, compiled, given, message = CASES[case]
    model = tfdp.make_private(make())
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), **compiled, **WAYS[way])
    with pytest.raises(ValueError, match=message):
        model.fit(*given(), batch_size=6, verbose=0)
    with pytest.raises(ValueError, match=message), model.private_run(*given(), batch_size=6):
        pass
    assert not model.ledger.releases


def test_weights_may_be_regularized_and_outputs_may_go_without_a_loss():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(3, name="hidden", kernel_regularizer="l2")(inputs)
    outputs = {"a": keras.layers.Dense(1, bias_regularizer="l1", name="a")(hidden), "hidden": hidden}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), {"a": "mse"})
    model.fit(X, {"a": Y}, batch_size=6, verbose=0)
    assert model.ledger.steps == 4


def sparse_autoencoder(**options):
    x = keras.Input((6,))
    h = keras.layers.Dense(3, **options)(x)
    return x, h, keras.layers.Dense(6)(h)


@pytest.mark.slow
def test_the_refusal_of_activity_regularizers_shows_outputs_and_losses_that_work():
    x, _, y = sparse_autoencoder(activity_regularizer="l1")
    model = tfdp.make_private(keras.Model(x, y))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match="activity regularizer") as refusal:
        model.fit(X, X, batch_size=6, verbose=0)
    made, losses = re.findall(r"(keras\.Model\(.*?\)), with loss=(\{.*?axis=-1\)\})", str(refusal.value))[0]
    named = dict(zip("xhy", sparse_autoencoder(), strict=True))
    model = tfdp.make_private(eval(made, {"keras": keras} | named))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), eval(losses))
    model.fit(X, {"out": X, "code": np.zeros((24, 3), "float32")}, batch_size=6, verbose=0)
    assert model.ledger.steps == 4
    assert tfdp.check_independence(model).proved


def test_nothing_has_no_spec():
    nothing = tf.data.Dataset.from_tensors((X, None)).element_spec
    found, none = specs(nothing)
    assert (found.shape.as_list(), none) == ([None, 6], None)
    assert specs((None, X))[0] is None
