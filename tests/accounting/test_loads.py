"""What waits for a load is done after it, whichever thread asks, and whatever became of the thread that loads."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfdp_layers.accounting import Ledger, released
from tfdp_layers.accounting.loads import Load, is_loading, loading


def load_own_variables(inside):
    """Named as the method of layers that Keras has load their own."""
    return inside()


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=20)


def test_outside_of_any_load_nothing_waits():
    load = Load(lambda: None)
    assert load.over
    assert in_thread(lambda: load.over)


def test_it_is_over_as_the_outermost_call_that_loads_returns_in_every_thread():
    made, asked = [], []

    def ask():
        asked.append((made[0].over, in_thread(lambda: made[0].over)))

    def outer():
        load_own_variables(lambda: made.append(Load(lambda: None)))
        ask()

    load_own_variables(outer)
    ask()
    assert asked == [(False, False), (True, True)]


def test_a_block_of_loading_is_waited_for_by_others_too():
    with loading():
        with loading():
            load = Load(lambda: None)
        assert is_loading()
        assert not load.over
        assert not in_thread(lambda: load.over)
        assert not in_thread(is_loading)
    assert load.over
    assert in_thread(lambda: load.over)
    assert not is_loading()


def test_a_failed_load_is_over_while_its_error_is_kept():
    made = []

    def fail():
        made.append(Load(lambda: None))
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged") as kept:
        load_own_variables(fail)
    assert made[0].over
    assert in_thread(lambda: made[0].over)
    assert kept.tb is not None


def test_a_thread_that_ended_has_loaded():
    assert in_thread(lambda: load_own_variables(lambda: Load(lambda: None))).over


def test_a_thread_that_loads_on_has_loaded_what_it_loaded_before():
    """Calls one after the other may lie at one place in memory."""
    loads = []

    def first():
        loads.append(Load(lambda: None))

    for _ in range(50):
        load_own_variables(first)

        def second():
            first()
            return [load.over for load in loads], in_thread(lambda: [load.over for load in loads])

        expected = [*[True] * len(loads), False]
        assert load_own_variables(second) == (expected, expected)
        assert all(load.over for load in loads)


def test_what_is_around_a_load_is_not_kept():
    class Large:
        pass

    def around():
        large = Large()
        return load_own_variables(lambda: Load(lambda: None)), weakref.ref(large)

    load, large = around()
    gc.collect()
    assert load.over
    assert large() is None


def test_a_generator_on_the_way_hides_no_load():
    made = []

    def steps():
        made.append(Load(lambda: None))
        yield made[0].over, in_thread(lambda: made[0].over)

    assert load_own_variables(lambda: next(steps())) == (False, False)
    assert made[0].over


class Weight:
    """Numbers that come later, or cannot be read."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __array__(self, dtype=None, copy=None):
        if self.numbers is None:
            raise NotImplementedError("numpy() is only available when eager execution is enabled.")
        return self.numbers


@pytest.fixture
def remembered(monkeypatch):
    """Released values, and what waits, of this test alone."""
    monkeypatch.setattr(released, "_released", {})
    monkeypatch.setattr(released, "_later", [])


def costs(numbers):
    return list(released.costs_of([numbers]))


@pytest.mark.usefixtures("remembered")
def test_another_thread_remembers_no_numbers_that_a_load_puts_in_later():
    first, last = np.arange(5.0), np.arange(5.0) ** 2
    weight, looks = Weight(first), []

    def load():
        released.remember_later(lambda: released.remember(Ledger(), [weight]))
        looks.append(in_thread(lambda: costs(first)))
        weight.numbers = last

    load_own_variables(load)
    assert looks == [[]]
    assert len(in_thread(lambda: costs(last))) == 1  # without a look of the thread that loaded
    assert not costs(first)


@pytest.mark.usefixtures("remembered")
def test_what_could_not_be_read_is_not_forgotten():
    weight, numbers = Weight(None), np.arange(5.0)
    released.remember_later(lambda: released.remember(Ledger(), [weight]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be read here, so what copies of them cost is not known"):
            costs(numbers)
    weight.numbers = numbers
    assert len(costs(numbers)) == 1
    assert not released._later


@pytest.mark.usefixtures("remembered")
def test_threads_that_ask_at_once_lose_nothing():
    weights = [np.arange(5.0) + shift for shift in range(200)]
    for weight in weights:
        released.remember_later(lambda weight=weight: released.remember(Ledger(), [weight]))
    start = threading.Barrier(4)

    def ask():
        start.wait(timeout=20)
        return [len(costs(weight)) for weight in weights]

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        assert [one.result(timeout=60) for one in asked] == [[1] * 200] * 4
    assert not released._later
