"""Tables that a layer's parts look up by ids of no record, as of positions: whose call shows where records meet them.

`self.places(ops.arange(length))` gives (length, m), the same for all records: no row of it is one record's, and the
embedding's formula says nothing. What it gives is computed from a weight alone, and meets the records further on, in
the call of the layer around it: that call shows how, as of weights that the layer owns itself (`observed`). So the
layer adopts the table.
"""

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import keras
import tensorflow as tf

from tfdp_layers.per_record.agreement import RefusedLayerError
from tfdp_layers.per_record.meetings import SIZES

_ADOPTED: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
"""Of each layer the parts whose tables it adopted."""


class NotOfRecordsError(RefusedLayerError):
    """A table was looked up by ids of no record, and no layer adopted it whose call shows where records meet it.

    Attributes:
        part: the layer that owns the table; that in whose call the error is raised, where it is not given.
    """

    part: Any

    def __init__(self, message: str, part: Any = None) -> None:
        super().__init__(message)
        if part is not None:
            self.part = part


def parts_adopted(layer: Any) -> list[Any]:
    """The parts whose tables a layer adopted."""
    return list(_ADOPTED.get(layer, ()))


def adopted(layer: Any) -> list[Any]:
    """The trained weights of these parts."""
    return [v for part in parts_adopted(layer) for v in part.variables if v.trainable]


def adopted_by(layer: Any, variable: Any) -> bool:
    """Whether a layer adopted the part that owns this variable."""
    return any(v is variable for v in adopted(layer))


def adopt(model: keras.Model, part: Any) -> bool:
    """Has the next layer around a part, within the model, adopt it; returns whether there is one left.

    The next around the one that has it: what returns the positions as they are shows nothing, what adds them does.
    Layers of Keras' own have formulas, or only call others in turn.
    """
    around = [layer for layer in model._flatten_layers(include_self=False) if part in inside(layer)]
    around = sorted((one for one in around if not is_of_keras(one)), key=lambda one: len(inside(one)))
    holder = next((place for place, one in enumerate(around) if part in _ADOPTED.get(one, ())), -1)
    if holder >= 0:
        _ADOPTED[around[holder]].discard(part)
    if holder + 1 >= len(around):
        return False
    _ADOPTED.setdefault(around[holder + 1], WeakSet()).add(part)
    return True


def inside(layer: Any) -> list[Any]:
    return list(layer._flatten_layers(include_self=False))


def is_of_keras(layer: Any) -> bool:
    return type(layer).__module__.partition(".")[0] == "keras"


def are_of_records(ids: tf.Tensor, records: int) -> bool:
    """Whether the ids of an inspection are of its records: as many, or of a number that is lost, and made of them."""
    known = ids.shape[0] if ids.shape.rank else 1
    return known == records if known is not None else of_arguments(ids)


def of_arguments(tensor: tf.Tensor) -> bool:
    """Whether a tensor of a graph is computed from what its function was given, by more than sizes."""
    seen, left = set(), [tensor.op]
    while left:
        op = left.pop()
        if op.type == "Placeholder" and op.outputs[0].dtype != tf.resource:
            return True
        if op.type not in SIZES and op.name not in seen:
            left += [one.op for one in op.inputs]
        seen.add(op.name)
    return False
