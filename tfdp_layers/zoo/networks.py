"""The models that the command trains."""

import math
from collections.abc import Callable
from typing import Any

import keras

from tfdp_layers.layers import ClippedConv2D, ClippedDense, FeedbackStack
from tfdp_layers.models.model import PrivateSequential
from tfdp_layers.zoo import scattering
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import ON_FEATURES, PER_RECORD, Recipe, recipe_for

__all__ = ["build"]

_HIDDEN_UNITS = 256


def build(
    model: str, dataset: Dataset, method: str = "backprop_clipping", recipe: Recipe | None = None
) -> PrivateSequential:
    """Builds a classifier, not compiled, that outputs one logit for each class.

    Each record is brought to a fixed norm before each bounded layer, so the layer's input clip never distorts: the
    clip is then a matter of scale alone, and one record's norm says nothing about another's. Under "dfa" and
    "dfa_hybrid" the dense layers are a `FeedbackStack`, and its input alone is brought to a fixed norm. Under "dpsgd",
    "tanh", "adadp", "adal" and "adan" the layers are Keras' own, of the same sizes: the optimizer bounds the records.

    Args:
        model: one of `recipes.MODELS`, or "scattering": the layer that is trained on features (see `zoo.scattering`).
        dataset: gives the shape of a record and the number of classes.
        method: one of `tfdp_layers.zoo.recipes.METHODS`; "dfa" is for "mlp" and "dfa_hybrid" for "cnn", and "tanh_cnn"
            for "backprop_clipping" alone.
        recipe: settings; the tuned ones of this model and data set if left out.

    Raises:
        ValueError: an unknown model, data set or method.
    """
    recipe = recipe_for(model, dataset.name, method) if recipe is None else recipe
    if model in ON_FEATURES:
        layers = scattering.head(recipe, dataset.classes)
        return PrivateSequential([keras.Input(dataset.x_train.shape[1:]), *layers], name=model)
    builders = {"cnn": _cnn, "mlp": _mlp}
    if model == "tanh_cnn":
        layers = _tanh_cnn(recipe, dataset.x_train.shape[1], dataset.classes)
    elif model not in builders:
        raise ValueError(f"Unknown model {model!r}. Choose one of: {', '.join(builders)}.")
    elif method in PER_RECORD:
        layers = _ordinary(model, recipe, dataset.classes)
    else:
        layers = builders[model](recipe, dataset.classes, _backprop if method == "backprop_clipping" else _feedback)
    return PrivateSequential([keras.Input(dataset.x_train.shape[1:]), *_augmented(recipe), *layers], name=model)


def _augmented(recipe: Recipe) -> list[Any]:
    """What moves and mirrors images at random, in training alone."""
    shifts = [keras.layers.RandomTranslation(recipe.shift, recipe.shift, "constant")] if recipe.shift else []
    return shifts + ([keras.layers.RandomFlip("horizontal")] if recipe.flips else [])


def _ordinary(model: str, recipe: Recipe, classes: int) -> list[Any]:
    """The networks of `_cnn` and `_mlp` in Keras' own layers."""
    kl = keras.layers
    convolutions, units = [], _HIDDEN_UNITS
    if model == "cnn":
        settings = zip((32, 64), recipe.kernels, recipe.strides, strict=True)
        convolutions = [kl.Conv2D(*one, activation=recipe.activation) for one in settings]
        units = 64
    return [*convolutions, kl.Flatten(), kl.Dense(units, activation=recipe.activation), kl.Dense(classes)]


Top = Callable[[list[int], Recipe], list[Any]]


def _mlp(recipe: Recipe, classes: int, top: Top) -> list[Any]:
    return [keras.layers.Flatten(), *top([_HIDDEN_UNITS, classes], recipe)]


def _cnn(recipe: Recipe, classes: int, top: Top) -> list[Any]:
    """Two convolutions whose patches overlap little, and two dense layers.

    The patch bound grows with the number of patches that hold a pixel, so strides near the kernel size cost the least.
    """
    clips = list(zip(recipe.scales, recipe.upstream_clips, strict=True))
    return [
        *_convolution(32, 0, recipe, *clips[0]),
        *_convolution(64, 1, recipe, *clips[1]),
        keras.layers.Flatten(),
        *top([64, classes], recipe),
    ]


def _tanh_cnn(recipe: Recipe, size: int, classes: int) -> list[Any]:
    """The convolutions of Papernot et al. 2021, arXiv:2007.14191, three times as wide, and no hidden dense layer.

    On images normalised one by one without weights. Every layer bounds each record's gradient by that gradient's own
    norm, and distorts nothing else.
    """
    kl, clip, tanh = keras.layers, recipe.gradient_clip, recipe.activation
    padding = "valid" if size >= 28 else "same"
    return [
        kl.GroupNormalization(1, center=False, scale=False, epsilon=1e-5),
        ClippedConv2D(48, 8, strides=2, padding="same", activation=tanh, gradient_clip=clip),
        kl.MaxPooling2D(2, 1),
        ClippedConv2D(96, 4, strides=2, padding=padding, activation=tanh, gradient_clip=clip),
        kl.MaxPooling2D(2, 1),
        kl.Flatten(),
        ClippedDense(classes, gradient_clip=clip),
    ]


def _backprop(units: list[int], recipe: Recipe) -> list[Any]:
    """Clipped dense layers, with the last of the recipe's clips."""
    scales, clips = recipe.scales[-len(units) :], recipe.upstream_clips[-len(units) :]
    activations = [recipe.activation] * (len(units) - 1) + [None]
    settings = zip(units, activations, scales, clips, strict=True)
    return [layer for one in settings for layer in _dense(*one)]


def _feedback(units: list[int], recipe: Recipe) -> list[Any]:
    """A stack trained by direct feedback alignment that starts aligned, with the last of the recipe's clips."""
    scales, clips = recipe.scales[-len(units) :], recipe.upstream_clips[-len(units) :]
    stack = FeedbackStack(
        units[:-1],
        recipe.activation,
        units[-1],
        activation_clip=scales,
        delta_clip=clips[:-1],
        error_clip=clips[-1],
        feedback_norm=recipe.feedback_norm,
        feedback="aligned",
    )
    return [*_to_norm(scales[0], rank=2), stack]


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
