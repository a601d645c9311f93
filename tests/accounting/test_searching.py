"""The most releases that keep to a target are found exactly, whatever the cost rises like, and with few looks at it."""

import math

import pytest

from tfdp_layers.accounting.searching import most

COSTS = {
    "as a root": lambda n: 0.03 * math.sqrt(n),
    "straight": lambda n: 1e-3 * n,
    "root and straight": lambda n: 1e-3 * math.sqrt(n) + 1e-5 * n,
    "after a history": lambda n: math.sqrt(2.9 + 1e-6 * n),
    "by whole epochs": lambda n: 0.2 * math.sqrt(-(-n // 7000)),
    "in one step": lambda n: 0.0 if n < 123_456 else 100.0,
    "soon infinite": lambda n: 0.1 * n if n < 17 else math.inf,
    "very late": lambda n: max(0.0, n - 900_000) ** 3.0,
    "never enough": lambda n: 1e-12 * n,
    "at once too much": lambda n: 10.0 * n,
    "too much before": lambda n: 5.0 + n,
}


@pytest.mark.parametrize("guess", [0, 1, 1000, 600_000])
@pytest.mark.parametrize("name", COSTS)
def test_the_largest_number_that_keeps_to_the_target_is_found(name, guess):
    asked, cost, maximum = [], COSTS[name], 1_000_000

    def counted(number):
        asked.append(number)
        return cost(number)

    found = most(counted, 2.0, guess, maximum)
    assert found == 0 or cost(found) <= 2.0
    assert found == maximum or cost(found + 1) > 2.0
    assert all(0 <= number <= maximum for number in asked)
    assert len(asked) <= 80


@pytest.mark.parametrize("name", ["as a root", "straight", "root and straight", "after a history"])
def test_few_costs_are_asked_for(name):
    """Bisection from such a guess took 17."""
    asked = []
    right = most(COSTS[name], 2.0, 1, 10**7)
    assert most(lambda n: asked.append(n) or COSTS[name](n), 2.0, int(0.97 * right), 10**7) == right
    assert len(asked) <= 8


def test_a_cost_near_the_target_ends_a_search_that_asks_for_no_more():
    found = most(COSTS["as a root"], 2.0, 1, 10**7, close=0.01)
    assert abs(COSTS["as a root"](found) - 2.0) < 0.02


def test_a_cost_that_is_not_monotone_still_answers_with_one_that_was_computed():
    asked = {}

    def wavy(number):
        asked[number] = 0.01 * number * (1.2 if number % 2 else 1.0)
        return asked[number]

    found = most(wavy, 2.0, 5, 10_000)
    assert asked[found] <= 2.0 < asked[found + 1]
