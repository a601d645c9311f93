"""A copy of a file's ledger that names no data set may be charged, and says that the file lacks it: by whatever way."""

import copy
import pickle
import warnings

import pytest

from helpers.accounting_tools import charged, ledger_of, release_of
from tfdp_layers.accounting import Ledger, LedgerError, Statement
from tfdp_layers.accounting.choice import for_plans
from tfdp_layers.accounting.following import following
from tfdp_layers.sampling import Poisson

RELEASE = release_of(Poisson(100), 2.0, 1000)
WAYS = {
    "copy()": lambda ledger: ledger.copy(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda ledger: pickle.loads(pickle.dumps(ledger)),
    "json": lambda ledger: Ledger.from_json(ledger.to_json()),
    "copy of a copy": lambda ledger: ledger.copy().copy(),
    "copy of a look": lambda ledger: Ledger.read(ledger.path).copy(),
    "merged": lambda ledger: merged(Ledger(), ledger),
    "merged copy": lambda ledger: merged(ledger_of(RELEASE, 3), ledger.copy()),
}
LACKS = r"copy in memory of the one in the file 'ledger.json'.*model.ledger = tfdp.accounting.Ledger\('ledger.json'\)"


def merged(ledger, other):
    ledger.merge(other)
    return ledger


def notes(ledger):
    return " ".join(Statement.from_ledger(ledger, 1e-5).notes)


@pytest.fixture
def of_file(tmp_path):
    ledger = charged(Ledger(tmp_path / "ledger.json"), RELEASE, 5)
    yield ledger
    ledger.close()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_charged_to_a_copy_of_a_file_is_warned_of_once_and_noted(way, of_file):
    copied = WAYS[way](of_file)
    assert "copy" not in notes(copied)
    with pytest.warns(UserWarning, match=LACKS):
        charged(copied, RELEASE, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        charged(copied, RELEASE, 1)
    assert of_file.steps == 5
    for one in (copied, copied.copy(), merged(Ledger(), copied)):
        assert "charged to a copy of the ledger in the file 'ledger.json'" in notes(one)


def test_a_file_that_takes_the_copy_over_counts_all_and_needs_no_note(of_file):
    copied = of_file.copy()
    with pytest.warns(UserWarning, match=LACKS):
        charged(copied, RELEASE, 7)
    of_file.merge(copied)
    assert of_file.steps == 12
    assert "copy" not in notes(of_file)
    assert "copy_of" not in of_file.path.read_text()


def test_the_text_of_a_copy_put_into_a_file_is_that_file(of_file, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(of_file.copy().to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = charged(Ledger(path, restored=False), RELEASE, 7)
    assert (other.steps, notes(other)) == (12, "")
    other.close()


def test_ledgers_that_never_had_a_file_and_files_themselves_are_not_warned_of(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = ledger_of(RELEASE, 5)
        for one in (memory.copy(), merged(Ledger(), memory), merged(Ledger(tmp_path / "a.json"), memory)):
            assert notes(charged(one, RELEASE, 2)) == ""
            one.close()
        again = charged(Ledger(tmp_path / "a.json"), RELEASE, 2)  # as a later process does
        assert notes(again) == ""
        again.close()


def test_copies_of_two_files_say_both_names(of_file, tmp_path):
    other = charged(Ledger(tmp_path / "other.json"), RELEASE, 1)
    both = of_file.copy()
    with pytest.warns(UserWarning, match=LACKS):
        charged(both, RELEASE, 2)
    both.merge(other)
    assert both.apart == ("ledger.json",)
    assert "in the file 'ledger.json', which" in notes(both)
    again = Ledger.from_json(both.to_json())
    with pytest.warns(UserWarning, match=r"in the file 'ledger.json' and 'other.json' .*and so each other file"):
        charged(again, RELEASE, 1)
    assert Ledger.from_json(again.to_json()).apart == ("ledger.json", "other.json")
    assert "in the file 'ledger.json' and 'other.json', which" in notes(again)
    other.close()


@pytest.mark.filterwarnings("ignore:.*copy in memory")
def test_a_file_that_was_written_from_a_copy_does_not_lack_what_it_counts(of_file, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(charged(of_file.copy(), RELEASE, 7).to_json())
    assert Ledger.read(path).apart == ()
    assert notes(Ledger.read(path)) == ""


@pytest.mark.parametrize("dataset", [None, "patients"])
def test_what_is_planned_is_charged_to_nobodys_copy(dataset, tmp_path):
    ledger = charged(Ledger(tmp_path / "planned.json", dataset=dataset), RELEASE, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned = charged(for_plans(ledger), RELEASE, 7)
    assert (planned.steps, ledger.steps, notes(planned)) == (12, 5, "")
    ledger.close()


def test_only_the_name_of_the_file_is_in_a_copy(of_file):
    assert str(of_file.path.parent) not in of_file.to_json()
    with pytest.raises(LedgerError, match="copy_of must be a list of the names of files"):
        Ledger.from_json(of_file.to_json().replace('"ledger.json"', '"/home/me/ledger.json"'))


def test_a_warning_that_is_an_error_lets_nothing_be_charged(of_file):
    copied = of_file.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="copy in memory"):
                charged(copied, RELEASE, 7)
    assert copied.steps == 5


def test_a_workers_copy_of_the_file_is_read_and_not_charged(of_file, recwarn):
    worker = following(of_file, Ledger())
    for one in worker, of_file:  # on that worker the file's own stands for the chief's, too
        with pytest.raises(LedgerError, match=r"This worker is not the chief.*task_id == 0"):
            charged(one, RELEASE, 1)
    assert not recwarn.list
    assert (worker.apart, worker.path, worker.steps) == ((), None, of_file.steps)
