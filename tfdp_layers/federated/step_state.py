"""What the training step of a Keras model keeps from one call to the next, whoever holds it: found in its graph.

`model.variables` does not list all of it: the states of a recurrent layer that is `stateful`, and what a layer keeps in
a variable of TensorFlow's own, are not there.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.calls import Call, joined, widened
from tfdp_layers.federated.own_code import own_code, own_loop

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
    """What the steps of a model keep, in all forms in which `fit` was seen to trace them.

    Attributes:
        variables: all that their graphs read or write: what something else than a step writes, and it reads, too.
        written: the keys of those that they may write.
        elsewhere: why they are known to keep, or may keep, something else, whoever's calls these are; or None.
    """

    def __init__(self) -> None:
        self.variables: list[Kept] = []
        self.written: set[int] = set()
        self.elsewhere: str | None = None
        self._seen: list[Call] = []

    def look(self, model: "keras.Model", calls: Callable[[], Iterable[Call]]) -> str | None:
        """Looks at the steps as these calls trace them, also after the calls of other parties: for any sizes, then.

        Returns: why it is not known what they keep with these calls; None where it is.
        """
        untraced = []
        try:
            for call in calls():
                untraced += self._trace(model, call)
                together = functools.reduce(joined, self._seen, call)
                for more in (widened(call), together, widened(together)):
                    self._trace(model, more)  # if it comes to that; where it cannot be traced, `fit` cannot, either
        except Exception as error:  # of data that only `fit` reads
            untraced.append(error)
        self.elsewhere = self.elsewhere or _kept_in_python(model)
        reason = f"its step could not be traced: {type(untraced[0]).__name__}" if untraced else None
        return reason or self.elsewhere

    def _trace(self, model: "keras.Model", call: Call) -> list[Exception]:
        """Looks at the graph of a call that was not seen. Returns what kept it from being traced."""
        import tensorflow as tf

        if call in self._seen:
            return []
        data = call.batch if len(call.batch) > 1 else call.batch[0]
        try:
            step = tf.function(getattr(model, call.step), autograph=False)
            graph = step.get_concrete_function(data).graph
        except Exception as error:  # of a step that runs eagerly alone
            return [error]
        self._seen.append(call)
        self._look(graph)
        return []

    def _look(self, graph: Any) -> None:
        import tensorflow as tf

        from tfdp_layers.proof.outside import hidden_states, outside
        from tfdp_layers.proof.proving import resource_key

        for outer, inner in graph.captures:
            data = getattr(outer, "_handle_data", None)
            if outer.dtype == tf.resource and data is not None and data.is_set:
                kept = Kept(outer, resource_key(outer))
                if kept.key not in {one.key for one in self.variables}:
                    self.variables.append(kept)
                if _may_be_written(inner):
                    self.written.add(kept.key)
        operations = graph.get_operations()
        if found := outside(operations):
            self.elsewhere = self.elsewhere or f"its step has the operation {found}"
        elif drawn := next(hidden_states(operations), None):
            self.elsewhere = self.elsewhere or (
                f"its step draws random numbers of a state that no variable holds, {drawn.type}, which goes on with"
                " each step of all parties: draw them by keras.random with a keras.random.SeedGenerator"
            )


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
    """Why code that runs in Python in each turn may keep numbers there; None where there is no such code."""
    _, _, own, *eagerly = compiled_as(model)
    if own:
        return f"the model has a {own!r} of its own, whose Python code runs in each turn"
    if not any(eagerly):
        return None
    found = next(own_code(model), None)
    name = getattr(found, "name", None) or getattr(found, "__name__", None) or type(found).__name__
    return found and f"it runs eagerly, so that the Python code of {name!r} runs in each step"


def compiled_as(model: "keras.Model") -> tuple[Any, Any, str | None, bool, bool]:
    """What the turns of a model depend on: its optimizer, its loss, what it trains by, and if its steps run eagerly."""
    import tensorflow as tf

    eagerly = bool(model.run_eagerly), bool(tf.config.functions_run_eagerly())
    return model.optimizer, getattr(model, "_compile_loss", None), own_loop(model), *eagerly


_known: "weakref.WeakKeyDictionary[keras.Model, tuple[Any, StepState]]" = weakref.WeakKeyDictionary()
"""Of each model, and of what it was compiled with."""


def state_of_step(model: "keras.Model", calls: Callable[[], Iterable[Call]]) -> tuple[StepState, str | None]:
    """What the steps of a model, built and compiled, keep; one for all of its parties, which grows with their calls.

    And why it is not known of these calls; None where it is.

    Args:
        calls: with what a party's turn calls the steps. Each form is traced once, whichever party's it is.
    """
    asked = compiled_as(model)
    before, found = _known.get(model, (None, None))
    if found is None or any(one is not other for one, other in zip(asked, before or (), strict=True)):
        found = StepState()
        _known[model] = (asked, found)
    return found, found.look(model, calls)
