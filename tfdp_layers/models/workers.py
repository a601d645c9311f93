"""What the processes of one training tell each other: nearly all of it comes from the chief."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.models.checksums import PRIME, checksums
from tfdp_layers.structure import held_by

_ABORT = -1

_CARRIED = {kind: tf.int32 for kind in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)} | {
    kind: kind for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
}
"""As what numbers of a type are sent."""


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
        self._totals = tf.function(self._summed, [[tf.TensorSpec([None], tf.int64)]], autograph=False)
        self._held: list[Any] = []
        self._checksums: Callable[[], tf.Tensor] = lambda: tf.zeros([2], tf.int64)

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
        for kind, carried in _CARRIED.items():
            chosen = [v for v in variables if tf.as_dtype(v.dtype) == kind]
            if chosen:
                given = [tf.cast(tf.convert_to_tensor(v.value), carried) for v in chosen]
                values = tf.function(self._sent, autograph=False)(given)
                for variable, value in zip(chosen, values, strict=True):
                    variable.assign(tf.cast(value, kind))

    def hold(self, variables: Sequence[Any], read: Sequence[Any] = ()) -> None:
        """Shares variables, and notes them, and others that the steps read, for `level`.

        Args:
            variables: Keras variables.
            read: of TensorFlow, in any order; those that are not copies of the others are compared, not shared.
        """
        self.share(variables)
        self._held = list(variables)
        held = [held_by(variable) for variable in variables]
        copies = {id(copy) for one in held for copy in (one, *getattr(one, "values", ()))}
        others = [one for one in read if id(one) not in copies and comparable(one)]
        mine = [one for one in held if comparable(one)]

        def both() -> tf.Tensor:
            apart = [checksums([tf.convert_to_tensor(one)]) for one in others]  # which may come in another order
            return tf.add_n([checksums(map(tf.convert_to_tensor, mine)), *apart]) % PRIME

        self._checksums = tf.function(both, autograph=False)

    def level(self) -> bool:
        """Gives all the chief's values again where a worker holds others: what a record adds to a step depends on them.

        Were they unequal, it would depend on the worker whose slice the record is in, and so on all other records.

        Returns: whether they were equal.
        Raises: ValueError on all where they stay unequal: variables that steps read, and that are not the model's.
        """
        if self._equal():
            return True
        self.share(self._held)
        if not self._equal():
            raise ValueError(
                "The workers hold different numbers in variables that the steps read and that are not the model's, such"
                " as a tf.Variable in a Lambda: what a record adds would depend on its worker. Make them weights of a"
                " layer (add_weight), which get the chief's values, or give them the same values on every worker."
            )
        return False

    def _equal(self) -> bool:
        """Whether the checksums of all workers are the same: of R equal numbers t, R sum t^2 = (sum t)^2."""
        mine = self._checksums()
        first, second = tf.unstack(tf.reshape(self._totals([tf.concat([mine, mine * mine], 0)])[0], (2, -1)))
        return bool(tf.reduce_all(self.strategy.num_replicas_in_sync * second == first * first))

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


def comparable(variable: Any) -> bool:
    """Whether a variable of TensorFlow holds numbers that can be sent: see `_CARRIED`."""
    return tf.as_dtype(variable.dtype) in _CARRIED
