"""With what batches `fit` calls the steps of a model: the shapes by which its functions are traced."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Call", "calls_of_fit", "joined", "widened"]


@dataclass(frozen=True)
class Call:
    """A call of a step.

    Attributes:
        step: "train_step" or "test_step".
        batch: a tree of `tf.TypeSpec`s, as a tuple.
    """

    step: str
    batch: tuple[Any, ...]


def calls_of_fit(x: Any, y: Any, options: Mapping[str, Any]) -> list[Call]:
    """The calls of `fit` with these records, labels, and further arguments. Raises where their shapes are not known."""
    split = options.get("validation_split") or 0.0
    weights = [options.get(name) for name in ("sample_weight", "class_weight")]
    size = options.get("batch_size") or 32
    calls = [Call("train_step", _batch(x, y, weights, size, lambda rows: math.floor(rows * (1.0 - split))))]
    beside, size = options.get("validation_data"), options.get("validation_batch_size") or size
    if beside is not None:
        parts = (*beside, None, None) if isinstance(beside, tuple | list) else (beside, None, None)
        calls.append(Call("test_step", _batch(parts[0], parts[1], [parts[2], None], size, lambda rows: rows)))
    elif split:
        held_out = _batch(x, y, [weights[0], None], size, lambda rows: rows - math.floor(rows * (1.0 - split)))
        calls.append(Call("test_step", held_out))
    return calls


def _batch(x: Any, y: Any, weights: list[Any], size: int, rows_of: Any) -> tuple[Any, ...]:
    """What a batch is like that `fit` makes of these: of a known size only where all of them have it."""
    import keras
    import tensorflow as tf

    def spec(leaf: Any, rows: int | None) -> Any:
        leaf = np.asarray(leaf)
        kind = keras.backend.floatx() if leaf.dtype == np.float64 else leaf.dtype  # as `fit` gives them
        return tf.TensorSpec((rows, *leaf.shape[1:]), kind)

    if y is None and isinstance(x, tf.data.Dataset):
        found = x.element_spec
    elif y is None and isinstance(x, keras.utils.PyDataset):
        found = keras.tree.map_structure(lambda leaf: spec(leaf, None), x[0])
    else:
        rows = rows_of(len(keras.tree.flatten(x)[0]))
        known = size if rows and rows % size == 0 else None
        given = [one for one in (x, y, weights[0]) if one is not None]
        found = keras.tree.map_structure(lambda leaf: spec(leaf, known), tuple(given))
    found = found if isinstance(found, tuple) else (found,)
    if weights[1] is not None and len(found) == 2:
        found = (*found, tf.TensorSpec(keras.tree.flatten(found[1])[0].shape[:1], keras.backend.floatx()))
    return found


def widened(call: Call) -> Call:
    """The same with batches of any size, as a function is traced that met several."""
    import keras
    import tensorflow as tf

    def wide(one: Any) -> Any:
        known = isinstance(one, tf.TensorSpec) and one.shape.rank
        return tf.TensorSpec((None, *one.shape[1:]), one.dtype) if known else one

    return Call(call.step, keras.tree.map_structure(wide, call.batch))


def joined(call: Call, other: Call) -> Call:
    """With any size where the two have different ones; the first one where they are of different kinds.

    So a function is traced that met both (`reduce_retracing`).
    """
    import keras
    import tensorflow as tf

    def both(one: Any, found: Any) -> Any:
        kinds = [(type(it), it.dtype, it.shape.rank) if isinstance(it, tf.TensorSpec) else it for it in (one, found)]
        if kinds[0] != kinds[1] or not isinstance(one, tf.TensorSpec) or not one.shape.rank:
            return one
        return tf.TensorSpec([a if a == b else None for a, b in zip(one.shape, found.shape, strict=True)], one.dtype)

    try:
        return Call(
            call.step, keras.tree.map_structure(both, call.batch, other.batch if call.step == other.step else ())
        )
    except (TypeError, ValueError):  # of other parts
        return call
