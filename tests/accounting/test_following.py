"""A worker that is not the chief holds a copy of the chief's ledger: it counts with it, and is charged nothing.

It stood still while `fit` ran (0.218 stated of 4.744), and each worker could charge its own (3.041 of 4.504), then
copies of it (3.574 of 5.319). Here one process plays both.
"""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.accounting_tools import charged, ledger_of, release_of
from tfdp_layers.accounting import Ledger, LedgerError, state
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.following import (
    Books,
    Following,
    copy_of_chiefs,
    entry_before,
    follow,
    following,
    opening_of,
    releases_of,
)
from tfdp_layers.models.steered import STEERED
from tfdp_layers.sampling import FixedSize, Partition, Poisson

STEP, EARLIER = release_of(Poisson(600), 1.0), release_of(Poisson(600), 8.0)
REFUSED = r"This worker is not the chief.*task_id == 0"


@pytest.fixture
def on_the_chief(monkeypatch):
    """The chief's process, which holds no copy of its ledger: nothing that it holds is taken for one."""
    monkeypatch.setattr(state, "follows_entries", lambda *_: False)


def both(release=STEP, earlier=None, path=None):
    """The chief's ledger with its token, and a worker's copy with what counts in it."""
    chief = Ledger(path)
    if earlier is not None:
        chief.merge(ledger_of(earlier, 3))
    token = chief.begin(release)
    copied = follow(Ledger.from_json(chief.to_json()))
    return chief, token, copied, Following(copied, opening_of(chief, token))


@pytest.mark.parametrize(
    ("release", "earlier"),
    [(STEP, EARLIER), (EARLIER, EARLIER), (release_of(FixedSize(600), 1.0), None)],
    ids=["new", "known", "first"],
)
def test_both_count_one_training_in_one_entry(release, earlier, on_the_chief):
    chief, token, copied, counting = both(release, earlier)
    before = chief.steps
    for made in 2, 2, 1:
        chief.reserve(token, 2)
        counting.reserve(2)
        assert copied.steps == chief.steps
        chief.settle(token, made)
        counting.settle(made)
    assert copied.steps == chief.steps == before + 5
    for one, other in ((chief, copied), (copied, chief)):
        assert one.counts(other)
        merged = Ledger()
        merged.merge(one)
        merged.merge(other)
        assert merged.steps == before + 5


def test_a_pass_over_the_data_is_charged_as_the_chief_charges_it(on_the_chief):
    chief, token, copied, counting = both(release_of(Partition(600), 1.0))
    chief.reserve(token, 150)
    counting.reserve(150)
    assert copied.events() == chief.events()


def test_an_entry_that_goes_on_keeps_what_it_counts():
    chief = Ledger()
    token = chief.begin(STEP)
    chief.reserve(token, 4)
    chief.settle(token, 4)
    copied = follow(Ledger.from_json(chief.to_json()))
    counting = Following(copied, opening_of(chief, chief.begin(STEP)))
    counting.reserve(2)
    assert counting.begun == entry_before(chief, token)
    assert (copied.steps, len(copied.entries)) == (6, 1)
    assert releases_of(copied, counting.begun[0]) - counting.begun[1] == 2
    assert releases_of(copied, "no such entry") == 0


def test_what_a_call_broke_off_in_the_middle_of_stays_counted():
    _, _, copied, counting = both(earlier=EARLIER)
    counting.reserve(3)
    assert copied.steps == 3 + 3


def test_a_copy_that_counts_with_the_chief_is_charged_nothing(tmp_path):
    _, _, copied, counting = both(earlier=EARLIER, path=tmp_path / "ledger.json")
    for act in (
        lambda: charged(copied, STEP, 1),
        lambda: copied.require(copied.begin(STEP)),
        lambda: copied.merge(ledger_of(STEP, 1)),
        lambda: copied.merge(ledger_of(STEP, 1), spent=False),
        lambda: charged(copy.deepcopy(Account(copied)).ledger, STEP, 1),
    ):
        with pytest.raises(LedgerError, match=REFUSED):
            act()
    counting.reserve(1)
    assert copied.steps == 4


@pytest.mark.parametrize("named", [None, "clinic"])
@pytest.mark.parametrize("filed", [False, True])
def test_what_a_worker_gives_its_model_stands_for_the_chiefs(named, filed, tmp_path):
    given = Ledger(tmp_path / "ledger.json" if filed else None, dataset=named)
    held = following(given, follow(Ledger()))
    assert (held is given) == (not filed)
    for one in given, held:
        with pytest.raises(LedgerError, match=REFUSED):
            charged(one, STEP, 1)
    assert held.is_copy
    assert held.path is None


