"""The model on fixed wavelet features: what is computed once, what is trained, and the two together."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfdp_layers.layers import ClippedDense, RandomFilters2D, Scattering2D
from tfdp_layers.models.features import features
from tfdp_layers.models.model import PrivateModel
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["blocks", "head", "on_features", "prefix", "whole"]

_GROUPS = (27, 31, 9, 1)
"""Of the normalization within an image, for each colour; the first that divides its channels. 27: Tramer and Boneh
2021."""


def prefix(shape: Sequence[int], recipe: Recipe) -> keras.Model:
    """(batch, height, width, channels) -> (batch, features), without weights.

    Every scale's scattering, zeros around images that 2^J does not divide, and random filters, where the recipe has
    them; each normalised within the image. If it is `mirrored`, the mean over an image and its mirror image: where
    classes look alike in a mirror, that keeps what tells them apart and leaves out half of the rest, and with it half
    of the noise that counts.
    """
    images = keras.Input(tuple(shape))
    parts = [_scattered(images, scale) for scale in recipe.feature_scales]
    if recipe.random_filters:
        filtered = RandomFilters2D(recipe.random_filters)(images)
        parts.append(keras.layers.Flatten()(_normalised(filtered, 1)))
    found = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    model = keras.Model(images, found)
    if not recipe.mirrored:
        return model
    return keras.Model(images, keras.layers.Average()([found, model(keras.ops.flip(images, axis=2))]))


def _scattered(images: Any, scale: int) -> Any:
    """Scattering at one scale, flat, in groups of channels of mean 0 and mean square 1 within each image.

    Raises ValueError for a scale at which no more than one place of the image would be left, most of it zeros.
    """
    *size, colours = images.shape[1:]
    layer = Scattering2D(scale)
    if 2 ** (scale - 1) >= max(size):
        raise ValueError(f"Scale J={scale} averages over 2^J = {2**scale} pixels: too wide for images of {size}.")
    missing = [-n % 2**scale for n in size]
    padded = keras.layers.ZeroPadding2D([(n // 2, n - n // 2) for n in missing])(images)
    found = layer(padded)
    groups = colours * next(n for n in _GROUPS if found.shape[-1] // colours % n == 0)
    return keras.layers.Flatten()(_normalised(found, groups))


def _normalised(features: Any, groups: int) -> Any:
    return keras.layers.GroupNormalization(groups, center=False, scale=False, epsilon=1e-5)(features)


def blocks(shape: Sequence[int], recipe: Recipe) -> list[tuple[int, int]]:
    """(places, channels) of the features of each scale, and of the random filters, as they stand side by side."""
    height, width, colours = shape
    found = []
    for scale in recipe.feature_scales:
        step = 2**scale
        channels = Scattering2D(scale).compute_output_shape((None, step, step, colours))[-1]
        assert channels is not None
        found.append((-(-height // step) * -(-width // step), channels))
    if recipe.random_filters:
        layer = RandomFilters2D(recipe.random_filters)
        found.append((layer.grid**2, 2 * layer.filters))
    return found


def head(recipe: Recipe, classes: int) -> list[Any]:
    """One dense layer, each record's gradient clipped by its own norm."""
    return [ClippedDense(classes, gradient_clip=recipe.gradient_clip, kernel_initializer="zeros")]


def on_features(data: Dataset, model: keras.Model, cache: Path | None = None) -> Dataset:
    """The data set with what a public model puts out in place of the images, kept in files of a folder if one is given.

    In half precision: normalised features lose nothing that was measurable, and large sets fit in memory.
    """
    x_train, x_test = (features(model, x, dtype="float16", cache=cache) for x in (data.x_train, data.x_test))
    return dataclasses.replace(data, x_train=x_train, x_test=x_test)


def whole(model: keras.Model, prepared: keras.Model | None, trained: keras.Model) -> PrivateModel:
    """The features, what was learned of them once, and the layers trained on that, as one model of images.

    Its ledger is that of the trained layers.
    """
    outputs = model.outputs[0]
    if prepared is not None:
        outputs = prepared(outputs)
    for layer in trained.layers:
        outputs = layer(outputs)
    joined = PrivateModel(model.inputs[0], outputs, name=trained.name)
    joined.ledger = trained.ledger
    return joined
