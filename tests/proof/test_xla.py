"""Kernels of XLA that go round over all records at once are no rows of their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof.proving import prove_rows

RNG = np.random.default_rng(0)
MATRICES = tf.TensorSpec((None, 8, 8))
TOGETHER = {
    "eigenvectors": lambda x: tf.linalg.eigh(x)[1],
    "singular vectors": lambda x: tf.linalg.svd(x)[1],
    "keras' eigenvectors": lambda x: keras.ops.eigh(x)[1],
    "eigenvalues": tf.linalg.eigvalsh,
    "singular values": lambda x: tf.linalg.svd(x, compute_uv=False),
    "keras' largest singular value": lambda x: keras.ops.norm(x, 2, axis=(1, 2)),
}
APART = {
    "triangular factors": lambda x: tf.linalg.qr(x)[1],
    "inverses": tf.linalg.inv,
    "orthogonal factors": lambda x: tf.linalg.qr(x)[0],
}


def traced(function, compiled):
    return tf.function(function, jit_compile=compiled, autograph=False).get_concrete_function(MATRICES)


def within(function):
    """A function that XLA compiles in one that it does not."""
    return lambda x: tf.function(function, jit_compile=True, autograph=False)(x)


@pytest.mark.parametrize("name", TOGETHER)
def test_what_goes_as_many_rounds_as_one_record_needs_is_no_row_of_its_own(name):
    function = TOGETHER[name]
    assert prove_rows(traced(function, None)).proved
    for made in (traced(function, True), traced(within(function), None)):
        report = prove_rows(made)
        assert report.status == "mixed"
        assert "compiled by XLA" in report.reason


@pytest.mark.parametrize("name", APART)
def test_what_is_determined_is_proved_under_xla_too(name):
    assert prove_rows(traced(APART[name], True)).proved
    assert prove_rows(traced(within(APART[name]), None)).proved


def test_what_xla_may_compile_by_itself_counts_as_compiled():
    function = traced(TOGETHER["eigenvectors"], None)
    before = tf.config.optimizer.get_jit()
    tf.config.optimizer.set_jit("autoclustering")
    try:
        assert not prove_rows(function).proved
    finally:
        tf.config.optimizer.set_jit(before)
    assert prove_rows(function).proved


def test_why_one_record_more_turns_the_vectors_of_others():
    """The witness: XLA's kernel does, TensorFlow's does not."""
    counts = (16, 60, 255, 1500)
    points = RNG.normal(size=(counts[-1] + 1, 8, 2)).astype("float32")
    low_rank = points @ points.transpose(0, 2, 1)

    def turned(compiled, count):
        kernel = tf.function(TOGETHER["eigenvectors"], jit_compile=compiled, autograph=False)
        alone, beside = (kernel(tf.constant(low_rank[:rows]))[:count] for rows in (count, count + 1))
        return float(tf.reduce_max(tf.abs(alone - beside)))

    assert max(turned(True, count) for count in counts) > 0.5
    assert max(turned(None, count) for count in counts) == 0.0


def test_why_one_record_more_moves_the_eigenvalues_of_others():
    """The witness: small ones beside a channel of other units, and one record without that channel."""
    windows = RNG.normal(size=(401, 50, 6)) * np.array([1e8, 1.0, 1.0, 1.0, 1.0, 1.0])
    windows[-1, :, 0] = 0.0
    covariances = (windows.transpose(0, 2, 1) @ windows / 50.0).astype("float32")

    def moved(compiled):
        kernel = tf.function(tf.linalg.eigvalsh, jit_compile=compiled, autograph=False)
        alone, beside = (kernel(tf.constant(covariances[:rows]))[:400] for rows in (400, 401))
        return float(tf.reduce_max(tf.abs(alone - beside)))

    assert moved(True) > 0.1
    assert moved(None) == 0.0


@pytest.mark.parametrize("compiled", [False, True])
def test_fit_refuses_them_with_the_fix(compiled):
    def axes(x):
        return keras.ops.reshape(keras.ops.eigh(keras.ops.matmul(keras.ops.transpose(x, (0, 2, 1)), x))[1], (-1, 9))

    layers = [keras.Input((6, 3)), keras.layers.Lambda(axes, output_shape=(9,)), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", jit_compile=compiled)
    x = RNG.normal(size=(24, 6, 3)).astype("float32")
    if compiled:
        with pytest.raises(ValueError, match="jit_compile=False"):
            model.fit(x, x[:, 0, :1], batch_size=8, verbose=0)
    else:
        model.fit(x, x[:, 0, :1], batch_size=8, verbose=0)
    assert model.ledger.steps == (0 if compiled else 3)
