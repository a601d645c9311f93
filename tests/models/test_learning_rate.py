"""Adam by its name has the rate that `fit` finds from steps and weights; a rate that somebody set stays."""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.spending import BATCH, DELTA, STEPS, records
from tfdp_layers.optimizers import learning_rate
from tfdp_layers.optimizers.learning_rate import BEFORE_FIT, adam_rate

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
PLAIN = tfdp.sampling.Partition(BATCH)
WEIGHTS = [(4, 2), (2,)]
SAID = "Adam starts at a learning rate of 0.62, for 16 steps and 10 weights.\n"


@pytest.fixture(autouse=True)
def _no_largest_rate(monkeypatch: Any) -> None:
    """Ten weights would need 6,000 steps to come below the largest rate."""
    monkeypatch.setattr(learning_rate, "_MOST", 10.0)


def tiny(inner: Any = "adam", kind: Any = tfdp.optimizers.ClippedOptimizer) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")]))
    model.compile(kind(inner), LOSS, run_eagerly=True)
    return model


def fit(model: Any, epochs: int = 2, budget: float = 2.0, **options: Any) -> Any:
    callbacks = [tfdp.callbacks.PrivacyBudget(budget, DELTA), *options.pop("callbacks", ())]
    return model.fit(*records(), sampling=PLAIN, epochs=epochs, callbacks=callbacks, **{"verbose": 0, **options})


def rate(model: Any) -> float:
    return float(model.optimizer.learning_rate)


def test_the_rule(monkeypatch: Any) -> None:
    of_fashion = [(8, 8, 1, 16), (16,), (4, 4, 16, 32), (32,), (512, 32), (32,), (32, 10), (10,)]
    assert sum(math.prod(shape) for shape in of_fashion) == 26_010
    assert adam_rate(1200, of_fashion) == 0.005  # what it was fitted to
    assert adam_rate(4 * 1200, of_fashion) == 0.0025
    assert adam_rate(1200, [(26_010, 1)] * 4) == pytest.approx(0.005 / 2**0.5, rel=0.03)
    assert adam_rate(10**9, [(10**5, 10**4)]) == 1e-4
    monkeypatch.undo()
    assert adam_rate(1, []) == 0.03


@pytest.mark.slow
def test_fit_finds_it_and_says_so(capsys: Any) -> None:
    model = tiny()
    assert rate(model) == pytest.approx(BEFORE_FIT)
    fit(model, verbose=2)
    assert rate(model) == pytest.approx(adam_rate(2 * STEPS, WEIGHTS))
    assert f"sampling.\n{SAID}" in capsys.readouterr().out


@pytest.mark.slow
def test_it_is_found_on_replicas() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny()
    fit(model)
    assert learning_rate.held(model.optimizer.learning_rate) == pytest.approx(adam_rate(2 * STEPS, WEIGHTS))


@pytest.mark.slow
def test_a_later_fit_counts_the_steps_before() -> None:
    model = tiny(kind=lambda inner: tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=30.0))
    fit(model, 20, 50.0)
    assert rate(model) == pytest.approx(adam_rate(20 * STEPS, WEIGHTS))
    fit(model, 1, 50.0)
    assert rate(model) == pytest.approx(adam_rate(21 * STEPS, WEIGHTS))


SET = {
    "the optimizer's": lambda model, rate=0.2: setattr(model.optimizer, "learning_rate", rate),
    "the variable": lambda model, rate=0.2: model.optimizer.learning_rate.assign(rate),
    "the wrapped one's": lambda model, rate=0.2: setattr(model.optimizer.inner_optimizer, "learning_rate", rate),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["adamw", "Nadam"])
def test_its_like_have_it_too(name: str, capsys: Any) -> None:
    model = tiny(name)
    fit(model, verbose=2)
    assert rate(model) == pytest.approx(0.62)
    assert type(model.optimizer.inner_optimizer) is type(keras.optimizers.get(name))
    assert f"{type(model.optimizer.inner_optimizer).__name__} starts at" in capsys.readouterr().out


@pytest.mark.slow
def test_a_rate_that_keras_chose_is_said_to_be_low(capsys: Any) -> None:
    model = tiny(keras.optimizers.Adam())
    fit(model, verbose=2)
    assert rate(model) == pytest.approx(0.001)
    assert (
        'Keras\' learning rate of 0.001, which is low for so few private steps: by its name, "adam", it would start'
        in (capsys.readouterr().out)
    )
    for inner in (keras.optimizers.Adam(0.002), keras.optimizers.SGD(0.001)):
        fit(tiny(inner), verbose=2)
        assert "learning rate" not in capsys.readouterr().out


@pytest.mark.slow
def test_steps_that_the_budget_does_not_afford_do_not_count() -> None:
    model = tiny(kind=lambda inner: tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=2.0))
    with pytest.warns(UserWarning, match="ends training after"):
        fit(model, 50, 3.0)
    made = int(model.optimizer.releases)
    assert made < 50 * STEPS
    assert rate(model) == pytest.approx(adam_rate(made, WEIGHTS))


