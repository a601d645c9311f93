"""Poisson draws for tensorflow-privacy, in batches of one size; and what stands where it does not run."""

import pickle

import keras
import numpy as np
import pytest
from scipy import stats

import tfdp_layers as tfdp
from helpers.forks import in_fork
from tfdp_layers.tf_privacy.draws import PoissonBatches, rows_for

X, Y = np.arange(1, 401, dtype="float32").reshape(200, 2), np.arange(200)


@pytest.mark.parametrize(("batch_size", "examples"), [(1, 10), (20, 200), (256, 60_000), (2048, 60_000), (7, 7)])
def test_a_draw_fits_into_the_rows_but_with_probability_1e25(batch_size, examples):
    rows = rows_for(batch_size, examples)
    assert stats.binom.sf(rows, examples, batch_size / examples) <= 1e-25
    # Chernoff's bound is not far from the truth: of rows that are fewer by 2 deviations it does not hold.
    fewer = int(rows - 2 * np.sqrt(batch_size))
    assert rows == examples or stats.binom.sf(fewer, examples, batch_size / examples) > 1e-25


def test_a_batch_holds_the_drawn_records_and_empty_rows_of_weight_zero():
    batches = PoissonBatches({"a": X}, Y, 20, sample_weight=np.full(200, 0.5), seed=1)
    sizes = []
    column = PoissonBatches({"a": X}, Y, 20, sample_weight=np.full((200, 1), 0.5), seed=1)
    assert next(column.dataset().as_numpy_iterator())[2].shape == (batches.rows,)
    for x, y, weights in batches.dataset().take(50).as_numpy_iterator():
        assert x["a"].shape == (batches.rows, 2)
        assert y.shape == weights.shape == (batches.rows,)
        there = weights > 0
        drawn = int(np.count_nonzero(there))
        assert set(weights) <= {0.0, 0.5}
        np.testing.assert_array_equal(x["a"][there], X[y[there]])
        assert not x["a"][~there].any()
        assert len(set(y[there])) == drawn
        sizes.append(drawn)
    assert abs(np.mean(sizes) - 20) < 5 * np.sqrt(20 / 50)
    assert len(set(sizes)) > 5
    again = next(iter(batches.dataset().as_numpy_iterator()))
    assert not np.array_equal(again[1], next(iter(PoissonBatches(X, Y, 20, seed=1).dataset().as_numpy_iterator()))[1])


def test_a_record_lies_in_any_row_whatever_others_are_drawn():
    """Records came first: one more moved others to other rows, where a known mask of dropout is another one."""
    batches = PoissonBatches(X[:4], Y[:4], 2)
    rows = [np.flatnonzero(y == 3) for _, y, _ in batches.dataset().take(400).as_numpy_iterator()]
    found = np.concatenate(rows)
    assert batches.rows == 4
    assert stats.chisquare(np.bincount(found, minlength=4)).pvalue > 1e-6
    assert np.count_nonzero(found == 3) > 20, "the last row, also where fewer are drawn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y[:-1], 20), "same records"),
        ((X, Y, 201), "is larger than the data"),
        ((X, Y, 2.5), "must be an integer"),
        ((X, 3, 20), "same records"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PoissonBatches(*arguments)
    with pytest.raises(ValueError, match="one number a record"):
        PoissonBatches(X, Y, 20, sample_weight=np.ones(3))


def test_a_copy_that_would_replay_its_draws_is_refused():
    with pytest.raises(TypeError, match="replay"):
        pickle.dumps(PoissonBatches(X, Y, 20))


@pytest.mark.skipif(keras.__version__.startswith("2."), reason="tensorflow-privacy runs on Keras 2")
def test_models_of_keras_3_are_sent_to_make_private():
    with pytest.raises(ImportError, match="make_private"):
        tfdp.tf_privacy.with_ledger(keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]))


def test_a_fork_does_not_draw_what_its_parent_draws():
    batches = PoissonBatches(X, Y, 20)
    assert "PoissonBatches makes draws in a forked process" in in_fork(lambda: next(batches._batches()))
    assert len(next(batches._batches())) == 3


@pytest.mark.parametrize("name", ["sampling", "examples", "rows", "seeded"])
def test_what_a_fit_is_charged_for_stays_what_the_batches_were_made_with(name):
    """Draws of 20 of 200 were charged as draws of 1."""
    batches = PoissonBatches(X, Y, 20)
    with pytest.raises(AttributeError, match="stays what it was made with"):
        setattr(batches, name, tfdp.sampling.Poisson(1) if name == "sampling" else 1)
    assert batches.sampling.batch_size == 20
