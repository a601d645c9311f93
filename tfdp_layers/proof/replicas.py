"""Several devices or processes run the one function that was proved, each with its own copies of the variables.

`tf.distribute` calls Python once for each replica, and Python may make another program each time: of random numbers, of
a count of calls, of the number of the replica. A proof is of one trace. So the sums are traced once, as the first
replica of the process sees them, and proved; every replica calls that very function, with the data it got and the
handles of its own copies of what the function reads and writes. That copies hold equal numbers, but for those of
seeds, each step asserts (`models/replicas.py`).
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import random_states
from tfdp_layers.proof.proving import resource_key
from tfdp_layers.proof.state import functions_of, written_handles
from tfdp_layers.proof.values import UnknownError

__all__ = [
    "OnReplicas",
    "as_first_replica",
    "copies_of",
    "follows_chief",
    "refuse_unlike_updates",
    "replica_number",
    "replica_numbers",
]

_BETWEEN_DEVICES = ("Collective", "Nccl", "_Recv", "Recv", "_HostRecv", "CrossReplica", "AllToAll", "XlaAllReduce")

_OF_A_COPY = re.compile(r"(^|/)update_\d+(_\d+)?/")
"""In the names of operations that a strategy makes for one copy of a variable."""

_numbers: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()


def replica_number() -> Any:
    """The number of the replica that asks, among those of all processes."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def replica_numbers(strategy: tf.distribute.Strategy) -> list[int]:
    """The numbers of the replicas of this process, which a strategy keeps."""
    if strategy not in _numbers:
        found = tf.function(lambda: strategy.run(replica_number), autograph=False)()
        _numbers[strategy] = [int(number) for number in strategy.experimental_local_results(found)]
    return _numbers[strategy]


