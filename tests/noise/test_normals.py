"""Normal numbers from a counter: TensorFlow's own random bits, and the same numbers whether compiled or not."""

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.noise import SeededNoise, normals

STATES = [(0, 0, 0), (1, 2, 3), (-1, -1, -1), (-5, 2**63 - 1, -(2**63)), (2**32 - 3, -1, 2**32)]
"""Counters that carry into their upper half, and out of it, and keys of every sign."""


def tensorflow_bits(state: tuple[int, ...], counters: int) -> np.ndarray:
    words = tf.bitcast(tf.constant(state, tf.int64), tf.uint64)
    return np.asarray(
        tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[counters, 4], key=words[2:], counter=words[:2], alg=1, dtype=tf.uint32
        )
    )


@pytest.mark.parametrize("state", STATES)
def test_random_bits_are_those_of_tensorflows_own_philox(state: tuple[int, ...]) -> None:
    for rows in (1, 8):
        found = np.stack(normals.philox(tf.constant(state, tf.int64), 1000, rows), axis=-1).reshape(1000, 4)
        np.testing.assert_array_equal(found, tensorflow_bits(state, 1000))


def test_the_check_of_the_bits_sees_a_carry_or_a_round_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals, "_ROUNDS", 9)
    with pytest.raises(AssertionError):
        test_random_bits_are_those_of_tensorflows_own_philox((1, 2, 3))


@pytest.mark.few(3)
@pytest.mark.parametrize("state", STATES)
def test_compiled_numbers_are_those_that_are_not_compiled(
    state: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tf.constant(state, tf.int64)
    plain = np.asarray(normals._plain(words, 5056)).reshape(2, 2, 5056)  # first and second of pairs, two a counter
    whole = tf.function(lambda: normals._compiled(words, 5000), jit_compile=True)
    draws = [normals._compiled(words, 5000), whole()]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    for compiled in (*draws, normals._compiled(words, 5000)):
        by_pairs = np.asarray(compiled).reshape(2, 5056, 2)
        np.testing.assert_allclose(by_pairs, plain.transpose(1, 2, 0), rtol=0, atol=3e-6)


def test_turns_by_polynomials_are_exact_in_an_eighth_of_a_turn_to_each_side() -> None:
    angle = np.concatenate([np.linspace(-np.pi / 4, np.pi / 4, 100_001), [2.0**-31, -(2.0**-31)]]).astype(np.float32)
    cosine, sine = normals._polynomial_turn(tf.constant(angle))
    np.testing.assert_allclose(cosine, np.cos(angle.astype(np.float64)), rtol=2e-7)
    np.testing.assert_allclose(sine, np.sin(angle.astype(np.float64)), rtol=2e-7)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, normals.COMPILED + 1])
def test_draws_follow_one_another_without_a_number_in_common(count: int) -> None:
    source = SeededNoise(5)
    draw = tf.function(lambda: source.normal([count]))
    drawn: list[Any] = [np.asarray(draw()) for _ in range(3)] + [np.asarray(source.normal([7]))]
    assert [len(numbers) for numbers in drawn] == [count, count, count, 7]
    together = np.concatenate(drawn)
    # Of 300,000 numbers of 32 bits some are equal by chance: of whole counters, four in a row, none are.
    rows = {tuple(numbers[i : i + 4]) for numbers in drawn for i in range(0, max(1, len(numbers) - 3), 4)}
    assert len(rows) == sum(max(1, -(-(len(numbers) - 3) // 4)) for numbers in drawn)
    assert np.isfinite(together).all()
    counter = np.asarray(source._generator.state)[0] - np.int64(SeededNoise(5)._fresh_state()[0])
    assert counter >= 3 * -(-count // 4)


@pytest.mark.parametrize("count", [5, normals.COMPILED + 1])
def test_draws_that_a_compiled_step_holds_go_on_as_those_outside_of_one(count: int) -> None:
    source, same = SeededNoise(5), SeededNoise(5)
    draw = tf.function(lambda: source.normal([count]), jit_compile=True)
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(draw()), np.asarray(same.normal([count])), rtol=0, atol=3e-6)
    np.testing.assert_array_equal(source._generator.state, same._generator.state)
