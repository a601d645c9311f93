"""Accounts: what ever met in one model is counted in one ledger, none of it is lost, and one `fit` runs at a time."""

import copy
import random
import threading
from types import SimpleNamespace

import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account, account_of, open_account
from tfdp_layers.sampling import FixedSize, Poisson

RELEASE = release_of(Poisson(600), 1.0)


def spent(steps, release=RELEASE):
    """An account of so many steps, in a ledger of its own in memory."""
    return Account(ledger_of(release, steps))


def charge(account, steps, release=RELEASE):
    """Counts further steps, as a `fit` does."""
    token = account.ledger.begin(release)
    account.ledger.reserve(token, steps)
    account.ledger.settle(token, steps)


def test_joined_accounts_have_one_ledger_that_lost_nothing():
    first, second, third = spent(3), spent(5), spent(7)
    first.join([second])
    third.join([second])
    assert first.ledger is second.ledger is third.ledger
    assert first.ledger.steps == 15
    charge(second, 2)
    assert [account.ledger.steps for account in (first, second, third)] == [17, 17, 17]
    third.join([first, second, third])  # again, and with itself
    assert third.ledger.steps == 17


def test_a_join_that_forgets_what_was_spent_is_seen(monkeypatch):
    monkeypatch.setattr(Ledger, "_take", lambda *_: None)
    with pytest.raises(AssertionError):
        test_joined_accounts_have_one_ledger_that_lost_nothing()


def test_looking_at_an_account_changes_nothing():
    one, other = spent(3), spent(5)
    one.join([other])
    before = one.ledger.to_json()
    assert other.root is one.root
    assert repr(other.ledger) == repr(one.ledger)
    assert one.ledger.to_json() == before


@pytest.mark.parametrize("turned", [False, True], ids=["first", "second"])
def test_the_ledger_that_is_kept_takes_over_those_in_memory(turned, tmp_path):
    kept, loose = Account(Ledger(tmp_path / "ledger.json")), spent(5)
    charge(kept, 1)
    (loose if turned else kept).join([kept if turned else loose])
    assert loose.ledger is kept.ledger
    assert loose.ledger.path == tmp_path / "ledger.json"
    kept.ledger.close()
    assert Ledger(tmp_path / "ledger.json").steps == 6  # on disk, too


def test_the_ledger_of_a_running_fit_stays():
    running, longer = spent(1), spent(9)
    charge(longer, 1, release_of(Poisson(600), 2.0))
    with running.running():
        used = running.ledger
        longer.join([running])
        assert running.ledger is used
        assert used.steps == 11
    one, two = spent(1), spent(2)
    with pytest.raises(RuntimeError, match="fit runs on two models"), one.running(), two.running():
        one.join([two])


def kept_in_two_places(tmp_path):
    return Account(Ledger(tmp_path / "a.json")), Account(Ledger(tmp_path / "b.json"))


def of_two_data_sets(tmp_path):
    return Account(Ledger(dataset="a")), Account(Ledger(dataset="b"))


@pytest.mark.parametrize("made", [kept_in_two_places, of_two_data_sets], ids=["files", "data sets"])
@pytest.mark.parametrize("steps", [(3, 5), (3, 0), (0, 5), (0, 0)], ids=["both", "first", "second", "empty"])
def test_two_ledgers_that_are_kept_are_never_made_one(made, steps, tmp_path):
    """Also an empty one is somebody's: what its model goes on to spend would be missing in it."""
    accounts = made(tmp_path)
    for account, more in zip(accounts, steps, strict=True):
        charge(account, more)
    one, other = accounts
    ledgers = [account.ledger for account in accounts]
    with pytest.raises(ValueError, match="charged to two ledgers"):
        one.join([other])
    assert [account.ledger for account in accounts] == ledgers
    assert [ledger.steps for ledger in ledgers] == list(steps)