def test_what_is_joined_with_a_copy_is_one():
    """Else a layer's own ledger, which is new, would be the one that stays, and could be charged."""
    for first, second in ((follow(Ledger()), Ledger()), (Ledger(), follow(Ledger()))):
        account = Account(first)
        account.join([Account(second)])
        for one in first, second, account.ledger:
            with pytest.raises(LedgerError, match=REFUSED):
                charged(one, STEP, 1)


def test_a_file_that_meets_a_copy_is_one_and_keeps_what_it_counts(tmp_path):
    ledger = charged(Ledger(tmp_path / "ledger.json"), STEP, 2)
    account = Account(ledger)
    account.join([Account(follow(Ledger()))])
    with pytest.raises(LedgerError, match=REFUSED):
        charged(account.ledger, STEP, 1)
    assert account.ledger.steps == 2


_ELSEWHERE = """
import sys
from helpers.accounting_tools import charged, release_of
from tfdp_layers.accounting import Ledger
from tfdp_layers.sampling import Poisson
print(charged(Ledger.from_json(sys.stdin.read()), release_of(Poisson(600), 1.0), 1).steps)
"""


def test_a_copy_reads_merges_what_others_counted_and_goes_on_elsewhere(tmp_path):
    copied = follow(ledger_of(STEP, 2))
    copied.merge(copied.copy())
    command = [sys.executable, "-c", _ELSEWHERE]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, input=copied.to_json(), check=False, capture_output=True, text=True, cwd=tests)
    assert done.stdout.split() == ["3"], done.stderr
    copied.merge(charged(Ledger(tmp_path / "other.json"), EARLIER, 3))  # of a file, which counts it
    assert copied.steps == 5
    assert charged(Ledger(), STEP, 1).steps == 1  # of something that is this worker's own


def merged(ledger, into=None):
    into = Ledger() if into is None else into
    into.merge(ledger)
    return into


COPIES = {
    "copy()": lambda ledger, path: ledger.copy(),
    "copy of a copy": lambda ledger, path: ledger.copy().copy(),
    "deepcopy": lambda ledger, path: copy.deepcopy(ledger),
    "copy.copy": lambda ledger, path: copy.copy(ledger),
    "pickle": lambda ledger, path: pickle.loads(pickle.dumps(ledger)),
    "text": lambda ledger, path: Ledger.from_json(ledger.to_json()),
    "merged": lambda ledger, path: merged(ledger),
    "merged into another": lambda ledger, path: merged(ledger, charged(Ledger(path), EARLIER, 1)),
    "merged into a file": lambda ledger, path: merged(ledger, Ledger(path)),
    "that file again": lambda ledger, path: (merged(ledger, Ledger(path)).close(), Ledger(path))[1],
}


@pytest.mark.parametrize("made", ["before", "while", "after"])
@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_whatever_holds_an_entry_of_the_copy_is_a_copy(way, made, tmp_path):
    """3.574 was stated of 5.319: each worker charged one of these, with noise of its own."""
    _, _, copied, counting = both(earlier=EARLIER)
    one = way(copied, tmp_path / "rescue.json") if made == "before" else None
    counting.reserve(2)
    if made == "while":
        one = way(copied, tmp_path / "rescue.json")
    counting.settle(2)
    if made == "after":
        one = way(copied, tmp_path / "rescue.json")
    assert one.is_copy
    for act in (
        lambda: charged(one, STEP, 1),
        lambda: one.require(one.begin(STEP)),
        lambda: one.merge(ledger_of(STEP, 1)),
        lambda: charged(way(one, tmp_path / "again.json"), STEP, 1),
    ):
        with pytest.raises(LedgerError, match=REFUSED):
            act()
    assert copied.steps == 3 + 2


def test_so_is_what_is_copied_before_the_chiefs_ledger_comes(tmp_path):
    early = charged(Ledger(tmp_path / "earlier.json"), EARLIER, 3).copy()  # of a file that all workers loaded
    _, _, copied, _ = both()
    copied.merge(early)
    with pytest.raises(LedgerError, match=REFUSED):
        charged(early, STEP, 1)


