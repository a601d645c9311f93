"""What was counted does not get lost unseen: older copies put back, and files deleted or exchanged."""

import json
import shutil
import warnings

import pytest

from helpers.accounting_tools import ledger_of, release_of, sealed
from helpers.ledgers import OTHER, STEP, mark_of, spend
from tfdp_layers.accounting import Ledger, LedgerError, Statement, ledger_format
from tfdp_layers.accounting.remarks import RESTORED, told


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


# Copies put back ------------------------------------------------------------------------------------------------------


def test_an_older_copy_put_back_is_refused_and_says_what_to_do(path, tmp_path):
    spend(path, 1)
    shutil.copy(path, tmp_path / "backup")
    spend(path, 8)
    newest = path.read_bytes()
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(LedgerError, match=r"counts 1 releases.*had counted 9.*older copy.*Put .*back.*restored=True"):
        Ledger(path)
    path.write_bytes(newest)
    assert Ledger(path).steps == 9


def test_a_deleted_ledger_is_no_fresh_budget(path):
    spend(path, 9)
    path.unlink()
    for options in ({}, {"dataset": "mnist", "budget": (1.0, 1e-5)}):
        with pytest.raises(LedgerError, match=r"is missing.*counted 9 releases.*restored=True"):
            Ledger(path, **options)
    assert not path.exists()


def test_a_deleted_mark_is_noticed(path):
    spend(path, 9)
    mark_of(path).unlink()
    with pytest.raises(LedgerError, match=r"mark.*is missing.*restored=True"):
        Ledger(path)
    assert Ledger.read(path).steps == 9  # A copy may be looked at, wherever it lies.


@pytest.mark.parametrize("left", [b"", b"\0" * 8192, b" " * 100], ids=["empty", "zeros", "blank"])
@pytest.mark.parametrize("releases", [1, 5, 1500])
def test_an_empty_mark_is_a_missing_one(path, tmp_path, left, releases):
    """A full disk leaves it: a first write that failed, or a copy of both files that did."""
    spend(path, releases)
    backup = shutil.copy(path, tmp_path / "backup.json")
    spend(path, 200)
    shutil.copy(backup, path)
    mark_of(path).write_bytes(left)
    with pytest.raises(LedgerError, match="missing, or empty"):
        Ledger(path)
    assert Ledger(path, restored=True).steps == releases


def test_a_text_that_a_crash_left_without_any_mark_goes_on(path):
    Ledger(path, dataset="mnist").close()
    mark_of(path).write_bytes(b"")
    for _ in range(3):
        spend(path, 2)
    assert Ledger(path).steps == 6


def test_another_ledger_in_its_place_is_refused(path, tmp_path):
    spend(path, 9)
    spend(tmp_path / "other.json", 20)
    shutil.copy(tmp_path / "other.json", path)
    with pytest.raises(LedgerError, match=r"replaced by another ledger.*counted 9"):
        Ledger(path)


def test_a_newer_copy_beside_an_older_mark_loses_nothing(path, tmp_path):
    spend(path, 2)
    shutil.copy(mark_of(path), tmp_path / "mark")
    spend(path, 3)
    shutil.copy(tmp_path / "mark", mark_of(path))
    assert Ledger(path).steps == 5


def test_a_decision_goes_on_from_a_backup_and_merging_gives_back_what_a_copy_knows(path, tmp_path):
    spend(path, 1)
    shutil.copy(path, tmp_path / "backup")
    spend(path, 7)
    saved = Ledger(path).copy()  # in a model file, say
    spend(path, 1)
    shutil.copy(tmp_path / "backup", path)
    with pytest.warns(UserWarning, match=r"restored=True goes on.*counts 1 releases.*had counted 9"):
        restored = Ledger(path, restored=True)
    assert restored.steps == 1
    restored.merge(saved)
    assert Ledger(path).steps == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Ledger(path, restored=True).steps == 8  # Nothing is missing: it changes nothing.


def notes_of(ledger):
    return Statement.from_ledger(ledger, 1e-5).notes


def restored_from_a_backup(path):
    spend(path, 4)
    backup = path.read_bytes()
    before = Ledger(path).copy()
    spend(path, 8)
    path.write_bytes(backup)
    with pytest.warns(UserWarning, match=r"counts 4 releases.*had counted 12"):
        Ledger(path, restored=True).close()
    return before


WAYS = {
    "the file, opened again": Ledger,
    "a look at the file": Ledger.read,
    "a copy": lambda path: Ledger(path).copy(),
    "a text": lambda path: Ledger.from_json(Ledger(path).to_json()),
    "a file that moved": lambda path: Ledger.read(shutil.copy(path, path.with_name("moved.json"))),
    "what took it over": lambda path: merged(ledger_of(STEP, 1), Ledger.read(path)),
    "the file, written on": lambda path: (spend(path, 2), Ledger(path))[1],
    "the file, merged with what a copy knows": lambda path: merged(Ledger(path), ledger_of(STEP, 8)),
}


def merged(ledger, other):
    ledger.merge(other)
    return ledger


@pytest.mark.few(8)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_file_is_known_to_lack_is_said_in_every_statement_from_then_on(way, path):
    """The mark said 12 and the file had 4: the day after, nobody saw that 8 were missing."""
    before = restored_from_a_backup(path)
    assert notes_of(before) == ()
    assert notes_of(WAYS[way](path)) == told([RESTORED])


