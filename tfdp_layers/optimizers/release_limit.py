"""How many more releases an optimizer may make: what a limit allows, and what the ledger counted already."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.digests import numbers_of
from tfdp_layers.structure import held_by

UNLIMITED = 2**62
"""A number out of reach."""

_SCALES = "dynamic_scale"
"""What an optimizer of Keras keeps that wraps another to scale losses: no private one does."""


def number_in(variable: Any) -> int:
    """The number in a variable, by the operation alone: `variable.numpy()` takes five times as long."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return int(variable.numpy())
    return int(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy())


class ReleaseLimit:
    """How many more releases the optimizer may make: a count-down in memory.

    A plain object: Keras and tf.train never save or restore it, so older weights loaded in between give nothing back.
    """

    def __init__(self) -> None:
        self.unlimited = True  # spares a step that has no limit reading the variable
        self.used = threading.Lock()
        with tf.init_scope():
            self.variable = tf.Variable(UNLIMITED, dtype=tf.int64, trainable=False, name="releases_left")
            self.reserved = tf.Variable(0, dtype=tf.int64, trainable=False, name="releases_reserved")
        self.paid = 0  # releases that ledgers of this process counted before they were made, or of which they know
        self.made = 0  # the first of these
        self._counts: dict[int, tf.Tensor] = {}
        self._stepping: int | None = None  # the thread of the step that runs

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside, this thread runs or traces the step that something was reserved for."""
        self._stepping = threading.get_ident()
        try:
            yield
        finally:
            self._stepping = None

    @contextlib.contextmanager
    def releasing(self) -> Iterator[None]:
        """Around a release, inside of which no other one begins.

        Raises: RuntimeError for one that is no part of the step that runs: it would take what was reserved for that.
            A thread, or a generator that the step draws from, could release sums of its own, of any rows and noise.
        """
        thread = threading.get_ident()
        if self._stepping != thread:
            raise RuntimeError(
                "Something other than the training that runs asked for a release (by train_step, or by release of the"
                " optimizer): on which records, and how they were drawn, is unknown, and so is the cost. Let fit make"
                " all steps, or write run.step(batch) in the loop of model.private_run."
            )
        self._stepping = None
        try:
            yield
        finally:
            self._stepping = thread

    def lower(self, more: Any) -> None:
        """Allows at most so many further releases. Raises ValueError unless it is an integer of at least 0."""
        if isinstance(more, bool) or not hasattr(more, "__index__") or int(more) < 0:
            raise ValueError(
                "limit_releases takes the number of further releases, 0 or more: a limit can only be lowered while fit"
                f" runs. Received: {more!r}. Each fit starts without a limit."
            )
        self.variable.assign(min(int(more), self.left()))
        self.unlimited = False

    def reserve(self, releases: int) -> None:
        """Sets `reserved`: the operations alone, since every step waits for it."""
        self.paid, self.made = self.paid + releases, self.made + releases
        if isinstance(self.reserved, tf.distribute.DistributedValues):
            self.reserved.assign(releases, read_value=False)
            return
        if releases not in self._counts:
            self._counts[releases] = tf.constant(releases, tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self.reserved.handle, value=self._counts[releases])

    def unused(self) -> int:
        """Of what was reserved, how many releases were not made."""
        return number_in(self.reserved)

    def left(self) -> int:
        """How many further releases the limit allows."""
        return UNLIMITED if self.unlimited else max(0, number_in(self.variable))

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReleaseLimit":
        copied = ReleaseLimit()
        copied.paid, copied.made = self.paid, self.made
        return copied


class Restored:
    """What an optimizer counts that no ledger of this process paid for: a checkpoint brought it, with the weights.

    A plain object, which an account holds for longer than a model holds its optimizer. Two are equal that ask the same.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._limit = weakref.ref(optimizer), optimizer._limit
        self._releases = held_by(optimizer.releases)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Restored) and other._limit is self._limit

    def __hash__(self) -> int:
        return id(self._limit)

    @property
    def gone(self) -> bool:
        """Whether nobody holds the optimizer any more."""
        return self._optimizer() is None

    def brought(self) -> int:
        """All that it counts, where that is more than was paid for here: whose that are is not known. Else 0."""
        counted = _count(self._releases)
        return counted if counted > self._limit.paid else 0

    @property
    def made(self) -> int:
        """How many releases it made here, or was about to: ledgers count them."""
        return self._limit.made

    def accept(self) -> None:
        """Says that the weights hold nothing unpaid of what it counts now."""
        self._limit.paid = max(self._limit.paid, _count(self._releases))


class Deferred:
    """What a checkpoint says of the private optimizer of a model that has none: TensorFlow keeps that for later.

    As `Restored`, of which `compile` makes one, with the count in it: of an ordinary optimizer, too, which says 0 here.
    """

    made = 0

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._kept = getattr(model, "_self_unconditional_deferred_dependencies", {})
        self._read: dict[int, int] = {}  # by which restore it came
        self._accepted = -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deferred) and other._kept is self._kept

    def __hash__(self) -> int:
        return id(self._kept)

    @property
    def gone(self) -> bool:
        """Whether nobody holds the model any more."""
        return self._model() is None

    def brought(self) -> int:
        """The releases that the newest checkpoint counts, which no optimizer took over; 1 where it cannot be read."""
        waiting = self._kept.get("optimizer")
        if not waiting:
            return 0
        newest = max(waiting, key=_moment)
        if (moment := _moment(newest)) <= self._accepted:
            return 0
        if moment not in self._read:
            self._read[moment] = _releases_waiting(newest)
        return self._read[moment]

    def accept(self) -> None:
        """As `Restored.accept`."""
        self._accepted = max(map(_moment, self._kept.get("optimizer") or ()), default=self._accepted)


def _moment(waiting: Any) -> int:
    return int(waiting.checkpoint.restore_uid)


def _releases_waiting(waiting: Any) -> int:
    """How many releases the optimizer counts whose place in a checkpoint this is; 0 of one that is not private."""
    nodes = waiting.checkpoint.object_graph_proto.nodes
    parts = {one.local_name: one.node_id for one in nodes[waiting.proto_id].children}
    if "inner_optimizer" not in parts or _SCALES in parts:
        return 0
    with contextlib.suppress(Exception):  # the files may be gone: then nobody knows how many
        found = tf.train.load_checkpoint(waiting.checkpoint.save_path_string)
        (key,) = (one.checkpoint_key for one in nodes[parts["_iterations"]].attributes)
        return int(np.max(found.get_tensor(key)))
    return 1


def releases_of(optimizer: Any) -> int:
    """How many releases a private optimizer counts: its own, and those of a checkpoint."""
    return _count(held_by(optimizer.releases))


def releases_in(tree: dict[str, Any]) -> int:
    """How many releases a private optimizer counts of which this is Keras' tree of state; 0 of an ordinary one, alone.

    It wraps another, and each of the two counts its steps. So does Keras' for the scaling of losses: 0 of that, too.
    """
    found = keras.tree.flatten_with_path(tree)
    counts = [_count(value) for path, value in found if path[-1] == "iteration"]
    return max(counts) if len(counts) > 1 and not any(path[-1] == _SCALES for path, _ in found) else 0


def accept_restored(account: Account) -> None:
    """Says that the weights of an account hold nothing unpaid of what any optimizer counts that they ever had."""
    for one in account.root._restored:
        one.accept()


def _count(variable: Any) -> int:
    return int(np.max(numbers_of(variable)))
