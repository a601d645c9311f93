"""What statements say of trainings is in the ledger that counts them, and goes wherever what they cost does."""

import json
import pickle

import pytest

from helpers import accounting_tools
from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger, LedgerError, Statement, left
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.choice import kept_in_the_middle
from tfdp_layers.accounting.history import History
from tfdp_layers.accounting.remarks import AFRESH, KEPT, KINDS, ON_WORD, RESTORED, SEARCHED, SIMULATED, kinds_of, told
from tfdp_layers.callbacks import turns
from tfdp_layers.models import earlier, kept, steered
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)
STEERED = f"The callback Stop read 'loss' and then stopped the training. {steered.STEERED}"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def charged(ledger, steps=3):
    return accounting_tools.charged(ledger, STEP, steps)


def noted(path=None, kind="steered", **options):
    ledger = charged(Ledger(path, **options))
    Account(ledger).note([kind])
    return ledger


def said(ledger, **options):
    return Statement.from_ledger(ledger, 1e-5, **options).notes


def of_a_file(ledger, path):
    file = Ledger(path)
    file.merge(ledger)
    file.close()
    return Ledger.read(path)


def merged(ledger, path):
    other = charged(Ledger())
    other.merge(ledger)
    return other


def replaced(ledger, path):
    account, other = Account(ledger), ledger.copy()
    other._state.identity = Ledger()._state.identity  # as that of a search is, which counts the training otherwise
    account.replace(other)
    return other


def joined(ledger, path):
    account = Account(charged(Ledger()))
    account.join([Account(ledger)])
    return account.ledger


WAYS = {
    "itself": lambda ledger, path: ledger,
    "its copy": lambda ledger, path: ledger.copy(),
    "its pickle": lambda ledger, path: pickle.loads(pickle.dumps(ledger)),
    "its text": lambda ledger, path: Ledger.from_json(ledger.to_json()),
    "its file": of_a_file,
    "one it was merged into": merged,
    "one that took its place": replaced,
    "that of a joined account": joined,
}


@pytest.mark.few(8)
@pytest.mark.parametrize("kind", [one for one in KINDS if one != KEPT])
@pytest.mark.parametrize("way", WAYS)
def test_every_ledger_that_takes_over_a_training_says_what_is_said_of_it_once(way, kind, path):
    first = charged(Ledger())
    assert said(first) == ()
    for _ in range(2):
        Account(first).note([kind])
    found = WAYS[way](first, path)
    assert len(said(found)) == 1
    assert said(found) == told([kind])
    assert found.holds(first)


def test_two_trainings_of_a_kind_are_one_line_and_others_one_each():
    ledger = noted()
    ledger.merge(noted())
    ledger.merge(noted(kind="changed"))
    assert said(ledger) == told(["steered", "changed"])
    assert len(said(ledger)) == 2


def test_every_sentence_of_a_model_has_a_kind_that_its_ledger_says():
    sentences = {
        RESTORED: [*told([RESTORED])],
        "broken_off": [steered.BROKEN_OFF],
        "ran_out": [steered.RAN_OUT],
        "stopped": [steered.STOPPED],
        "steered": [STEERED],
        "changed": [f"The callback A changed the weights. {steered.CHANGED}", left.CHANGED_ELSEWHERE],
        "called": [f"The loop of fit called {turns._ANOTHER}"],
        "ordinary": [earlier._NOTE],
        "on_word": [f"The bound of layer 'a' (A) {ON_WORD}: it was tried."],
        "afresh": [AFRESH],
        SEARCHED: [*told([SEARCHED])],
        SIMULATED: [*told([SIMULATED])],
        KEPT: [kept._MIDDLE],
    }
    assert list(sentences) == list(KINDS)
    for kind, ones in sentences.items():
        assert [kinds_of([one]) for one in ones] == [{kind}] * len(ones)


def test_a_model_says_in_full_what_its_ledger_says_in_short_and_neither_twice():
    account = Account(noted(kind="changed"))
    for _ in range(2):
        account.remark(STEERED)
    assert account.remarks == [STEERED]
    assert said(account.ledger) == told(["steered", "changed"])
    assert said(account.ledger, remarks=[STEERED, STEERED, "Another."]) == (*told(["changed"]), STEERED, "Another.")


def test_it_is_in_the_file_at_once_and_for_every_other_ledger_of_it(path):
    ledger, other = Ledger(path, dataset="people"), Ledger(path)
    charged(other)
    other.close()
    Account(ledger).note(["steered"])
    assert '"steered": true' in path.read_text()
    for one in (ledger, other, Ledger(path), Ledger.read(path)):
        assert said(one) == told(["steered"])
        assert one.steps == 3


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", ["taken out", "put in", "false"])
def test_an_edited_file_is_refused(edit, kind, path):
    ledger = charged(Ledger(path))
    if edit != "put in":
        ledger._state.note([kind])
    ledger.close()
    text, flag = path.read_text(), f'"{kind}": true, '
    edited = {
        "taken out": text.replace(flag, ""),
        "put in": text.replace('"sequence"', flag + '"sequence"', 1),
        "false": text.replace(flag, flag.replace("true", "false")),
    }[edit]
    assert edited != text
    assert json.loads(edited)["format"] == 2
    path.write_text(edited)
    with pytest.raises(LedgerError, match="can be trusted"):
        Ledger(path)


def test_what_could_not_be_written_is_in_the_next_that_is(path, monkeypatch):
    """Also where another ledger of the file wrote in between."""
    ledger = charged(Ledger(path))
    with monkeypatch.context() as full:

        def refuse(*_):
            raise LedgerError("No space left on device.")

        full.setattr(History, "write", refuse)
        with pytest.raises(LedgerError, match="No space"):
            Account(ledger).note(["steered"])
    assert said(ledger) == told(["steered"])
    ledger.close()
    charged(Ledger(path)).close()
    charged(ledger).close()
    assert said(Ledger.read(path)) == told(["steered"])
    assert Ledger.read(path).steps == 9


def test_copies_of_a_named_ledger_that_say_more_are_joined(path):
    """The model of a file that says more than the data set's ledger: what both cost is the same."""
    ledger = charged(Ledger(path, dataset="people"))
    copy = ledger.copy()
    account = Account(copy)
    account.remark(STEERED)
    Account(ledger).join([account])
    assert account.ledger is ledger
    assert said(Ledger.read(path)) == told(["steered"])


def test_weights_that_were_kept_in_the_middle_are_no_news_to_a_ledger_that_counts_them_all():
    whole, early = charged(Ledger()), Ledger()
    middle = kept_in_the_middle(whole)
    assert said(middle) == told([KEPT])
    assert whole.holds(middle)
    whole.merge(middle)
    early.merge(middle)
    assert said(whole) == ()
    assert said(early) == told([KEPT])
