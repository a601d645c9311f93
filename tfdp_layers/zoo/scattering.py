"""The model on fixed wavelet features: what is computed once, what is trained, and the two together."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfdp_layers.layers import ClippedDense, Scattering2D
from tfdp_layers.models.features import features
from tfdp_layers.models.model import PrivateModel
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["head", "on_features", "prefix", "whole"]

_GROUPS = (27, 31, 9, 1)
"""Of the normalization within an image, for each colour; the first that divides its channels. 27: Tramer and Boneh
2021."""


def prefix(shape: Sequence[int], scales: Sequence[int]) -> keras.Model:
    """(batch, height, width, channels) -> (batch, features), without weights.

    Every scale's scattering, zeros around images that 2^J does not divide, normalised within each image.
    """
    images = keras.Input(tuple(shape))
    parts = []
    for scale in scales:
        missing = [-size % 2**scale for size in shape[:2]]
        padded = keras.layers.ZeroPadding2D([(n // 2, n - n // 2) for n in missing])(images)
        found = Scattering2D(scale)(padded)
        colours = shape[-1]
        groups = colours * next(n for n in _GROUPS if found.shape[-1] // colours % n == 0)
        norm = keras.layers.GroupNormalization(groups, center=False, scale=False, epsilon=1e-5)
        parts.append(keras.layers.Flatten()(norm(found)))
    return keras.Model(images, keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0])


def head(recipe: Recipe, classes: int) -> list[Any]:
    """One dense layer, each record's gradient clipped by its own norm."""
    return [ClippedDense(classes, gradient_clip=recipe.gradient_clip, kernel_initializer="zeros")]


def on_features(data: Dataset, model: keras.Model) -> Dataset:
    """The data set with what a public model puts out in place of the images."""
    return dataclasses.replace(data, x_train=features(model, data.x_train), x_test=features(model, data.x_test))


def whole(model: keras.Model, trained: keras.Model) -> PrivateModel:
    """The features and the layers trained on them, as one model of images with the ledger of those layers."""
    outputs = model.outputs[0]
    for layer in trained.layers:
        outputs = layer(outputs)
    joined = PrivateModel(model.inputs[0], outputs, name=trained.name)
    joined.ledger = trained.ledger
    return joined
