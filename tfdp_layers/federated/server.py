"""The parameter server of selective SGD: adds what it can trust, counts, and forgets nothing when it is killed."""

import os
import threading
import zipfile
from pathlib import Path

import numpy as np

from tfdp_layers.accounting.half_files import half, put_last
from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.federated.selection import LARGEST_BOUND, Update, most_updated, share_of

__all__ = ["RefusedUpload", "Server"]

_FORMAT = 1
_FIELDS = {"format", "round", "weights", "counters"}


class RefusedUpload(ValueError):  # noqa: N818 (says what happened)
    """An upload broke the rules and was ignored; the message names the party. The model is unchanged."""


class Server:
    """Global weights, and how often each of them was uploaded.

    An upload is applied whole or not at all. It is refused unless it is the only one of its party in this round, holds
    at most `share_of(fraction, size)` distinct coordinates within range, and only finite values within the bound.

    Args:
        weights: float32, (size,), finite; where the training starts.
        fraction: at most this part of the coordinates may be in one upload.
        bound: uploaded values lie in [-bound, bound].
    Raises:
        ValueError: weights that are no finite vector, or numbers out of range.
    Source: Shokri, Shmatikov 2015 (CCS): the parameter server.
    """

    def __init__(self, weights: np.ndarray, fraction: float, bound: float) -> None:
        self.weights = np.array(weights, dtype=np.float32)
        if self.weights.ndim != 1 or not self.weights.size or not np.isfinite(self.weights).all():
            raise ValueError(
                f"The weights must be a vector of finite numbers, not empty. Received: shape {self.weights.shape}."
            )
        if not 0.0 < fraction <= 1.0 or not 0.0 < bound <= LARGEST_BOUND:
            raise ValueError(
                "fraction must be above 0 and at most 1, bound above 0 and at most what float32 holds. Received:"
                f" {fraction!r}, {bound!r}."
            )
        self.counters = np.zeros(len(self.weights), np.int64)
        self.round = 0
        self._limit = share_of(fraction, len(self.weights))
        self._bound = np.float32(bound)
        self._uploaded: set[str] = set()
        self._turns: dict[str, int | None] = {}
        self._threads = threading.Lock()

    def start_round(self) -> int:
        """Opens the next round and returns its number; uploads of earlier rounds are late from now on."""
        with self._threads:
            self.round += 1
            self._forget_turns()
            return self.round

    def start_turn(self, party: str, number: int) -> int:
        """Opens a turn of one party, whatever the others do, and returns its number; its earlier ones are late.

        For asynchronous training: until the next `start_round` this party's uploads are held against its own turns
        instead of the server's round, which becomes the largest number of any turn.
        """
        with self._threads:
            self._turns[party] = number
            self.round = max(self.round, number)
            return number

    def download(self, fraction: float = 1.0) -> Update:
        """The most often updated `fraction` of the weights, a copy. What was never uploaded comes last."""
        with self._threads:
            indices = most_updated(self.counters, fraction)
            return Update(indices, self.weights[indices])

    def receive(self, party: str, round_number: int, update: Update) -> None:
        """Adds an upload to the weights.

        Args:
            party: the sender, known from the connection and not from the message.
            round_number: of the round, or of its own turn, that the party was asked in.
            update: anything; it is not trusted.
        Raises:
            RefusedUpload: it breaks a rule; nothing was changed.
        """
        with self._threads:
            reason = self._late(party, round_number) or self._malformed(update)
            if reason is None:
                with np.errstate(over="ignore"):
                    moved = self.weights[update.indices] + update.values
                if np.isfinite(moved).all():
                    self.weights[update.indices] = moved
                    self.counters[update.indices] += 1
                    self._uploaded.add(party)
                    if party in self._turns:
                        self._turns[party] = None
                    return
                reason = "it makes weights infinite"
        raise RefusedUpload(f"The upload of party {party!r} in round {round_number!r} was ignored: {reason}.")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the server's state; after a crash the file holds the old state or the new one, whole.

        Of several threads of one server at once the newest state stands. The file keeps the rights of the one replaced.
        """
        refuse_no_path(path, "path", "server.npz")
        path = Path(os.path.realpath(path))
        refuse_no_plain_file(path, "Give the name of a file to write.")
        with half(path) as partial, self._threads:
            with open(partial, "wb") as file:
                np.savez(file, format=_FORMAT, round=self.round, weights=self.weights, counters=self.counters)
            put_last(partial, path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes on where `save` was called. A round that was not finished then is lost, and its uploads are late.

        Raises:
            ValueError: the file is damaged, or of a model with another number of weights.
            FileNotFoundError: there is no such file.
        """
        refuse_no_path(path, "path", "server.npz")
        refuse_no_plain_file(path, "Give the path of a file that Server.save wrote.")
        try:
            with np.load(path, allow_pickle=False) as file:
                if set(file.files) != _FIELDS or file["format"] != _FORMAT:
                    raise ValueError(f"it holds {sorted(file.files)}")
                weights, counters, number = file["weights"], file["counters"], int(file["round"])
        except FileNotFoundError:
            raise
        except (ValueError, OSError, EOFError, TypeError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path} is not a saved server of format {_FORMAT}: {error}. Restore it from a backup, or start anew."
            ) from error
        expected = ((self.weights.shape, "f"), (self.counters.shape, "i"))
        if tuple((array.shape, array.dtype.kind) for array in (weights, counters)) != expected:
            raise ValueError(f"{path} is of another model: {weights.shape} weights, expected {self.weights.shape}.")
        if not np.isfinite(weights).all() or (counters < 0).any() or number < 0:
            raise ValueError(f"{path} holds weights that are not finite, or negative counts. Restore a backup.")
        with self._threads:
            self.weights, self.counters, self.round = weights.astype(np.float32), counters.astype(np.int64), number
            self._forget_turns()

    def _forget_turns(self) -> None:
        self._uploaded.clear()
        self._turns.clear()

    def _late(self, party: str, round_number: int) -> str | None:
        if party in self._turns and isinstance(round_number, int):
            turn = self._turns[party]
            if turn is None:
                return "the party has already uploaded in its turn"
            return None if round_number == turn else f"it is for another turn than {turn}, so it comes too late"
        if not isinstance(round_number, int) or round_number != self.round or self.round == 0:
            return f"it is for another round (now: {self.round}), so it comes too late"
        return "the party has already uploaded in this round" if party in self._uploaded else None

    def _malformed(self, update: Update) -> str | None:
        """Why an upload cannot be applied, or None. Order matters: each check relies on those before it."""
        indices, values = getattr(update, "indices", None), getattr(update, "values", None)
        if not isinstance(indices, np.ndarray) or not isinstance(values, np.ndarray):
            return "it holds no arrays of indices and values"
        if indices.ndim != 1 or indices.shape != values.shape:
            return f"its indices have shape {indices.shape} and its values {values.shape}, not one vector each"
        if indices.dtype != np.int64 or values.dtype != np.float32:
            return f"its indices are {indices.dtype} and its values {values.dtype}, not int64 and float32"
        if len(indices) > self._limit:
            return f"it holds {len(indices)} coordinates, and at most {self._limit} are allowed"
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self.weights)):
            return f"an index is outside 0..{len(self.weights) - 1}"
        if len(np.unique(indices)) < len(indices):
            return "an index occurs twice"
        if not np.isfinite(values).all():
            return "a value is not finite"
        if len(values) and np.abs(values).max() > self._bound:
            return f"a value is outside +-{float(self._bound):g}"
        return None
