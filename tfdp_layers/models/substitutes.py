"""What takes the place of a BatchNormalization layer: a normalization of each record by itself, or itself, frozen."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras

MOST_GROUPS = 32
LEAST_NUMBERS = 16
_NAMES: dict[str, Any] = {
    "group": keras.layers.GroupNormalization,
    "layer": keras.layers.LayerNormalization,
    "frozen": keras.layers.BatchNormalization,
}
_WEIGHTS = ("gamma", "beta")
_KEPT = ("name", "dtype", "axis", "epsilon", "center", "scale")
_KEPT_OF_WEIGHTS = ("initializer", "regularizer", "constraint")


def kind_of(by: Any) -> Any:
    """One of Keras' classes GroupNormalization, LayerNormalization, and BatchNormalization (frozen), or a function.

    Raises: ValueError for anything else.
    """
    if isinstance(by, str) and by in _NAMES:
        return _NAMES[by]
    if by in (keras.layers.GroupNormalization, keras.layers.LayerNormalization):
        return by
    if isinstance(by, type | keras.layers.Layer) or not callable(by):
        raise ValueError(
            "`by` must be 'group', 'layer', 'frozen', keras.layers.GroupNormalization, keras.layers.LayerNormalization,"
            " or a function that takes a BatchNormalization layer and returns a new layer, such as"
            f" lambda layer: keras.layers.GroupNormalization(8, axis=layer.axis). Received: by={by!r}."
        )
    return by


def substitute(layer: Any, kind: Any) -> Any:
    """A new layer for the place of a BatchNormalization layer. Weights are not copied here.

    Raises: ValueError where a function of the caller's returns something else.
    """
    if kind is keras.layers.BatchNormalization:
        frozen = type(layer).from_config(layer.get_config())
        frozen.trainable = False
        return frozen
    if kind in (keras.layers.GroupNormalization, keras.layers.LayerNormalization):
        kept = (*_KEPT, *(f"{weight}_{what}" for weight in _WEIGHTS for what in _KEPT_OF_WEIGHTS))
        config = {name: value for name, value in layer.get_config().items() if name in kept}
        if kind is keras.layers.GroupNormalization:
            config["groups"] = groups_for(channels_of(layer), positions_of(layer))
        return kind.from_config(config)
    made = kind(layer)
    if not isinstance(made, keras.layers.Layer) or made is layer or made.built:
        raise ValueError(
            "`by` must return a new Keras layer, which is not built, for each BatchNormalization layer. For"
            f" {layer.name!r} it returned {made!r}."
        )
    if isinstance(made, keras.layers.BatchNormalization) and made.trainable:
        raise ValueError(f"For {layer.name!r} `by` returned a BatchNormalization that is trainable, as before.")
    return made


def refusal_of(layer: Any, kind: Any) -> str | None:
    """Why a BatchNormalization layer can't be replaced so, with the fix; None if it can."""
    if kind is keras.layers.BatchNormalization or not isinstance(kind, type):
        return None
    if type(layer) is not keras.layers.BatchNormalization:
        return (
            f"it is a {type(layer).__name__}, which may compute otherwise than the BatchNormalization that it derives"
            " from. Give `by` a function that makes its replacement, or by='frozen'."
        )
    masked = any(node.arguments.kwargs.get("mask") is not None for node in layer._inbound_nodes)
    if masked and kind is keras.layers.GroupNormalization:
        return (
            "it takes a mask, and GroupNormalization takes none: masked positions would count. Use by='layer', which"
            " normalizes each position by itself."
        )
    group = "; or use by='group', over its positions" if positions_of(layer) > 1 else ""
    if channels_of(layer) == 1 and (kind is keras.layers.LayerNormalization or positions_of(layer) == 1):
        return (
            "it normalizes one number of each record, and a number less its own mean is 0. Take the layer out, or set"
            f" its trainable = False before this call{group}."
        )
    return None


def called_as(made: Any) -> Callable[..., Any]:
    """Calls the new layer with the arguments of calls of a BatchNormalization layer, as Keras wrote them down."""
    if "mask" in inspect.signature(made.call).parameters:
        return made
    return lambda inputs, mask=None, **options: made(inputs, **options)


def groups_for(channels: int, positions: float) -> int:
    """The largest divisor of the channels that is at most 32 and leaves a group 16 numbers; 1 if there is none."""
    fitting = (g for g in range(2, MOST_GROUPS + 1) if channels % g == 0 and channels // g * positions >= LEAST_NUMBERS)
    return max(fitting, default=1)


def channels_of(layer: Any) -> int:
    """How many channels the built layer normalizes, each by itself."""
    return int(layer.moving_mean.shape[0])


def positions_of(layer: Any) -> float:
    """At how many positions each record has these channels, where the layer is used on fewest; infinite if unknown."""
    found = [math.inf]
    for node in layer._inbound_nodes:
        shape = list(node.input_tensors[0].shape)
        del shape[layer.axis], shape[0]
        found.append(math.inf if None in shape else math.prod(shape))
    return min(found)
