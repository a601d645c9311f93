"""Feedback matrices: their spectral norm, their direction, and that nothing trains them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.feedback_cases import ALIGNMENTS, CLASSES, FEATURES, releaser, stack
from tfdp_layers.layers import FeedbackStack
from tfdp_layers.layers.feedback_base import feedback_matrix


@pytest.mark.parametrize("distribution", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("shape", [(10, 256), (256, 10), (1, 7), (7, 1), (6, 6)])
def test_a_feedback_matrix_has_exactly_its_spectral_norm(shape, distribution):
    matrix = feedback_matrix(shape, 0.9, distribution, (3, 1)).astype(np.float64)
    singular = np.linalg.svd(matrix, compute_uv=False)
    assert singular[0] == pytest.approx(0.9, rel=1e-6)
    assert (singular[-1] == pytest.approx(0.9, rel=1e-6)) == (distribution == "orthogonal" or min(shape) == 1)
    assert not np.array_equal(matrix, feedback_matrix(shape, 0.9, distribution, (3, 2)))


@pytest.mark.slow
def test_feedback_matrices_are_weights_that_are_never_trained(tmp_path):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack(activation=tfdp.activations.tempered_sigmoid())])
    model.compile(tfdp.optimizers.NoisyOptimizer("adam", 1.0), "mse")
    layer = model.layers[0]
    assert len(layer.trainable_variables) == 6
    assert {id(b) for b in layer.feedbacks} == {id(v) for v in layer.non_trainable_variables}
    before = [np.array(b) for b in layer.feedbacks]
    x, y = np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32)
    model.fit(x, y, batch_size=4, verbose=0)
    layer.feedbacks[0].assign(before[0] / 2)  # what is saved is the weight, not the seed
    model.save(tmp_path / "model.keras")
    one, two = (keras.models.load_model(tmp_path / "model.keras") for _ in range(2))
    for loaded in (one, two):
        np.testing.assert_array_equal(loaded.layers[0].feedbacks[0], before[0] / 2)
        np.testing.assert_array_equal(loaded.layers[0].feedbacks[1], before[1])
        np.testing.assert_array_equal(loaded(x), model(x))
        assert [(g.name, g.bound) for g in loaded.sensitivities()] == [(g.name, g.bound) for g in model.sensitivities()]
        for a, b in zip(model.bounded_gradient_sums(x, y), loaded.bounded_gradient_sums(x, y), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_aligned_feedback_starts_in_the_direction_of_backpropagation(alignment):
    layer = stack(activation="linear", activation_clip=1e6, error_clip=1e6, feedback="aligned", alignment=alignment)
    for matrix in layer.feedbacks:
        assert np.linalg.norm(np.asarray(matrix, np.float64), 2) == pytest.approx(0.9, rel=1e-6)
    rng = np.random.default_rng(3)
    x, e = rng.normal(size=(7, FEATURES)).astype("float32"), rng.normal(size=(7, CLASSES)).astype("float32")
    with tf.GradientTape() as tape:
        h = tf.constant(x)
        for kernel, bias in layer.affines:
            h = tf.matmul(h, kernel) + bias
        loss = tf.reduce_sum(h * e)
    true = tape.gradient(loss, [v.value for v in layer.trainable_variables])
    for found, gradient in zip(releaser(layer)(x, e), true, strict=True):
        cosine = np.sum(found * gradient) / np.linalg.norm(found) / np.linalg.norm(gradient)
        assert cosine == pytest.approx(1.0, abs=1e-5)


def test_aligned_feedback_stays_what_it_was_when_the_weights_move(tmp_path):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack(feedback="aligned")])
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0), "mse")
    before = [np.array(b) for b in model.layers[0].feedbacks]
    model.fit(np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32), batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    for layer in (model.layers[0], keras.models.load_model(tmp_path / "model.keras").layers[0]):
        for matrix, start in zip(layer.feedbacks, before, strict=True):
            np.testing.assert_array_equal(matrix, start)
    with pytest.raises(ValueError, match="product is zero"):
        stack(feedback="aligned", kernel_initializer="zeros")


def test_seeds_of_the_feedback():
    fresh = [FeedbackStack([4], "tanh", 3, activation_clip=1.0) for _ in range(2)]
    assert fresh[0].feedback_seed != fresh[1].feedback_seed
    again = FeedbackStack.from_config(fresh[0].get_config())
    for layer in (*fresh, again):
        layer.build((None, 2))
    assert not np.array_equal(fresh[0].feedbacks[0], fresh[1].feedbacks[0])
    np.testing.assert_array_equal(fresh[0].feedbacks[0], again.feedbacks[0])
