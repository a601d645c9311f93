"""A crash between two writes loses nothing that was acknowledged, and leaves a file that can be used."""

import contextlib
import itertools
import json

import pytest

from helpers.ledgers import OTHER, mark_of, spend
from tfdp_layers.accounting import Ledger, LedgerError, history
from tfdp_layers.accounting.storage import LedgerFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


@pytest.mark.slow
def test_every_state_between_two_writes_opens_and_counts_what_was_acknowledged(path, tmp_path):
    """A crash leaves a row whole or in part, the mark of before or of after it: never less, never an unusable file."""
    spend(path, 1)
    ledger = Ledger(path)
    token = ledger.begin(OTHER)
    for steps in (3, 4):
        before, mark = path.read_bytes(), mark_of(path).read_bytes()
        counted = Ledger(path).steps
        ledger.reserve(token, steps)
        after, new_mark = path.read_bytes(), mark_of(path).read_bytes()
        start = len(before) - len(b"\n]}\n")
        assert after[:start] == before[:start]
        assert after.endswith(b"\n]}\n")
        crashed = tmp_path / "crashed.json"
        for cut in range(start, len(after) + 1):
            torn = {
                "cut": after[:cut],
                "zeros": after[:cut] + bytes(len(after) - cut),
                "old block": before[:cut] + after[len(before[:cut]) :],
            }
            for name, data in torn.items():
                crashed.write_bytes(data)
                mark_of(crashed).write_bytes(mark)
                found = Ledger(crashed).steps
                assert found in (counted, counted + steps), (name, cut)
                if name == "cut" and cut == len(after):
                    assert found == counted + steps
        crashed.write_bytes(after)
        mark_of(crashed).write_bytes(new_mark)
        assert Ledger(crashed).steps == counted + steps
        crashed.write_bytes(before)  # The row was acknowledged, and is gone.
        with pytest.raises(LedgerError, match="older copy"):
            Ledger(crashed)


def test_a_torn_row_is_written_over(path):
    spend(path, 2)
    whole = path.read_bytes()
    for torn in (whole[:-4] + b',\n["0123', whole[:-2], whole[:-4] + bytes(90)):
        path.write_bytes(torn)
        assert Ledger(path).steps == 2
    spend(path, 3)
    assert Ledger(path).steps == 5
    json.loads(path.read_text())


def test_a_whole_row_whose_digest_is_wrong_is_no_torn_one(path):
    spend(path, 3)
    text = path.read_text()
    changed = text.replace(", 3, ", ", 2, ")
    assert changed != text
    path.write_text(changed)
    with pytest.raises(LedgerError, match="digest"):
        Ledger(path)
    lines = text.split("\n")
    row = next(i for i, line in enumerate(lines) if ", 2, " in line)
    path.write_text("\n".join([*lines[:row], lines[row][:-9], *lines[row + 1 :]]))  # damage before the last row
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path)


@pytest.mark.parametrize("place", [0, 1])
def test_a_torn_mark_leaves_the_one_before(path, place):
    spend(path, 9)
    data = bytearray(mark_of(path).read_bytes())
    data[4096 * place + 20 : 4096 * place + 60] = bytes(40)
    mark_of(path).write_bytes(data)
    assert Ledger(path).steps == 9
    spend(path, 1)
    assert Ledger(path).steps == 10


NUMBERS = itertools.count()
CHANGES = {
    "row": lambda path: spend(path, 1),
    "whole": lambda path: Ledger(path).set_budget(9.0 + next(NUMBERS), 1e-5),
    "folded": lambda path: spend(path, 12),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_a_crash_between_any_two_writes_leaves_what_the_next_one_goes_on_from(path, monkeypatch, first, second, torn):
    """Text written, mark not yet or in part; then another process goes on, and crashes at the same place."""
    monkeypatch.setattr(history, "_SHORTEST_LOG", 5)
    real, counted = LedgerFile.write_mark, 2
    spend(path, 2)

    def counting(file, start, data):
        left.pop()
        if left:
            return real(file, start, data)
        left.append(data)
        if torn:
            real(file, start, data[:100] + b"x" * 100 + data[200:])
        raise KeyboardInterrupt  # as though killed: what follows it does not run

    for change, writes in ((first, 1), (second, 1), (second, 2), (first, 1), (first, 3)):
        left = [b""] * writes
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(LedgerFile, "write_mark", counting)
            CHANGES[change](path)
        found = Ledger(path).steps
        assert counted <= found <= counted + 12
        counted = found
        assert Ledger.read(path).steps == counted
    spend(path, 3)
    assert Ledger(path).steps == counted + 3


def test_the_mark_is_on_the_disk_before_the_text_that_names_it(path, monkeypatch):
    """Marks reach the disk when the system likes: a machine that crashed would have one that no text names."""
    order = []
    for name in ("sync_mark", "replace", "append"):
        monkeypatch.setattr(LedgerFile, name, noting(order, name, getattr(LedgerFile, name)))
    spend(path, 3)
    Ledger(path).set_budget(9.0, 1e-5)
    assert [name for name in order if name != "append"] == ["sync_mark", "replace"] * 2
    assert order.count("append") >= 2


def noting(order, name, method):
    def noted(*args):
        order.append(name)
        return method(*args)

    return noted


def test_a_mark_that_was_created_and_never_written_claims_nothing(path):
    """As a crash leaves it behind the very first text, or before it; beside later ones see `test_ledger_loss.py`."""
    Ledger(path, dataset="mnist").close()
    first = path.read_bytes()
    for data in (b"", bytes(8192)):
        mark_of(path).write_bytes(data)
        spend(path, 9)
        assert Ledger(path).steps == 9
        path.write_bytes(first)
    path.unlink()
    mark_of(path).write_bytes(b"")
    assert Ledger(path).steps == 0


def test_a_long_log_is_folded_into_the_entries(path):
    spend(path, 2500)
    value = json.loads(path.read_text())
    assert len(value["log"]) < 1100
    assert value["sequence"] > 1000
    assert Ledger(path).steps == 2500
    assert path.stat().st_size < 150_000
