"""What `fit` says of its own prospects, once each: no hope, an end by the budget, a budget left out, broken weights."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.spending import DELTA, STEPS, fit, tiny_model
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.signal import signal_to_noise
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.models import sums
from tfdp_layers.models.prospects import warn_of_lost_weights


def said(model: Any, *callbacks: Any, **options: Any) -> list[str]:
    """The warnings of a `fit`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "Other ledgers")  # each model here has its own
        warnings.simplefilter("ignore", ResourceWarning)  # of an earlier test's files, whenever they are collected
        fit(model, *callbacks, **options)
    assert {Path(one.filename).name for one in caught} <= {"spending.py"}  # that calls fit: the user's line
    return [str(one.message) for one in caught]


# Hope -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7])
def test_no_gradients_exceed_the_ratio_and_those_that_point_one_way_attain_it(steps: int) -> None:
    """Over many draws: the sum of all noise has norm z sqrt(T d), records of norm 1 add up to T B at most."""
    batch, weights, z = 5, 4_000, 2.0
    rng = np.random.default_rng(0)
    noise = np.linalg.norm(z * rng.normal(size=(steps, weights)).sum(0))
    way = rng.normal(size=weights)
    equal = np.linalg.norm(steps * batch * way / np.linalg.norm(way))
    assert equal / noise == pytest.approx(signal_to_noise(z, batch, steps, weights), rel=0.05)


@pytest.mark.slow
def test_hopeless_settings_are_said_once_with_what_helps_and_others_not() -> None:
    (sentence,) = said(tiny_model(1e4))
    assert "can learn next to nothing" in sentence
    assert "all 8 records of a batch" in sentence
    assert "on 10 weights" in sentence
    assert said(tiny_model()) == []
    assert said(tiny_model(0.0)) == []


# Weights --------------------------------------------------------------------------------------------------------------


def weighing(clip: float | None) -> Any:
    layers = [keras.Input((3,)), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", 1.0, l2_norm_clip=clip), "mse")
    return model


@pytest.mark.parametrize(("clip", "factor"), [(None, 1.0), (1e-3, 1.0), (1e3, 10.0)])
def test_a_weight_counts_where_gradients_are_not_brought_to_one_length(clip: float | None, factor: float) -> None:
    keras.utils.set_random_seed(0)
    model, x, y = weighing(clip), np.ones((1, 3), "float32"), np.full((1, 1), 9.0, "float32")
    light, heavy = (model.bounded_gradient_sums(x, y, np.full(1, w, "float32")) for w in (1.0, 10.0))
    for one, ten in zip(light, heavy, strict=True):
        np.testing.assert_allclose(ten, factor * np.asarray(one), rtol=1e-3)


FACTORS = {"class_weight": {0: 1.0, 1: 10.0}}
WEIGHED = {
    "classes": (None, FACTORS, False),
    "classes and records": (None, FACTORS | {"sample_weight": np.arange(1.0, 9.0)}, True),
    "records": (None, {"sample_weight": np.arange(1.0, 9.0)}, True),
    "some left out": (None, {"sample_weight": np.array([2.0] * 4 + [0.0] * 4)}, False),
    "one factor for all": (None, {"class_weight": {0: 1.0, 1: 1.0}}, False),
    "no weights": (None, {}, False),
    "a threshold": (10.0, FACTORS, False),
}


def lost(call: Callable[[], Any]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    told = [one for one in caught if "next to no effect" in str(one.message)]
    assert all(one.filename == __file__ for one in told)
    return len(told)


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_without_effect_are_said(name: str) -> None:
    clip, options, expected = WEIGHED[name]
    batches = tfdp.PrivateBatches(np.eye(8, 3), np.arange(8) % 2, tfdp.sampling.Poisson(4), **options)
    assert lost(lambda: warn_of_lost_weights(weighing(clip), batches)) == expected


def test_weights_are_lost_in_layers_that_normalise_too_and_fit_says_so() -> None:
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("adam", 1.0), "mse")
    x, y = np.eye(8, 3), np.arange(8) % 2
    assert lost(lambda: model.fit(x, y, batch_size=4, epochs=2, verbose=0, **FACTORS)) == 1
    records = tfdp.records([(row, label, 1.0 + label) for row, label in zip(x, y, strict=True)], lambda item: item)
    assert (
        lost(lambda: warn_of_lost_weights(model, tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(4)))) == 1
    )


def counted(x: Any, y: Any, weights: Any, largest: float | None = 10.0) -> np.ndarray:
    """The bounded sum of gradients of a model in a `fit` whose heaviest class weighs so much."""
    keras.utils.set_random_seed(0)
    model = weighing(None)
    model._privacy.largest_weight = largest
    return np.concatenate([np.ravel(one) for one in model.bounded_gradient_sums(x, y, weights)])


def test_factors_of_classes_count_once_gradients_are_of_one_length() -> None:
    x, y = np.ones((1, 3), "float32"), np.full((1, 1), 900.0, "float32")
    heavy, light, none = (counted(x, y, np.array([w], "float32")) for w in (10.0, 1.0, 0.0))
    np.testing.assert_allclose(light, 0.1 * heavy, rtol=1e-3)
    assert not none.any()
    np.testing.assert_allclose(counted(x, y, np.array([1.0], "float32"), None), heavy, rtol=1e-3)


SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BINARY = keras.losses.BinaryCrossentropy(from_logits=True)
NAMED = {0: 0.1, 1: 0.2}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("loss", "units", "one_hot", "factors", "shares"),
    [
        (SPARSE, 3, None, NAMED, [0.1, 0.2, 1.0]),
        (SPARSE, 3, None, NAMED | {2: 0.4}, [0.25, 0.5, 1.0]),
        (SPARSE, 2, None, NAMED, [0.5, 1.0]),
        (BINARY, 1, None, NAMED, [0.5, 1.0]),
        ("mse", 1, None, NAMED, [0.1, 0.2, 1.0]),
        (keras.losses.CategoricalCrossentropy(from_logits=True), 3, 3, NAMED, [0.1, 0.2, 1.0]),
        (keras.losses.CategoricalCrossentropy(from_logits=True), 2, 2, NAMED, [0.5, 1.0]),
    ],
    ids=["a class unnamed", "all named", "two units", "one unit", "numbers", "one-hot, unnamed", "one-hot, named"],
)
def test_each_class_pulls_by_its_factor_over_the_largest_that_there_may_be(
    loss: Any, units: int, one_hot: int | None, factors: dict[int, float], shares: list[float]
) -> None:
    """Class 2 of 3, unnamed, weighs 1 by Keras: that it weighed as class 1 of factor 0.2 was silent."""
    classes, each = len(shares), 8
    x = np.eye(classes, dtype="float32").repeat(each, 0)
    labels = np.arange(classes).repeat(each)
    start = keras.initializers.Constant(7.0 if loss == "mse" else 0.0)
    head = keras.layers.Dense(units, use_bias=False, kernel_initializer=start)
    model = tfdp.make_private(keras.Sequential([keras.Input((classes,)), head]))
    inner = keras.optimizers.SGD(1.0)
    model.compile(tfdp.optimizers.ClippedOptimizer(inner, 0.0), loss)
    before = model.get_weights()[0]
    y = labels if one_hot is None else np.eye(one_hot, dtype="float32")[labels]
    sampling = tfdp.sampling.FixedSize(len(x))
    model.fit(x, y, sampling=sampling, epochs=1, verbose=0, class_weight=factors)
    assert model._privacy.largest_weight == max(factors.get(one, 1.0) for one in range(classes))
    pulls = np.linalg.norm(model.get_weights()[0] - before, axis=1) * classes
    # The factor is in the loss, too, whose gradient is brought to one length but for the stability of 0.01.
    for pull, share in zip(pulls, shares, strict=True):
        assert 0.8 * share < pull <= share * (1 + 1e-5)


@pytest.mark.parametrize("weight", [11.0, 1e30, np.inf, np.nan, -1.0, -1e30])
def test_no_weight_makes_a_record_count_for_more_than_one(weight: float) -> None:
    x, y = np.ones((1, 3), "float32"), np.full((1, 1), 900.0, "float32")
    assert np.linalg.norm(counted(x, y, np.array([weight], "float32"))) <= 1.0


def test_a_share_that_is_not_held_below_one_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "counts", lambda weights, losses, largest: tf.abs(weights) / largest)
    with pytest.raises(AssertionError):
        test_no_weight_makes_a_record_count_for_more_than_one(11.0)


@pytest.mark.slow
def test_a_second_fit_with_other_factors_is_traced_with_them() -> None:
    model, x, y = weighing(None), np.eye(8, 3, dtype="float32"), np.arange(8, dtype="float32") % 2
    traced = []
    for largest in (10.0, 5.0):
        model.fit(x, y, batch_size=4, verbose=0, class_weight={0: 1.0, 1: largest})
        assert model._privacy.independence.proved
        traced.append(model._privacy.sums)
    batch = (tf.ones((1, 3)), tf.constant([900.0]), tf.constant([5.0]))
    half, whole = (np.asarray(function(*batch)[0][0]) for function in traced)
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-3)


# The budget's end -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_that_ends_training_says_at_which_step_of_how_many() -> None:
    model = tiny_model()
    (sentence,) = said(model, PrivacyBudget(0.8, DELTA), epochs=9)
    assert f"ends training after {model.ledger.steps} of {9 * STEPS} planned steps" in sentence
    assert said(model, PrivacyBudget(30.0, DELTA)) == []


@pytest.mark.slow
def test_a_later_fit_without_a_budget_is_warned_of_on_the_same_ledger_alone() -> None:
    model = tiny_model()
    fit(model, PrivacyBudget(5.0, DELTA), epochs=1)
    (sentence,) = said(model, epochs=1)
    assert "an earlier one on the same ledger kept to epsilon=5 at delta=0.001" in sentence
    assert said(tiny_model(), epochs=1) == []


def test_a_ledger_with_a_budget_of_its_own_needs_no_callback() -> None:
    model = tiny_model()
    model.ledger = Ledger(dataset="people", budget=(9.0, DELTA))
    fit(model, PrivacyBudget(5.0, DELTA), epochs=1)
    assert said(model, epochs=1) == []


# Weights --------------------------------------------------------------------------------------------------------------


def overflowing() -> Any:
    """Whose weights overflow within its first epoch."""
    model = tiny_model()
    noisy = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(3e38), 1.3)
    model.compile(noisy, model.loss)
    return model


def test_weights_that_are_no_numbers_end_fit_at_the_end_of_the_epoch(tmp_path: Any) -> None:
    model = overflowing()
    model.ledger = Ledger(tmp_path / "ledger.json")
    backup = keras.callbacks.ModelCheckpoint(str(tmp_path / "last.weights.h5"), save_weights_only=True)
    with pytest.raises(FloatingPointError, match=rf"epoch 1 .*head/kernel.*the {STEPS} releases.*learning rate"):
        fit(model, backup, epochs=3)
    assert model.ledger.steps == STEPS
    assert not list(tmp_path.glob("*.h5"))  # an earlier checkpoint stays


def test_weights_are_looked_at_in_a_list_of_keras_own_as_well() -> None:
    model = overflowing()
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model, epochs=1, steps=STEPS)
    x, y = np.ones((64, 4), "float32"), np.zeros(64, int)
    with pytest.raises(FloatingPointError, match="head/kernel"):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
