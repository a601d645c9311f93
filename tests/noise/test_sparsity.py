"""Noise on the rows that a noisy count selects: their deviation, which rows they are, and no number twice."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp_layers as tfdp
from helpers.mutated import mutated
from helpers.normality import assert_normal
from helpers.variants import slow_but
from tfdp_layers.noise import SeededNoise, add_noise, as_sparsity_preserving, sources, sparsity
from tfdp_layers.noise.sparsity import SparsityPreserving, add_noise_to_selected

ROWS, UNITS = 4000, 3
STDDEV, COUNT_STDDEV, THRESHOLD = 0.5, 2.0, 3.0
OF_ROW = np.arange(ROWS * UNITS, dtype="float32").reshape(ROWS, UNITS)
MANY = np.where(np.arange(ROWS) % 3 == 0, 40.0, -40.0).astype("float32")  # far above the threshold, or below
SOURCES = {"default": tfdp.noise.NoiseSource, "secure": tfdp.noise.SecureNoise}


def release(add=add_noise_to_selected, source=None, counts=MANY, jit_compile=None):
    """(table, other weights, counts) with their noise; the table's other rows as zeros."""
    source = SeededNoise(5) if source is None else source
    sums = [tf.constant(OF_ROW), tf.ones((2000,)), tf.constant(counts)]

    def run():
        return [tf.convert_to_tensor(t) for t in add(source, sums, [STDDEV, 0.1, COUNT_STDDEV], {0: 2}, THRESHOLD)]

    compiled = tf.function(run, jit_compile=jit_compile, autograph=False) if jit_compile else run
    return [np.asarray(t) for t in compiled()]


def check_noise(add=add_noise_to_selected, **options):
    """Selected rows have the stated noise, others are exactly zero; what is not a table is as ever."""
    table, others, counts = release(add, **options)
    assert table.shape == OF_ROW.shape
    selected = MANY > 0
    np.testing.assert_array_equal(table[~selected], 0.0)
    assert_normal(table[selected] - OF_ROW[selected], STDDEV)
    assert_normal(others - 1.0, 0.1)
    assert_normal(counts - MANY, COUNT_STDDEV)


@pytest.mark.parametrize("source", slow_but(["default"], SOURCES))
def test_selected_rows_have_the_stated_noise_and_others_are_zero(source):
    check_noise(source=SOURCES[source]())


@pytest.mark.slow
def test_the_same_under_xla():
    check_noise(jit_compile=True)


def check_selection(add=add_noise_to_selected):
    """Of rows that no record looks up, the share Q(threshold) is selected, by the noise that was released."""
    _, _, counts = outcome = release(add, counts=np.full(ROWS, 2.0 * COUNT_STDDEV, "float32"))
    chosen = np.any(outcome[0] != 0, axis=1)
    np.testing.assert_array_equal(chosen, counts > THRESHOLD * COUNT_STDDEV)
    share = stats.norm.sf(THRESHOLD - 2.0)
    assert abs(chosen.mean() - share) < 5 * np.sqrt(share * (1 - share) / ROWS)


def check(add):
    check_noise(add)
    check_selection(add)


def test_rows_are_selected_by_the_noisy_count():
    check_selection()


