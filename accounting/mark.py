"""The mark beside a ledger's file: how far it had come, so that an older copy of it is known as one."""

import hashlib
import json
from dataclasses import astuple, dataclass
from pathlib import Path

from tfdp_layers.accounting.ledger_format import Content
from tfdp_layers.accounting.storage import LedgerError

__all__ = ["SLOT", "Mark", "read_mark", "refuse_loss"]

SLOT = 4096
"""Bytes of each of the two places that marks are written to in turn: a torn one leaves the other whole."""

_LINE = 256
_FIX = (
    "Put the newest copy back, with its mark. If there is none, Ledger(path, restored=True) goes on from what is there:"
    " a decision of whoever answers for the data, since every epsilon stated from it is then too small by what is"
    " missing, and statements say so. Afterwards merge every newer copy, such as the one in a saved model:"
    " ledger.merge(model.ledger)."
)


@dataclass(frozen=True)
class Mark:
    """What a ledger's file had come to.

    Attributes:
        uid: of the ledger.
        sequence: how often it had been written; 0 says nothing.
        digest: the last one in it.
        entry: None; in a mark of an earlier version the entry that was changed last, or "" for none.
        steps: of all its entries.
    """

    uid: str = ""
    sequence: int = 0
    digest: str = ""
    entry: str | None = None
    steps: int = 0

    @property
    def state(self) -> tuple[int, str]:
        """What a text that is written beside it names."""
        return self.sequence, self.digest

    @property
    def place(self) -> int:
        """Where in the file it goes."""
        return self.sequence % 2 * SLOT

    def line(self) -> bytes:
        """Its bytes: a line of constant length."""
        text = json.dumps(astuple(self))
        return f"{text[:-1]}, {json.dumps(_check(text))}]".ljust(_LINE - 1).encode() + b"\n"

    def whole_file(self) -> bytes:
        """The bytes of a file that holds this mark alone."""
        slots = [b" " * (SLOT - 1) + b"\n", b" " * (SLOT - 1) + b"\n"]
        slots[self.sequence % 2] = self.line() + b" " * (SLOT - _LINE - 1) + b"\n"
        return b"".join(slots)


def read_mark(data: bytes, path: Path) -> Mark:
    """The newest mark in a file's bytes; one that says nothing where it was created and never written.

    Raises:
        LedgerError: the bytes are something else; `path`, of the ledger, is named in the message.
    """
    found = [mark for mark in map(_mark, (data[:SLOT], data[SLOT:])) if mark is not None]
    if not found and data.strip(b" \n\0"):
        raise LedgerError(f"The mark of the ledger {path} ({path.name}.mark) is damaged. {_FIX}")
    return max(found, key=lambda mark: mark.sequence, default=Mark())


def refuse_loss(mark: Mark | None, content: Content | None, path: Path) -> None:
    """Raises LedgerError where the mark shows that a ledger's file lacks something that was counted.

    Args:
        mark: None where there is no file of it.
        content: of the ledger; None where there is no file of it.
        path: of the ledger.
    """
    if mark is None or not mark.sequence:
        if content is not None and content.sequence and not (mark is not None and _before_any(content)):
            raise LedgerError(
                f"The mark of the ledger {path} is missing, or empty ({path.name}.mark, which belongs beside it):"
                f" whether this is the newest copy cannot be told. {_FIX}"
            )
    elif content is None:
        raise LedgerError(
            f"The ledger {path} is missing: its mark says that it counted {mark.steps} releases. A new one would forget"
            f" them: of other records (made-up ones, say) give it another name. {_FIX}"
        )
    else:
        _refuse_older(mark, content, path)


def _before_any(content: Content) -> bool:
    """Whether a ledger was written before any mark was, as a crash between the two leaves it beside an empty one."""
    if content.after is None:  # by an earlier version
        return content.sequence <= 1
    return content.after == Mark().state and len(content.digests) == 1


def _refuse_older(mark: Mark, content: Content, path: Path) -> None:
    if content.identity.uid != mark.uid and content.sequence:
        raise LedgerError(
            f"{path} was replaced by another ledger: its mark is of one that counted {mark.steps} releases. {_FIX}"
        )
    found = f"{path} counts {content.entries.steps} releases"
    if content.sequence < mark.sequence:
        raise LedgerError(
            f"{found}, and its mark says that it had counted {mark.steps} (written {mark.sequence} times; this copy"
            f" {content.sequence} times): an older copy was put in its place. {_FIX}"
        )
    shown = content.shows(mark.sequence, mark.digest)
    if shown is None and mark.entry is not None:  # An earlier version wrote both: it can only be asked for one entry.
        shown = not mark.entry or mark.entry in content.entries
    if not shown:
        raise LedgerError(
            f"{found}, and does not go on from the state that its mark tells of, of {mark.steps} releases: a copy that"
            f" went on elsewhere was put in its place, or the newest one without its mark. {_FIX}"
        )


def _mark(slot: bytes) -> Mark | None:
    """The mark in one place; None for a torn one or none."""
    try:
        uid, sequence, digest, entry, steps, check = json.loads(slot[:_LINE].decode("ascii"))
        mark = Mark(uid, sequence, digest, entry, steps)
        whole = check == _check(json.dumps(astuple(mark)))
    except (ValueError, TypeError, RecursionError):
        return None
    return mark if whole and type(sequence) is int else None


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
