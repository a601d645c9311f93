"""Shapes that bounds rest on, held in the step itself: a layer that gets others there is not bounded."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.certificates.lipschitz import norms_of

Hold = Callable[[Any, Any], Any]


def held_shapes(model: keras.Model) -> Hold:
    """A function of a layer and the arguments of its next call, which gives the arguments held to what was certified.

    Norms are followed through the shapes of Keras' symbolic call, and the step is traced on its own: a layer that goes
    by `training`, or a setting that was changed since, may give others there. So for each layer that a norm is
    followed through (`norms_of`), its n-th call in a step gets tensors of exactly the shapes of the n-th in the graph;
    a dimension that was open there is open here, since its bound holds for every size.

    Raises: ValueError, from that function, where the step is traced; tf.errors.InvalidArgumentError in the step itself
        for a size that a trace does not know.
    """
    certified, calls = norms_of(model).shapes, Counter[int]()

    def held(layer: Any, arguments: Any) -> Any:
        every = certified.get(id(layer))
        if every is None:
            return arguments
        number, calls[id(layer)] = calls[id(layer)], calls[id(layer)] + 1
        if len({*every}) > 1 and number >= len(every):
            raise ValueError(other_shapes(layer, "one call more", f"{len(every)} calls"))
        wanted = every[0] if len({*every}) == 1 else every[number]
        left, flat = iter(wanted), keras.tree.flatten(arguments)
        if sum(map(tf.is_tensor, flat)) < len(wanted):
            raise ValueError(other_shapes(layer, "fewer tensors", f"{len(wanted)} of them"))
        return keras.tree.pack_sequence_as(arguments, [as_certified(layer, one, left) for one in flat])

    return held


def as_certified(layer: Any, given: Any, left: Iterator[tuple[int | None, ...]]) -> Any:
    """What a call was given; a tensor is held to the next of these shapes, if one is left."""
    shape = next(left, None) if tf.is_tensor(given) else None
    if shape is None:
        return given
    wanted = tf.TensorShape([None, *shape[1:]])
    if not wanted.is_compatible_with(given.shape):
        raise ValueError(other_shapes(layer, f"records of shape {tuple(given.shape[1:])}", f"{tuple(shape[1:])}"))
    return tf.ensure_shape(given, wanted)


def other_shapes(layer: Any, what: str, stated: str) -> str:
    """The message where the step gives a layer something else than the model's graph says."""
    return (
        f"Layer {layer.name!r} ({type(layer).__name__}) gets {what} in the step, and {stated} in the model's graph, by"
        " which norms were followed to the bounds of Lipschitz layers: they do not hold for the step. Are the data of"
        " another size than keras.Input, or does a layer below give another one in training (or since a setting was"
        " changed, as pool_size)? Build the model for what the step gets; augment pictures to a size that stays."
    )
