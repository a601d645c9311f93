"""Bugs planted in the prover: for each a function in which records meet is then proved, so the tests would see it."""

import functools
from typing import Any

import pytest
import tensorflow as tf

from helpers.proof import mixing, mutants, planted
from helpers.proof.mutation_table import EDITS, GUARDS, NEVER_ALONE, PLANTED
from helpers.variants import slow_but
from tfdp_layers.proof import prove, prove_rows

SPEC = tf.TensorSpec((None, 6))


@functools.cache
def traced(name: str) -> Any:
    made = mixing.ROWS[name]() if name in mixing.ROWS else mixing.SUMS[name]()
    return tf.function(made, autograph=False).get_concrete_function(SPEC)


def is_proved(name: str) -> bool:
    return (prove_rows if name in mixing.ROWS else prove)(traced(name)).proved


@pytest.mark.parametrize("rule", slow_but(list(PLANTED)[::4], PLANTED))
def test_a_rule_that_refuses_nothing_is_seen(rule: str) -> None:
    claim, program = PLANTED[rule]
    assert not is_proved(program)
    with planted.planted(rule, claim):
        assert is_proved(program)


def test_every_rule_is_in_the_table() -> None:
    assert set(planted.rule_names()) == set(PLANTED) | set(NEVER_ALONE)


@pytest.mark.parametrize("guard", slow_but(list(GUARDS)[::4], GUARDS))
def test_a_check_left_out_is_seen(guard: str) -> None:
    module = guard.partition(".")[0]
    with mutants.mutant(module, mutants.without_guard(module, guard)):
        assert is_proved(GUARDS[guard])
    assert not is_proved(GUARDS[guard])


@pytest.mark.parametrize(
    ("module", "old", "new", "program"),
    slow_but(EDITS[::4], EDITS, several=True),
    ids=[f"{m}-{p}" for m, _, _, p in EDITS],
)
def test_an_edit_is_seen(module: str, old: str, new: str, program: str) -> None:
    with mutants.mutant(module, mutants.edited(module, old, new)):
        assert is_proved(program)
    assert not is_proved(program)
