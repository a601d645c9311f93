"""The models that the command trains."""

import math
from typing import Any

import keras

from tfdp_layers.datasets import Dataset
from tfdp_layers.layers import ClippedConv2D, ClippedDense
from tfdp_layers.model import PrivateSequential
from tfdp_layers.recipes import Recipe, recipe_for

__all__ = ["build"]

_HIDDEN_UNITS = 256


def build(
    model: str, dataset: Dataset, method: str = "backprop_clipping", recipe: Recipe | None = None
) -> PrivateSequential:
    """Builds a classifier, not compiled, that outputs one logit for each class.

    Each record is brought to a fixed norm before each bounded layer, so the layer's input clip never distorts: the
    clip is then a matter of scale alone, and one record's norm says nothing about another's.

    Args:
      model: "cnn" or "mlp".
      dataset: gives the shape of a record and the number of classes.
      method: "backprop_clipping".
      recipe: settings; the tuned ones of this model and data set if left out.

    Raises:
      ValueError: an unknown model, data set or method.
    """
    recipe = recipe_for(model, dataset.name, method) if recipe is None else recipe
    builders = {"cnn": _cnn, "mlp": _mlp}
    if model not in builders:
        raise ValueError(f"Unknown model {model!r}. Choose one of: {', '.join(builders)}.")
    layers = builders[model](recipe, dataset.classes)
    return PrivateSequential([keras.Input(dataset.x_train.shape[1:]), *layers], name=model)


def _mlp(recipe: Recipe, classes: int) -> list[Any]:
    first, second = zip(recipe.scales, recipe.upstream_clips, strict=True)
    return [keras.layers.Flatten(), *_dense(_HIDDEN_UNITS, recipe.activation, *first), *_dense(classes, None, *second)]


def _cnn(recipe: Recipe, classes: int) -> list[Any]:
    """Two convolutions whose patches overlap little, and two dense layers.

    The patch bound grows with the number of patches that hold a pixel, so strides near the kernel size cost the least.
    """
    clips = list(zip(recipe.scales, recipe.upstream_clips, strict=True))
    return [
        *_convolution(32, 0, recipe, *clips[0]),
        *_convolution(64, 1, recipe, *clips[1]),
        keras.layers.Flatten(),
        *_dense(64, recipe.activation, *clips[2]),
        *_dense(classes, None, *clips[3]),
    ]


def _dense(units: int, activation: str | None, scale: float, upstream_clip: float) -> list[Any]:
    layer = ClippedDense(units, activation=activation, input_clip=scale, upstream_clip=upstream_clip)
    return [*_to_norm(scale, rank=2), layer]


def _convolution(filters: int, which: int, recipe: Recipe, scale: float, upstream_clip: float) -> list[Any]:
    kernel, stride = recipe.kernels[which], recipe.strides[which]
    # A pixel is in at most ceil(kernel / stride)^2 patches, so this patch norm is never exceeded.
    overlap = math.ceil(kernel / stride) if recipe.bound == "patch" else 1
    layer = ClippedConv2D(
        filters,
        kernel,
        strides=stride,
        activation=recipe.activation,
        bound=recipe.bound,
        input_clip=scale * overlap,
        upstream_clip=upstream_clip,
    )
    return [*_to_norm(scale, rank=4), layer]


def _to_norm(norm: float, rank: int) -> list[Any]:
    """Layers without weights that bring each record to Euclidean norm `norm`."""
    return [keras.layers.UnitNormalization(axis=tuple(range(1, rank))), keras.layers.Rescaling(norm)]
