"""What a ledger's file looks like, and which older and foreign ones are read."""

import json
import shutil

import pytest

from helpers.accounting_tools import ledger_of, sealed
from helpers.ledgers import OTHER, STEP, VERSION_0_1, spend
from tfdp_layers.accounting import Ledger, LedgerError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


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


@pytest.mark.parametrize("dataset", [None, "people"])
def test_what_was_read_to_be_looked_at_is_charged_with_nothing(tmp_path, dataset):
    """It would be missing in the file, which `tfdp epsilon --ledger` and the next process read."""
    path = tmp_path / "ledger.json"
    ledger = Ledger(path, dataset=dataset)
    ledger.reserve(ledger.begin(STEP), 3)
    ledger.close()
    looked = Ledger.read(path)
    with pytest.raises(LedgerError, match=r"copy of .*would lack.*Assign the ledger itself: .*Ledger\(path"):
        looked.reserve(looked.begin(STEP), 1)
    assert (looked.steps, looked.is_copy) == (3, True)
    again = Ledger(path)
    again.reserve(again.begin(STEP), 1)
    again.merge(looked)
    assert again.steps == 4


def test_sealed_values_of_the_tests_are_those_of_the_library(path):
    spend(path, 3)
    for text in (path.read_text(), VERSION_0_1.read_text()):
        value = json.loads(text)
        assert sealed(value) == value
