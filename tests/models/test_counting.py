"""A counted step: in the ledger before it runs, settled after; what breaks off counts whole, what is unused comes back.

No model here: the compiled step is a function, and the optimizer counts down what it may release as that step would.
"""

import contextlib
from types import SimpleNamespace

import pytest

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger, LedgerError, epsilon
from tfdp_layers.accounting.following import Following, follow, opening_of
from tfdp_layers.models.counting import CountedStep, refuse_gaps
from tfdp_layers.models.run import PrivacyState, Run
from tfdp_layers.models.workers import ChiefStoppedError
from tfdp_layers.sampling import Partition, Poisson

CERTIFIED = "what the certificate was made from"


class Optimizer:
    """Counts down what it may release; `release` is what one optimizer step of a compiled call does."""

    def __init__(self, limit=1000):
        self.left, self.reserved = limit, 0

    def _reserve(self, releases):
        self.reserved = releases

    def _reserved(self):
        return self.reserved

    def _stepping(self):
        return contextlib.nullcontext()

    def releases_left(self):
        return self.left

    def release(self, times=1):
        made = min(times, self.left, self.reserved)
        self.left, self.reserved = self.left - made, self.reserved - made
        return made


class Fit:
    """A running `fit` whose compiled step is a function of the optimizer."""

    def __init__(self, step, together=1, sampling=None, ledger=None, limit=1000, workers=None, replicas=False):
        self.ledger = Ledger() if ledger is None else ledger
        self.optimizer, self.settings, self.stopped = Optimizer(limit), CERTIFIED, 0
        state = PrivacyState()
        state.account.replace(self.ledger)
        release = release_of(sampling or Poisson(600), 2.0)
        opened = self.ledger.begin(release)
        follows = workers is not None and not workers.chief
        why = RuntimeError("slices of different draws")
        several = SimpleNamespace(workers=workers, level=lambda: None, unreleased=lambda: why)
        devices = several if replicas or workers is not None else None
        self.run = state.run = Run(None, [], release, devices)
        self.run.token, self.run.settings = None if follows else opened, CERTIFIED
        self.run.following = Following(follow(self.ledger), opening_of(self.ledger, opened)) if follows else None
        self.call = CountedStep(
            lambda _: step(self.optimizer), together, state, self.optimizer, lambda _: self.settings, self.stop
        )

    def stop(self):
        self.stopped += 1

    def __call__(self):
        self.run.begun = True  # as `Turns` says it
        return self.call(iter(()))


def releases_all(optimizer):
    return optimizer.release(optimizer.reserved)


def seen_while_running(tmp_path, together):
    """What the ledger's file says while the step runs."""
    path, seen = tmp_path / "ledger.json", []

    def step(optimizer):
        seen.append(Ledger.from_json(path.read_text()).steps if path.exists() else 0)
        return releases_all(optimizer)

    fit = Fit(step, together, ledger=Ledger(path))
    for _ in range(3):
        assert fit() == together  # what the step returns is Keras' logs
    assert fit.ledger.steps == fit.run.made == fit.run.drawn == 3 * together
    return seen


def test_a_step_is_in_the_ledgers_file_before_it_runs(tmp_path):
    assert seen_while_running(tmp_path, 4) == [4, 8, 12]


def test_a_step_that_is_counted_afterwards_is_seen(tmp_path, monkeypatch):
    """The planted bug: a crash inside of the step would leave it uncounted."""
    monkeypatch.setattr(Ledger, "reserve", lambda self, token, steps, *_, **__: steps)
    assert seen_while_running(tmp_path, 4) == [0, 4, 8]


@pytest.mark.parametrize(("limit", "made"), [(1000, 3), (2, 2), (0, 0)])
def test_what_was_not_made_comes_back(limit, made):
    """Three of five: the data ran out. No more is reserved than a limit allows, and past it nothing is."""
    reserved = []

    def step(optimizer):
        reserved.append(optimizer.reserved)
        return optimizer.release(3)

    fit = Fit(step, together=5, limit=limit)
    assert fit() == made
    assert reserved == [min(5, limit)]
    assert fit.ledger.steps == fit.run.made == made
    assert fit.run.drawn == 5
    assert fit.optimizer.reserved == 0  # nothing may be released between two calls


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_a_call_that_breaks_off_counts_whole(error):
    """Weights may have moved before the optimizer counted its release down: what it counted proves nothing then."""
    moved = []

    def step(optimizer):
        optimizer.release(1)
        moved.extend("ab")  # the second is not counted down any more
        raise error("the weights have moved")

    fit = Fit(step, together=4)
    with pytest.raises(error, match="the weights have moved"):
        fit()
    assert fit.ledger.steps == fit.run.made == 4 >= len(moved)
    assert fit.optimizer.reserved == 0


def test_a_ledger_that_cannot_be_settled_keeps_the_reservation(monkeypatch):
    def full(*_):
        raise LedgerError("no space left")

    monkeypatch.setattr(Ledger, "settle", full)
    fit = Fit(lambda optimizer: optimizer.release(1), together=4)
    with pytest.raises(LedgerError, match="no space left"):
        fit()
    assert fit.ledger.steps == 4
    assert fit.optimizer.reserved == 0


