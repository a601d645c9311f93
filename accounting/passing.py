"""Values that trainings pass through: which account pays for a copy of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tfdp_layers.accounting.account import Account
from tfdp_layers.caller import warn

__all__ = ["Passing"]

_MOST = 699_050
"""What a dict of 2**20 places takes: 21 MB, and 22 MB of keys."""


class Passing:
    """Accounts by the digests of values, the newest of them: a training has many in each epoch, or step.

    Two dicts, of which the older one goes as the newer one is full. So from `most` to twice as many values are known:
    those that were remembered last. A key is 60 bits of a digest: an integer of 32 bytes. Two values of a million that
    have equal ones, with a chance of 1 in two million, would be charged to one account, of which one cost less.

    Args:
        most: values in each of the two.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._newer: dict[int, Account] = {}
        self._older: dict[int, Account] = {}
        self._turning, self._warned = threading.Lock(), False

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def remember(self, digests: Iterable[bytes], account: Account) -> None:
        """An account pays for values, whatever paid for them before. Warns where others are forgotten, once."""
        lost = False
        for digest in digests:
            key = _key(digest)
            if len(self._newer) >= self._most and key not in self._newer:
                lost |= self._turn()
            self._newer[key] = account
        if lost and not self._warned:
            self._warned = True
            warn(
                f"Trainings of this process went on for over {self._most:,} arrays since code of yours could take the"
                " first of them: copies of early epochs' weights are recognised no longer, and what they cost is in no"
                " ledger of the model that gets them. Count it there: model.ledger.merge(ledger of that training)."
            )

    def account_of(self, digest: bytes) -> Account | None:
        """Who pays for a value; None where it is not known."""
        key = _key(digest)
        # Each dict is looked at by itself: another thread may turn them meanwhile.
        return self._newer.get(key) or self._older.get(key)

    def forget(self, digest: bytes) -> None:
        """No account pays for a value any more."""
        for known in (self._newer, self._older):
            known.pop(_key(digest), None)

    def _turn(self) -> bool:
        """Forgets the older ones; returns whether there were others among them than the newer ones."""
        with self._turning:
            if len(self._newer) < self._most:  # another thread did it
                return False
            older, self._older, self._newer = self._older, self._newer, {}
            return any(key not in self._older for key in older)


def _key(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 4
