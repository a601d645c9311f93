"""Whether what reads or writes a variable runs, and in which order: TensorFlow goes by edges, not by places in a graph.

In functions of `tf.function` automatic control dependencies see to both. In graphs that are made otherwise
(`tf.compat.v1.wrap_function`) a write that nothing waits for is left out, and one that nothing orders may come at any
time.
"""

from __future__ import annotations

import weakref
from typing import Any

from tfdp_layers.proof.frames import Frame
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.state import CALLED_BY, handles_written_by
from tfdp_layers.proof.values import Handle, RefusalError

__all__ = ["LOOSE", "is_loose", "writes_anything"]

LOOSE = "nothing in the graph says that this runs, or runs behind what reads and writes the variable before"

_executed: weakref.WeakKeyDictionary[Any, tuple[int, set[str]]] = weakref.WeakKeyDictionary()


def is_loose(frame: Frame, operation: Any) -> bool:
    """Whether an operation on variables may be left out, or come before another one on the same that is made first.

    Called once for each operation of a frame, in the order in which they are interpreted; it remembers them.
    """
    keys = [value.key for tensor in operation.inputs if isinstance(value := frame.values[tensor.name], Handle)]
    if not keys or operation.type == "Identity":
        return False
    written, loose = keys_written(frame, operation, keys), False
    for key in set(keys):
        touched = frame.touched.setdefault(key, [])  # the last write, and what read it since
        earlier = touched if key in written else touched[:1]
        loose |= not all(one is None or leads(one, operation) for one in earlier)
        if key in written:
            loose |= operation.name not in executed(operation.graph)
            frame.touched[key] = [operation]
        else:
            frame.touched[key] = [*(touched or [None]), operation]
    return loose


def writes_anything(frame: Frame, operation: Any) -> bool:
    """Whether an operation, or a function that it calls, may write a variable that it is given."""
    keys = [value.key for tensor in operation.inputs if isinstance(value := frame.values[tensor.name], Handle)]
    return bool(keys_written(frame, operation, keys))


def keys_written(frame: Frame, operation: Any, keys: list[int]) -> set[int]:
    """Those among the variables that an operation is given which it may write."""
    if operation.type in READS:
        return set()
    if operation.type not in CALLED_BY:
        return set(keys)
    try:
        found = [frame.values[tensor.name] for tensor in handles_written_by([operation])]
    except (RefusalError, ValueError, KeyError):
        return set(keys)
    return {value.key for value in found if isinstance(value, Handle)}


def leads(first: Any, then: Any) -> bool:
    """Whether an operation runs only once another one of its graph did."""
    seen, todo = {then.name}, [then]
    while todo:
        operation = todo.pop()
        for one in (*operation.control_inputs, *(tensor.op for tensor in operation.inputs)):
            if one is first or one.name == first.name:
                return True
            if one.name not in seen:
                seen.add(one.name)
                todo.append(one)
    return False


def executed(graph: Any) -> set[str]:
    """The operations of a function's graph that run whenever it is called."""
    count = len(graph.get_operations())
    known = _executed.get(graph)
    if known is None or known[0] != count:
        todo = [tensor.op for tensor in getattr(graph, "outputs", ())] + list(getattr(graph, "control_outputs", ()))
        found = {operation.name for operation in todo}
        while todo:
            operation = todo.pop()
            for one in (*operation.control_inputs, *(tensor.op for tensor in operation.inputs)):
                if one.name not in found:
                    found.add(one.name)
                    todo.append(one)
        known = _executed[graph] = count, found
    return known[1]
