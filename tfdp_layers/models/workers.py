"""What the processes of one training tell each other: nearly all of it comes from the chief."""

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.following import Books
from tfdp_layers.models.checksums import PRIME, checksums
from tfdp_layers.structure import held_by

_TAGS = 2**20
"""How many names of messages are told apart: the square of a sum over up to 2^11 replicas stays below 2^62."""

_TOLD = "_tfdp_told"
"""Of an error: the others heard of it."""

_CARRIED = {kind: tf.int32 for kind in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)} | {
    kind: kind for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
}
"""As what numbers of a type are sent."""


class WorkerStoppedError(RuntimeError):
    """Another worker gave up; its own error says why."""


class ChiefStoppedError(WorkerStoppedError):
    """The chief gave up; its own error says why."""


class Workers:
    """The processes of a `MultiWorkerMirroredStrategy`. The chief draws the noise, keeps the ledger, and decides.

    Every method is a collective: all workers must call it, in the same order. What is sent is kept in no file or log.

    Messages (`number`, `text`, `any`, and so `share`, `hold`, `abort`) are one exchange: each worker says which one it
    is about to have, and whether it gives up instead, and all hear that. So where they are not in the same place, all
    of them raise.

    Args:
        strategy: the strategy.
        chief: whether this process is the chief, which holds replica 0.

    Raises: from every method an error of TensorFlow where another worker is gone; from messages WorkerStoppedError
        (ChiefStoppedError of the chief) where another gave up, or is in another place.
    """

    def __init__(self, strategy: tf.distribute.Strategy, chief: bool) -> None:
        self.strategy = strategy
        self.chief = chief
        chiefs, own, text = [
            tf.TensorSpec([size], kind) for size, kind in ((3, tf.int64), (4, tf.int64), (None, tf.int32))
        ]
        self._message = tf.function(self._heard, [chiefs, own], autograph=False)
        self._text = tf.function(self._sent, [[text]], autograph=False)
        self._totals = tf.function(self._summed, [[tf.TensorSpec([None], tf.int64)]], autograph=False)
        self._held: list[Any] = []
        self._checksums: Callable[[], tf.Tensor] = lambda: tf.zeros([2], tf.int64)
        self._training = ""
        self._books: Books | None = None
        self._comes, self._apart = True, False
        self._fits = self._early = False

    def _sent(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # x + 0 is x: a sum of one number and zeros is exact.
        return self._reduced(lambda first, value: tf.where(first, value, tf.zeros_like(value)), values)

    def _summed(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduced(lambda first, value: tf.identity(value), values)

    def _heard(self, chiefs: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
        def one(chiefs: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            first = tf.equal(context.replica_id_in_sync_group, 0)
            both = tf.concat([tf.where(first, chiefs, tf.zeros_like(chiefs)), own], 0)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, both)

        return self.strategy.experimental_local_results(self.strategy.run(one, args=(chiefs, own)))[0]

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

    def totals(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of these over all replicas, within a step."""
        return self._summed(values)

    def share(self, variables: Sequence[Any]) -> None:
        """Gives variables the chief's values; those of types that cannot be added up keep their own.

        What they cost goes before, as with every message.
        """
        self.number(name="share")
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

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Around all of a `fit`: whoever leaves it by an error before it is `ready` lets the others raise as well."""
        if self._fits:  # a hook calls it once more, around which this is said
            yield
            return
        self._fits = self._early = True
        try:
            yield
        except BaseException as error:
            if self._early:
                self._give_up(error)
            raise
        finally:
            self._fits = self._early = False
            self._comes, self._apart = True, False

    def ready(self) -> None:
        """All checked what can be known before variables are made, which is no message, and which all do together."""
        self._early = False
        self.number(name="ready")

    @contextlib.contextmanager
    def training(self, books: Books) -> Iterator[None]:
        """Around a training: with each message the others hear first what changed in the chief's books.

        Whoever leaves by an error of its own lets the others, who come to another message, raise as well.
        """
        self._books = books
        try:
            yield
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self._books, self._training = None, ""
            self._comes, self._apart = True, False

    def _give_up(self, error: BaseException) -> None:
        """`abort`, once for each error: not where all raised it, or where a `fit` within said it."""
        if not isinstance(error, WorkerStoppedError) and not getattr(error, _TOLD, False):
            setattr(error, _TOLD, True)
            self.abort()

    def open(self, training: str) -> None:
        """Messages are of this training from here on: of none before, and after an error."""
        self._training = training

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Around what is no message, and what others may wait in where it fails: then nothing more is said."""
        self._apart = True
        yield
        self._apart = False

    def number(self, value: int = 0, name: str = "number") -> int:
        """The chief's number. `name`: of the message, the same on all."""
        return self._exchange(name, value)[0]

    def text(self, value: str = "", name: str = "text") -> str:
        """The chief's text."""
        return self._exchange(name, text=value)[1]

    def any(self, flag: bool, name: str = "any") -> bool:
        """Whether the flag is set on any worker."""
        return self._exchange(name, flag=flag)[2]

    def abort(self) -> None:
        """Lets the others, who are about to have a message, raise. For who is about to raise an error of its own.

        Nothing is said where they may come to none: after a message that failed, and `apart`.
        """
        if self._comes and not self._apart:
            with contextlib.suppress(tf.errors.OpError):  # it must not hide that error where the others are gone
                self._exchange("", stops=True)
        self._training = ""

    def _exchange(
        self, name: str, value: int = 0, text: str = "", flag: bool = False, stops: bool = False
    ) -> tuple[int, str, bool]:
        """One message: the chief's number and text, behind what changed in its books, and whether any flag is set."""
        said = ["", ""] if stops or not self.chief else ["" if self._books is None else self._books.news(), text]
        data = json.dumps(said).encode() if any(said) else b""
        tag = zlib.crc32(f"{self._training} {name}".encode()) % _TAGS
        self._comes = False
        found = self._all([value, len(data), int(stops and self.chief)], [tag, tag * tag, int(stops), int(flag)])
        number, length, chief_stops, tags, squares, stop, flags = found
        other = stop or self.strategy.num_replicas_in_sync * squares != tags * tags
        heard = json.loads(self._bytes(data, length)) if length and not other else ["", ""]
        self._comes = True
        if stops:
            return 0, "", False
        if other:
            self._training = ""
            raise _stopped(self.chief, bool(chief_stops), bool(stop))
        if heard[0] and self._books is not None and not self.chief:
            self._books.learn(heard[0])
        return number, heard[1], flags > 0

    def _all(self, chiefs: Sequence[int], own: Sequence[int]) -> list[int]:
        """The chief's numbers, and the sums over all replicas of each worker's own."""
        return [int(one) for one in self._message(tf.constant(chiefs, tf.int64), tf.constant(own, tf.int64)).numpy()]

    def _bytes(self, data: bytes, length: int) -> bytes:
        held = (
            tf.constant(np.frombuffer(data, np.uint8).astype("int32")) if self.chief else tf.zeros([length], tf.int32)
        )
        return self._text([held])[0].numpy().astype(np.uint8).tobytes()


def _stopped(chief: bool, chief_stops: bool, stops: bool) -> WorkerStoppedError:
    """Of a message that another worker did not have: it gave up, or is in another place."""
    if chief_stops:
        return ChiefStoppedError("The chief stopped: its error, in its own output, says why.")
    if stops:
        return WorkerStoppedError("Another worker stopped: its error, in its own output, says why.")
    kind = WorkerStoppedError if chief else ChiefStoppedError
    return kind(
        "The workers are not in the same place: one of them is in another call of fit, or in another part of it, as"
        " after an error that was caught there. All stop here; call fit again, on every worker."
    )


def comparable(variable: Any) -> bool:
    """Whether a variable of TensorFlow holds numbers that can be sent: see `_CARRIED`."""
    return tf.as_dtype(variable.dtype) in _CARRIED
