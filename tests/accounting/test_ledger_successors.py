"""A file that cannot show the state that its mark tells of is no successor of it: copies that went on elsewhere."""

import json
import shutil

import pytest

from helpers.accounting_tools import ledger_of, sealed
from helpers.ledgers import STEP, mark_of, spend
from tfdp_layers.accounting import Ledger, LedgerError, history
from tfdp_layers.accounting.mark import Mark


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_copy_that_went_on_elsewhere_is_refused(path, tmp_path, compacted):
    """It is written more often than the mark says, but lacks what was counted here since it was copied."""
    spend(path, 2)
    elsewhere = tmp_path / "elsewhere.json"
    for name in (path, mark_of(path)):
        shutil.copy(name, elsewhere.with_name(name.name.replace("ledger.json", "elsewhere.json")))
    spend(path, 3)
    spend(elsewhere, 20)
    if compacted:
        Ledger(elsewhere).set_budget(9.0, 1e-5)
    shutil.copy(elsewhere, path)
    with pytest.raises(LedgerError, match="went on elsewhere"):
        Ledger(path)


def rewritten_long(path):
    spend(path, 40)


def rewritten_by_a_note(path):
    spend(path, 40)
    ledger = Ledger(path)
    ledger._state.note(["steered"])
    ledger.close()


def rewritten_by_a_merge(path):
    spend(path, 40)
    other = ledger_of(STEP, 1)
    other.merge(ledger_of(STEP, 1))
    Ledger(path).merge(other)


def rewritten_once_restored(path):
    mark_of(path).unlink()
    with pytest.warns(UserWarning, match="mark"):
        Ledger(path, restored=True).close()
    spend(path, 40)


def went_on_in_its_entry(path, ledger, token):
    for _ in range(9):
        ledger.reserve(token, 1)
    ledger.close()


def went_on_and_was_rewritten(path, ledger, token):
    spend(path, 9)
    Ledger(path).set_budget(9.0, 1e-5)


def went_on_and_crashed_before_the_mark(path, ledger, token):
    spend(path, 8)
    mark = mark_of(path).read_bytes()
    spend(path, 1)
    mark_of(path).write_bytes(mark)


ELSEWHERE = [rewritten_long, rewritten_by_a_note, rewritten_by_a_merge, rewritten_once_restored]
HERE = [went_on_in_its_entry, went_on_and_was_rewritten, went_on_and_crashed_before_the_mark]


@pytest.mark.few(12)
@pytest.mark.parametrize("here", HERE)
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_a_text_that_no_longer_shows_what_the_mark_tells_of_is_no_successor(
    path, tmp_path, monkeypatch, elsewhere, here
):
    """Rewritten whole elsewhere, and written more often than here: 12.6 was stated of 18.6, and 21.8 spent of 17."""
    monkeypatch.setattr(history, "_SHORTEST_LOG", 10)
    ledger = Ledger(path, dataset="mnist")
    token = ledger.begin(STEP)
    ledger.reserve(token, 2)
    ledger.close()
    (tmp_path / "laptop").mkdir()
    laptop = tmp_path / "laptop" / path.name
    for name in (path, mark_of(path)):
        shutil.copy(name, laptop.parent)
    here(path, ledger, token)
    elsewhere(laptop)
    counted, mark = Ledger(path).steps, mark_of(path).read_bytes()
    shutil.copy(laptop, path)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"does not go on.*went on elsewhere.*Put the newest copy back, with its"):
            Ledger(path)
    assert (counted, mark_of(path).read_bytes()) == (11, mark)
    shutil.copy(mark_of(laptop), mark_of(path))  # both together: an assumption of docs/guarantee.md
    assert Ledger(path).steps == Ledger(laptop).steps


@pytest.mark.parametrize("write", [lambda path: spend(path, 1), lambda path: Ledger(path).set_budget(9.0, 1e-5)])
def test_a_copy_that_goes_on_from_the_mark_is_its_successor(path, tmp_path, write):
    """Trained on and rewritten elsewhere, while nothing happened here: the text alone may come back."""
    spend(path, 3)
    for name in (path, mark_of(path)):
        shutil.copy(name, tmp_path / name.name.replace("ledger.json", "elsewhere.json"))
    write(tmp_path / "elsewhere.json")
    shutil.copy(tmp_path / "elsewhere.json", path)
    steps = Ledger(path).steps
    spend(path, 2)
    assert Ledger(path).steps == steps + 2


def test_files_of_earlier_versions_open_and_the_next_write_makes_them_new_ones(path):
    """Their texts name no state that they go on from: beside a mark of today that is no proof."""
    spend(path, 3)
    old = json.loads(path.read_text())
    del old["after"]
    old = sealed(old | {"log": [row[:3] for row in old["log"]], "sequence": old["sequence"] + 5})
    path.write_text(json.dumps(old))
    uid = old["log"][0][0]
    mark_of(path).write_bytes(Mark(old["uid"], old["sequence"] - 3, "0" * 32, uid, 2).whole_file())
    assert Ledger(path).steps == 3  # as it was
    mark_of(path).write_bytes(Mark(old["uid"], old["sequence"] - 3, "0" * 32, "f" * 32, 2).whole_file())
    with pytest.raises(LedgerError, match="went on elsewhere"):
        Ledger(path)
    mark_of(path).write_bytes(Mark(old["uid"], old["sequence"] - 3, "0" * 32, "", 2).whole_file())
    old_mark = mark_of(path).read_bytes()
    spend(path, 1)
    assert json.loads(path.read_text())["after"] == [old["sequence"] - 3, "0" * 32]
    new_mark = mark_of(path).read_bytes()
    mark_of(path).write_bytes(old_mark)  # a crash before the first mark of today
    assert Ledger(path).steps == 4
    mark_of(path).write_bytes(new_mark)
    later = sealed(old | {"sequence": old["sequence"] + 20})  # it went on elsewhere, under the earlier version
    path.write_text(json.dumps(later))
    with pytest.raises(LedgerError, match="went on elsewhere"):
        Ledger(path)