def test_a_ledger_that_refuses_lets_no_step_run(monkeypatch):
    def full(*_, **__):
        raise LedgerError("no space left")

    monkeypatch.setattr(Ledger, "reserve", full)
    ran = []
    fit = Fit(ran.append)
    with pytest.raises(LedgerError, match="no space left"):
        fit()
    assert not ran
    assert fit.optimizer.reserved == 0


def test_what_differs_from_the_certificate_is_refused_before_anything_is_counted():
    ran = []
    fit = Fit(ran.append)
    fit.settings = "another clip"
    with pytest.raises(RuntimeError, match="changed while fit runs"):
        fit()
    assert not ran
    assert fit.ledger.steps == 0


def test_after_a_gap_a_partition_releases_nothing_and_poisson_goes_on():
    """Two releases of four draws, whatever they were: two consecutive updates of a partition cost one epoch."""
    for sampling in (Poisson(600), Partition(600)):
        fit = Fit(lambda optimizer: optimizer.release(2), together=4, sampling=sampling)
        assert fit() == 2
        if sampling == Poisson(600):
            assert fit() == 2
        else:
            with pytest.raises(RuntimeError, match="2 of this fit's draws were left out"):
                fit()
            assert fit.ledger.steps == fit.run.made == 2
            refuse_gaps(fit.run, 0)  # a call that releases nothing costs nothing


def test_the_budget_of_a_data_set_cuts_the_last_call_and_ends_fit():
    spent = Ledger()
    spent.reserve(spent.begin(release_of(Poisson(600), 2.0)), 6)
    ledger = Ledger(dataset="digits", budget=(1.001 * epsilon(spent, 1e-5), 1e-5))
    fit = Fit(releases_all, together=4, ledger=ledger)
    assert fit() == 4
    assert fit.stopped == 0
    with pytest.warns(UserWarning, match="affords 2 more updates: fit ends after them"):
        assert fit() == 2
    assert (fit.stopped, ledger.steps) == (1, 6)
    with pytest.warns(UserWarning, match="affords 0 more updates"):
        assert fit() == 0  # Keras goes on to the end of an epoch where nobody listens
    assert ledger.steps == 6
    assert epsilon(ledger, 1e-5) <= ledger.budget.epsilon


def test_replicas_that_release_nothing_say_so_and_cost_nothing():
    fit = Fit(lambda optimizer: 0, together=2, replicas=True)
    with pytest.raises(RuntimeError, match="slices of different draws"):
        fit()
    assert fit.ledger.steps == 0


class Workers:
    """One side of several workers: what the chief sent to this one, or what it sends itself."""

    def __init__(self, chief, received=()):
        self.chief, self.received, self.sent = chief, list(received), []
        self.equal = True

    def number(self, value=0, name=""):
        if not self.chief:
            value = self.received.pop(0)
            if value is None:
                raise ChiefStoppedError
        self.sent.append(value)
        return value

    def apart(self):
        return contextlib.nullcontext()

    def level(self):
        return self.equal


def test_the_chief_tells_the_others_what_it_reserved():
    chief = Workers(True)
    fit = Fit(releases_all, together=3, limit=5, workers=chief)
    for _ in range(3):
        fit()
    assert chief.sent == [3, 2, 0]
    assert fit.ledger.steps == 5
    other = Fit(releases_all, together=3, workers=Workers(False, chief.sent))
    assert [other() for _ in range(3)] == [3, 2, 0]
    assert other.run.made == 5
    assert other.ledger.steps == 5  # in the copy of the chief's, and in nobody else's
    assert other.ledger.is_copy


def test_a_worker_counts_before_it_holds_what_was_released_and_keeps_what_broke_off():
    """The copy stood still while `fit` ran: whoever saved or stated meanwhile stated last month's epsilon."""
    seen = []

    def step(optimizer):
        seen.append(other.ledger.steps)
        if len(seen) == 3:
            optimizer.release(1)
            raise RuntimeError("the chief is gone")
        return optimizer.release(2)

    other = Fit(step, together=2, workers=Workers(False, [2, 2, 2]))
    other(), other()
    with pytest.raises(RuntimeError, match="the chief is gone"):
        other()
    assert seen == [2, 4, 6]
    assert other.ledger.steps == other.run.made == other.run.counted_in(other.ledger) == 6


def test_a_worker_that_held_other_weights_says_so_once():
    other = Fit(releases_all, workers=Workers(False, [1, 1, 1]))
    other.run.replicas.workers.equal = False
    with pytest.warns(UserWarning, match="This worker held other weights, or another state of the optimizer") as said:
        assert [other() for _ in range(3)] == [1, 1, 1]
    assert len(said) == 1


def test_a_chief_that_may_not_go_on_lets_the_others_end(monkeypatch):
    ran, chief = [], Workers(True)
    monkeypatch.setattr(Ledger, "reserve", lambda *_, **__: (_ for _ in ()).throw(LedgerError("no space left")))
    with pytest.raises(LedgerError, match="no space left"):
        Fit(ran.append, workers=chief)()
    assert not chief.sent  # `Workers.training` lets them hear of it
    with pytest.raises(ChiefStoppedError):
        Fit(ran.append, workers=Workers(False, [None]))()
    assert not ran