def test_copies_of_one_ledger_are_joined_and_the_one_that_may_be_charged_stays(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", dataset="twelve")
    for steps in (0, 3):
        original, restored = Account(ledger), Account(ledger.copy())
        restored.join([original])
        assert restored.ledger is ledger
        charge(restored, steps)
        assert ledger.steps == steps


def test_another_relation_is_refused():
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        spent(1).join([spent(1, release_of(FixedSize(600), 1.0))])


def test_the_ledger_of_a_running_fit_is_not_exchanged():
    one, other = spent(1), spent(2)
    one.join([other])
    ledger = one.ledger
    with one.running():
        with pytest.raises(RuntimeError, match="can't be exchanged while fit runs"):
            other.replace(Ledger())
        other.replace(ledger)  # by itself
        copied = ledger.copy()
        other.replace(copied, by_fit=True)  # on a worker whose chief keeps the ledger
        assert one.ledger is copied
    other.replace(Ledger())
    assert one.ledger is other.ledger is not ledger


def test_one_fit_runs_on_joined_accounts_at_a_time():
    one, other, stranger = spent(1), spent(2), spent(3)
    with one.running():
        other.join([one])  # in the middle of it
        with pytest.raises(RuntimeError, match="fit is running already"), other.running():
            pass
        with stranger.running():
            pass
    with pytest.raises(KeyError), other.running():
        raise KeyError  # an error of the fit itself
    with one.running(), stranger.running():
        pass


def test_two_that_run_on_one_ledger_may_be_joined_and_run_again():
    """A generator that two critics feed was refused: "two models that now share weights"."""
    ledger = ledger_of(RELEASE, 3)
    one, other, fed = Account(ledger), Account(ledger), Account()
    with one.running({1}):
        with other.running({2}):
            for critic in (one, other):
                critic.join([fed])
            assert fed.ledger is ledger
            assert ledger.steps == 3
            with pytest.raises(RuntimeError, match="can't be exchanged while fit runs"):
                other.replace(Ledger())
        assert other.trains  # the other one goes on
        with other.running({2}):  # again, on weights of its own
            assert at_once(1, lambda _: one.refuse_other_thread())
        for shared in ({1, 2}, ()):  # the same weights, or nobody knows which
            with pytest.raises(RuntimeError, match="fit is running already"), other.running(shared):
                pass
    assert not one.trains


def test_two_that_run_are_asked_again_once_they_know_what_they_use():
    """A layer that both share, not made yet as they began, was trained by both at a time."""
    ledger = ledger_of(RELEASE, 3)
    one, other = Account(ledger), Account(ledger)
    with one.running({1}) as uses, other.running({2}) as theirs:
        uses({1, 3})
        theirs({2, 3})  # of other accounts still
        with pytest.raises(RuntimeError, match="two models that share weights"):
            other.join([one])
    other.join([one])
    with one.running({1}) as uses, other.running({2}) as theirs:
        uses({1, 3})
        with pytest.raises(RuntimeError, match="fit is running already"):
            theirs({2, 3})
        theirs({2, 4})


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "one of a data set"])
def test_two_that_run_on_two_ledgers_are_told_to_share_one_before(kept):
    one, other, fed = Account(Ledger(dataset="a" if kept else None)), spent(2), spent(0)
    with one.running({1}), other.running({2}):
        one.join([fed])
        with pytest.raises(RuntimeError, match=r"second\.ledger = first\.ledger"):
            other.join([fed])
    assert other.ledger.steps == 2


def at_once(number, work):
    """Runs `work(i)` in so many threads that start together; returns what they raised."""
    barrier, errors = threading.Barrier(number, timeout=30), []

    def run(i):
        barrier.wait()
        try:
            work(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_of_many_threads_one_gets_in():
    accounts = [spent(1) for _ in range(8)]
    accounts[0].join(accounts[1:])
    refused, inside = threading.Semaphore(0), []

    def work(i):
        try:
            with accounts[i].running():
                inside.append(i)
                assert all(refused.acquire(timeout=30) for _ in range(7))  # stays until all others were refused
        except RuntimeError:
            refused.release()
            raise

    errors = at_once(8, work)
    assert len(inside) == 1
    assert [type(error) for error in errors] == [RuntimeError] * 7


def test_joins_of_many_threads_lose_nothing():
    accounts = [spent(steps) for steps in range(1, 21)]

    def work(i):
        others = random.Random(i).sample(accounts, 6)
        accounts[i].join([*others, accounts[(i + 1) % 20]])

    assert at_once(20, work) == []
    assert len({id(account.ledger) for account in accounts}) == 1
    assert accounts[0].ledger.steps == sum(range(1, 21))


def test_an_object_that_holds_weights_says_who_pays_and_joins_whoever_comes_later():
    weights, first, second = SimpleNamespace(), spent(3), spent(5)
    assert account_of(weights) is None
    open_account(weights, first)
    assert account_of(weights) is first
    open_account(weights, second)
    assert second.ledger is first.ledger
    assert second.ledger.steps == 8


def test_a_copied_account_counts_apart():
    """What both counted from the copy on adds up when they meet again."""
    one = spent(3)
    other = copy.deepcopy(one)
    charge(one, 1)
    charge(other, 2)
    assert (one.ledger.steps, other.ledger.steps) == (4, 5)
    one.join([other])
    assert one.ledger.steps == 6
