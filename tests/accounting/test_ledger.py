import copy
import json
import os
import pickle
import subprocess
import sys

import pytest

from helpers.accounting_tools import ledger_of, release_of, sealed
from tfdp_layers.accounting import Ledger, LedgerError, epsilon, together
from tfdp_layers.sampling import FixedSize, Partition, Poisson

POISSON = release_of(Poisson(600), 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def test_an_equal_release_goes_on_in_its_entry_and_another_opens_one():
    ledger = Ledger()
    for release, steps in ((POISSON, 3), (release_of(Poisson(600), 2.0), 4), (POISSON, 5)):
        ledger.reserve(ledger.begin(release), steps)
    assert [(entry.release.noise_multiplier, entry.steps) for entry in ledger.entries] == [(1.0, 8), (2.0, 4)]
    assert ledger.steps == 12


def test_settling_replaces_the_reservation():
    ledger = Ledger()
    token = ledger.begin(POISSON)
    assert ledger.steps == 0
    ledger.reserve(token, 10)
    assert ledger.steps == 10
    ledger.settle(token, 7)
    assert ledger.steps == 7
    ledger.settle(token, 2)  # Made without a reservation: counted all the same.
    assert ledger.steps == 9


def test_two_segments_of_one_entry_settle_apart():
    ledger = Ledger()
    first = ledger.begin(POISSON)
    ledger.reserve(first, 10)
    second = ledger.begin(POISSON)
    ledger.reserve(second, 100)
    ledger.settle(first, 1)
    assert ledger.steps == 101
    ledger.settle(second, 0)
    assert ledger.steps == 1


def test_a_partition_segment_is_always_a_new_entry():
    ledger = Ledger()
    release = release_of(Partition(600), 1.0)
    for _ in range(3):
        ledger.reserve(ledger.begin(release), 1)
    assert [entry.charges for entry in ledger.entries] == [1, 1, 1]


def test_mixing_relations_is_refused_and_changes_nothing():
    ledger = ledger_of(POISSON, 5)
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE"):
        ledger.begin(release_of(FixedSize(600), 1.0))
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        ledger.merge(ledger_of(release_of(FixedSize(600), 1.0), 1))
    fresh = Ledger()
    tokens = [fresh.begin(POISSON), fresh.begin(release_of(Partition(600), 1.0))]
    fresh.reserve(tokens[0], 1)
    with pytest.raises(ValueError, match="new ledger"):
        fresh.reserve(tokens[1], 1)
    assert (ledger.steps, fresh.steps) == (5, 1)


@pytest.mark.slow
def test_a_crash_between_reserving_and_settling_over_counts(path):
    program = f"""
import os
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Poisson
ledger = Ledger({str(path)!r})
token = ledger.begin(Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000))
ledger.reserve(token, 10)
ledger.settle(token, 10)
ledger.reserve(token, 5)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    resumed = Ledger(path)
    assert resumed.steps == 15
    resumed.reserve(resumed.begin(POISSON), 1)
    assert Ledger(path).steps == 16


def test_the_file_holds_every_count_before_the_call_returns(path):
    ledger = Ledger(path)
    token = ledger.begin(POISSON)
    assert not path.exists()
    ledger.reserve(token, 4)
    assert Ledger(path).steps == 4
    ledger.settle(token, 3)
    assert Ledger(path).to_json() == ledger.to_json()
    assert Ledger(path).uid == ledger.uid


def test_a_failing_disk_leaves_the_old_file_and_says_so(path, monkeypatch):
    ledger = Ledger(path)
    token = ledger.begin(POISSON)
    ledger.reserve(token, 4)

    def full(*_):
        raise OSError(28, "No space left on device")

    whole = path.read_bytes()
    for name, steps in (("fsync", 5), ("replace", 6)):  # Of one row at the end; then, since that failed, of the whole.
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(LedgerError, match="No space left"):
                ledger.reserve(token, 1)
        assert path.read_bytes() == whole
        assert ledger.steps == steps
    ledger.reserve(token, 1)
    assert Ledger(path).steps == 7


@pytest.mark.parametrize("kept", [0, 1, 10, 100, 0.5, -30])
def test_a_truncated_file_is_refused_and_left_alone(path, kept):
    Ledger(path).merge(ledger_of(POISSON, 5))
    text = path.read_text()
    cut = text[: int(len(text) * kept) if isinstance(kept, float) else kept]
    path.write_text(cut)
    with pytest.raises(LedgerError, match=r"ledger\.json is not a ledger.*backup"):
        Ledger(path)
    assert path.read_text() == cut


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.update(format=3),
        lambda value: value.update(format=True),
        lambda value: value.pop("format"),
        lambda value: value.update(more=1),
        lambda value: value["entries"][0].__setitem__(2, -1),
        lambda value: value["entries"][0].__setitem__(2, 1.5),
        lambda value: value["entries"][0].__setitem__(2, True),
        lambda value: value["entries"][0].__setitem__(2, float("nan")),
        lambda value: value["entries"][0].__setitem__(1, 1),
        lambda value: value["entries"][0].__setitem__(1, -1),
        lambda value: value["entries"][0].__setitem__(1, 0.0),
        lambda value: value["entries"][0].__setitem__(0, "no uid"),
        lambda value: value["entries"][0].append(1),
        lambda value: value["releases"][0].update(kind="subprocess.run"),
        lambda value: value["releases"][0]["sampling"].update(kind="with_replacement"),
        lambda value: value["releases"].append(value["releases"][0]),
        lambda value: value["entries"].append(value["entries"][0]),
        lambda value: value["releases"].append(_PARTITION.to_json()),
        lambda value: value["log"].append(["0" * 32, 7, 1]),
        lambda value: value["log"].append(["0" * 32, value["releases"][0], 1]),
        lambda value: value["log"].append([value["entries"][0][0], release_of(Poisson(600), 2.0).to_json(), 1]),
        lambda value: value["log"].append(["0" * 32, 0, -1]),
    ],
)
def test_a_file_that_is_not_a_whole_ledger_of_this_format_is_refused(path, damage):
    value = json.loads(ledger_of(POISSON, 5).to_json())
    path.write_text(json.dumps(sealed(value)))
    assert Ledger(path).steps == 5
    damage(value)
    path.write_text(json.dumps(sealed(value)))
    with pytest.raises(LedgerError, match="left as it is"):
        Ledger(path)


_PARTITION = release_of(Partition(600), 1.0)


def test_paths_that_cannot_hold_a_ledger_are_refused_at_once(tmp_path):
    with pytest.raises(LedgerError, match="is a folder"):
        Ledger(tmp_path)
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path / "missing" / "ledger.json")


def test_merging_never_rewinds():
    ledger = ledger_of(POISSON, 5)
    older = ledger.copy()
    ledger.reserve(ledger.begin(POISSON), 10)
    newer = ledger.copy()
    ledger.merge(older)
    assert ledger.steps == 15
    older.merge(newer)
    older.merge(newer)
    assert older.steps == 15


def test_merging_another_ledger_adds_it():
    ledger = ledger_of(POISSON, 5)
    other = ledger_of(POISSON, 7)
    ledger.merge(other)
    assert ledger.steps == 12
    ledger.merge(other)
    assert ledger.steps == 12  # The same steps are not counted twice.
    assert epsilon(ledger, 1e-5) == epsilon(ledger_of(POISSON, 12), 1e-5)


def test_two_runs_from_one_copy_both_count():
    other = release_of(Poisson(600), 2.0)
    ledger = ledger_of(POISSON, 100)
    ledger.merge(ledger_of(other, 100))
    restored = ledger.copy()  # A checkpoint, trained on elsewhere.
    for run in (ledger, restored):
        for release in (POISSON, other):
            run.reserve(run.begin(release), 50)
    ledger.merge(restored)
    assert ledger.steps == 400


def test_copies_and_pickles_are_snapshots_in_memory(path):
    ledger = Ledger(path)
    ledger.reserve(ledger.begin(POISSON), 3)
    for snapshot in (ledger.copy(), copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
        assert snapshot.to_json() == ledger.to_json()
        assert snapshot.path is None
        snapshot.reserve(snapshot.begin(POISSON), 1)
    assert Ledger(path).steps == 3


def test_unknown_tokens_and_counts_are_refused():
    ledger = Ledger()
    token = ledger.begin(POISSON)
    with pytest.raises(ValueError, match="Unknown token"):
        ledger.reserve("elsewhere", 1)
    for count in (-1, 1.5, True):
        with pytest.raises(ValueError, match="at least 0"):
            ledger.reserve(token, count)


@pytest.mark.slow
def test_two_processes_cannot_write_one_file(path):
    program = f"""
import sys
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Poisson
ledger = Ledger({str(path)!r})
ledger.reserve(ledger.begin(Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)), 3)
print("holding", flush=True)
sys.stdin.read()
"""
    early = Ledger(path)
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "holding\n"
        assert Ledger(path).steps == 3  # Reading is allowed.
        token = early.begin(POISSON)
        with pytest.raises(LedgerError, match="Another ledger"):
            early.reserve(token, 1)
    finally:
        holder.communicate("")
    early.reserve(token, 1)  # Takes over what the other process wrote since this ledger was read.
    assert early.steps == 4
    assert Ledger(path).steps == 4


def test_closing_hands_the_file_over(path):
    first, second = Ledger(path), Ledger(path)
    token = first.begin(POISSON)
    first.reserve(token, 2)
    with pytest.raises(LedgerError, match="close"):
        second.reserve(second.begin(POISSON), 1)
    first.close()
    second.reserve(second.begin(POISSON), 1)
    second.close()
    first.settle(token, 2)
    assert first.steps == Ledger(path).steps == 3


@pytest.mark.parametrize("text", ["1", "2", "true", "null", "[]", '"format"', "[1]", ""])
def test_json_that_is_no_object_is_no_ledger(text):
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger.from_json(text)


@pytest.mark.parametrize("call", [Ledger().merge, Ledger().holds, together, lambda given: epsilon(given, 1e-5)])
@pytest.mark.parametrize(
    "given", ["ledger.json", Ledger, object(), None], ids=["a path", "the class", "an object", "nothing"]
)
def test_what_is_given_in_the_place_of_a_ledger_is_told_what_to_give(call, given):
    with pytest.raises(ValueError, match=r"give model\.ledger, or tfdp\.accounting\.Ledger"):
        call(given)
