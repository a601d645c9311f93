"""What the processes of one training tell each other: nearly all of it comes from the chief."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.structure import held_by

_ABORT = -1

_PRIME = 1048573
"""Checksums are below this: sums of their squares over a thousand workers stay exact in int64. The largest prime below
2^20: round numbers differ in their high bits alone, which a power of two would leave out."""

_CARRIED = {kind: tf.int32 for kind in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)} | {
    kind: kind for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
}
"""As what numbers of a type are sent."""

_BITS = {1: tf.int8, 2: tf.int16}
"""As what numbers of so many bytes are taken apart; larger ones as several of 32 bits."""

_BLOCK, _STEP, _KEY = 4096, 0x1851F42D4C957F2D, (0x2545F491, 0x4F6CDD1D)
_FACTORS = np.frombuffer(hashlib.shake_128(b"places").digest(8 * _BLOCK), "<i8") | 1
"""Odd, and with nothing in common; the same in every process."""


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
            return tf.add_n([checksums(map(tf.convert_to_tensor, mine)), *apart]) % _PRIME

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


def checksums(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Two numbers below 2^20 that nearly always tell other bits, or an exchange of numbers or of tensors: int64 (2,).

    A sum of all bits, modulo 2^64, each 32 of them by a factor that was drawn for their place.
    """
    parts: dict[bool, list[tf.Tensor]] = {True: [], False: []}
    for value in values:
        whole = integers(value)
        parts[whole.shape.num_elements() is None or whole.shape.num_elements() >= _BLOCK].append(whole)
    few = [tf.concat(parts[False], 0)] if parts[False] else []
    found = tf.zeros([], tf.int64)
    for whole in [*few, *parts[True]]:
        found = found * _STEP + weighed(whole)
    return tf.math.floormod(tf.stack([found, tf.bitwise.right_shift(found, tf.constant(31, tf.int64))]), _PRIME)


def integers(value: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor, as whole numbers of 32 of them at most: int64, one axis. Of a text a digest."""
    if value.dtype == tf.string:
        return integers(tf.strings.to_hash_bucket_strong(value, 2**62, _KEY))
    if value.dtype == tf.bool:
        return tf.reshape(tf.cast(value, tf.int64), [-1])
    return tf.reshape(tf.cast(tf.bitcast(value, _BITS.get(value.dtype.size, tf.int32)), tf.int64), [-1])


def weighed(whole: tf.Tensor) -> tf.Tensor:
    """The sum of int64 numbers (n,), each by the factor of its place: of its row of a block's length, and within it."""
    factors, size = tf.constant(_FACTORS, tf.int64), tf.size(whole, tf.int64)
    rows = size // _BLOCK
    left = whole[rows * _BLOCK :]
    last = tf.reduce_sum(left * factors[: tf.size(left)])
    if whole.shape.num_elements() is not None and whole.shape.num_elements() < _BLOCK:
        return last
    places = (tf.range(rows) + 1) * _STEP
    places = tf.bitwise.bitwise_xor(places, tf.bitwise.right_shift(places, tf.constant(29, tf.int64))) * (2 * _STEP) + 1
    table = tf.reshape(whole[: rows * _BLOCK], [-1, _BLOCK])
    return last + tf.reduce_sum(tf.reduce_sum(table * factors, 1) * places)
