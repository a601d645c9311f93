"""Features of the command's model: the same for a record whatever the others, bounded, and public."""

from dataclasses import replace

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.sampling import Poisson
from tfdp_layers.zoo import datasets, networks, preparation, recipes, scattering

SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "digits": (8, 8, 1)}
PLAIN = recipes.recipe_for("scattering", "digits")
KINDS = [replace(PLAIN, feature_scales=(1, 2)), replace(PLAIN, feature_scales=(1, 2, 3), random_filters=5)]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(["digits"], SHAPES))
@pytest.mark.parametrize("kind", slow_but(KINDS, KINDS))
def test_features_have_a_largest_norm_and_no_weights(name, kind):
    x = np.random.default_rng(0).random((3, *SHAPES[name])).astype("float32")
    y = np.arange(3)
    data = datasets.Dataset(name, x, y, x, y, "made up", 10)
    prefix = scattering.prefix(SHAPES[name], kind)
    found = scattering.on_features(data, prefix)
    assert not prefix.weights
    np.testing.assert_allclose(found.x_train[:1], prefix(x[:1]), rtol=1e-3, atol=1e-3)
    norms = np.linalg.norm(found.x_train.astype("float32"), axis=1)
    assert np.all(norms <= 1.001 * np.sqrt(found.x_train.shape[1]))
    head = networks.build("scattering", found)
    (group,) = head.sensitivities()
    assert group.bound == recipes.recipe_for("scattering", name).gradient_clip
    blocks = scattering.blocks(SHAPES[name], kind)
    assert sum(positions * channels for positions, channels in blocks) == found.x_train.shape[1]
    recipe = replace(recipes.recipe_for("scattering", "mnist"), whitening_noise=1e-9, centering_noise=1e-9)
    prepared = preparation.preparation(recipe, blocks)
    assert prepared is not None
    assert np.max(norms) <= prepared.layers[1].l2_norm_clip * (1 + 1e-3), "the mean's clip distorts no record"
    prepared.ledger = head.ledger
    preparation.adapt(prepared, found.x_train, Poisson(1))
    assert head.ledger.steps == 1 + kind.feature_blocks
    white = preparation.apply(prepared, found.x_train)
    np.testing.assert_allclose(np.mean(white, axis=0), 0.0, atol=0.05)  # in half precision
    joined = scattering.whole(prefix, prepared, head)
    assert joined.ledger.steps == head.ledger.steps
    np.testing.assert_allclose(joined(x), head(white), atol=1e-2)
    assert preparation.preparation(replace(recipe, whitening_noise=0.0, centering_noise=0.0), blocks) is None


def test_mirrored_features_are_the_mean_over_an_image_and_its_mirror_image(tmp_path):
    x = np.random.default_rng(0).random((40, 8, 8, 2)).astype("float32")
    plain, mirrored = (scattering.prefix(x.shape[1:], replace(KINDS[0], mirrored=way)) for way in (False, True))
    found = tfdp.features(mirrored, x)
    np.testing.assert_allclose(found, (plain(x) + plain(x[:, :, ::-1])) / 2, atol=1e-4)
    np.testing.assert_allclose(mirrored(x[:, :, ::-1]), found, atol=1e-4)
    mirrored.save(tmp_path / "mirrored.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "mirrored.keras")(x), found, atol=1e-4)
