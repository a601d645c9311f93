"""The text of a ledger: JSON that names kinds from an allow-list, read without executing or importing anything."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.events import AnyRelease, release_from_json
from tfdp_layers.accounting.identity import Identity, checked_name
from tfdp_layers.accounting.storage import LedgerError

__all__ = ["Entry", "checked_count", "read_ledger", "release_text", "write_ledger"]

_FORMAT = 1
_MOST_STEPS = 2**62


@dataclass(frozen=True)
class Entry:
    """Consecutive updates of one release.

    Attributes:
      release: what each update released.
      steps: updates made or reserved.
      uid: names this counter; only the ledger object that opened an entry ever adds to it.
    """

    release: AnyRelease
    steps: int
    uid: str

    @property
    def charges(self) -> int:
        """How many of the release's events the updates cost."""
        return self.release.charges(self.steps)


def write_ledger(identity: Identity, entries: Mapping[str, Entry], text_of: Callable[[Entry], str]) -> str:
    """Returns the ledger's JSON text, one entry a line; `text_of` gives `release_text` of an entry's release.

    A digest tells a changed digit from a count: it is no signature, and stops accidents only.
    """
    head = f'"format": {_FORMAT}, "uid": "{identity.uid}"'
    if identity.dataset is not None:
        head += f', "dataset": {json.dumps(identity.dataset)}'
    if identity.budget is not None:
        head += f', "budget": {json.dumps(identity.budget.to_json())}'
    rows = [(e.uid, e.steps, text_of(e)) for e in entries.values()]
    budget = None if identity.budget is None else identity.budget.to_json()
    digest = _digest([identity.uid, identity.dataset, budget], rows)
    lines = [f'{{"uid": "{uid}", "steps": {steps}, "release": {text}}}' for uid, steps, text in rows]
    return f'{{{head}, "entries": [\n' + ",\n".join(lines) + f'\n], "digest": "{digest}"}}\n'


def release_text(release: Any) -> str:
    """The JSON text of a release, or of the JSON value that it was written as: the same for both."""
    value = release if isinstance(release, Mapping) else release.to_json()
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _digest(head: Any, rows: Iterable[tuple[str, Any, str]]) -> str:
    lines = [json.dumps(head, sort_keys=True), *(f"{uid} {steps} {text}" for uid, steps, text in rows)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def read_ledger(text: str, path: Path | None) -> tuple[Identity, dict[str, Entry]]:
    """Reads what `write_ledger` wrote; `path` is named in errors.

    Raises:
      LedgerError: the text is not a whole, valid ledger of this format, whatever else it is.
    """
    try:
        return _read(text)
    except (ValueError, OverflowError, RecursionError) as error:
        raise LedgerError(
            f"{path or 'This text'} is not a ledger that can be trusted: {error}. It was left as it is. Restore it from"
            " a backup; a new ledger forgets what was spent, and every epsilon stated from it would be too small."
        ) from error


def checked_count(name: str, value: Any) -> int:
    """Returns the value as an int. Raises ValueError unless it is an integer of at least 0 that can be added to."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < _MOST_STEPS:
        raise ValueError(f"{name} must be an integer of at least 0 and below 2^62. Received: {value!r}.")
    return int(value.__index__())


def _read(text: str) -> tuple[Identity, dict[str, Entry]]:
    value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    if not isinstance(value, dict) or value.get("format") != _FORMAT or isinstance(value["format"], bool):
        received = value.get("format") if isinstance(value, dict) else value
        raise ValueError(f"its format is {received!r}, and this version reads format {_FORMAT}")
    optional = {"dataset", "budget", "digest"} & set(value)
    if set(value) - optional != {"format", "uid", "entries"} or not isinstance(value["entries"], list):
        raise ValueError(f"it needs the fields format, uid and entries (a list), and has {sorted(value)}")
    entries: dict[str, Entry] = {}
    for item in value["entries"]:
        if not isinstance(item, dict) or set(item) != {"uid", "steps", "release"}:
            raise ValueError(f"an entry needs uid, steps and release, and is {item!r}")
        uid = _checked_uid(item["uid"])
        if uid in entries:
            raise ValueError(f"entry {uid} occurs twice")
        entries[uid] = Entry(release_from_json(item["release"]), checked_count("steps", item["steps"]), uid)
    if len({(entry.release.relation, entry.release.unit) for entry in entries.values()}) > 1:
        raise ValueError("its entries mix neighbouring relations")
    identity = _identity(value)
    rows = [(item["uid"], item["steps"], release_text(item["release"])) for item in value["entries"]]
    found = _digest([value["uid"], value.get("dataset"), value.get("budget")], rows)
    if value.get("digest", found) != found:
        raise ValueError("its digest is not that of its content: something in it was changed after it was written")
    return identity, entries


def _identity(value: Mapping[str, Any]) -> Identity:
    if "budget" in value and "dataset" not in value:
        raise ValueError("it has a budget and names no data set")
    return Identity(
        _checked_uid(value["uid"]),
        checked_name(value["dataset"]) if "dataset" in value else None,
        Budget.from_json(value["budget"]) if "budget" in value else None,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal names json keeps the last: a file that says two things is no ledger.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it names a field twice: {[name for name, _ in pairs]}")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number")


def _checked_uid(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"a uid must be 32 hexadecimal digits, and is {value!r}")
    return value