def follows_chief(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether this process is one of several workers of a strategy, and not the chief, which holds replica 0."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and min(replica_numbers(strategy)) > 0


class _OneOfSeveral(tf.distribute.ReplicaContext):
    """What a replica is where it is traced alone: it may not ask the others."""

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _asked("merge_call, or a variable that is written with an aggregation")

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> NoReturn:
        raise _asked("all_reduce")

    def all_gather(self, value: Any, axis: int, options: Any = None) -> NoReturn:
        raise _asked("all_gather")


@contextlib.contextmanager
def as_first_replica(strategy: tf.distribute.Strategy | None) -> Iterator[Callable[[Any], Any]]:
    """Inside, Python is traced as the first replica of this process calls it; without a strategy, as it is.

    The sums of one replica must not be computed from the records of another: else a record would move as many
    contributions as there are replicas. So asking the other replicas raises, and the function that is given to what
    this yields is searched for operations that move tensors between devices.

    Yields: a function that takes the `ConcreteFunction` that was traced inside, and returns it.
    Raises: ValueError inside, and from what it yields, where one replica asks others.
    """
    if strategy is None:
        yield lambda traced: traced
        return
    kind = tf.distribute.ReplicaContext if strategy.num_replicas_in_sync == 1 else _OneOfSeveral
    with kind(strategy, replica_numbers(strategy)[0]):
        yield _refused_meeting


def copies_of(handle: Any, known: Sequence[Any] = ()) -> list[Any]:
    """The handles of all copies, in this process, of the variable with this handle: in the order of replicas.

    Args:
        known: variables of TensorFlow, copied or not, that are asked first: what a handle is of is not public.
    """
    key = resource_key(handle)
    whole = getattr(handle, "_distributed_container", lambda: None)()
    for variable in [*known, *([] if whole is None else [whole])]:
        copies = [one.handle for one in getattr(variable, "values", ())]
        if key in map(resource_key, copies):
            return copies
    return [handle]


def refuse_unlike_updates(operations: Iterable[Any], replicas: int) -> None:
    """Raises ValueError where an optimizer updates the copies of a variable by random numbers that differ among them.

    Keras traces `update_step` once for each copy. What it draws by operations that keep a state of their own is another
    number for each: the next sums would be computed at different weights. A learning rate, say, is drawn once for all.

    Args:
        operations: that an update is made of.
        replicas: of all processes.
    """
    for operation in random_states(operations) if replicas > 1 else ():
        if _OF_A_COPY.search(operation.name):
            raise ValueError(
                f"The wrapped optimizer's update_step draws random numbers (operation {operation.name!r} of type"
                f" {operation.type}), and on several devices it runs once for each copy of a weight: the copies would"
                " differ, and what a record adds would depend on the device that it is on. Draw them by keras.random"
                " with seed=self.seeds, where the optimizer's __init__ makes self.seeds = keras.random.SeedGenerator(),"
                " which is the same for all copies. Or train on one device."
            )


class OnReplicas:
    """A traced function, for replicas to call: each with its own copies of the variables that were captured.

    Args:
        traced: a `ConcreteFunction`, traced inside of `as_first_replica`.
        known: of `copies_of`.
        numbers: of the replicas of this process.

    Raises: ValueError where it takes copies of other replicas, or writes what several replicas share.
    """

    def __init__(self, traced: Any, known: Sequence[Any], numbers: Sequence[int]) -> None:
        self.traced, self._numbers = traced, list(numbers)
        captured = traced.captured_inputs
        self._captured = [copies_of(one, known) if one.dtype == tf.resource else [one] for one in captured]
        for one, copies in zip(captured, self._captured, strict=True):
            if copies[0] is not one and resource_key(copies[0]) != resource_key(one):
                raise _asked("a variable's copy on another device")
        self._refuse_shared()
        own = {resource_key(copy.handle) for variable in known for copy in getattr(variable, "values", ())}
        self._beside = [copies for copies in self._captured if len(copies) > 1 and resource_key(copies[0]) not in own]

    def _refuse_shared(self) -> None:
        """Raises ValueError where it writes what has fewer copies than there are replicas in this process."""
        written = written_handles(self.traced.graph)
        captured = self.traced.inputs[len(self.traced.inputs) - len(self._captured) :]
        for inner, copies in zip(captured, self._captured, strict=True):
            if inner.name in written and len(copies) < len(self._numbers):
                held = re.search(r'ResourceHandle\(name="([^"]+)"', str(copies[0]))
                raise ValueError(
                    f"A layer or loss writes {inner.name!r}{'' if held is None else f' ({held[1]})'}, which the"
                    " replicas of this process share: each would read what another one wrote, and what a record adds"
                    " would depend on the replica that it is on. Make it inside of `with strategy.scope():`, so that"
                    " each replica has a copy, or train on one device."
                )

    def level(self) -> None:
        """Gives all copies of variables the first one's numbers, but for those of `known`, of which others take care.

        What is tried before a training, on records that are made up, runs on the first copies alone.
        """
        for first, *others in self._beside:
            (data,) = first._handle_data.shape_and_type
            value = tf.raw_ops.ReadVariableOp(resource=first, dtype=tf.dtypes.as_dtype(data.dtype))
            for other in others:
                tf.raw_ops.AssignVariableOp(resource=other, value=value)

    def _own(self) -> list[Any]:
        """What this replica hands in for each that was captured: its own copy, where there are several."""
        place = self._numbers.index(int(tf.get_static_value(replica_number())))
        return [copies[place if len(copies) > 1 else 0] for copies in self._captured]

    def read(self, but: Iterable[Any] = ()) -> list[tf.Tensor]:
        """What all variables hold now that the function reads or writes on this replica.

        Args:
            but: handles of copies on the first replica, which are left out.
        """
        left, found = set(map(resource_key, but)), []
        for handle, (first, *_) in zip(self._own(), self._captured, strict=True):
            data = getattr(first, "_handle_data", None)
            if data is not None and data.is_set and first.dtype == tf.resource and resource_key(first) not in left:
                kind = tf.dtypes.as_dtype(data.shape_and_type[0].dtype)
                found.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind))
        return found

    def __call__(self, *data: Any) -> Any:
        """What the function returns, computed on this replica."""
        specs = _leaves(self.traced.structured_input_signature[0])
        given = [
            tf.ensure_shape(tf.convert_to_tensor(value, spec.dtype), spec.shape)
            for value, spec in zip(_leaves(data), specs, strict=True)
        ]
        outputs = self.traced.graph.outputs
        found = tf.raw_ops.StatefulPartitionedCall(
            args=[*given, *self._own()], Tout=[one.dtype for one in outputs], f=self.traced
        )
        for one, like in zip(found, outputs, strict=True):
            one.set_shape(like.shape)
        return tf.nest.pack_sequence_as(self.traced.structured_outputs, found, expand_composites=True)


def _leaves(tree: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(tree, expand_composites=True) if one is not None]


def _refused_meeting(traced: Any) -> Any:
    for operation in traced.graph.get_operations():
        if _moves_between(operation):
            raise _asked(f"{operation.name!r} ({operation.type})")
    return traced


def _moves_between(operation: Any) -> bool:
    """Whether an operation, or one in a function that it calls, moves tensors between devices."""
    if operation.type.startswith(_BETWEEN_DEVICES):
        return True
    for name in functions_of(operation):
        try:
            inner = graph_named(operation.graph, name)
        except UnknownError:
            return True
        if any(_moves_between(one) for one in inner.get_operations()):
            return True
    return False


def _asked(way: str) -> ValueError:
    return ValueError(
        f"On several devices, what a record adds depends on the records of other devices, by way of {way}: one record"
        " would move several contributions, and no bound holds. Leave out all_reduce, all_gather and merge_call of"
        " tf.distribute in layers and losses, and the aggregation of variables that they write, or train on one device."
    )
