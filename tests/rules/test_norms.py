"""Sums in stages, and how many roundings they are said to take."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.per_record.contributions import Products
from tfdp_layers.rules.norms import sum_by_halves, sum_in_stages, terms_in_stages

ULP = 2.0**-24


class Table:
    """What products ask of a variable."""

    shape = (50, 70)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 97, 1000])
def test_halves_add_up_to_the_sum_whatever_their_length(length):
    rows = np.random.default_rng(length).normal(size=(3, 4, length)).astype("float32")
    sizes = np.abs(rows).sum(-1, dtype=np.float64)
    error = np.abs(sum_by_halves(tf.constant(rows)).numpy() - rows.sum(-1, dtype=np.float64))
    assert np.all(error <= np.ceil(np.log2(length)) * ULP * sizes)


def test_equal_entries_meet_no_more_roundings_than_halves_have():
    """A running sum of a million of them is off by 1 in 100."""
    total = sum_by_halves(tf.fill((1, 2**20), tf.constant(0.1)))
    assert abs(float(total[0]) / (2**20 * float(np.float32(0.1))) - 1.0) <= 20 * ULP


def compiled(function, *shapes):
    ones = [tf.ones(shape) for shape in shapes]
    whole = tf.function(function, jit_compile=True)
    return whole.experimental_get_compiler_ir(*ones)(stage="optimized_hlo")


def test_xla_keeps_the_stages_apart():
    """Of two `reduce_sum` after one another it makes one over 96 x 80 entries, and this fails."""
    assert "f32[4,96]" in compiled(sum_in_stages, (4, 96, 80))
    twice = compiled(lambda rows: tf.reduce_sum(tf.reduce_sum(rows, axis=2), axis=1), (4, 96, 80))
    assert "f32[4,96]{" not in twice, "XLA no longer merges sums: the halves are not needed"


def test_a_margin_counts_both_stages_and_all_terms_where_they_may_be_one():
    assert terms_in_stages(96, 80) == 176
    found = []

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((2, None, 5)), tf.TensorSpec((2, None, 7))])
    def unknown(x, u):
        found.append(Products(Table, x, u).gram_rounding()[1])
        return found[-1]

    def known(x, u):
        found.append(Products(Table, x, u).gram_rounding()[1])
        return tf.constant(found[-1])

    x, u = tf.ones((2, 90, 5)), tf.ones((2, 90, 7))
    assert float(unknown(x, u)) == pytest.approx((12 + 90 * 90) * ULP)
    assert float(tf.function(known, jit_compile=True)(x, u)) == pytest.approx((12 + 2 * 90) * ULP)
    assert float(known(x, u)) == pytest.approx((12 + 2 * 90) * ULP)


@pytest.mark.parametrize("positions", [30, 33])
def test_gram_norms_under_xla_are_within_their_margin(positions):
    """Equal entries, for which every rounding of a running sum points the same way."""
    x, u = tf.fill((2, positions, 50), 0.1), tf.fill((2, positions, 70), 0.3)
    truth = positions**2 * 50 * 70 * (float(np.float32(0.1)) * float(np.float32(0.3))) ** 2

    def norms(x, u):
        part = Products(Table, x, u)
        return part.gram_norms(), part.gram_rounding()[0] * part.gram_rounding()[1]

    for function in (norms, tf.function(norms, jit_compile=True)):
        found, margin = function(x, u)
        assert np.all(np.abs(found.numpy().astype(float) - truth) <= margin.numpy())
