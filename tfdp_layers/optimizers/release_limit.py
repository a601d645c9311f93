"""How many more releases an optimizer may make: what a limit allows, and what the ledger counted already."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

UNLIMITED = 2**62
"""A number out of reach."""


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
