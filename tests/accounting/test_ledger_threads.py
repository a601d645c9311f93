"""Threads that open, charge and close ledgers of one file at the same time: nobody unlocks what another writes."""

import threading
import time

import pytest

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.locked_file import LockedFile
from tfdp_layers.accounting.storage import LedgerFile
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


@pytest.fixture(autouse=True)
def slow_disk(monkeypatch):
    def slowly(function):
        def slow(*arguments):
            found = function(*arguments)
            time.sleep(0.01)
            return found

        return slow

    monkeypatch.setattr(LedgerFile, "replace", slowly(LedgerFile.replace))
    monkeypatch.setattr(LockedFile, "sync", slowly(LockedFile.sync))


def at_once(*jobs):
    """What each job returned, or raised, all begun together."""
    begun, found = threading.Barrier(len(jobs)), [None] * len(jobs)

    def run(number, job):
        begun.wait()
        try:
            found[number] = job()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(jobs)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def charge(ledger, times=1):
    token = ledger.begin(STEP)
    for _ in range(times):
        ledger.reserve(token, 1)
        ledger.settle(token, 1)
    return ledger


NAMED = {"dataset": "people", "budget": (9.0, 1e-5)}
OPENED = {
    "that it names": lambda path: Ledger(path, **NAMED),
    "that it names, then a budget": lambda path: (ledger := Ledger(path, dataset="people"), ledger.set_budget(9, 1e-5))[
        0
    ],
    "that was there": lambda path: Ledger(path, restored=True, **NAMED),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("threads", [3, 2, 4])
@pytest.mark.parametrize("how", OPENED)
def test_threads_that_open_a_new_file_have_one_ledger(how, threads, path):
    found = at_once(*[lambda: OPENED[how](path)] * threads)
    assert [type(one) for one in found] == [Ledger] * threads
    for one in found:
        charge(one)
    (uid,) = {one.uid for one in (*found, Ledger.read(path))}
    assert uid
    assert Ledger.read(path).steps == threads
    assert (Ledger.read(path).dataset, tuple(vars(Ledger.read(path).budget).values())) == tuple(NAMED.values())


def test_one_of_another_data_set_does_not_replace_the_file_that_was_just_begun(path):
    found = at_once(*[lambda name=name: Ledger(path, dataset=name) for name in "abc"])
    (kept,) = [one for one in found if isinstance(one, Ledger)]
    assert all("is the ledger of the data set" in str(one) for one in found if one is not kept)
    assert (Ledger.read(path).uid, Ledger.read(path).dataset) == (kept.uid, kept.dataset)


@pytest.mark.parametrize("busy", ["charges", "is named", "gets a budget"])
def test_who_closes_a_ledger_that_another_thread_writes_waits(busy, path):
    ledger, over = Ledger(path, dataset="people"), threading.Event()

    def write():
        try:
            for number in range(4):
                if busy == "charges":
                    charge(ledger)
                elif busy == "is named":
                    Ledger(path, dataset="people", budget=(9.0, 1e-5))
                    charge(ledger)
                else:
                    ledger.set_budget(9.0 - number, 1e-5)
        finally:
            over.set()

    def close():
        while not over.is_set():
            ledger.close()

    assert at_once(write, close) == [None, None]
    assert Ledger.read(path).steps == ledger.steps == (0 if busy == "gets a budget" else 4)


def test_a_ledger_on_which_a_training_runs_is_not_waited_for(path):
    ledger = Ledger(path)
    ledger.require(ledger.begin(STEP))
    before = time.monotonic()
    (found,) = at_once(lambda: charge(Ledger(path)))
    assert isinstance(found, LedgerError)
    assert "training which runs in this process" in " ".join(str(found).split())
    assert time.monotonic() - before < 4.0
