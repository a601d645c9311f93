"""Who pays for which weights: what ever met in one model is counted in one ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.remarks import KEPT, kinds_of

__all__ = ["Account", "account_of", "open_account"]

_ATTRIBUTE = "_tfdp_account"
_joining = threading.RLock()
_accounts: weakref.WeakSet[Account] = weakref.WeakSet()


@dataclasses.dataclass(eq=False)
class _Fit:
    """One that runs: in which thread, and, by their ids, which variables its steps read and write."""

    thread: int
    variables: frozenset[int]

    def meets(self, other: _Fit) -> bool:
        """Whether both may use one variable."""
        known = self.variables and other.variables
        return not known or bool(self.variables & other.variables)


class Account:
    """A share in a ledger: a model's, a layer's, or a variable's. Joined accounts have one ledger, for good.

    Guarantee: after `join`, whatever one of the accounts is charged is in the ledger of each, and nothing that was
    charged before is lost. A plain object, which Keras neither tracks nor saves.

    Args:
        ledger: where it counts; a new one in memory if left out.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = Ledger() if ledger is None else ledger
        _accounts.add(self)
        self._joined: Account | None = None
        self._running: list[_Fit] = []  # several where weights that none of them uses are made of what they release
        self._saving: dict[int, int] = {}  # how many files each thread writes
        self._unpaid, self._owed, self._made = False, 0, 0
        self._restored: list[Any] = []
        self._remarks: list[str] = []

    @property
    def root(self) -> Account:
        """The account that stands for all that were joined with this one."""
        found = self
        while found._joined is not None:
            found = found._joined
        return found

    @property
    def ledger(self) -> Ledger:
        """What was released into the weights of all joined accounts. Looking changes nothing."""
        return self.root._ledger

    @property
    def unpaid(self) -> bool:
        """Whether one of the joined accounts holds weights that came without what they cost, in full or in part."""
        return self.root._unpaid or self.owed > 0

    @unpaid.setter
    def unpaid(self, value: bool) -> None:
        self.root._unpaid = value

    @property
    def flagged(self) -> bool:
        """Whether this was said of it, and does not follow from what optimizers count."""
        return self.root._unpaid

    @property
    def restored(self) -> int:
        """The releases that weights came with, as optimizers say, whoever paid for them since; else 0."""
        return max([self.root._owed, *(one.brought() for one in self.root._restored)])

    @property
    def owed(self) -> int:
        """The releases that weights came with, where the ledger counts fewer; else 0."""
        return most if (most := self.restored) > self.ledger.updates else 0

    def owe(self, releases: int, *, beside: bool = False) -> None:
        """Says how many releases weights hold, or hold `beside` those made here: if the ledger counts fewer, unpaid."""
        root = self.root
        own = min(root._made + sum(one.made for one in root._restored), root._ledger.updates) if beside else 0
        root._owed = max(root._owed, releases + own)

    def watch(self, restored: Any) -> None:
        """Asks from here on what an optimizer counts that was not paid here; what those said that are gone stays.

        Whoever compiles anew throws an optimizer away, and with it what a checkpoint brought into it, but not this.

        Args:
            restored: says so by `brought()`, by `gone` whether nobody can change it any more, by `made` what it made.
        """
        root = self.root
        for one in [one for one in root._restored if one.gone]:
            if one.brought() > root._ledger.updates:
                root.owe(one.brought())
            root._made += one.made
            root._restored.remove(one)
        if restored not in root._restored:
            root._restored.append(restored)

    @property
    def remarks(self) -> list[str]:
        """Sentences on what the ledger's numbers don't say of the weights of all joined accounts, for statements."""
        return self.root._remarks

    def remark(self, sentence: str) -> None:
        """Has statements of all joined accounts say this, once, and those of their ledger what it is about.

        Raises: LedgerError where the ledger's file cannot be written now; the next that is written to it brings it.
        """
        if sentence not in self.remarks:
            self.remarks.append(sentence)
        self.note(kinds_of([sentence]))

    def note(self, kinds: Iterable[str]) -> None:
        """Has statements of the ledger say this of trainings, by kinds of `remarks`. Raises: as `remark`.

        But for `KEPT`, which the ledger of a file brings where that is news: a training of its own it counts whole.
        """
        ledger = self.ledger
        with ledger._threads:
            ledger._state.note(set(kinds) - {KEPT})

    def replace(self, ledger: Ledger, *, by_fit: bool = False, named: bool = False) -> None:
        """Counts in another ledger from here on. What was spent must have been merged into it.

        Args:
            by_fit: says that the running `fit` itself does it, which goes on with a copy of another worker's ledger.
            named: makes the earlier one, in memory, a name of this one where no other account counts in it: whoever
                holds that charges this one, as a twin that was given another ledger asks for. Of `by_fit` also where
                others count in it: on the chief they have one ledger, too.

        Raises: RuntimeError while a `fit` runs on the weights of a joined account.
        """
        with _joining:
            root = self.root
            if root._running and not by_fit and ledger is not root._ledger:
                raise RuntimeError("The ledger can't be exchanged while fit runs: assign it before fit.")
            others = [one.root for one in _accounts if one.root is not root]
            if named and (by_fit or not any(one._ledger.is_same(root._ledger) for one in others)):
                _take_in(ledger, root._ledger)
            noted, root._ledger = root._ledger.noted, ledger
            self.note(noted)

    def join(self, others: Iterable[Account]) -> None:
        """Makes one account of this one and the others.

        The ledger that stays is the one in use by a running `fit`, else the one that is kept in a file or for a data
        set; it takes over what the others counted, and whoever holds one of these charges and reads that one.

        Raises: before anything is joined,
            ValueError: two of them are kept in different places, or have different neighbouring relations.
            RuntimeError: a `fit` runs on two of them that have different ledgers, or may use the same variables.
        """
        with _joining:
            others = list(others)
            _refuse_some([self.root, *(other.root for other in others)])
            for other in others:
                mine, theirs = self.root, other.root
                if mine is theirs:
                    continue
                stays, goes = (mine, theirs) if _rank(mine) > _rank(theirs) else (theirs, mine)
                _refuse_two(stays, goes)
                if stays._ledger is not goes._ledger:
                    _take_in(stays._ledger, goes._ledger)
                stays._unpaid |= goes._unpaid
                stays._owed, stays._made = max(stays._owed, goes._owed), stays._made + goes._made
                stays._restored += [one for one in goes._restored if one not in stays._restored]
                stays._remarks += [one for one in goes._remarks if one not in stays._remarks]
                stays._running += goes._running
                for thread, files in goes._saving.items():
                    stays._saving[thread] = stays._saving.get(thread, 0) + files
                goes._joined = stays

    @contextlib.contextmanager
    def running(self, variables: Collection[int] = ()) -> Iterator[Callable[[Collection[int]], None]]:
        """Marks a `fit` as running, in this thread.

        Args:
            variables: which its steps read and write, by their ids; none where that is not known yet.

        Gives: a function to be called with all of these, once they are made and before anything is released.
        Raises: RuntimeError, as does the function, where one runs on this account or on a joined one that may use the
            same variables; or where another thread saves its weights.
        """
        here = threading.get_ident()
        fit = _Fit(here, frozenset(variables))

        def uses(variables: Collection[int]) -> None:
            with _joining:
                fit.variables = frozenset(variables)
                self._refuse_second(fit)

        with _joining:
            self._refuse_second(fit)
            if self.root._saving.keys() - {here}:
                raise RuntimeError(
                    "Another thread is saving the weights that fit would train: its file would hold later weights than"
                    " its ledger counts. Let it end before (thread.join())."
                )
            self.root._running.append(fit)
        try:
            yield uses
        finally:
            with _joining:
                self.root._running.remove(fit)

    def _refuse_second(self, fit: _Fit) -> None:
        if any(fit.meets(other) for other in self.root._running if other is not fit):
            raise RuntimeError(
                "fit is running already on this model, or on one that shares weights with it: two at a time would"
                " charge one ledger for the steps of both. Wait for the first to end (one thread at a time)."
            )

    @property
    def trains(self) -> bool:
        """Whether a `fit` runs on a joined account."""
        return bool(self.root._running)

    def refuse_other_thread(self) -> None:
        """Raises RuntimeError where a `fit` of another thread changes the weights that are to be saved or copied.

        The ledger would be written before weights of steps that it does not count yet.
        """
        if any(one.thread != threading.get_ident() for one in self.root._running):
            raise RuntimeError(
                "fit runs on these weights in another thread: a file or a copy made here would hold weights of later"
                " steps than its ledger counts. Save, export or copy them in a callback, ModelCheckpoint say, or after"
                " fit."
            )

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around the writing of a file: no `fit` of another thread begins meanwhile. Raises: `refuse_other_thread`."""
        here = threading.get_ident()
        with _joining:
            self.refuse_other_thread()
            self.root._saving[here] = self.root._saving.get(here, 0) + 1
        try:
            yield
        finally:
            with _joining:
                root = self.root
                root._saving[here] = root._saving.get(here, 1) - 1
                if not root._saving[here]:
                    del root._saving[here]

    def __deepcopy__(self, memo: Any) -> Account:
        copied = Account(self.ledger.copy())
        if self.ledger._state.follows:
            copied.ledger._state.follow()
        copied._unpaid, copied._owed, copied._remarks = self.flagged, self.owed, [*self.remarks]
        return copied


def account_of(weights: Any) -> Account | None:
    """The account that was opened for an object that holds weights; None without one."""
    return getattr(weights, _ATTRIBUTE, None)


def open_account(weights: Any, account: Account) -> None:
    """Lets an object that holds weights (a variable) say who pays for it. Raises: as `Account.join`."""
    earlier = account_of(weights)
    if earlier is None:
        setattr(weights, _ATTRIBUTE, account)
    else:
        account.join([earlier])


def _take_in(ledger: Ledger, other: Ledger) -> None:
    """Takes over what another ledger counted, which, in memory, is a name of this one from then on. Raises: `merge`.

    Nobody charges it meanwhile, and what is in force for it goes on: tokens, and budgets of trainings. What a forked
    process has of a ledger in memory stays that, where the other one is in memory, too: whoever holds it may not charge
    here what the process that made it never sees.
    """
    with other._threads, ledger._threads:
        if not ledger.holds(other):
            ledger._take(other)
        if other._state.follows:
            ledger._state.follow()
        if other._state.forked and not ledger._state.forked and ledger.path is None:
            return
        if other.path is None and type(other) is type(ledger) and not ledger.is_same(other):
            ledger._segments.update(other._segments)
            ledger._kept.update(other._kept)
            other._threads.join(ledger._threads)
            for one in list(other._names):
                ledger._names.add(one)
                one.__dict__ = ledger.__dict__


def _is_kept(ledger: Ledger) -> bool:
    """Whether somebody reads it apart from its models: in a file, or as the ledger of a data set."""
    return ledger.path is not None or ledger.dataset is not None


def _rank(account: Account) -> tuple[bool, bool, bool, bool, int]:
    ledger = account._ledger
    # Of copies of one ledger that which may be charged, or else that which counted most.
    return bool(account._running), _is_kept(ledger), ledger.path is not None, not ledger.is_copy, ledger.steps


def _refuse_some(roots: list[Account]) -> None:
    """Raises as `join` where several accounts cannot all be joined; of two, the join itself does."""
    several = list(dict.fromkeys(roots))
    if len(several) < 3:
        return
    stays = max(several, key=_rank)
    tried = stays._ledger.copy()
    for goes in several:
        if goes is not stays:
            _refuse_two(stays, goes)
            tried._take(goes._ledger)


def _refuse_two(stays: Account, goes: Account) -> None:
    mine, theirs = stays._ledger, goes._ledger
    if any(one.meets(other) for one in stays._running for other in goes._running):
        raise RuntimeError("fit runs on two models that share weights: let one end before the other begins.")
    if mine.is_same(theirs):
        return
    if stays._running and goes._running:
        raise RuntimeError(
            "fit runs on two models that are charged to two ledgers, and weights now come of what both release (they"
            " share these, or run.feeds of both names one generator): these need one ledger. Let one end before the"
            " other begins; or, where none reads the other's weights, second.ledger = first.ledger before they train."
        )
    if not _is_kept(theirs):
        return
    # One that holds nothing yet is somebody's all the same: what its models go on to spend would be missing in it.
    if not mine.counts(theirs) or (mine.uid != theirs.uid and not theirs.entries):
        raise ValueError(
            f"These weights are charged to two ledgers, {mine!r} and {theirs!r}, and models that share weights need"
            " one. Assign the same one to each model before they share: b.ledger = a.ledger."
        )
