"""What budgets allow is decided and reserved in one act, whoever charges the ledger in between."""

import contextlib
import random
import sys
import threading

import pytest

from helpers.accounting_tools import release_of
from helpers.variants import slow_but
from tfdp_layers.accounting import BudgetExhausted, GroupNoise, Ledger, MetricRelease, Release, epsilon
from tfdp_layers.accounting.segment import Segment
from tfdp_layers.sampling import Poisson

DELTA = 1e-3
RELEASES = [release_of(Poisson(6_000), 2.0), release_of(Poisson(6_000), 3.0)]


def spent(ledger):
    return float(epsilon(ledger, DELTA))


def race(ledger, budgets, whole=None, ahead=0):
    """Two trainings that reserve and settle from threads of their own, as fast as they can, each after a look ahead."""
    tokens = [ledger.begin(release) for release in RELEASES]
    for token, budget in zip(tokens, budgets, strict=True):
        if budget:
            ledger.keep_to(token, (budget, DELTA))
    start, counts = threading.Barrier(2), [0, 0]

    def train(number):
        draw = random.Random(number)
        start.wait()
        for _ in range(400):
            wanted = draw.randrange(1, 4)
            ledger.affordable(tokens[number], wanted)
            made = ledger.reserve(tokens[number], wanted, ahead, least=0)
            ledger.settle(tokens[number], made)
            counts[number] += made
            if not made and not ledger.affordable(tokens[number], 1):
                return

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for token in tokens:
        ledger.end(token)
    return counts


@pytest.fixture
def hurried():
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


CASES = [
    (1.0, 1.0, None, False),
    (1.0, None, None, True),
    (None, 1.0, None, False),
    (1.5, 1.0, None, True),
    (3.0, None, 1.0, False),
    (None, None, 1.0, True),
]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("case", slow_but(CASES[3:4], CASES))
def test_two_that_race_for_one_ledger_never_exceed_a_budget(tmp_path, case):
    first, second, whole, filed = case
    named = {"dataset": "d", "budget": (whole, DELTA)} if whole else {}
    ledger = Ledger(tmp_path / "ledger.json" if filed else None, **named)
    counts = race(ledger, (first, second), ahead=5 * filed)
    least = min(budget for budget in (first, second, whole) if budget)
    assert ledger.steps == sum(counts)
    assert 0.9 * least < spent(ledger) <= least
    if filed:
        assert Ledger.read(ledger.path).steps == ledger.steps


def test_what_was_affordable_before_another_reserved_is_asked_again():
    ledger = Ledger()
    first, second = (ledger.begin(release) for release in RELEASES)
    ledger.keep_to(second, (1.0, DELTA))
    looked = ledger.affordable(second, 10_000)
    ledger.reserve(first, ledger.affordable(first, 10_000) // 2)
    assert 0 < ledger.reserve(second, looked, least=0) < looked
    assert 0.9 < spent(ledger) <= 1.0
    assert ledger.exhausted(second).token == ledger.exhausted(first).token == second
    with pytest.raises(BudgetExhausted, match=r"another training that runs on this ledger.*Nothing was released"):
        ledger.reserve(first, 1000)
    with pytest.raises(BudgetExhausted, match="The budget of this training"):
        ledger.reserve(second, 1000, least=999)
    steps = ledger.steps
    ledger.end(second)
    assert ledger.exhausted(first) is None
    ledger.reserve(first, 1)
    assert ledger.steps == steps + 1


def overtake(ledger, monkeypatch):
    """Another training tries to come in after the first one's budget was asked, and before it reserves."""
    first, second = (ledger.begin(release) for release in RELEASES)
    ledger.keep_to(first, (1.0, DELTA))
    wanted = ledger.affordable(first, 10_000)
    honest, others = Segment.affordable, []

    def asked(self, *args):
        found = honest(self, *args)
        if self.token == first and not others:
            others.append(threading.Thread(target=ledger.reserve, args=(second, wanted), kwargs={"least": 0}))
            others[0].start()
            others[0].join(0.3)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "affordable", asked)
        ledger.reserve(first, wanted)
        others[0].join()
    return spent(ledger)


def test_nobody_comes_in_between_the_question_and_the_reservation(monkeypatch):
    assert overtake(Ledger(), monkeypatch) <= 1.0


def test_a_question_and_a_reservation_that_are_two_acts_are_found(monkeypatch):
    """The bug that these tests are for: without the lock around both."""
    ledger = Ledger()
    ledger._threads = contextlib.nullcontext()
    assert overtake(ledger, monkeypatch) > 1.0


def test_a_budget_in_force_binds_every_release_on_the_ledger():
    ledger = Ledger()
    token = ledger.begin(RELEASES[0])
    ledger.keep_to(token, (0.5, DELTA))
    with pytest.raises(BudgetExhausted, match="another training"):
        release_metric(ledger)
    ledger.end(token)
    release_metric(ledger)
    assert ledger.steps == 1


def release_metric(ledger):
    release = MetricRelease((GroupNoise("accuracy", 1.0, 1.0),), Poisson(60_000), 60_000)
    ledger.reserve(ledger.begin(release), 1)


def test_a_nominal_budget_counts_as_published_and_another_as_it_holds():
    printed = Release(
        (GroupNoise("a", 1.0, 1.0),), Poisson(600), 60_000, nominal_noise_multiplier=4.0, generator="secure"
    )
    ledger = Ledger()
    token = ledger.begin(printed)
    ledger.keep_to(token, (1.0, DELTA), nominal=True)
    nominal = ledger.reserve(token, 10_000, least=0)
    ledger.keep_to(token, (1.0, DELTA))
    assert ledger.affordable(token, 1) == 0
    assert float(epsilon(ledger.as_published(), DELTA)) <= 1.0 < spent(ledger)
    assert nominal > 0


def test_a_looser_budget_takes_no_tighter_one_off():
    ledger = Ledger()
    token = ledger.begin(RELEASES[0])
    ledger.keep_to(token, (0.5, DELTA))
    ledger.keep_to(token, (50.0, DELTA))
    ledger.reserve(token, 10_000, least=0)
    assert spent(ledger) <= 0.5
    ledger.end(token)
    assert ledger.affordable(token, 10) == 10


@pytest.mark.parametrize("whole", [True, False])
def test_a_merge_of_what_is_not_spent_yet_keeps_to_the_budgets(whole):
    ledger = Ledger(dataset="d", budget=(1.0, DELTA)) if whole else Ledger()
    if not whole:
        ledger.keep_to(ledger.begin(RELEASES[0]), (1.0, DELTA))
    other = Ledger()
    other.reserve(other.begin(RELEASES[0]), 3)
    ledger.merge(other, spent=False)
    other.reserve(other.begin(RELEASES[1]), 1000)
    with pytest.raises(BudgetExhausted, match=r"about to be released would make it.*Nothing was released"):
        ledger.merge(other, spent=False)
    assert ledger.steps == 3
    ledger.merge(other)
    assert ledger.steps == 1003
