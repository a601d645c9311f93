"""The command's models: every layer is certified, and the input clip never distorts a record."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.variants import slow_but
from tfdp_layers.layers.base import BoundedLayer
from tfdp_layers.zoo import datasets, networks, recipes

SHAPES = {"mnist": (28, 28, 1), "fashion_mnist": (28, 28, 1), "cifar10": (32, 32, 3), "digits": (8, 8, 1)}


def records(name: str) -> datasets.Dataset:
    """Ordinary images, and the extremes: black, white, one pixel, alternating columns."""
    shape = SHAPES[name]
    x = np.random.default_rng(0).random((8, *shape), np.float32)
    x[0], x[1], x[2], x[3] = 0.0, 1.0, 0.0, 0.0
    x[2, shape[0] // 2, shape[1] // 2] = 1.0
    x[3, :, ::2] = 1.0
    y = np.arange(8)
    return datasets.Dataset(name, x, y, x, y, "made up", 10)


@pytest.mark.parametrize("name", slow_but(["digits"], SHAPES))
@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_models_are_certified_and_their_input_clips_never_distort(model, name):
    data = records(name)
    built = networks.build(model, data)
    assert [group.bound > 0 for group in built.sensitivities()] == [True] * (2 if model == "mlp" else 4)
    assert built.output_shape == (None, 10)
    x = tf.convert_to_tensor(data.x_train)
    clipped = 0
    for layer in built.layers:
        if isinstance(layer, BoundedLayer):
            clipped += 1
            # A rule scales to just below its bound, so that rounding stays inside it.
            np.testing.assert_allclose(layer.input_rule.scales(x), 1.0, atol=1e-4)
        x = layer(x)
    assert clipped == len(built.sensitivities())


@pytest.mark.parametrize("name", slow_but(["digits"], SHAPES))
def test_each_layer_of_the_tanh_cnn_normalises_its_records_gradients(name):
    data = records(name)
    built = networks.build("tanh_cnn", data)
    assert [group.bound for group in built.sensitivities()] == [1.0] * 3
    assert built.output_shape == (None, 10)
    assert np.isfinite(built(data.x_train)).all()  # of a black image, too
    with pytest.raises(ValueError, match="bounds gradients in its layers"):
        recipes.recipe_for("tanh_cnn", name, "dpsgd")


def test_without_the_norm_the_clip_would_distort():
    """The test above can fail: the same layers on raw pixels are clipped hard."""
    data = records("mnist")
    layer = next(layer for layer in networks.build("cnn", data).layers if isinstance(layer, BoundedLayer))
    assert float(tf.reduce_min(layer.input_rule.scales(tf.convert_to_tensor(data.x_train)))) < 0.8


@pytest.mark.parametrize("name", slow_but(["digits"], SHAPES))
@pytest.mark.parametrize(("method", "model", "groups"), [("dfa", "mlp", 2), ("dfa_hybrid", "cnn", 4)])
def test_feedback_models_are_certified(method, model, groups, name):
    data, recipe = records(name), recipes.recipe_for(model, name, method)
    built = networks.build(model, data, method)
    sensitivities = built.sensitivities()
    assert [group.name.split("/")[-1] for group in sensitivities[-2:]] == ["hidden_0", "output"]
    assert len(sensitivities) == groups
    expected = np.array(recipe.upstream_clips[-2:]) * np.hypot(recipe.scales[-2:], 1.0)
    assert [group.bound for group in sensitivities[-2:]] == pytest.approx(list(expected))
    assert built.output_shape == (None, 10)
    assert recipes.default_model(method) == recipes.default_model(method, on_features=True) == model
    assert recipes.default_model("backprop_clipping", on_features=True) == "scattering"


@pytest.mark.parametrize("model", recipes.MODELS)
def test_models_survive_saving(model, tmp_path):
    data = records("digits")
    built = networks.build(model, data)
    built.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(built(data.x_train), loaded(data.x_train), atol=1e-6)


def test_unknown_models_methods_and_data_sets_are_refused():
    with pytest.raises(ValueError, match="cnn, mlp"):
        recipes.recipe_for("transformer", "mnist")
    with pytest.raises(ValueError, match="backprop_clipping"):
        recipes.recipe_for("cnn", "mnist", "hope")
    with pytest.raises(ValueError, match="'dfa_hybrid' for a cnn"):
        recipes.recipe_for("cnn", "mnist", "dfa")
    with pytest.raises(ValueError, match="'dfa' for an mlp"):
        recipes.recipe_for("mlp", "mnist", "dfa_hybrid")
    with pytest.raises(ValueError, match="digits"):
        recipes.recipe_for("cnn", "imagenet")
