"""How many more releases an optimizer may make: what a limit allows, and what the ledger counted already."""

import threading
from typing import Any

import tensorflow as tf

UNLIMITED = 2**62
"""A number out of reach."""


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
        self._counts: dict[int, tf.Tensor] = {}

    def reserve(self, releases: int) -> None:
        """Sets `reserved`: the operations alone, since every step waits for it."""
        if isinstance(self.reserved, tf.distribute.DistributedValues):
            self.reserved.assign(releases, read_value=False)
            return
        if releases not in self._counts:
            self._counts[releases] = tf.constant(releases, tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self.reserved.handle, value=self._counts[releases])

    def unused(self) -> int:
        """Of what was reserved, how many releases were not made."""
        if isinstance(self.reserved, tf.distribute.DistributedValues):
            return int(self.reserved.numpy())
        return int(tf.raw_ops.ReadVariableOp(resource=self.reserved.handle, dtype=tf.int64).numpy())

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReleaseLimit":
        return ReleaseLimit()