def test_a_file_that_an_earlier_version_restored_says_so(path):
    """It wrote the word in front of the kinds of remarks, in no copy, and said nothing."""
    ledger = ledger_of(STEP, 4)
    lines = ledger.to_json().split("\n")
    head = json.loads(lines[0].rsplit(', "releases"', 1)[0] + "}")
    rest = {name: value for name, value in head.items() if name != "sequence"}
    head = rest | {"secret": "0" * 64, "restored": True, "steered": True, "sequence": 2}
    digest = ledger_format._digest([json.dumps(head), lines[1], lines[3]])
    lines[0] = f'{json.dumps(head)[:-1]}, "releases": ['
    lines[4] = f'], "digest": "{digest}", "log": ['
    path.write_text("\n".join(lines))
    assert notes_of(Ledger.read(path)) == told([RESTORED, "steered"])
    assert Ledger.read(path).steps == 4


@pytest.mark.parametrize("named", [{}, {"dataset": "people"}])
def test_where_nothing_is_missing_statements_say_nothing_of_it(named, path):
    """In a script that asks for it each time, too, and where the file has not been there yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            ledger = Ledger(path, restored=True, **named)
            ledger.settle(ledger.begin(STEP), 3)
            assert notes_of(ledger) == ()
            ledger.close()
    assert '"restored"' not in path.read_text()


@pytest.mark.parametrize("left", ["ledger", "mark", "damaged mark"])
def test_a_decision_goes_on_from_what_is_there(path, left):
    spend(path, 9)
    if left == "damaged mark":
        mark_of(path).write_text("no mark at all")
    else:
        (mark_of(path) if left == "ledger" else path).unlink()
    with pytest.raises(LedgerError, match=r"restored=True"):
        Ledger(path)
    with pytest.warns(UserWarning, match="restored=True"):
        restored = Ledger(path, restored=True)
    was = restored.steps
    assert RESTORED in Ledger(path).noted
    assert was == (0 if left == "mark" else 9)
    spend(path, 2)
    assert Ledger(path).steps == restored.steps == was + 2


def test_a_decision_does_not_make_a_damaged_ledger_whole(path):
    spend(path, 9)
    path.write_text(path.read_text()[:100])
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path, restored=True)


def test_a_stored_copy_that_is_ahead_of_the_file_wins(path, tmp_path):
    """Both files rolled back together: what a model file still knows is counted again."""
    spend(path, 1)
    for name in (path, mark_of(path)):
        shutil.copy(name, tmp_path / ("old" + name.suffix))
    spend(path, 8)
    stored = Ledger.from_json(Ledger(path).to_json())
    for name in (path, mark_of(path)):
        shutil.copy(tmp_path / ("old" + name.suffix), name)
    ledger = Ledger(path)
    assert ledger.steps == 1  # The assumption of docs/guarantee.md: nothing beside them tells.
    ledger.merge(stored)
    assert Ledger(path).steps == 9


# While it is open -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["old by copy", "old by rename", "deleted", "mark deleted", "closed and deleted"])
def test_an_open_ledger_gives_back_what_was_taken_from_its_file(path, tmp_path, harm):
    spend(path, 1)
    old = shutil.copy(path, tmp_path / "old")
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    ledger.reserve(token, 5)
    if harm == "old by copy":
        shutil.copy(old, path)
    elif harm == "old by rename":
        shutil.move(old, path)
    elif harm == "mark deleted":
        mark_of(path).unlink()
    else:
        if harm == "closed and deleted":
            ledger.close()
        path.unlink()
    ledger.reserve(token, 5)
    ledger.close()
    assert Ledger(path).steps == ledger.steps == 11


def test_an_open_ledger_refuses_another_one_in_its_place(path, tmp_path):
    spend(path, 1)
    spend(tmp_path / "other.json", 9)
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    ledger.reserve(token, 5)
    shutil.copy(tmp_path / "other.json", path)
    for _ in range(2):  # and goes on refusing
        with pytest.raises(LedgerError, match="replaced by another ledger"):
            ledger.reserve(token, 5)
    assert path.read_bytes() == (tmp_path / "other.json").read_bytes()


def test_a_ledger_that_was_given_to_another_data_set_is_refused_again_and_again(path):
    Ledger(path).merge(Ledger())
    cifar = path.with_name("cifar.json")
    shutil.copy(path, cifar)
    Ledger(path, dataset="mnist")
    with pytest.warns(UserWarning, match="mark"):
        Ledger(cifar, dataset="cifar", restored=True)
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    shutil.copy(cifar, path)
    shutil.copy(mark_of(cifar), mark_of(path))
    for _ in range(3):
        with pytest.raises(LedgerError, match="data set 'cifar'"):
            ledger.reserve(token, 1)
    assert path.read_bytes() == cifar.read_bytes()


def test_a_merge_that_is_refused_changes_nothing(path):
    spend(path, 2)
    ours = Ledger(path)
    forged = json.loads(ledger_of(OTHER, 9).to_json())
    forged["entries"] = [["0" * 32, 0, 9], [ours.entries[0].uid, 0, 9]]
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="two different releases"):
        ours.merge(Ledger.from_json(json.dumps(sealed(forged))))
    assert ours.steps == 2
    assert path.read_bytes() == before
    ours.merge(ledger_of(STEP, 3))
    assert Ledger(path).steps == 5


def test_a_relation_that_came_in_with_another_writer_is_not_mixed(path):
    """The token was valid when it began: the file was empty."""
    from tfdp_layers.sampling import FixedSize

    ledger = Ledger(path)
    token = ledger.begin(release_of(FixedSize(600), 1.0))
    spend(path, 3)
    with pytest.raises(ValueError, match="new ledger"):
        ledger.reserve(token, 1)
    assert Ledger(path).steps == 3
