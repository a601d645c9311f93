"""What the processes of one training tell each other: nearly all of it comes from the chief."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_ABORT = -1


class ChiefStoppedError(RuntimeError):
    """The chief gave up; its own error says why."""


class Workers:
    """The processes of a `MultiWorkerMirroredStrategy`. The chief draws the noise, keeps the ledger, and decides.

    Every method is a collective: all workers must call it, in the same order. What is sent is kept in no file or log.

    Args:
        strategy: the strategy.
        chief: whether this process is the chief, which holds replica 0.

    Raises: from every method an error of TensorFlow where another worker is gone.
    """

    def __init__(self, strategy: tf.distribute.Strategy, chief: bool) -> None:
        self.strategy = strategy
        self.chief = chief
        number, text = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int32)
        self._number = tf.function(self._sent, [[number]], autograph=False)
        self._text = tf.function(self._sent, [[text]], autograph=False)
        self._total = tf.function(self._summed, [[number]], autograph=False)

    def _sent(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # x + 0 is x: a sum of one number and zeros is exact.
        return self._reduced(lambda first, value: tf.where(first, value, tf.zeros_like(value)), values)

    def _summed(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduced(lambda first, value: tf.identity(value), values)

    def _reduced(self, part: Callable[[Any, tf.Tensor], tf.Tensor], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        def one(values: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            first = tf.equal(context.replica_id_in_sync_group, 0)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, [part(first, value) for value in values])

        received = self.strategy.run(one, args=(list(values),))
        return [self.strategy.experimental_local_results(value)[0] for value in received]

    def noisy(self, add_noise: Callable[[], Sequence[tf.Tensor]], sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What `add_noise` returns on the chief; the others never call it. `sums`: tensors of the same shapes."""
        return self._sent(add_noise() if self.chief else [tf.zeros_like(total) for total in sums])

    def share(self, variables: Sequence[Any]) -> None:
        """Gives variables the chief's values; those of types that cannot be added up keep their own."""
        kinds = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
        for kind in kinds:
            chosen = [v for v in variables if tf.as_dtype(v.dtype) == kind]
            if chosen:
                values = tf.function(self._sent, autograph=False)([tf.convert_to_tensor(v.value) for v in chosen])
                for variable, value in zip(chosen, values, strict=True):
                    variable.assign(value)

    def number(self, value: int = 0) -> int:
        """The chief's number, 0 or more. Raises ChiefStoppedError where it sent `abort` instead."""
        found = int(self._number([tf.constant(value, tf.int64)])[0])
        if found == _ABORT and not self.chief:
            raise ChiefStoppedError("The chief stopped: its error, in its own output, says why.")
        return found

    def abort(self) -> None:
        """Lets the others, who are about to ask for a number, raise. For the chief, about to raise an error."""
        with contextlib.suppress(tf.errors.OpError):  # it must not hide that error where the others are gone already
            self.number(_ABORT)

    def text(self, value: str = "") -> str:
        """The chief's text. Raises ChiefStoppedError where it sent `abort` instead."""
        data = value.encode()
        length = self.number(len(data))
        held = tf.constant(list(data), tf.int32) if self.chief else tf.zeros([length], tf.int32)
        return bytes(self._text([held])[0].numpy().tolist()).decode()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        return int(self._total([tf.constant(int(flag), tf.int64)])[0]) > 0
