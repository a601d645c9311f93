"""What the processes of one training tell each other: all of it comes from the chief."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Workers:
    """The processes of a `MultiWorkerMirroredStrategy`. The chief draws the noise, keeps the ledger, and decides.

    Every method is a collective: all workers must call it, in the same order.

    Args:
        strategy: the strategy.
        chief: whether this process is the chief, which holds replica 0.
    """

    def __init__(self, strategy: Any, chief: bool) -> None:
        self.strategy = strategy
        self.chief = chief

        def sent(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            def one(values: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
                context = tf.distribute.get_replica_context()
                first = context.replica_id_in_sync_group == 0
                # x + 0 is x: a sum of one number and zeros is exact.
                kept = [tf.where(first, value, tf.zeros_like(value)) for value in values]
                return context.all_reduce(tf.distribute.ReduceOp.SUM, kept)

            received = strategy.run(one, args=(list(values),))
            return [strategy.experimental_local_results(value)[0] for value in received]

        self._sent = sent
        self._compiled = tf.function(sent, reduce_retracing=True)

    def noisy(self, add_noise: Callable[[], Sequence[tf.Tensor]], sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What `add_noise` returns on the chief, on all workers; the others never call it. `sums`: its shapes."""
        return self._sent(add_noise() if self.chief else [tf.zeros_like(total) for total in sums])

    def number(self, value: int = 0) -> int:
        """The chief's integer."""
        return int(self._compiled([tf.constant(value, tf.int64)])[0])

    def text(self, value: str = "") -> str:
        """The chief's text."""
        data = value.encode()
        length = self.number(len(data))
        held = tf.constant(list(data), tf.int32) if self.chief else tf.zeros([length], tf.int32)
        return bytes(self._compiled([held])[0].numpy().tolist()).decode()
