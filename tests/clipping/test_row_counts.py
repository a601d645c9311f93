"""What a record adds to the counts of a table's rows: at most 1 in norm, attained, whatever ids it holds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.mutated import mutated
from helpers.variants import slow_but
from tfdp_layers.clipping.row_counts import row_counts
from tfdp_layers.per_record.contributions import Lookups, Stored
from tfdp_layers.rules.rows import ROUNDING

ROWS, POSITIONS = 40, 16
FAR = 2**31 - 1


def table():
    return keras.Variable(np.zeros((ROWS, 2), "float32"), name="table")


def counted(ids, present=None, counts=row_counts, u=0.0):
    """The counts of records (batch, positions) of ids, in float64."""
    variable, ids = table(), np.asarray(ids)
    part = Lookups(variable, tf.constant(ids), tf.fill((*ids.shape, 2), u))
    present = np.ones(len(ids)) if present is None else present
    return np.asarray(counts(variable, {id(variable): part}, tf.constant(present, tf.float32)), np.float64)


def expected(ids):
    """By Python's sets, record by record."""
    total = np.zeros(ROWS)
    for record in np.asarray(ids):
        rows = sorted({int(i) for i in record if 0 <= i < ROWS})
        total[rows] += 1 / np.sqrt(max(1, len(rows)))
    return total


RECORDS = {
    "all equal": [7] * POSITIONS,
    "all different": list(range(POSITIONS)),
    "two rows": [0] * 15 + [39],
    "padding ids": [5, 9, 5] + [0] * 13,
    "first and last": [ROWS - 1, 0] * 8,
    "one in range": [-1, -FAR, FAR, ROWS, ROWS + 1, 3] + [-7] * 10,
    "none in range": [-1, -FAR, FAR, ROWS] * 4,
}


def check_each_record(counts=row_counts):
    """Every record that looks up a row adds a vector of norm 1, but for the margin; others add nothing."""
    for name, ids in RECORDS.items():
        found = counted([ids], counts=counts)
        norm = np.linalg.norm(found)
        assert norm <= 1.0, name
        assert norm >= (0.0 if name == "none in range" else 1.0 - 2 * ROUNDING), name
        np.testing.assert_allclose(found, expected([ids]), rtol=2 * ROUNDING, atol=0, err_msg=name)


def check_batches(counts=row_counts):
    """Of random records the counts are the sum of what each adds; rows of padding add exactly zero."""
    rng = np.random.default_rng(3)
    ids = rng.integers(-3, ROWS + 3, (50, POSITIONS)) % rng.integers(1, ROWS + 3, (50, 1))
    present = rng.integers(0, 2, 50)
    np.testing.assert_allclose(counted(ids, present, counts), expected(ids[present > 0]), rtol=1e-4, atol=1e-6)
    assert not counted(ids, np.zeros(50), counts).any()


def check(counts=row_counts):
    check_each_record(counts)
    check_batches(counts)


def test_the_norm_of_a_record_is_attained_and_never_exceeded():
    check_each_record()


def test_counts_add_up_over_the_records_and_padding_adds_nothing():
    check_batches()


def test_what_a_record_adds_depends_on_its_ids_alone():
    ids = [RECORDS["padding ids"], RECORDS["all different"]]
    for value in (np.nan, np.inf, -1e38, 1e-40):
        np.testing.assert_array_equal(counted(ids, u=value), counted(ids))


MUTANTS = {
    "not rescaled": ("(1.0 - ROUNDING) / tf.sqrt(tf.maximum(number, 1.0))", "tf.ones_like(number)"),
    "scaled by the number, not its root": ("tf.sqrt(tf.maximum(number, 1.0))", "tf.maximum(number, 1.0)"),
    "duplicates counted": ("ids[:, 1:] != ids[:, :-1]", "ids[:, 1:] > -1"),
    "duplicates in the number": ("tf.reduce_sum(each, axis=1)", "tf.ones_like(each[:, 0]) * each.shape[1]"),
    "ids beyond the table in the number": (" & (ids < table.shape[0])", ""),
    "negative ids in the number": ("(ids >= 0) & ", ""),
    "no margin": ("(1.0 - ROUNDING)", "(1.0 + ROUNDING)"),
    "padding counted": ("tf.where(present > 0.0, unit, tf.zeros_like(unit))", "unit"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name):
    counts = mutated(row_counts, *MUTANTS[name])
    with pytest.raises((AssertionError, tf.errors.InvalidArgumentError)):
        check(counts)


def test_a_table_that_is_not_looked_up_at_all_counts_zero():
    assert not np.asarray(row_counts(table(), {}, tf.ones(3))).any()


def test_a_table_with_gradients_in_all_rows_is_refused():
    variable = table()
    part = Stored(variable, tf.zeros((2, ROWS, 2)))
    with pytest.raises(ValueError, match=r"is not only looked up.*smallest_table=41"):
        row_counts(variable, {id(variable): part}, tf.ones(2))


@pytest.mark.parametrize("jit_compile", slow_but([None], [None, True]))
def test_compiled_counts_are_the_same(jit_compile):
    variable, ids = table(), np.array(list(RECORDS.values()))

    @tf.function(jit_compile=jit_compile, autograph=False)
    def counts(ids):
        part = Lookups(variable, ids, tf.zeros((*ids.shape, 2)))
        return row_counts(variable, {id(variable): part}, tf.ones(len(RECORDS)))

    np.testing.assert_allclose(counts(tf.constant(ids, tf.int32)), expected(ids), rtol=1e-4, atol=1e-6)