MUTANTS = {
    "selection by un-noised counts": ("noisy[count] > threshold", "sums[count] > threshold"),
    "another noise for the selection": (
        "noisy[count] > threshold * stddevs[count]",
        "add_noise(source, [sums[count]], [stddevs[count]])[0] > threshold * stddevs[count]",
    ),
    "threshold in units of the count": ("threshold * stddevs[count]", "threshold"),
    "no noise on the selected rows": ("[stddevs[i] for i in others]", "[0.0 * (i in rows) or 0.1 for i in others]"),
    "noise of the counts on the rows": ("[stddevs[i] for i in others]", "[stddevs[counted.get(i, i)] for i in others]"),
    "all rows selected": ("tf.where(selected)[:, 0]", "tf.where(selected | True)[:, 0]"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name):
    add = mutated(add_noise_to_selected, *MUTANTS[name])
    with pytest.raises(AssertionError):
        check(add)


def intervals(monkeypatch, amounts):
    """Which values of the counter each draw takes, where so many rows are selected one time after the other."""
    taken, counted = [], sources.counted_normals

    def noted(state, count):
        start = int(state[0].numpy().astype(np.uint64))
        taken.append((start, start + -(-int(count) // 4)))
        return counted(state, count)

    monkeypatch.setattr(sources, "counted_normals", noted)
    source = SeededNoise(6)
    for amount in amounts:
        counts = np.where(np.arange(ROWS) < amount, 40.0, -40.0).astype("float32")
        assert np.any(release(source=source, counts=counts)[0] != 0, axis=1).sum() == amount
    return taken


def overlap(taken):
    starts, ends = zip(*sorted(taken), strict=True)
    return any(end > start for end, start in zip(ends, starts[1:], strict=False))


def test_no_number_is_drawn_twice_however_many_rows_are_selected(monkeypatch):
    taken = intervals(monkeypatch, [0, 1, 700, 0, ROWS, 1])
    assert len(taken) == 12
    assert not overlap(taken)


def test_numbers_that_are_drawn_twice_are_seen(monkeypatch):
    """The planted bug: the counter is moved on by the rows of the first step, whatever a later one selects."""
    skip = tf.random.Generator.skip
    monkeypatch.setattr(tf.random.Generator, "skip", lambda self, blocks: skip(self, min(int(blocks), 4)))
    assert overlap(intervals(monkeypatch, [1, ROWS, 1]))


def test_without_noise_the_rows_that_are_looked_up_are_selected():
    counts = np.where(np.arange(ROWS) < 5, 0.25, 0.0).astype("float32")
    sums = [tf.constant(OF_ROW), tf.constant(counts)]
    table, _ = add_noise_to_selected(SeededNoise(1), sums, [0.0, 0.0], {0: 1}, THRESHOLD)
    np.testing.assert_array_equal(table.indices, np.arange(5))
    np.testing.assert_array_equal(table.values, OF_ROW[:5])


@pytest.mark.parametrize("shape", [[7], [2, 3], [0]])
def test_a_size_that_is_known_only_when_it_runs_gives_the_same_numbers(shape):
    fixed, late = (SeededNoise(2).normal(s) for s in (shape, [tf.constant(n, tf.int64) for n in shape]))
    np.testing.assert_array_equal(fixed, late)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({"noise_share": bad}, "noise_share") for bad in (0.0, 0.95, 1.0, -0.1, np.nan, True, "0.1")],
        *[({"threshold": bad}, "threshold") for bad in (-1.0, np.inf, np.nan, None)],
        *[({"smallest_table": bad}, "smallest_table") for bad in (0, 2.5, True)],
    ],
)
def test_numbers_out_of_range_are_refused(options, match):
    with pytest.raises(ValueError, match=f"`{match}` must be"):
        SparsityPreserving(**options)


def test_what_the_argument_may_be():
    own = SparsityPreserving(0.2, 3.0, 50)
    assert as_sparsity_preserving(own) is own
    assert as_sparsity_preserving(own.config()) == own
    assert as_sparsity_preserving(True) == SparsityPreserving()
    assert as_sparsity_preserving(False) is as_sparsity_preserving(None) is None
    for bad in (0.1, "yes", {"noise_share": 0.1}, SparsityPreserving):
        with pytest.raises((ValueError, TypeError), match="sparsity_preserving"):
            as_sparsity_preserving(bad)


def test_the_noise_is_added_by_the_one_function():
    """No second implementation: what `add_noise` does not add is not there."""
    assert inspect.unwrap(sparsity.add_noise) is inspect.unwrap(add_noise)
