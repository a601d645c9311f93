"""The text of a ledger: JSON that names kinds from an allow-list, read without executing or importing anything.

Format 2: each distinct release once, entries that refer to it by its number, and a log of what was counted since:

    {"format": 2, "uid": UID, "dataset": NAME, "budget": {...}, "sequence": 4, "releases": [
    {...}
    ], "entries": [
    [UID, 0, 3]
    ], "digest": DIGEST, "log": [
    [UID, 0, 5, DIGEST],
    [UID, {...}, 1, DIGEST]
    ]}

A row of the log says how many releases an entry counts from there on; one that is new stands in it itself, and has the
next number. A file holds "secret" and "groupings" (see `grouping`); copies do not. What statements say of trainings
("steered": true), and that a file was "restored", stands there by its kind, see `remarks`; in copies, too. A copy of a
file that names no data set holds "copy_of", a list of that file's name, and of others where it took over copies of
several; and "apart", those of them which lack what was charged to the copy.
`sequence` counts all that was ever written to the file before its log, and is 0 in copies. "after": [3, DIGEST] in a
file is what its mark told of when it was written. Each digest is one of all that stands before it: it tells a changed
digit from a count, but it is no signature.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdp_layers.accounting.budget import Budget
from tfdp_layers.accounting.entries import Entries, Row
from tfdp_layers.accounting.grouping import GROUPING, groupings_known, know_groupings
from tfdp_layers.accounting.identity import Identity, checked_name
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.accounting.remarks import KINDS
from tfdp_layers.accounting.storage import LedgerError

__all__ = ["CLOSING", "Content", "checked_count", "log_row", "read_ledger", "release_text", "write_ledger"]

CLOSING = "\n]}\n"
"""What follows the last row of the log: the next one is written over it."""

_FORMAT = 2
_OPTIONAL = ("dataset", "budget", "secret", "groupings", "copy_of", "apart", "after")
_MOST_STEPS = 2**62
_State = tuple[int, str]
_LOG, _GROUPED = '"log": [', '"grouping":'
_LOG_ROW = re.compile(r'(\["[0-9a-f]{32}", (?:\d+|\{.*\}), \d+, "[0-9a-f]{32}"\]),?')
_HEX = re.compile("[0-9a-f]*")


@dataclass
class Content:
    """What the text of a ledger says.

    Attributes:
        identity, entries: of the ledger.
        sequence: how often the file was written, its log included; 0 for a copy.
        digests: of the text without its log, with the first row of it, and so on; the last one is of all.
        end: where in the file, in bytes, the next row of the log goes; None where the file must be rewritten first.
        after: sequence and digest of the mark that it was written beside; None in copies, and from earlier versions.
    """

    identity: Identity
    entries: Entries
    sequence: int = 0
    digests: list[str] = field(default_factory=lambda: [""])
    end: int | None = None
    after: _State | None = None

    def shows(self, sequence: int, digest: str) -> bool | None:
        """Whether it goes on from the state of this number and digest; None where an earlier version did not say."""
        if 0 <= self.sequence - sequence < len(self.digests):
            return self.digests[sequence - self.sequence - 1] == digest
        return None if self.after is None else self.after == (sequence, digest)


def write_ledger(
    identity: Identity, entries: Entries, sequence: int = 0, after: _State | None = None
) -> tuple[str, str]:
    """Returns the ledger's text with an empty log, and its digest; see `Content` for `sequence` and `after`."""
    head = _head(identity, sequence, groupings_known(identity.uid) if identity.secret else [], after)
    releases = [release_text(row.release) for row in entries.rows]
    numbers = {id(row.release): row.index for row in entries.rows}
    rows = [_row(entry.uid, numbers[id(entry.release)], entry.steps) for entry in entries]
    digest = _digest([json.dumps(head), *releases, *rows])
    lines = [
        f'{json.dumps(head)[:-1]}, "releases": [',
        ",\n".join(releases),
        '], "entries": [',
        ",\n".join(rows),
        f'], "digest": "{digest}", {_LOG}',
    ]
    return "\n".join(lines) + CLOSING, digest


def log_row(uid: str, release: str | int, steps: int, before: str) -> tuple[str, str]:
    """Returns a row of the log and its digest; `before` is the digest of what stands before it.

    Args:
        uid: of the entry.
        release: number of its release, or the release's text where the file does not hold it yet.
        steps: that the entry counts from here on.
        before: digest.
    """
    digest = _digest([before, _row(uid, release, steps)])
    return f'{_row(uid, release, steps)[:-1]}, "{digest}"]', digest


def release_text(release: Any) -> str:
    """The JSON text of a release, or of the JSON value that it was written as: the same for both."""
    value = release if isinstance(release, Mapping) else release.to_json()
    return json.dumps(value, sort_keys=True, allow_nan=False)


