"""NaN on synthetic records is no evidence that records meet, and hides none: others are drawn until all is finite."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS
from tfdp_layers.certificates import measuring

kl, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
SHARES, Y = RNG.uniform(0.05, 0.95, (12, 5)).astype("float32"), RNG.normal(size=(12, 1)).astype("float32")


class Calls(kl.Layer):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


def model_of(function: Any, loss: Any = "mse") -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), Calls(function, name="own"), kl.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), loss)
    return model


def unknown(x: Any) -> Any:
    """An operation without a rule: what follows it is not proved."""
    return tf.math.bessel_i0(x)


def positive(x: Any) -> Any:
    """NaN of records with a number below zero, and hidden from the proof."""
    return unknown(tf.math.log(x))


def asserted(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
        return ops.log(x)


# Ordinary functions of numbers of a range ---------------------------------------------------------------------------

ORDINARY = {
    "log": (ops.log, SHARES),
    "square root": (ops.sqrt, 100 * SHARES),
    "power": (lambda x: x**0.75, SHARES),
    "log odds": (lambda x: ops.log(x / (1.0 - x)), SHARES),
    "arccosh": (ops.arccosh, 1.0 + SHARES),
    "arcsine of a root": (lambda x: ops.arcsin(ops.sqrt(x)), SHARES),
    "log of the mean": (lambda x: x * ops.log(ops.mean(x, -1, keepdims=True)), SHARES),
    "below zero": (lambda x: ops.log(-x), -SHARES),
    "years above 17": (lambda x: ops.log(x - 17.0), 18.0 + SHARES),
    "asserted to be positive": (asserted, SHARES),
    "nowhere": (lambda x: ops.log(x) + ops.log(-x), SHARES),
    "the gradient of a root at zero": (lambda x: x + ops.sqrt(ops.relu(x - 1e6)), SHARES),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ORDINARY)
def test_functions_of_positive_numbers_are_proved_and_train(name: str) -> None:
    function, x = ORDINARY[name]
    model = model_of(function)
    # What is asserted of rows is asserted of padding, too, which short draws have: those of a constant size have none.
    draws = {"sampling": tfdp.sampling.FixedSize(4)} if function is asserted else {"batch_size": 4}
    model.fit(x, Y, epochs=1, verbose=0, accept_measured=False, **draws)
    assert model.ledger.entries[0].release.independence == "proved"


def test_a_loss_of_positive_predictions_trains() -> None:
    model = model_of(lambda x: x, loss=lambda y, p: ops.mean(ops.sqrt(p) + ops.log(p), -1))
    model.fit(SHARES, Y, batch_size=4, epochs=1, verbose=0)
    assert model.ledger.entries[0].release.independence == "proved"


@pytest.mark.few(1)
@pytest.mark.parametrize("function", [positive, lambda x: unknown(ops.sqrt(x)), lambda x: unknown(ops.arccosh(x))])
def test_what_is_not_proved_is_measured_on_numbers_of_the_range(function: Any) -> None:
    report = tfdp.check_independence(model_of(function))
    assert report.status == "unknown"
    assert "NaN" not in report.reason


def test_given_records_are_tried_first(monkeypatch: Any) -> None:
    tried = []
    monkeypatch.setattr(measuring, "specs", tried.append)
    assert not tfdp.check_independence(model_of(lambda x: unknown(ops.log(x - 17.0))), 18.0 + SHARES, Y).proved
    assert not tried


# Records that meet beside NaN ---------------------------------------------------------------------------------------


def centered(x: Any) -> Any:
    return positive(x) - tf.reduce_mean(positive(x), axis=0)


def next_one(x: Any) -> Any:
    return positive(x) + 0.1 * tf.roll(positive(x), 1, 0)


def over_nothing(x: Any) -> Any:
    return unknown(x) / (0.0 * tf.reduce_sum(unknown(x)))


def gone_with_others(x: Any) -> Any:
    return unknown(x) + tf.where(tf.shape(unknown(x))[0] > 1, float("nan"), 0.0)


def poisoned(x: Any) -> Any:
    """A record with a number below zero takes all others out."""
    return unknown(x) + 0.0 * tf.reduce_sum(positive(x))


def poisoned_gently(x: Any) -> Any:
    return unknown(x) + tf.stop_gradient(tf.reduce_max(0.0 * positive(x)))


def scaled(x: Any) -> Any:
    """NaN of a record alone, none in a batch."""
    rows = unknown(x)
    return (rows - tf.reduce_mean(rows, 0)) / tf.math.reduce_std(rows, 0)


MEETING = [centered, next_one, over_nothing, gone_with_others, poisoned, poisoned_gently, scaled]


@pytest.mark.few(2)
@pytest.mark.parametrize("function", MEETING, ids=lambda f: f.__name__)
def test_records_that_meet_beside_nan_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match=r"Records (are not|may not be) independent"):
        tfdp.check_independence(model_of(function))


def test_the_bug_of_other_records_alone_would_be_missed(monkeypatch: Any) -> None:
    monkeypatch.setattr(measuring, "alternately", lambda x, other: x)
    assert not tfdp.check_independence(model_of(poisoned)).proved


@pytest.mark.slow
def test_where_all_is_nan_it_is_refused_or_said() -> None:
    def nowhere(x: Any) -> Any:
        return unknown(ops.log(-1.0 - ops.abs(x)))

    with pytest.raises(ValueError, match="could not be measured"):
        tfdp.check_independence(model_of(nowhere))
    # Where every gradient is clipped, NaN hides no gradient.
    body = [Calls(lambda x: unknown(ops.cast(x, "float32"))), tfdp.layers.ClippedDense(1, **CLIPS)]
    model = tfdp.PrivateSequential([keras.Input((5,), dtype="int32"), *body])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), lambda y, p: ops.mean(nowhere(p), -1))
    report = tfdp.check_independence(model)
    assert report.status == "unknown"
    assert "could hardly be measured" in report.reason
