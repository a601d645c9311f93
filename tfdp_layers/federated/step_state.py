"""What the training step of a Keras model keeps from one call to the next, whoever holds it: found in its graph.

`model.variables` does not list all of it: the states of a recurrent layer that is `stateful`, and what a layer keeps in
a variable of TensorFlow's own, are not there.
"""

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

__all__ = ["Kept", "StepState", "state_of_step"]


class Kept:
    """A variable that a step reads or writes, known by its handle: read as an array, and assigned.

    Attributes:
        handle: lives as long as the variable does.
        key: tells it from others, also where it is found again.
    """

    def __init__(self, handle: Any, key: int) -> None:
        self.handle, self.key = handle, key

    @property
    def _dtype(self) -> Any:
        return self.handle._handle_data.shape_and_type[0].dtype

    def numpy(self) -> np.ndarray:
        """What it holds now."""
        import tensorflow as tf

        return np.array(tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype))

    def assign(self, value: np.ndarray) -> None:
        """Has it hold this."""
        import tensorflow as tf

        tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.constant(value, self._dtype))


class StepState:
    """What a step keeps.

    Attributes:
        variables: all that its graph reads or writes: what something else than the step writes, and it reads, too.
        elsewhere: why it is not known that it keeps nothing else; None where it is.
    """

    def __init__(self, model: "keras.Model", x: Any, y: Any, batch_size: int | None) -> None:
        self.variables: list[Kept] = []
        self.elsewhere: str | None = None
        try:
            graph = _traced(model, x, y, batch_size)
        except Exception as error:  # of a step that runs eagerly alone, or of data that only `fit` reads
            self.elsewhere = f"its step could not be traced: {type(error).__name__}"
            return
        self._look(graph)

    def _look(self, graph: Any) -> None:
        import tensorflow as tf

        from tfdp_layers.proof.outside import outside
        from tfdp_layers.proof.proving import resource_key

        for outer, _ in graph.captures:
            data = getattr(outer, "_handle_data", None)
            if outer.dtype == tf.resource and data is not None and data.is_set:
                self.variables.append(Kept(outer, resource_key(outer)))
        found = outside(graph.get_operations())
        self.elsewhere = found and f"its step has the operation {found}"


def _traced(model: "keras.Model", x: Any, y: Any, batch_size: int | None) -> Any:
    """The graph of the model's step on a batch of these records; without a size one of Keras' own."""
    import keras
    import tensorflow as tf

    rows = min(batch_size or 32, len(keras.tree.flatten(x)[0]))

    def spec(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        kind = keras.backend.floatx() if leaf.dtype == np.float64 else leaf.dtype  # as `fit` gives them
        return tf.TensorSpec((rows, *leaf.shape[1:]), kind)

    data = keras.tree.map_structure(spec, (x, y))
    step = tf.function(lambda *given: model.train_step(given), autograph=False)
    return step.get_concrete_function(*data).graph


_known: "weakref.WeakKeyDictionary[keras.Model, tuple[Any, StepState]]" = weakref.WeakKeyDictionary()
"""Of each model, and of the optimizer that it was compiled with."""


def state_of_step(model: "keras.Model", x: Any, y: Any, batch_size: int | None) -> StepState:
    """What the step of a model, built and compiled, keeps; traced once, whichever party's records these are.

    Args:
        x, y: records and labels as `fit` takes them; their shapes and types are looked at.
    """
    optimizer, found = _known.get(model, (None, None))
    if found is None or optimizer is not model.optimizer:
        found = StepState(model, x, y, batch_size)
        _known[model] = (model.optimizer, found)
    return found