def checked_count(name: str, value: Any) -> int:
    """Returns the value as an int. Raises ValueError unless it is an integer of at least 0 that can be added to."""
    if type(value) is int and 0 <= value < _MOST_STEPS:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < _MOST_STEPS:
        raise ValueError(f"{name} must be an integer of at least 0 and below 2^62. Received: {value!r}.")
    return int(value.__index__())


def read_ledger(text: str, path: Path | None) -> Content:
    """Reads what `write_ledger` and `log_row` wrote, or version 0.1.

    In a file (`path` is given) a last row of the log that is not whole is left out: it is of a writer that died, or is
    about to write it, and nothing was released for it yet.

    Raises:
        LedgerError: the text is not a whole, valid ledger, whatever else it is.
    """
    try:
        whole = text
        try:
            value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        except json.JSONDecodeError:
            whole = _without_torn_row(text) if path is not None else ""
            if not whole:
                raise
            value = json.loads(whole, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        content = _read(value)
        if content.identity.secret and _GROUPED in text:
            know_groupings(content.identity.uid, re.findall(f'{_GROUPED} "({GROUPING.pattern})"', text))
        # Earlier versions number releases that are equal now, and do not say which state the file goes on from.
        today = content.after is not None and _GROUPED not in text
        if whole is text and today and _LOG in text and text.endswith(CLOSING):
            content.end = len(text.encode()) - len(CLOSING)
        return content
    except (ValueError, OverflowError, RecursionError) as error:
        raise LedgerError(
            f"{path or 'This text'} is not a ledger that can be trusted: {error}. It was left as it is. Restore it from"
            " a backup, or give another path if it never was a ledger: a new one forgets what was spent, and every"
            " epsilon stated from it would be too small."
        ) from error


def _read(value: Any) -> Content:
    found = value.get("format") if isinstance(value, dict) else value
    if not isinstance(value, dict) or isinstance(found, bool) or found not in (1, _FORMAT):
        raise ValueError(f"its format is {found!r}, and this version reads the formats 1 and {_FORMAT}")
    fields = {"format", "uid", "entries", "digest"}
    fields |= {"sequence", "releases", "log"} if found == _FORMAT else set()
    if set(value) - {*_OPTIONAL, *KINDS} != fields:
        raise ValueError(f"it needs the fields {sorted(fields)}, and has {sorted(value)}")
    for name in fields & {"entries", "releases", "log"}:
        if not isinstance(value[name], list):
            raise ValueError(f"its {name} must be a list")
    content = _read_format_1(value) if found == 1 else _read_format_2(value)
    if len({(row.release.relation, row.release.unit) for row in content.entries.rows}) > 1:
        raise ValueError("its entries mix neighbouring relations")
    groupings = _checked_groupings(value.get("groupings", []))
    know_groupings(content.identity.uid, groupings if content.identity.secret else ())
    return content


def _read_format_2(value: Mapping[str, Any]) -> Content:
    identity, sequence = _identity(value), checked_count("sequence", value["sequence"])
    after = _checked_state(value["after"]) if "after" in value else None
    entries, lines = Entries(), [json.dumps(_head(identity, sequence, value.get("groupings", []), after))]
    releases: list[Row] = []
    for item in value["releases"]:
        _add_release(releases, entries, item)
        lines.append(release_text(item))
    for item in value["entries"]:
        uid, number, steps = _fields(item, 3)
        if uid in entries:
            raise ValueError(f"entry {uid} occurs twice")
        entries.put(uid, _numbered(releases, number), steps)
        lines.append(_row(uid, number, steps))
    digests = [_digest(lines)]
    _require_digest(value["digest"], digests[0])
    for item in value["log"]:
        uid, number, steps, digest = _fields(item, 4)
        if new := isinstance(number, Mapping):
            _add_release(releases, entries, number)
        digests.append(log_row(uid, release_text(number) if new else number, steps, digests[-1])[1])
        _require_digest(digest, digests[-1])
        row, old = releases[-1] if new else _numbered(releases, number), entries.get(uid)
        if old is not None and old.release is not row.release:
            raise ValueError(f"entry {uid} has two releases")
        entries.put(uid, row, steps)
    return Content(identity, entries, sequence + len(digests) - 1, digests, after=after)


def _read_format_1(value: Mapping[str, Any]) -> Content:
    """What version 0.1 wrote: every entry with its release."""
    entries, identity = Entries(), _identity(value)
    releases: dict[str, Row] = {}
    lines = [json.dumps([value["uid"], value.get("dataset"), value.get("budget")], sort_keys=True)]
    for item in value["entries"]:
        if not isinstance(item, dict) or set(item) != {"uid", "steps", "release"}:
            raise ValueError(f"an entry needs uid, steps and release, and is {item!r}")
        uid, text = _checked_hex("a uid", item["uid"]), release_text(item["release"])
        if text not in releases:
            releases[text] = entries.row(release_from_json(item["release"]))
        if uid in entries:
            raise ValueError(f"entry {uid} occurs twice")
        entries.put(uid, releases[text], checked_count("steps", item["steps"]))
        lines.append(f"{uid} {item['steps']} {text}")
    _require_digest(value["digest"], _digest(lines))
    return Content(identity, entries)


def _without_torn_row(text: str) -> str:
    """The text without what follows the last whole row of its log; "" where anything but one torn row follows."""
    head, log, tail = text.partition(_LOG)
    rows, lines = [], [line for line in tail.split("\n") if line]
    while lines:
        line = lines.pop(0)
        if found := _LOG_ROW.match(line):
            rows.append(found[1])
        if found is None or found[0] != line:
            break
    if not log or any(map(_LOG_ROW.match, lines)):
        return ""
    return head + log + "\n" + ",\n".join(rows) + CLOSING


def _head(identity: Identity, sequence: int, groupings: list[str], after: _State | None) -> dict[str, Any]:
    head: dict[str, Any] = {"format": _FORMAT, "uid": identity.uid}
    if identity.dataset is not None:
        head["dataset"] = identity.dataset
    if identity.budget is not None:
        head["budget"] = identity.budget.to_json()
    if identity.secret:
        head["secret"] = identity.secret
    if groupings:
        head["groupings"] = groupings
    if identity.copy_of and identity.dataset is None:
        head["copy_of"] = sorted(identity.copy_of)
    if identity.apart and identity.dataset is None:
        head["apart"] = sorted(identity.apart)
    noted = {kind: True for kind in KINDS if kind in identity.noted}
    return head | noted | {"sequence": sequence} | ({} if after is None else {"after": after})


def _identity(value: Mapping[str, Any]) -> Identity:
    if "budget" in value and "dataset" not in value:
        raise ValueError("it has a budget and names no data set")
    return Identity(
        _checked_hex("a uid", value["uid"]),
        checked_name(value["dataset"]) if "dataset" in value else None,
        Budget.from_json(value["budget"]) if "budget" in value else None,
        _checked_hex("its secret", value["secret"], 64) if "secret" in value else "",
        frozenset(kind for kind in KINDS if _checked_flag(value, kind)),
        _checked_files(value, "copy_of"),
        _checked_files(value, "apart"),
    )


def _row(uid: str, release: str | int, steps: int) -> str:
    return f'["{uid}", {release}, {steps}]'


def _fields(item: Any, length: int) -> Any:
    """The fields of a row of entries (3) or of the log (4), of the right types."""
    if not isinstance(item, list) or len(item) != length:
        raise ValueError(f"a row of it needs {length} fields, and is {item!r}")
    _checked_hex("a uid", item[0])
    checked_count("steps", item[2])
    return item


def _numbered(releases: list[Row], number: Any) -> Row:
    if type(number) is not int or not 0 <= number < len(releases):
        raise ValueError(f"an entry refers to release {number!r} of {len(releases)}")
    return releases[number]


def _add_release(releases: list[Row], entries: Entries, value: Any) -> None:
    before, row = len(entries.rows), entries.row(release_from_json(value))
    if len(entries.rows) == before and _GROUPED not in release_text(value):
        raise ValueError("it lists one release twice")
    releases.append(row)


def _require_digest(given: Any, found: str) -> None:
    if given != found:
        raise ValueError("its digest is not that of its content: something in it was changed after it was written")


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal names json keeps the last: a file that says two things is no ledger.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it names a field twice: {[name for name, _ in pairs]}")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number")


def _checked_flag(value: Mapping[str, Any], name: str) -> bool:
    if value.get(name, True) is not True:
        raise ValueError(f"{name} is true, or left out")
    return name in value


def _checked_files(value: Mapping[str, Any], field: str) -> frozenset[str]:
    names = value.get(field, [])
    if not isinstance(names, list) or not all(isinstance(one, str) and one and Path(one).name == one for one in names):
        raise ValueError(f"{field} must be a list of the names of files, and is {names!r}")
    return frozenset(names)


def _checked_groupings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and GROUPING.fullmatch(one) for one in value):
        raise ValueError("its groupings must be a list of what grouping_of gives")
    return value


def _checked_state(value: Any) -> _State:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise ValueError(f"after must be a number and a digest, and is {value!r}")
    return checked_count("after", value[0]), value[1]


def _checked_hex(name: str, value: Any, digits: int = 32) -> str:
    if not isinstance(value, str) or len(value) != digits or not _HEX.fullmatch(value):
        raise ValueError(f"{name} must be {digits} hexadecimal digits")
    return value
