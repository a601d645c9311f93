"""The constraint that moves a kernel's singular values towards 1."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.layers import LipschitzDense, Orthogonal


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (3, 3, 2, 5)])
def test_all_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    kernel = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values = np.linalg.svd(np.asarray(Orthogonal(12)(tf.constant(50.0 * kernel))).reshape(-1, shape[-1]))[1]
    np.testing.assert_allclose(values, 1.0, atol=1e-3)


def test_a_kernel_near_an_orthogonal_one_comes_to_it() -> None:
    rng = np.random.default_rng(0)
    left, values, right = np.linalg.svd(np.eye(6) + 0.1 * rng.normal(size=(6, 6)))
    assert abs(values - 1.0).max() > 0.05
    kernel = (left * values) @ right
    np.testing.assert_allclose(Orthogonal()(tf.constant(kernel, tf.float32)), left @ right, atol=1e-5)


@pytest.mark.slow
def test_it_is_applied_after_each_step_and_saved() -> None:
    layer = LipschitzDense(4, input_clip=1.0, upstream_clip=1.0, kernel_constraint=Orthogonal(3))
    model = tfdp.PrivateSequential([keras.Input((6,)), layer])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), loss)
    before = np.asarray(layer.kernel)
    x = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    model.fit(x, np.arange(16) % 4, sampling=tfdp.sampling.Poisson(8), epochs=1, verbose=0)
    assert np.abs(np.asarray(layer.kernel) - before).max() > 1e-3
    np.testing.assert_allclose(np.linalg.svd(np.asarray(layer.kernel))[1], 1.0, atol=0.05)
    saved = keras.saving.serialize_keras_object(layer.kernel_constraint)
    assert keras.saving.deserialize_keras_object(saved).iterations == 3


def test_iterations_that_are_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match="`iterations` must be an integer"):
        Orthogonal(0)
