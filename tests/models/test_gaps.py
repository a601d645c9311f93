"""Steps that are left out or break off: the ledger counts no less than what was released.

A partition's cost is that of consecutive updates: draws that are left out in between must not hide epochs.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

RECORDS, BATCH = 20, 5


def counting_model(steps_per_execution):
    """A model whose released sums tell which records were drawn, and the list that they are put into."""
    layer = tfdp.layers.ClippedDense(1, use_bias=False, input_clip=1.0, upstream_clip=1.0)
    model = tfdp.PrivateSequential([keras.Input((RECORDS,)), layer])
    optimizer, seen = tfdp.optimizers.NoisyOptimizer("sgd", 0.0), []
    optimizer.observe(lambda means: tf.numpy_function(lambda mean: seen.append(mean) or np.int64(0), means, tf.int64))
    model.compile(optimizer, lambda y, p: 10.0 * p[:, 0], steps_per_execution=steps_per_execution)
    return model, seen


def fit(model, steps, *callbacks):
    x, y = np.eye(RECORDS, dtype="float32"), np.zeros(RECORDS)
    sampling = tfdp.sampling.Partition(BATCH)
    model.fit(x, y, sampling=sampling, steps_per_epoch=steps, callbacks=list(callbacks), verbose=0)


def most_uses(seen):
    return round(float(np.max(sum(seen)) * BATCH))


def test_other_steps_per_execution_leave_no_draws_out():
    model, seen = counting_model(4)
    fit(model, 4)
    assert most_uses(seen) == 1
    seen.clear()
    model.steps_per_execution = 1
    fit(model, 4)
    assert (len(seen), most_uses(seen)) == (4, 1)  # one epoch, as the ledger counts


def test_more_steps_than_an_epoch_has_are_warned_of():
    model, seen = counting_model(3)
    with pytest.warns(UserWarning, match=r"steps_per_execution=3 makes 6 steps of an epoch of 4.*that divides 4"):
        fit(model, 4)
    assert len(seen) == model.ledger.steps == 6
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="steps_per_execution")
        fit(model, 6)


def test_steps_per_execution_cannot_change_in_fit():
    model, _ = counting_model(1)

    def change(batch, logs=None):
        model.steps_per_execution = 2

    with pytest.raises(RuntimeError, match="steps_per_execution was changed while fit runs"):
        fit(model, 4, keras.callbacks.LambdaCallback(on_train_batch_end=change))
    assert model.ledger.steps == 1


def test_a_limit_is_never_raised():
    model, seen = counting_model(4)

    def one_more(*_, **__):
        model.optimizer.limit_releases(1)

    fit(model, 16, keras.callbacks.LambdaCallback(on_train_begin=one_more, on_train_batch_end=one_more))
    assert model.ledger.steps == len(seen) == 1


@pytest.mark.parametrize("more", [None, -1, *(pytest.param(m, marks=pytest.mark.slow) for m in (1.5, True, "all"))])
def test_a_limit_is_never_taken_off(more):
    model, seen = counting_model(1)

    def allow(batch, logs=None):
        model.optimizer.limit_releases(more)

    with pytest.raises(ValueError, match="a limit can only be lowered while fit runs"):
        fit(model, 4, keras.callbacks.LambdaCallback(on_train_batch_end=allow))
    assert model.ledger.steps == len(seen) == 1


def test_no_updates_after_a_gap():
    model, seen = counting_model(4)

    def one_more(*_, **__):
        model.optimizer._lift_limit()
        model.optimizer.limit_releases(1)

    with pytest.raises(RuntimeError, match="3 of this fit's draws were left out"):
        fit(model, 16, keras.callbacks.LambdaCallback(on_train_begin=one_more, on_train_batch_end=one_more))
    assert model.ledger.steps == len(seen) == 1


class BreaksAfterwards(keras.optimizers.SGD):
    """Raises once the third update was made."""

    def apply(self, *args, **kwargs):
        super().apply(*args, **kwargs)
        if int(self.iterations) == 3:
            raise ArithmeticError("the weights have moved")


def test_a_step_that_breaks_off_counts_whole():
    model, seen = counting_model(1)
    optimizer = tfdp.optimizers.NoisyOptimizer(BreaksAfterwards(), 0.0)
    optimizer.observe(lambda means: seen.append(means))
    model.compile(optimizer, lambda y, p: 10.0 * p[:, 0], run_eagerly=True)
    with pytest.raises(ArithmeticError, match="the weights have moved"):
        fit(model, 8)
    assert model.ledger.steps == len(seen) == 3
