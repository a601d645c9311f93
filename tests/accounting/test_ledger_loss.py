"""What was counted does not get lost unseen: older copies, deleted files, crashes between two writes, other formats."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

from helpers.accounting_tools import ledger_of, release_of, sealed
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)
OTHER = release_of(Poisson(600), 2.0)
VERSION_0_1 = Path(__file__).parents[1] / "data" / "version_0_1.ledger.json"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def mark_of(path):
    return path.with_name(path.name + ".mark")


def spend(path, steps, release=STEP, together=1):
    """Counts so many steps in a file, one after another."""
    ledger = Ledger(path, dataset="mnist")
    token = ledger.begin(release)
    for _ in range(steps // together):
        ledger.reserve(token, together)
        ledger.settle(token, together)
    ledger.close()


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


def test_another_ledger_in_its_place_is_refused(path, tmp_path):
    spend(path, 9)
    spend(tmp_path / "other.json", 20)
    shutil.copy(tmp_path / "other.json", path)
    with pytest.raises(LedgerError, match=r"replaced by another ledger.*counted 9"):
        Ledger(path)


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
    assert restored.steps == (0 if left == "mark" else 9)
    spend(path, 2)
    assert Ledger(path).steps == restored.steps + 2


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


# Crashes --------------------------------------------------------------------------------------------------------------


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


def test_a_mark_that_was_created_and_never_written_claims_nothing(path):
    spend(path, 9)
    for data in (b"", bytes(8192)):
        mark_of(path).write_bytes(data)
        assert Ledger(path).steps == 9
    path.unlink()
    assert Ledger(path).steps == 0


def test_a_long_log_is_folded_into_the_entries(path):
    spend(path, 2500)
    value = json.loads(path.read_text())
    assert len(value["log"]) < 1100
    assert value["sequence"] > 1000
    assert Ledger(path).steps == 2500
    assert path.stat().st_size < 150_000


# Formats --------------------------------------------------------------------------------------------------------------


def test_a_ledger_of_version_0_1_is_read_and_goes_on(path):
    shutil.copy(VERSION_0_1, path)
    ledger = Ledger(path)
    assert (ledger.steps, ledger.dataset, ledger.budget.epsilon) == (12, "fixture", 5.0)
    assert path.read_bytes() == VERSION_0_1.read_bytes()  # Reading changes nothing.
    assert ledger.to_json() == Ledger.from_json(VERSION_0_1.read_text()).to_json()
    ledger.reserve(ledger.begin(ledger.entries[0].release), 3)
    ledger.close()
    again = Ledger(path)
    assert again.steps == 15
    assert [entry.uid for entry in again.entries][:3] == [entry.uid for entry in ledger.entries][:3]
    shutil.copy(VERSION_0_1, path)
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(path)


def test_what_is_written_is_one_json_value_whose_format_version_0_1_refuses(path):
    spend(path, 2)
    spend(path, 3, OTHER)
    value = json.loads(path.read_text())
    assert value["format"] == 2  # Version 0.1: "its format is 2, and this version reads format 1".
    assert value["log"]
    assert len(value["releases"]) + sum(isinstance(row[1], dict) for row in value["log"]) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_without_digest_is_refused(path, version):
    spend(path, 9)
    value = json.loads(VERSION_0_1.read_text() if version == 1 else path.read_text())
    del value["digest"]
    for text in (json.dumps(value), json.dumps(value | {"digest": None})):
        path.write_text(text)
        with pytest.raises(LedgerError, match=r"digest"):
            Ledger(path)
        with pytest.raises(LedgerError, match=r"digest"):
            Ledger.from_json(text)


def test_equal_releases_are_written_once(path):
    ledger = Ledger(path)
    for _ in range(30):
        ledger.merge(ledger_of(STEP, 2))
    assert path.read_text().count("poisson") == 1
    assert len(Ledger(path).entries) == 30
    assert Ledger(path).steps == 60


def test_a_reformatted_file_is_read_and_rewritten(path):
    spend(path, 5)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    assert Ledger(path).steps == 5
    spend(path, 2)
    assert Ledger(path).steps == 7


def test_a_ledger_is_looked_at_without_a_mark_a_lock_or_a_folder_to_write_to(path, tmp_path):
    spend(path, 5)
    holder = Ledger(path)
    holder.require(holder.begin(STEP))
    before = sorted(tmp_path.iterdir())
    looked = Ledger.read(path)
    assert (looked.steps, looked.path, looked.dataset) == (5, None, "mnist")
    with pytest.raises(LedgerError, match="copy"):
        looked.reserve(looked.begin(STEP), 1)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.read(tmp_path / "none.json")


def test_sealed_values_of_the_tests_are_those_of_the_library(path):
    spend(path, 3)
    for text in (path.read_text(), VERSION_0_1.read_text()):
        value = json.loads(text)
        assert sealed(value) == value
