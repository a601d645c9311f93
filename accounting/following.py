"""The ledger of a worker that is not the chief: a copy of the chief's, which counts with it what is released."""

import json
from collections.abc import Callable

from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.elsewhere import follow_chief, follow_entries
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.ledger_format import release_text
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.accounting.segment import Segment
from tfdp_layers.accounting.view import state_of

__all__ = [
    "Books",
    "Following",
    "copy_of_chiefs",
    "entry_before",
    "follow",
    "following",
    "opening_of",
    "releases_of",
]


def follow(ledger: Ledger) -> Ledger:
    """Makes a ledger the copy of a worker that is not the chief, until its process ends, and returns it.

    Guarantee: nothing is charged to it, nor to what it is joined with, nor to any other ledger of the process that
    holds an entry of it; a training counts in it by `Following` alone.
    """
    ledger._state.follow()
    return ledger


def copy_of_chiefs(text: str) -> Ledger:
    """The worker's copy of the ledger that the chief sent. Raises LedgerError for a text that is none."""
    ledger = Ledger.from_json(text)
    follow_chief(ledger.uid)
    return follow(ledger)


def following(ledger: Ledger, held: Ledger) -> Ledger:
    """What such a worker goes on with in the place of a ledger that it was given: of a file a copy in memory.

    The given one may not be charged there any more, either: it stands for the chief's.

    Args:
        held: its copy of the chief's so far.

    Raises: LedgerError where the given one counts what this worker itself released; it stays as it was then.
    """
    state_of(held).refuse_own(state_of(ledger))
    follow(ledger)
    return ledger if ledger.path is None else follow(ledger.copy())


def releases_of(ledger: Ledger, entry: str) -> int:
    """How many releases an entry of a ledger counts; 0 where there is none of this name."""
    found = state_of(ledger).entries.get(entry)
    return 0 if found is None else found.steps


def entry_before(ledger: Ledger, token: str) -> tuple[str, int]:
    """The name of the entry that counts a training, and how many releases it counts already."""
    entry = ledger._known(token).entry
    return entry, releases_of(ledger, entry)


def opening_of(ledger: Ledger, token: str) -> str:
    """As text, for `Following`: which entry of the chief's ledger counts a training, and what of."""
    segment = ledger._known(token)
    return json.dumps([segment.entry, release_text(segment.release)])


class Following:
    """Counts in a worker's copy what the chief reserved for both, in the very entry in which its own ledger does.

    Guarantee: between `reserve` and `settle`, and where no `settle` follows, the copy counts all that was reserved; a
    merge of the two ledgers is exact, since the larger count of one entry holds what either of them counted.

    Attributes: `begun`, the name of that entry, and how many releases it counted before.

    Args:
        ledger: the copy.
        opening: what `opening_of` gave on the chief.
    """

    def __init__(self, ledger: Ledger, opening: str) -> None:
        entry, text = json.loads(opening)
        self._ledger, self._segment = ledger, Segment("", release_from_json(json.loads(text)), entry)
        self.begun: tuple[str, int] = entry, releases_of(ledger, entry)
        follow_entries([entry])

    def reserve(self, steps: int) -> None:
        """Counts so many further releases, before they are made: in memory alone."""
        self._segment.outstanding += steps
        self._add(steps)

    def settle(self, made: int) -> None:
        """Replaces what is outstanding by the releases made."""
        unused, self._segment.outstanding = self._segment.outstanding - made, 0
        self._add(-unused)

    def take(self, text: str, outstanding: int) -> None:
        """Takes over what the chief's ledger holds by now, which the copy lacks.

        Args:
            text: of that ledger.
            outstanding: how many releases of this training it counts that are reserved, and not settled.

        Raises: LedgerError for a text that is none; what `Ledger.merge` raises.
        """
        told, name = copy_of_chiefs(text), self._segment.entry
        with self._ledger._threads:
            mine = releases_of(self._ledger, name) - self._segment.outstanding
            settled = max(mine, releases_of(told, name) - outstanding)
            self._ledger._take(told)
            self._add(settled + self._segment.outstanding - releases_of(self._ledger, name))

    def _add(self, steps: int) -> None:
        with self._ledger._threads:
            entries, name = self._ledger._state.entries, self._segment.entry
            if steps:
                entries.put(name, self._segment.row(entries), releases_of(self._ledger, name) + steps)


class Books:
    """What a training's weights cost, and what is to be said of them: the chief's, which the other workers follow.

    Guarantee: who `learn`s each text that `news` returns, before it takes what the chief gives it, holds a ledger that
    counts all that the chief's counts, and says what that says: but for other ledgers of the chief's process that were
    given the same records, of which each process knows its own.

    Args:
        account: of this worker's model.
        token: of the training in the chief's ledger; None on the others.
        following: what counts it in their copies; None on the chief.
        beside: how many releases of others the training's own entry counts: of an equal training in a hook, say.
    """

    def __init__(
        self,
        account: Account,
        token: str | None = None,
        following: Following | None = None,
        beside: Callable[[], int] = int,
    ) -> None:
        self._account, self._token, self._following, self._beside = account, token, following, beside
        self._told: object = None

    @property
    def ledger(self) -> Ledger:
        """This worker's."""
        return self._account.ledger

    def news(self) -> str:
        """What changed since the last call beside the training's own releases, as text; "" where nothing did.

        Without news it takes microseconds.
        """
        if self._token is None:
            return ""
        ledger, account = self.ledger, self._account
        segment, state = ledger._segments[self._token], ledger._state
        beside = self._beside() - segment.outstanding
        remarks, unpaid = [*account.remarks], account.unpaid
        now = (state.entries.changes(but=segment.entry), beside, state.identity.noted, remarks, unpaid)
        if now == self._told:
            return ""
        self._told = now
        return json.dumps([ledger.to_json(), segment.outstanding, remarks, unpaid])

    def learn(self, text: str) -> None:
        """Takes over what the chief's `news` said. Raises: as `Following.take`."""
        if self._following is None:
            return
        ledger, outstanding, remarks, unpaid = json.loads(text)
        self._following.take(ledger, outstanding)
        for sentence in remarks:
            self._account.remark(sentence)
        self._account.unpaid |= unpaid
