"""Layers of one's own that draw random numbers, as a variational autoencoder does, are measured, and not refused."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates.standing import standing_numbers

kl, ops, random = keras.layers, keras.ops, keras.random
X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")


class Drawing(kl.Layer):
    """Draws in every call, in training or not, so that no rate switches it off."""

    def __init__(self, compute):
        super().__init__()
        self.compute, self.seeds = compute, random.SeedGenerator(1)

    def call(self, x):
        return self.compute(x, self.seeds)


DRAWS = {
    "sampling": lambda x, s: x[:, :2] + ops.exp(x[:, 2:]) * random.normal((ops.shape(x)[0], 2), seed=s),
    "masks": lambda x, s: x * ops.cast(random.uniform(ops.shape(x), seed=s) > 0.5, x.dtype),
    "one for all records": lambda x, s: ops.matmul(x, random.truncated_normal((4, 3), 0.0, 1.0, None, s)),
    "whole numbers": lambda x, s: x + ops.cast(random.randint(ops.shape(x), 0, 3, seed=s), x.dtype),
    "dropout": lambda x, s: random.dropout(x, 0.5, seed=s),
}


def private(compute):
    layers = [keras.Input((4,)), kl.Dense(4, activation="tanh"), Drawing(compute), kl.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", DRAWS)
def test_a_layer_that_draws_trains_and_is_proved(name):
    model = private(DRAWS[name])
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    assert "is proved" in str(model.privacy_statement(1e-3))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, s: x + ops.mean(x, axis=0, keepdims=True) * random.normal((ops.shape(x)[0], 4), seed=s),
        lambda x, s: random.shuffle(x, seed=s),
    ],
    ids=["a mean of the batch", "records in another order"],
)
def test_records_that_mix_beside_the_numbers_are_refused(compute):
    with pytest.raises(ValueError, match=r"not independent|TensorFlow's own|records"):
        private(compute).fit(X, X[:, :1], batch_size=8, verbose=0, accept_measured=False)


def test_numbers_stand_in_this_thread_alone_never_in_a_trace_and_not_afterwards():
    def draw(rows=5):
        return np.asarray(random.normal((rows, 2)))

    before = keras.src.backend.random.normal
    traced, elsewhere = tf.function(lambda: random.normal((5, 2))), []
    with standing_numbers(), standing_numbers():
        assert (draw() == draw(7)[:5]).all()
        assert (draw() == draw()[:1]).all()
        assert (np.asarray(traced()) != np.asarray(traced())[:1]).any()
        thread = threading.Thread(target=lambda: elsewhere.append(draw()))
        thread.start()
        thread.join()
        assert (elsewhere[0] != elsewhere[0][:1]).any()
        assert random.normal(()).shape == ()
    assert (draw() != draw()).all()
    assert keras.src.backend.random.normal is before
