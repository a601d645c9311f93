"""Tensors and their shapes that bounds rest on, held in the step itself: a layer that gets others is not bounded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tfdp_layers.certificates.lipschitz import LIPSCHITZ, Call, norms_of

Hold = Callable[[Any, Any, Any], Any]


def held_shapes(model: keras.Model) -> Hold:
    """A function of a layer, its call and the arguments, which calls it and holds the step to what was certified.

    Norms are followed along the model's graph, through the shapes of Keras' symbolic call, and the step is traced on
    its own. So it is held to both, for each layer that a norm is followed through (`norms_of`):

    Shapes: a layer that goes by `training`, or a setting that was changed since, may give others. The n-th call in a
        step gets tensors of exactly the shapes of the n-th in the graph; a dimension that was open there is open here,
        since its bound holds for every size.
    Tensors: a method of a model around the layers, of its class, put on it or put on it in the step alone, may pass on
        others than the graph says. Each call of a Lipschitz layer gets the very tensors that the layers before it gave.
        Norms are followed from one such layer to another, so nothing comes between two layers of that way unseen.

    Raises: ValueError, from that function, where the step is traced; tf.errors.InvalidArgumentError in the step itself
        for a size that a trace does not know.
    """
    certified, begun, flow = norms_of(model).calls, Counter[int](), Flow()

    def held(layer: Any, call: Any, arguments: Any) -> Any:
        every = certified.get(id(layer))
        if every is None:
            return call(*arguments[0], **arguments[1])
        number, begun[id(layer)] = begun[id(layer)], begun[id(layer)] + 1
        args, kwargs = shaped(layer, every, number, arguments)
        way = flow.entered(layer, every, arguments)
        outputs = call(*args, **kwargs)
        flow.left(way, outputs)
        return outputs

    return held


class Flow:
    """The tensors of a step that norms are followed through, by their numbers in the model's graph."""

    def __init__(self) -> None:
        self._tensors: dict[int, Any] = {}
        self._done: set[int] = set()

    def entered(self, layer: Any, every: Sequence[Call | None], arguments: Any) -> Call | None:
        """Which call of the graph this one is, by the tensors that it gets; None where it is none, or not followed.

        A layer without weights may be called beside the graph, too, in a layer of the caller's own: what it gives there
        is no tensor of the graph. So nothing is said of it but where a Lipschitz layer gets that.
        """
        if pywrap_tfe.TFE_Py_TapeSetIsStopped():  # within keras.remat, whose tensors are others
            return None
        given = [one for one in keras.tree.flatten(arguments) if tf.is_tensor(one)]
        free = [one for one in every if one is not None and id(one) not in self._done]
        fitting = [one for one in free if self._fits(one, given)]
        if not fitting:
            if type(layer) in LIPSCHITZ and None not in every:
                raise ValueError(another_way(layer))
            return None
        found = max(fitting, key=lambda one: sum(map(bool, one.inputs)))
        self._done.add(id(found))
        return found

    def left(self, call: Call | None, outputs: Any) -> None:
        """Keeps what such a call gave."""
        if call is not None:
            self._tensors |= dict(zip(call.outputs, keras.tree.flatten(outputs), strict=False))

    def _fits(self, call: Call, given: Sequence[Any]) -> bool:
        pairs = zip(call.inputs, given, strict=False)
        return all(not some or any(self._tensors.get(number) is one for number in some) for some, one in pairs)


def shaped(layer: Any, every: Sequence[Call | None], number: int, arguments: Any) -> Any:
    """The arguments of a layer's call of this number, held to the shapes that were certified."""
    alike = len({None if one is None else one.shapes for one in every}) == 1
    if not alike and number >= len(every):
        raise ValueError(other_shapes(layer, "one call more", f"{len(every)} calls"))
    wanted = every[0] if alike else every[number]
    if wanted is None:
        return arguments
    left, flat = iter(wanted.shapes), keras.tree.flatten(arguments)
    if sum(map(tf.is_tensor, flat)) < len(wanted.shapes):
        raise ValueError(other_shapes(layer, "fewer tensors", f"{len(wanted.shapes)} of them"))
    return keras.tree.pack_sequence_as(arguments, [as_certified(layer, one, left) for one in flat])


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


def another_way(layer: Any) -> str:
    """The message where a Lipschitz layer gets other tensors than those of the layers before it."""
    return (
        f"Layer {layer.name!r} ({type(layer).__name__}) gets another tensor in the step than the layer before it in the"
        " model's graph gives, by which norms were followed to the bounds of Lipschitz layers: they do not hold for the"
        " step. Was a method put on a layer or a model, call() say, or does a class of a model have its own? Put what"
        " it does into a layer of the model, a keras.layers.Layer without weights."
    )
