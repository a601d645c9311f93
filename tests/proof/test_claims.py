"""What is said of the numbers in a tensor (entries, bounds, sums, one number in all) is so in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.proof import mutants
from helpers.proof.kernels import CALLS, said_and_computed
from helpers.proof.random_claims import false_claims
from helpers.variants import slow_but
from tfdp_layers.proof.arithmetic import OPERATIONS

slow = pytest.mark.slow
CAREFUL = ("SplitV", "Reshape", "Tile", "Slice", "GatherV2", "InvertPermutation", "FloorDiv", "Range")
"""Operations that NumPy takes arguments of which TensorFlow's kernels refuse."""
OF_UNKNOWN_RANK = ("ExpandDims", "StridedSlice")
"""Operations that say nothing of the numbers here: of axes that are no constants TensorFlow does not know the rank."""
BUGS = {
    "sums along a dropped axis": ("reshaping", "None if axis in dims else axis", "axis", 2000),
    "numbers beyond a type": ("settling", "entries=None, fill=None)", "entries=None)", 3000),
    "rounded numbers": ("constants", "float(result) if small or right else None", "float(result)", 4018),
}
"""Bugs to plant, each with the module, the text, what it is replaced with, and seeds of programs that show it."""


def found_in(seeds: range, **options: Any) -> tuple[list[str], int]:
    results = [false_claims(seed, **options) for seed in seeds]
    return [fault for faults, _ in results for fault in faults], sum(count for _, count in results)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "last"), [(0, 15), pytest.param(15, 600, marks=slow)])
def test_what_is_said_of_the_numbers_of_random_programs(first: int, last: int) -> None:
    faults, compared = found_in(range(first, last))
    assert faults == []
    assert compared > 20 * (last - first), "hardly anything was compared"


@pytest.mark.parametrize(("first", "last"), [(0, 1), pytest.param(1, 60, marks=slow)])
def test_what_is_said_of_the_numbers_that_xla_computes(first: int, last: int) -> None:
    faults, compared = found_in(range(first, last), compiled=True)
    assert faults == []
    assert compared > 20 * (last - first), "hardly anything was compared"


@pytest.mark.parametrize("bug", BUGS)
def test_a_false_claim_is_found(bug: str) -> None:
    module, old, new, first = BUGS[bug]
    with mutants.mutant(module, mutants.edited(module, old, new)):
        assert any(false_claims(seed)[0] for seed in range(first, first + 8))


@pytest.mark.parametrize("name", slow_but(CAREFUL, CALLS))
def test_nothing_is_said_of_what_a_kernel_refuses(name: str) -> None:
    said_something = 0
    for seed in range(12):
        found = said_and_computed(name, seed)
        if found is None:
            continue
        said, computed, there = found
        assert there, "the operation is not in the graph"
        if computed is None:
            assert said == [None] * len(said), f"seed {seed}"
            continue
        for entries, numbers in zip(said, computed, strict=True):
            said_something += entries is not None
            assert entries is None or list(entries) == [int(n) for n in np.ravel(numbers)], f"seed {seed}"
    assert bool(said_something) == (name not in OF_UNKNOWN_RANK), "nothing was compared"


def test_every_operation_is_called() -> None:
    assert set(OPERATIONS) - set(CALLS) == {"BroadcastGradientArgs"}, "it says less than the kernel: see the rule"