def test_what_else_was_set_goes_into_the_file() -> None:
    made = tfdp.optimizers.ClippedOptimizer("adam")
    made.inner_optimizer.weight_decay, made.inner_optimizer.beta_1 = 0.1, 0.8
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert (again.inner_optimizer.weight_decay, again.inner_optimizer.beta_1) == (0.1, 0.8)
    assert again._rate.by_name
    made.learning_rate = 0.001
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert float(again.learning_rate) == pytest.approx(0.001)
    assert not again._rate.by_name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rates_of_16_bits_are_known_again(dtype: str) -> None:
    before = keras.backend.floatx()
    keras.backend.set_floatx(dtype)
    try:
        made = tfdp.optimizers.ClippedOptimizer("adam")
    finally:
        keras.backend.set_floatx(before)
    assert made.inner_optimizer.learning_rate.dtype == dtype
    assert made._rate.settle(made.inner_optimizer, 100, WEIGHTS)
    assert made._rate.settle(made.inner_optimizer, 200, WEIGHTS)
    made.inner_optimizer.learning_rate = 0.1
    assert not made._rate.settle(made.inner_optimizer, 300, WEIGHTS)


@pytest.mark.slow
def test_the_default_stays_too_where_somebody_set_it(tmp_path: Any) -> None:
    model = tiny()
    model.optimizer.learning_rate = BEFORE_FIT
    fit(model)
    model.save(tmp_path / "model.keras")
    for one in (model, keras.models.load_model(tmp_path / "model.keras")):
        fit(one, budget=4.0)
        assert rate(one) == pytest.approx(BEFORE_FIT)


@pytest.mark.slow
def test_it_is_said_where_the_noise_was_given(capsys: Any) -> None:
    model = tiny(kind=lambda inner: tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=30.0))
    fit(model, verbose=2)
    assert SAID in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", SET)
def test_even_one_that_looks_like_the_default_stays(way: str) -> None:
    model = tiny()
    SET[way](model, 0.005)
    fit(model)
    assert rate(model) == pytest.approx(0.005)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", SET)
@pytest.mark.parametrize("before", [True, False], ids=["before a fit", "after one"])
def test_a_rate_that_was_set_stays(way: str, before: bool, capsys: Any) -> None:
    model = tiny()
    if not before:
        fit(model)
    SET[way](model)
    fit(model, budget=4.0, verbose=2)
    assert rate(model) == pytest.approx(0.2)
    assert "learning rate" not in capsys.readouterr().out


def test_a_schedule_that_was_set_stays() -> None:
    model = tiny()
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(BEFORE_FIT, 1, 1.0)
    fit(model)
    assert rate(model) == pytest.approx(BEFORE_FIT)


def test_schedulers_have_the_last_word() -> None:
    model = tiny()
    fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch))])
    assert rate(model) == pytest.approx(0.05)


@pytest.mark.parametrize("kind", ["ClippedOptimizer", "TanhFilteredOptimizer"])
def test_optimizers_that_were_given_keep_theirs(kind: str) -> None:
    made = getattr(tfdp.optimizers, kind)
    for inner, own in ((keras.optimizers.Adam(), 0.001), ({"class_name": "adam", "config": {}}, 0.001), ("sgd", 0.01)):
        assert float(made(inner).learning_rate) == pytest.approx(own)
        assert not made(inner)._rate.by_name
    assert made("Adam")._rate.by_name


@pytest.mark.slow
def test_saved_and_loaded_it_goes_on(tmp_path: Any) -> None:
    model = tiny(kind=lambda inner: tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=30.0))
    fit(model, 20, 50.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert rate(loaded) == rate(model)
    for one in (model, loaded):
        fit(one, 5, 90.0)
    assert rate(loaded) == rate(model) == pytest.approx(adam_rate(25 * STEPS, WEIGHTS))


@pytest.mark.slow
def test_frozen_weights_do_not_count() -> None:
    inputs = keras.Input((4,))
    base = keras.layers.Dense(500)
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(2)(base(inputs))))
    next(layer for layer in model.layers if getattr(layer, "units", 0) == 500).trainable = False
    model.compile(tfdp.optimizers.ClippedOptimizer("adam"), LOSS, run_eagerly=True)
    fit(model, 3)
    trained = [(500, 2), (2,)]
    assert rate(model) == pytest.approx(adam_rate(3 * STEPS, trained))
    assert adam_rate(3 * STEPS, trained) != adam_rate(3 * STEPS, [(4, 500), (500,), *trained])


def test_the_rate_is_that_of_the_step() -> None:
    """Adam's first step moves every weight by the rate, whatever the gradient."""
    model = tiny()
    fit(model, 1, callbacks=[StopsAfterAStep()])
    moved = [np.abs(after - before) for before, after in zip(model.before, model.get_weights(), strict=True)]
    assert all(np.allclose(one, adam_rate(STEPS, WEIGHTS), rtol=1e-2) for one in moved)


class StopsAfterAStep(keras.callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        self.model.before = self.model.get_weights()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = True