def test_a_copy_is_one_when_the_first_is_gone():
    text = follow(ledger_of(STEP, 2)).to_json()
    with pytest.raises(LedgerError, match=REFUSED):
        charged(Ledger.from_json(text), STEP, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_what_this_worker_released_by_itself_goes_with_no_copy(turned):
    copied, own = both(earlier=EARLIER)[2].copy(), ledger_of(STEP, 1)
    with pytest.raises(LedgerError, match=r"counts what this process itself released.*task_id == 0"):
        own.merge(copied) if turned else copied.merge(own)
    with pytest.raises(LedgerError, match=r"counts what this process itself released.*task_id == 0"):
        following(own, follow(copied))
    assert (own.steps, copied.steps) == (1, 3)
    assert not own.is_copy
    assert charged(own, STEP, 1).steps == 2


def test_the_file_of_the_chiefs_own_ledger_takes_turns_as_before(tmp_path):
    chief = charged(Ledger(tmp_path / "ledger.json"), STEP, 2)
    chief.close()
    copied = copy_of_chiefs(chief.to_json())
    assert charged(Ledger(tmp_path / "ledger.json"), STEP, 1).steps == 3  # counted in the file
    with pytest.raises(LedgerError, match=REFUSED):
        charged(Ledger.read(tmp_path / "ledger.json"), STEP, 1)
    assert copied.steps == 2


def test_ledgers_that_hold_nothing_of_it_are_charged():
    copied, own = follow(ledger_of(STEP, 2)), ledger_of(EARLIER, 1)
    twin = own.copy()
    for one in own, twin, merged(twin):
        charged(one, EARLIER, 1)
        assert not one.is_copy
    assert copied.is_copy


def test_a_copy_that_the_chiefs_takes_the_place_of_goes_on_as_its_name():
    """Whoever held `model.ledger` before `fit` reads what `fit` counts."""
    held = follow(Ledger())
    account = Account(held)
    account.replace(follow(Ledger.from_json(ledger_of(STEP, 3).to_json())), by_fit=True, named=True)
    assert (held.steps, held.is_copy) == (3, True)


def books(path=None, earlier=None):
    """Of the chief and of a worker in one training: their accounts and books, the token, what counts it, and steps."""
    chief, token, copied, counting = both(earlier=earlier, path=path)
    own, made = entry_before(chief, token), [0]
    beside = lambda: releases_of(chief, own[0]) - own[1] - made[0]  # noqa: E731
    accounts = Account(chief), Account(copied)
    return accounts, Books(accounts[0], token, beside=beside), Books(accounts[1], None, counting), token, counting, made


def an_equal_training(account):
    account.ledger.reserve(account.ledger.begin(STEP), 2)


CHANGES = {
    "a metric, say": lambda account: charged(account.ledger, EARLIER, 2),
    "weights of another training": lambda account: account.ledger.merge(ledger_of(EARLIER, 40)),
    "a model that is joined": lambda account: account.join([Account(ledger_of(EARLIER, 40))]),
    "an equal training in the same entry": an_equal_training,
    "a note": lambda account: account.remark(f"The callback C read 'loss' and then stopped. {STEERED}"),
    "a note of its ledger": lambda account: account.note(["broken_off"]),
    "weights that nobody paid for": lambda account: setattr(account, "unpaid", True),
}


@pytest.mark.parametrize("between", [False, True], ids=["before a call", "inside a call"])
@pytest.mark.parametrize("filed", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_in_the_chiefs_books_is_in_the_others_at_the_next_message(
    change, filed, between, tmp_path, on_the_chief
):
    """17.583 was spent of 0.058 stated: the chief's metric decided its rate, which all got, and its cost nobody."""
    accounts, chiefs, others, token, counting, made = books(tmp_path / "l.json" if filed else None, EARLIER)
    chief, copied = (one.ledger for one in accounts)

    def call(inside=lambda: None, count=3, released=2):
        chief.reserve(token, count)
        counting.reserve(count)
        inside()
        made[0] += released
        chief.settle(token, released)
        counting.settle(released)

    def exchanged():
        if news := chiefs.news():
            others.learn(news)
        return bool(news)

    assert exchanged()  # of the beginning
    call(), call()
    assert not exchanged()  # what each worker counts by itself is no news
    if between:
        call(lambda: (change(accounts[0]), exchanged()))
    else:
        change(accounts[0])
        assert exchanged()
    call(), exchanged()
    assert copied.steps == chief.steps
    assert copied.events() == chief.events()
    assert copied.noted == chief.noted
    assert (accounts[1].remarks, accounts[1].unpaid) == (accounts[0].remarks, accounts[0].unpaid)
    assert copied.is_copy
    assert not exchanged()


def test_news_come_before_the_number_that_is_counted_with_them(on_the_chief):
    """The chief reserves, then sends: its text holds what the number beside it says, which the copy counts once."""
    accounts, chiefs, others, token, counting, _ = books()
    charged(accounts[0].ledger, EARLIER, 1)
    accounts[0].ledger.reserve(token, 4)
    others.learn(chiefs.news())
    counting.reserve(4)
    assert accounts[1].ledger.steps == accounts[0].ledger.steps == 5


def test_a_text_that_is_no_ledger_is_no_news():
    _, _, others, *_ = books()
    with pytest.raises(LedgerError):
        others.learn('["no ledger", 0, [], false]')
