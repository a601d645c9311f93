"""What switches random numbers off in the layers of a model, so that a record gets the same in a batch as alone."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdp_layers.caller import as_it_is
from tfdp_layers.certificates.standing import standing_numbers

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["acts_in_training", "without_randomness"]

_RATES = {"rate": 0.0, "stddev": 0.0, "drop_prob": 0.0, "drop_rate": 0.0, "dropout_rate": 0.0, "survival_prob": 1.0}
"""Attributes by which layers that draw random numbers are switched off, and the values that do it."""


@contextlib.contextmanager
def without_randomness(model: "PrivateTraining") -> Iterator[None]:
    """Switches dropout and noise layers off for the block, by their rates; what others draw is alike for all rows."""
    saved = []
    for layer in model._flatten_layers():
        for name, off in _RATES.items():
            if isinstance(getattr(layer, name, None), float) and draws_numbers(layer):
                saved.append((layer, name, getattr(layer, name)))
                setattr(layer, name, off)
    augmenting = [layer for layer in model._flatten_layers() if acts_in_training(layer)]
    calls = [vars(layer).get("call") for layer in augmenting]
    for layer in augmenting:
        spectral = isinstance(layer, keras.layers.SpectralNormalization)
        other = functools.partial(unnormalized, layer)
        layer.call = other if spectral else functools.partial(switched_off, layer, layer.call)
    try:
        with standing_numbers():
            yield
    finally:
        for layer, own in zip(augmenting, calls, strict=True):
            vars(layer).pop("call", None)
            if own is not None:
                layer.call = own
        for layer, name, value in saved:
            setattr(layer, name, value)


def draws_numbers(layer: keras.layers.Layer) -> bool:
    """Whether a layer holds a generator of random numbers."""
    return any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())


def acts_in_training(layer: keras.layers.Layer) -> bool:
    """Whether a layer is switched off out of training, and known to keep records apart.

    Keras' image augmentation, the identity then; its spectral normalization, which divides a kernel by a number that it
    computes of that kernel alone.
    """
    return hasattr(layer, "get_random_transformation") or type(layer) is keras.layers.SpectralNormalization


def unnormalized(layer: Any, inputs: tf.Tensor, training: bool | None = None) -> Any:
    """What spectral normalization wraps, in training as ever."""
    return keras.ops.cast(layer.layer(inputs), inputs.dtype)


def switched_off(layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The layer's call as out of training. Raises: ValueError where that gives another shape than training does."""
    made = call(*args, **(kwargs | {"training": False}))
    if all(map(tf.is_tensor, (*args[:1], made))):
        try:
            refuse_other_shape(layer, layer.compute_output_shape(tuple(args[0].shape)), made.shape)
        except ValueError as error:
            as_it_is(error)
            raise
    return made


def refuse_other_shape(layer: Any, trained: Sequence[Any], made: Sequence[Any]) -> None:
    """Raises ValueError where a layer gives another shape out of training: Keras' RandomCrop crops in training only."""
    if any(None not in sizes and sizes[0] != sizes[1] for sizes in zip(trained, made, strict=True)):
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) crops in training only: records of {tuple(trained[1:])} are"
            f" trained on, and of {tuple(made[1:])} predicted. Use keras.layers.CenterCrop, or crop in the pipeline."
        )
