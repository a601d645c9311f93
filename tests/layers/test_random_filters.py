"""Features by random filters: as defined, each image's own, always the same, and refused where they cannot be."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.layers.random_filters import random_kernel

X = np.random.default_rng(0).random((5, 12, 11, 3)).astype("float32")
FIRST = [0.095183, -0.036427, 0.286633]


def by_loops(layer: tfdp.layers.RandomFilters2D, x: np.ndarray) -> np.ndarray:
    """The same by the definition, patch by patch."""
    size, (rows, columns) = layer.kernel_size, layer.places(x.shape)
    kernel = random_kernel(size, x.shape[3], layer.filters, layer.seed).astype(np.float64)
    found = np.zeros((len(x), rows, columns, 2 * layer.filters))
    for i, row, column in np.ndindex(len(x), rows, columns):
        patch = x[i, row : row + size, column : column + size].astype(np.float64)
        patch = (patch - patch.mean()) / np.sqrt(patch.var() + (10 / 255) ** 2)
        h = np.tensordot(patch, kernel, 3)
        found[i, row, column] = np.maximum(0.0, np.concatenate([h, -h]) - layer.threshold)
    height, width = (-(-places // layer.grid) for places in (rows, columns))
    parts = [
        found[:, i * height : (i + 1) * height, j * width : (j + 1) * width].mean((1, 2))
        for i, j in np.ndindex(layer.grid, layer.grid)
    ]
    return np.stack(parts, 1).reshape(len(x), layer.grid, layer.grid, -1)


@pytest.mark.parametrize("options", [{}, {"grid": 1, "kernel_size": 3, "threshold": 0.1, "seed": 4}])
def test_values_are_those_of_the_definition(options):
    layer = tfdp.layers.RandomFilters2D(4, **({"grid": 2} | options))
    found = layer(X)
    assert found.shape == layer.compute_output_shape(X.shape)
    assert not layer.weights
    expected = by_loops(layer, X)
    # The pooling of TensorFlow centers parts that do not fill the grid.
    if all(places % layer.grid == 0 for places in layer.places(X.shape)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.mean(found), np.mean(expected), rtol=0.1)
    np.testing.assert_allclose(tf.function(layer, jit_compile=True)(X), found, rtol=1e-4, atol=1e-5)


def test_a_patchs_mean_and_contrast_do_not_count_and_an_image_is_its_own():
    layer = tfdp.layers.RandomFilters2D(4, threshold=0.0)
    found = np.asarray(layer(X))
    np.testing.assert_allclose(layer(0.5 * X + 0.25), found, rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(layer(X[:1]), found[:1], rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(layer(np.ones_like(X))))
    assert np.max(np.abs(layer(np.ones_like(X)))) < 1e-3


def test_the_filters_whiten_patches_of_their_model_and_are_always_the_same():
    kernel = random_kernel(6, 3, 50, 0)
    np.testing.assert_allclose(kernel.sum((0, 1, 2)), 0.0, atol=1e-5)
    # A seed is a part of the model: other numbers would silently be another one.
    np.testing.assert_allclose(kernel[0, 0, 0, :3], FIRST, rtol=1e-4)
    rows, columns, colours = (one.ravel() for one in np.mgrid[:6, :6, :3])
    distance = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    covariance = np.exp(-distance / 4) * np.where(colours[:, None] == colours, 1.0, 0.9)
    filters = kernel.reshape(-1, 50).astype(np.float64)
    variances = np.diag(filters.T @ covariance @ filters)
    smooth = np.linalg.eigh(covariance)[1][:, -4:]
    along = np.sum((smooth.T @ filters) ** 2) / np.sum(filters**2)
    assert along < 0.01, "whitened: little along the directions in which patches vary the most"
    assert 0.05 < np.min(variances) <= np.max(variances) < 2.0


def test_it_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input(X.shape[1:]), tfdp.layers.RandomFilters2D(4, grid=2, seed=3)])
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model.keras")(X), model(X), atol=1e-6)
    np.testing.assert_allclose(tfdp.features(model, X), model(X), atol=1e-4)


@pytest.mark.parametrize("frozen", slow_but([True], [True]))
def test_records_stay_independent_above_it(frozen):
    layers = [tfdp.layers.RandomFilters2D(4, grid=2), keras.layers.Flatten(), tfdp.layers.ClippedDense(2)]
    model = tfdp.PrivateSequential([keras.Input(X.shape[1:]), *layers])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    assert tfdp.check_independence(model).proved
    assert [group.name for group in model.sensitivities()] == [layers[-1].name]


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"filters": 0}, None, "`filters` must be an integer from 1"),
        ({"filters": 2**20}, None, "`filters` must be"),
        ({"filters": True}, None, "`filters` must be"),
        ({"filters": 4, "kernel_size": 1}, None, "`kernel_size` must be 2 or more"),
        ({"filters": 4, "seed": -1}, None, "`seed` must be"),
        ({"filters": 4, "threshold": float("nan")}, None, "`threshold` must be"),
        ({"filters": 4}, (2, 7, 7, 1), "at least 8 x 8"),
        ({"filters": 4}, (2, None, 9, 1), "fixed size"),
        ({"filters": 4}, (2, 9), "takes"),
        ({"filters": 4, "grid": 4}, (2, 14, 14, 1), "cannot cut"),
        ({"filters": 4, "kernel_size": 2**14}, (2, 2**15, 2**15, 3), "numbers each .* Take a smaller"),
        ({"filters": 2**14, "kernel_size": 60}, (2, 64, 64, 1), "16384 filters of 3600 numbers"),
    ],
)
def test_what_it_cannot_do_is_refused(options, shape, message):
    with pytest.raises(ValueError, match=message):
        tfdp.layers.RandomFilters2D(**options).build(shape)
