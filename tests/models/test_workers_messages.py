"""Messages of workers: all stop where one does, and what the chief's weights cost goes before them.

The two workers are threads here; `test_replicas.py` has real processes.
"""

import pytest
import tensorflow as tf

from helpers.accounting_tools import ledger_of, release_of
from helpers.collectives import on_both
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.following import Books, Following, follow, opening_of
from tfdp_layers.models.workers import ChiefStoppedError, WorkerStoppedError
from tfdp_layers.sampling import Poisson

RELEASE, OTHER = release_of(Poisson(4), 2.0, 12), release_of(Poisson(4), 0.5, 12)


def trained(workers, books, hook, share=lambda _: None):
    """A training of two calls; `hook(place)` runs in each place of it where code of the caller does."""
    with workers.training(books):
        hook("begin")
        workers.number(name="begin")
        share(workers)
        for _ in range(2):
            workers.number(3, "step")
            with workers.apart():
                hook("inside")
            hook("batch")
            workers.number(name="batch")
        hook("end")
        workers.text("the ledger", "end")
    return "trained"


def tried_twice(fit, place, who, kind):
    """What `fit(workers, hook)` gave or raised on both workers, twice: the hooks of `who` fail once, in this place."""

    def work(workers):
        number, found = int(not workers.chief), []

        def hook(here):
            if here == place and number in who and not found:
                raise kind("server is down")

        for _ in range(2):
            try:
                found.append(fit(workers, hook))
            except Exception as error:
                found.append(type(error))
        return found

    return on_both(work)


PLACES = ("begin", "batch", "end")


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)], ids=["chief", "other", "both"])
@pytest.mark.parametrize("place", PLACES)
def test_whoever_fails_ends_all_and_the_next_training_is_in_step(place, who):
    """The chief's error behind the last step left the others to take its next message for the ledger."""

    found = tried_twice(lambda workers, hook: trained(workers, None, hook), place, who, ConnectionError)
    told = WorkerStoppedError if who == (1,) else ChiefStoppedError
    assert found == [[ConnectionError if number in who else told, "trained"] for number in range(2)]


def test_an_error_inside_of_what_all_compute_says_nothing_more():
    """Others may wait there for ever; as before, they hear of it when this process ends."""

    def work(workers):
        def hook(here):
            if here == "inside":
                raise OSError("all of them")

        with pytest.raises(OSError, match="all of them"):
            trained(workers, None, hook)
        return workers.number(7, "next")

    assert on_both(work) == [7, 7]


@pytest.mark.parametrize("opened", [("one", "one"), ("one", "other"), ("", "other")])
def test_workers_in_other_places_all_stop_and_are_in_step_again(opened):
    def work(workers):
        workers.open(opened[int(not workers.chief)])
        name = "end" if opened[0] == opened[1] and workers.chief else "batch"
        kind = WorkerStoppedError if workers.chief else ChiefStoppedError
        with pytest.raises(kind, match=r"not in the same place.*call fit again, on every worker"):
            workers.text("said", name) if workers.chief else workers.number(name=name)
        return workers.text("again" if workers.chief else "", "opening"), workers.any(not workers.chief)

    assert on_both(work) == [("again", True)] * 2


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)], ids=["chief", "other", "both"])
@pytest.mark.parametrize("place", ["arguments", "batch"])
@pytest.mark.parametrize("within", [False, True], ids=["itself", "in a hook"])
def test_whoever_refuses_arguments_ends_the_fit_of_all(within, place, who):
    """An argument, or a callback that only the chief has, was refused before any message: the others waited for it."""

    def fit(workers, hook):
        with workers.fitting():
            hook("arguments")
            workers.ready()
            if within:
                with workers.fitting():
                    pass
            return trained(workers, None, hook)

    found = tried_twice(fit, place, who, ValueError)
    told = WorkerStoppedError if who == (1,) else ChiefStoppedError
    assert found == [[ValueError if number in who else told, "trained"] for number in range(2)]


def test_an_error_while_variables_are_made_says_nothing_that_others_would_have_to_come_for():
    def work(workers):
        def fails():
            with workers.fitting():
                workers.ready()
                raise OSError("no memory")

        with pytest.raises(OSError, match="no memory"):
            fails()
        return workers.number(7, "next")

    assert on_both(work) == [7, 7]


@pytest.mark.parametrize("place", ["arguments", "batch"])
def test_a_fit_of_another_model_in_a_hook_that_ends_all_says_so_once(place):
    def work(workers):
        other = type(workers)(workers._line, workers.chief)  # another model's, on the same line

        def refuse():
            with other.fitting():
                if place == "arguments" and workers.chief:
                    raise ValueError("no such argument")
                other.ready()
                with other.training(None):
                    if workers.chief:
                        raise ValueError("server is down")
                    other.number(name="batch")

        try:
            with workers.fitting():
                workers.ready()
                trained(workers, None, lambda here: refuse() if here == "batch" else None)
        except Exception as error:
            return type(error), workers.number(7, "next")

    assert on_both(work) == [(ValueError, 7), (ChiefStoppedError, 7)]


def test_workers_in_the_same_place_go_on():
    def work(workers):
        workers.open("one")
        return workers.number(4 if workers.chief else 0, "step"), workers.any(False), workers.text("é" * workers.chief)

    assert on_both(work) == [(4, False, "é")] * 2


def told_before_weights(charges, silent=False):
    """What the other worker's ledger counts whenever it gets values of the chief's, and what it does in the end."""
    accounts = [Account(ledger_of(RELEASE, 6)), Account(Ledger())]
    token = accounts[0].ledger.begin(RELEASE)
    accounts[1].replace(copied := follow(Ledger.from_json(accounts[0].ledger.to_json())))
    counting = Following(copied, opening_of(accounts[0].ledger, token))
    books = [Books(accounts[0], token), Books(accounts[1], None, counting)]
    if silent:
        books[0].news = lambda: ""
    seen, sizes = [], []

    def work(workers):
        number = int(not workers.chief)

        def hook(here):
            if here in charges and not number:
                accounts[0].ledger._take(ledger_of(OTHER, charges[here]))
            if here == "batch" and number:
                seen.append(copied.steps)

        trained(workers, books[number], hook, lambda one: one.share([tf.Variable(0.0)]))
        sizes.append(len(workers.sizes))

    assert on_both(work) == [None, None]
    return seen, copied.steps, sizes


@pytest.mark.parametrize("place", PLACES)
def test_what_a_hook_of_the_chief_costs_goes_before_its_weights(place):
    seen, last, _ = told_before_weights({place: 11})
    assert seen == {"begin": [17, 17], "batch": [6, 17], "end": [6, 6]}[place]
    assert last == {"batch": 28}.get(place, 17)  # its hook runs twice


def test_a_chief_that_keeps_it_to_itself_is_seen():
    """The planted bug."""
    assert told_before_weights({"begin": 11}, silent=True)[:2] == ([6, 6], 6)


def test_where_nothing_changes_one_text_is_sent_in_all():
    assert told_before_weights({})[2] == [2, 2]  # of the beginning, and the ledger in the end
