"""A party of selective SGD: trains on its own data, uploads a selection, and pays for it from its own ledger."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfdp_layers.accounting import Epsilon, EpsilonCurve, Ledger, NumericSparse, Statement, epsilon
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.caller import warn
from tfdp_layers.federated.keras_training import KerasTraining
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector, Update
from tfdp_layers.federated.together import Identity, identity_of, note_turn
from tfdp_layers.instances import refuse_own_code
from tfdp_layers.sampling import entropy_generator

__all__ = ["Budget", "Party", "Train"]

Train = Callable[[np.ndarray], np.ndarray]
"""Trains a little on the party's data: float32 weights (size,) to new ones. Must not change its argument."""


@dataclass(frozen=True)
class Budget:
    """What a party may spend in all: (epsilon, delta)-differential privacy of its whole data set.

    Raises:
        ValueError: epsilon not above 0 (infinity is allowed: count only), or delta not in (0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0. Received: {self.epsilon!r}.")
        check_delta(self.delta)


class Party:
    """One party. Its weights, data and ledger never leave it; its uploads do.

    Guarantee: with a `SparseVector` selection all uploads together are (budget.epsilon, budget.delta)-differentially
    private when the party's whole data set is replaced by any other. Every test is counted before it starts, and no
    round starts tests that the budget cannot pay, whatever they find; unused ones are given back afterwards. How many
    were started follows from the upload, so stopping by the count reveals nothing more. With another selection there is
    no guarantee, unless `train` itself is private (a `PrivateModel`'s own ledger then says at what cost).

    Args:
        name: for messages, and one for each party: those of one name, and of the same files of all their ledgers, are
            one party that was made anew. Without a file, those of one name that live at one time are several.
        train: see `Train`. If it raises, the round's tests were not started and cost nothing.
        selection: what to upload.
        weights: float32, (size,): the local weights at the start; public.
        budget: needed for a `SparseVector`. Once it is spent the party halts: it uploads nothing more.
        ledger: where tests are counted; give one with a file, or a restarted party forgets what it spent.
        seed: for tests only; it voids the privacy statement. The default is keyed by the operating system.
    Raises:
        ValueError: a private selection without a budget, or of a subclass; a ledger of records instead of parties; or
            a `KerasTraining` that reads or writes a file of another party.
    """

    def __init__(
        self,
        name: str,
        train: Train,
        selection: LargestValues | RandomAboveThreshold | SparseVector,
        weights: np.ndarray,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self._selection = selection
        self._weights = _own(weights)
        self.budget = budget
        self._ledger = Ledger() if ledger is None else ledger
        check_ledger(self.ledger)
        self._train = train
        self._seeded = None if seed is None else entropy_generator(seed)
        self._release: NumericSparse | None = None
        self._token = ""
        self._told = False
        if isinstance(selection, SparseVector):
            refuse_own_code(selection, [SparseVector], f"The selection of party {name!r}")
            if budget is None:
                raise ValueError(
                    f"Party {name!r} uploads privately and needs a budget, for example Budget(epsilon=8.0, delta=1e-5);"
                    " Budget(math.inf, delta) only counts."
                )
            self._release = selection.release(len(self.weights), seeded=seed is not None)
            self._token = self.ledger.begin(self._release)
        if isinstance(train, KerasTraining):
            train.belong_to(self._identity)

    @property
    def _identity(self) -> Identity:
        return identity_of(self.name, (self.ledger, *self.charged))

    @property
    def selection(self) -> LargestValues | RandomAboveThreshold | SparseVector:
        """What the ledger charges, so it stays: for another one, make another party with the same ledger."""
        return self._selection

    @property
    def ledger(self) -> Ledger:
        """Where its tests are counted, those of the past too, so it stays: for another one, make another party."""
        return self._ledger

    @property
    def charged(self) -> tuple[Ledger, ...]:
        """The ledgers that a turn charges: its own for private uploads, and that of a private model that it trains."""
        own = self.ledger if self._release is not None else None
        trained = self._train.ledger if isinstance(self._train, KerasTraining) else None
        return tuple(one for one in (own, trained) if one is not None)

    @property
    def weights(self) -> np.ndarray:
        """The local weights, float32 (size,), to read; assign others to go on from them.

        They stay as many: the noise of an upload is for the number that the ledger charges. Raises ValueError for
        others.
        """
        return self._weights[:]

    @weights.setter
    def weights(self, weights: np.ndarray) -> None:
        given = _own(weights)
        if given.shape != self._weights.shape:
            raise ValueError(
                f"Party {self.name!r} has weights of shape {self._weights.shape}, by which its uploads are charged."
                f" Received: shape {given.shape}. For another model make another party with the same ledger."
            )
        self._weights = given

    @property
    def halted(self) -> bool:
        """Whether the budget pays for no further test."""
        return self._affordable() == 0

    def turn(self, download: Update) -> Update | None:
        """One turn: downloads, trains, selects. Returns the upload.

        None where the budget is spent; the first time a warning says so.

        Args:
            download: weights that replace the local ones.
        Raises:
            ValueError: the download does not fit, or the training returned weights of another shape.
            LedgerError: the tests could not be counted; none was started.
        """
        most = self._affordable()
        if most == 0:
            self._halt()
            return None
        before = self._downloaded(download)
        note_turn(self._identity, self.charged)
        after = np.asarray(self._train(before))
        if after.shape != before.shape:
            raise ValueError(
                f"The training of party {self.name!r} returned weights of shape {after.shape}, expected {before.shape}."
            )
        with np.errstate(invalid="ignore", over="ignore"):  # What diverged counts as no change.
            change = after - before
        # A key for each upload: a copy of this party (pickled, forked) must not draw the same noise for other data.
        rng = entropy_generator() if self._seeded is None else self._seeded
        update = self._private(change, rng, most) if self._release else self.selection.select(change, rng)
        if update is None:
            return None
        self.weights = np.where(np.isfinite(after), after, before).astype(np.float32)
        return update

    def spent(self, delta: float | None = None) -> Epsilon | None:
        """Epsilon of all tests so far at the budget's delta (or another one); None for a party without a budget."""
        if self.budget is None or self._release is None:
            return None
        return epsilon(self.ledger, self.budget.delta if delta is None else delta)

    def privacy_statement(self) -> Statement | None:
        """What this party's uploads guarantee; None where they guarantee nothing."""
        if self.budget is None or self._release is None:
            return None
        return Statement.from_ledger(self.ledger, self.budget.delta)

    def _private(self, change: np.ndarray, rng: np.random.Generator, most: int) -> Update | None:
        """The upload, of as many tests as the budget still pays for now: others may have charged the ledger."""
        assert isinstance(self.selection, SparseVector)
        assert self.budget is not None
        refuse_own_code(self.selection, [SparseVector], f"The selection of party {self.name!r}")
        check_ledger(self.ledger)
        assert self._release is not None
        if self.selection.release(len(change), seeded=self._seeded is not None) != self._release:
            raise RuntimeError(
                f"Party {self.name!r} would add the noise of another release than the one that its ledger charges: its"
                f" {len(change)} weights are not as many as those that it was made with. Make another party with the"
                " same ledger."
            )
        self.ledger.entry_of(self._token)  # a copy of the party has a copy of the ledger, without it: ValueError
        token = self.ledger.begin(self._release)  # of its own: what another turn settles at once is another's
        if not math.isinf(self.budget.epsilon):
            self.ledger.keep_to(token, (self.budget.epsilon, self.budget.delta))
        try:
            most = self.ledger.reserve(token, most, least=0)
        finally:
            self.ledger.end(token)
        if most == 0:
            self._halt()
            return None
        update = self.selection.select(change, rng, most)
        self.ledger.settle(token, self.selection.started(update, most))
        return update

    def _halt(self) -> None:
        """Says, once, that the party uploads nothing more, and why: that it stops follows from its uploads."""
        if self._told or self.budget is None:
            return
        self._told = True
        own = f"epsilon={rounded_up(self.budget.epsilon, 6)} at delta={rounded_up(self.budget.delta, 6)}"
        of_ledger = self.ledger.budget
        whole = "" if of_ledger is None else f", or that of its ledger, {rounded_up(of_ledger.epsilon, 6)}"
        warn(
            f"Party {self.name!r} halts: its budget, {own}{whole}, pays for no further test; it spent"
            f" {rounded_up(epsilon(self.ledger, self.budget.delta))}. It trains and uploads nothing more. A larger"
            " Budget is a decision of whoever answers for its data; the global model goes on with the other parties."
        )

    def _downloaded(self, download: Update) -> np.ndarray:
        indices, values = np.asarray(download.indices), np.asarray(download.values)
        fits = indices.ndim == 1 and indices.shape == values.shape and indices.dtype.kind in "iu"
        if not fits or (len(indices) and not 0 <= indices.min() <= indices.max() < len(self.weights)):
            raise ValueError(
                f"The download of party {self.name!r} does not fit its {len(self.weights)} weights: indices of shape"
                f" {indices.shape}, values of shape {values.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"The download of party {self.name!r} holds values that are not finite.")
        weights = self.weights.copy()
        weights[indices] = values
        return weights

    def _affordable(self) -> int:
        """Tests of the next upload that the budget pays for, whatever they find."""
        if self._release is None or self.budget is None:
            return 1  # Anything but none: nothing is counted.
        assert isinstance(self.selection, SparseVector)
        most = self.selection.tests(len(self.weights))
        if self.ledger.budget is not None:
            most = self.ledger.affordable(self._token, most)
        if math.isinf(self.budget.epsilon):
            return most
        curve = EpsilonCurve(self.ledger, self._release, self.budget.delta)
        if curve.at(most) <= self.budget.epsilon:
            return most
        low, high = 0, most  # low tests fit (or none do), high tests don't.
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if curve.at(middle) <= self.budget.epsilon else (low, middle)
        return low


def _own(weights: np.ndarray) -> np.ndarray:
    """A copy in float32, into which nobody writes."""
    found = np.array(weights, dtype=np.float32)
    found.flags.writeable = False
    return found
