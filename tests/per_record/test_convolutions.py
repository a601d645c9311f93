"""Every form of a convolution's per-record kernel gradients is that of a batch of one, whatever is chosen."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.clipping import filters
from tfdp_layers.per_record import convolution_choice, convolutions
from tfdp_layers.per_record.convolutions import KernelGradients
from tfdp_layers.per_record.patches import PatchBlocks, patch_products
from tfdp_layers.per_record.pixel_grams import PixelGrams

ROWS, WEIGHTS = 11, np.linspace(-1.0, 2.0, 11).astype("float32")
GEOMETRIES = {
    "strided": ((9, 10, 2), (4, 2, 2, 3), (2, 2), "same"),
    "valid": ((9, 8, 1), (2, 4, 1, 4), (2, 2), "valid"),
    "unstrided": ((6, 5, 3), (3, 2, 3, 2), (1, 1), "same"),
    "along the columns": ((4, 9, 2), (2, 3, 2, 2), (1, 3), "valid"),
    "uneven": ((7, 8, 2), (3, 3, 2, 2), (2, 2), "same"),
}
FORMS = ["loop", "products", "pixels", "blocks", "compiled"]


def form_of(name, variable, x, u, strides, padding):
    def convolution(x, kernel):
        return keras.ops.conv(x, kernel, strides=strides, padding=padding)

    geometry = {"size": variable.shape[:2], "strides": strides, "padding": padding}
    overlap = int(np.prod([-(-k // s) for k, s in zip(variable.shape[:2], strides, strict=True)]))
    common = (variable, x, u, convolution, overlap)
    return {
        "loop": lambda: KernelGradients(*common),
        "products": lambda: patch_products(variable, x, u, strides, [1, 1], padding),
        "pixels": lambda: PixelGrams(*common, **geometry),
        "blocks": lambda: PatchBlocks(*common, **geometry),
        "compiled": lambda: PatchBlocks(*common, **geometry, compiled=True),
    }[name]()


@pytest.mark.parametrize("mode", slow_but(["graph"], ["eager", "graph", "xla"]))
@pytest.mark.parametrize("geometry", slow_but(["strided", "valid", "unstrided"], GEOMETRIES))
@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_a_batch_of_one(name, geometry, mode):
    shape, kernel, strides, padding = GEOMETRIES[geometry]
    rng = np.random.default_rng(0)
    variable, x = (
        keras.Variable(rng.normal(size=kernel), dtype="float32"),
        rng.normal(size=(ROWS, *shape)).astype("float32"),
    )
    with tf.GradientTape(persistent=True) as tape:
        outputs = keras.ops.conv(x, variable, strides=strides, padding=padding)
        u = rng.normal(size=outputs.shape).astype("float32")
        losses = tf.unstack(tf.reduce_sum(outputs * u, axis=[1, 2, 3]))
    exact = np.stack([tape.gradient(loss, variable.value) for loss in losses])

    def measured(x, u):
        form = form_of(name, variable, x, u, strides, padding)
        return form.squared_norms(), form.weighted_sum(tf.constant(WEIGHTS)), form.largest_squared_norms()

    function = measured if mode == "eager" else tf.function(measured, autograph=False, jit_compile=mode == "xla")
    squared, total, largest = (np.asarray(t) for t in function(tf.constant(x), tf.constant(u)))
    norms = np.sum(exact**2, axis=(1, 2, 3, 4))
    np.testing.assert_allclose(squared, norms, rtol=1e-4)
    np.testing.assert_allclose(total, np.tensordot(WEIGHTS, exact, 1), rtol=1e-4, atol=1e-4 * np.sqrt(norms.max()))
    assert (largest >= norms * (1 - 1e-5)).all()


def test_an_empty_piece_has_a_shape():
    shape, kernel, strides, padding = GEOMETRIES["strided"]
    variable = keras.Variable(np.zeros(kernel), dtype="float32")
    function = tf.function(
        lambda x, u: form_of("blocks", variable, x, u, strides, padding).squared_norms(), autograph=False
    )
    assert function(tf.zeros((0, *shape)), tf.zeros((0, 5, 5, 3))).shape == (0,)


def test_a_patch_off_by_one_is_seen(monkeypatch):
    from tfdp_layers.per_record import patches

    monkeypatch.setattr(patches, "paddings", lambda *args: [(2, 0), (1, 0)])
    with pytest.raises(AssertionError, match="Not equal"):
        test_forms_agree_with_a_batch_of_one("products", "unstrided", "eager")


def test_chunks_of_a_large_strided_kernel_compile(monkeypatch):
    """XLA took a chunk for one of up to all records, which did not fit the eight of them that the loop wrote out."""
    monkeypatch.setattr(filters, "_CHUNK", 100)
    monkeypatch.setattr(convolutions, "_STORED", 0)
    monkeypatch.setattr(convolution_choice, "patch_cost", lambda *_: math.inf)
    model = keras.Sequential([keras.Input((5, 5, 2)), keras.layers.Conv2D(3, 3, strides=2)])
    private = tfdp.make_private(model)
    private.compile(tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0), "mse")
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=(24, *shape)), tf.float32) for shape in ((5, 5, 2), (2, 2, 3)))
    expected = private.bounded_gradient_sums(x, y)
    compiled = tf.function(private.bounded_gradient_sums, autograph=False, jit_compile=True)
    for found, wanted in zip(compiled(x, y), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
