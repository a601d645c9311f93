"""What the training step of a Keras model keeps from one call to the next, whoever holds it: found in its graph.

`model.variables` does not list all of it: the states of a recurrent layer that is `stateful`, and what a layer keeps in
a variable of TensorFlow's own, are not there.
"""

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.own_code import own_code

if TYPE_CHECKING:
    import keras

__all__ = ["READS", "Kept", "StepState", "compiled_as", "key_of", "state_of_step"]

READS = frozenset(
    {"DisableCopyOnRead", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
)
"""Operations that leave a variable as it is."""


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


def key_of(variable: Any) -> Any:
    """Tells a variable from others, alike whether Keras lists it or a step keeps it."""
    from tfdp_layers.proof.proving import handle_of, resource_key

    if isinstance(variable, Kept):
        return variable.key
    try:
        return resource_key(handle_of(variable))
    except (AttributeError, ValueError):  # one of several devices, which has several handles
        return id(variable)


class StepState:
    """What a step keeps.

    Attributes:
        variables: all that its graph reads or writes: what something else than the step writes, and it reads, too.
        written: the keys of those that it may write.
        elsewhere: why it is not known that it keeps nothing else; None where it is.
    """

    def __init__(self, model: "keras.Model", x: Any, y: Any, batch_size: int | None, validates: bool = False) -> None:
        self.variables: list[Kept] = []
        self.written: set[int] = set()
        self.elsewhere: str | None = None
        try:
            graph = _traced(model, x, y, batch_size, validates)
        except Exception as error:  # of a step that runs eagerly alone, or of data that only `fit` reads
            self.elsewhere = f"its step could not be traced: {type(error).__name__}"
            return
        self._look(graph)
        self.elsewhere = self.elsewhere or _kept_in_python(model)

    def _look(self, graph: Any) -> None:
        import tensorflow as tf

        from tfdp_layers.proof.outside import outside
        from tfdp_layers.proof.proving import resource_key

        for outer, inner in graph.captures:
            data = getattr(outer, "_handle_data", None)
            if outer.dtype == tf.resource and data is not None and data.is_set:
                self.variables.append(Kept(outer, resource_key(outer)))
                if _may_be_written(inner):
                    self.written.add(self.variables[-1].key)
        found = outside(graph.get_operations())
        self.elsewhere = found and f"its step has the operation {found}"


def _may_be_written(handle: Any) -> bool:
    """Whether an operation that takes this handle, also in functions that are called, is not known to read alone."""
    from tfdp_layers.proof.called import graph_run
    from tfdp_layers.proof.outside import called_by
    from tfdp_layers.proof.values import UnknownError

    for operation in handle.consumers():
        places = [place for place, given in enumerate(operation.inputs) if given.name == handle.name]
        try:
            graphs = [graph_run(operation.graph, name) for name in called_by(operation)]
        except UnknownError:
            return True
        for graph in graphs:
            before = len(operation.inputs) - len(graph.inputs)  # the condition of an If
            if any(_may_be_written(graph.inputs[place - before]) for place in places):
                return True
        if not graphs and operation.type not in READS:
            return True
    return False


def _kept_in_python(model: "keras.Model") -> str | None:
    """Why code that runs in Python in each step may keep numbers there; None where there is no such code."""
    if not any(compiled_as(model)[2:]):
        return None
    found = next(own_code(model), None)
    name = getattr(found, "name", None) or getattr(found, "__name__", None) or type(found).__name__
    return found and f"it runs eagerly, so that the Python code of {name!r} runs in each step"


def _traced(model: "keras.Model", x: Any, y: Any, batch_size: int | None, validates: bool) -> Any:
    """The graph of the model's step on a batch of these records; without a size one of Keras' own.

    Args:
        validates: whether that of its validation is to be in it.
    """
    import tensorflow as tf

    def steps(*given: Any) -> Any:
        data = given if len(given) > 1 else given[0]
        return model.train_step(data), model.test_step(data) if validates else None

    step = tf.function(steps, autograph=False)
    return step.get_concrete_function(*_batch(x, y, batch_size)).graph


def _batch(x: Any, y: Any, batch_size: int | None) -> tuple[Any, ...]:
    """What a batch is like that `fit` makes of these, as a tree of `tf.TensorSpec`s."""
    import keras
    import tensorflow as tf

    def spec(leaf: Any, rows: int | None = None) -> Any:
        leaf = np.asarray(leaf)
        kind = keras.backend.floatx() if leaf.dtype == np.float64 else leaf.dtype  # as `fit` gives them
        return tf.TensorSpec((rows or len(leaf), *leaf.shape[1:]), kind)

    if y is None and isinstance(x, tf.data.Dataset):
        found = x.element_spec
    elif y is None and isinstance(x, keras.utils.PyDataset):
        found = keras.tree.map_structure(spec, x[0])
    else:
        rows = min(batch_size or 32, len(keras.tree.flatten(x)[0]))
        found = keras.tree.map_structure(lambda leaf: spec(leaf, rows), (x,) if y is None else (x, y))
    return found if isinstance(found, tuple) else (found,)


def compiled_as(model: "keras.Model") -> tuple[Any, Any, bool, bool]:
    """What a model was compiled with that its steps depend on: its optimizer, its loss, and if they run eagerly."""
    import tensorflow as tf

    eagerly = bool(model.run_eagerly), bool(tf.config.functions_run_eagerly())
    return model.optimizer, getattr(model, "_compile_loss", None), *eagerly


_known: "weakref.WeakKeyDictionary[keras.Model, tuple[Any, StepState]]" = weakref.WeakKeyDictionary()
"""Of each model, and of what it was compiled with."""


def state_of_step(model: "keras.Model", x: Any, y: Any, batch_size: int | None, validates: bool = False) -> StepState:
    """What the step of a model, built and compiled, keeps; traced once, whichever party's records these are.

    Args:
        x, y: records and labels as `fit` takes them; their shapes and types are looked at.
        validates: whether `fit` also evaluates the model.
    """
    asked = (*compiled_as(model), validates)
    before, found = _known.get(model, (None, None))
    if found is None or any(one is not other for one, other in zip(asked, before or (), strict=True)):
        found = StepState(model, x, y, batch_size, validates)
        _known[model] = (asked, found)
    return found
