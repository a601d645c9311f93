"""What a training was certified with is asked again wherever a step is traced, and after code of the caller ran."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.counting import ASKED_EVERY

X, Y = np.ones((ASKED_EVERY * 4, 3), "float32"), np.ones((ASKED_EVERY * 4, 1), "float32")


def compiled(run_eagerly: bool) -> Any:
    layers = [keras.Input((3,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=1.0)]
    model = tfdp.PrivateSequential(layers)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 2.0), "mse", run_eagerly=run_eagerly)
    return model


def weaken(model: Any) -> Any:
    """A callback of Keras' own, whose function is the caller's: no hook of an unknown callback runs."""

    def schedule(epoch: int, rate: float) -> float:
        if epoch == 1:
            model.optimizer.noise_multiplier = 0.01
        return rate

    return keras.callbacks.LearningRateScheduler(schedule)


def test_an_eager_step_with_less_noise_than_is_stated_releases_nothing() -> None:
    model = compiled(True)
    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        model.fit(X, Y, batch_size=64, epochs=3, callbacks=[weaken(model)], verbose=0)
    assert int(model.optimizer.releases.numpy()) == 2  # of the first epoch
    assert model.ledger.steps >= 2


def test_a_compiled_step_adds_the_stated_noise_and_the_change_is_refused_soon() -> None:
    model = compiled(False)
    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        model.fit(X, Y, batch_size=64, epochs=ASKED_EVERY, callbacks=[weaken(model)], verbose=0)
    assert model.ledger.steps == int(model.optimizer.releases.numpy()) <= ASKED_EVERY
    assert model.ledger.entries[0].release.groups[0].stddev == pytest.approx(
        2 * model.ledger.entries[0].release.groups[0].bound
    )


def test_a_trace_in_the_middle_of_a_fit_asks_again() -> None:
    model = compiled(False)

    def schedule(epoch: int, rate: float) -> float:
        if epoch == 1:
            model.layers[0].upstream_clip = 100.0
            object.__setattr__(model.train_function, "step", model._make_function(model.train_step))
        return rate

    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        model.fit(X, Y, batch_size=64, epochs=3, callbacks=[keras.callbacks.LearningRateScheduler(schedule)], verbose=0)
    assert int(model.optimizer.releases.numpy()) == 2


class Own(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of one's own, with a number in Python."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, step: Any) -> Any:
        return 0.1 * self.factor

    def get_config(self) -> dict[str, Any]:
        return {}


CHANGES = {
    "decay": lambda model: setattr(model.optimizer.inner_optimizer, "weight_decay", np.float32(0.9)),
    "schedule": lambda model: setattr(model.optimizer.inner_optimizer._learning_rate, "factor", 1e-6),
    "eagerly": lambda model: tf.config.run_functions_eagerly(True),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("change", "eager"), [("decay", True), *((one, False) for one in CHANGES), ("schedule", True)])
def test_what_follows_the_noise_stays_as_it_was_while_fit_runs(change: str, eager: bool) -> None:
    model = compiled(eager)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(Own()), 2.0), "mse", run_eagerly=eager)
    other = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: CHANGES[change](model))
    try:
        with pytest.raises(RuntimeError, match="was changed while fit runs"):
            model.fit(X, Y, batch_size=64, epochs=3, callbacks=[other], verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    assert int(model.optimizer.releases.numpy()) == 2


class Counting(Own):
    """One that counts in Python how often it is asked: once for a trace."""

    def __call__(self, step: Any) -> Any:
        self.factor += 1.0
        return 0.1


@pytest.mark.parametrize("eager", [False, True])
def test_what_a_step_itself_changes_in_python_is_no_change(eager: bool) -> None:
    model = compiled(eager)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(Counting()), 2.0), "mse", run_eagerly=eager)
    looking = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    for _ in range(2):
        model.fit(X, Y, batch_size=64, epochs=2, callbacks=[looking], verbose=0)
    assert int(model.optimizer.releases.numpy()) == 8


@pytest.mark.parametrize("force", [True, False])
def test_no_step_is_made_anew_in_the_middle_of_a_training(force: bool) -> None:
    model = compiled(False)

    def anew(epoch: int, logs: Any) -> None:
        model.train_function = model.train_function if force else None
        model.make_train_function(force)

    with pytest.raises(RuntimeError, match=r"make_train_function was to make the step again while fit runs"):
        model.fit(
            X, Y, batch_size=64, epochs=2, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=anew)], verbose=0
        )
    assert int(model.optimizer.releases.numpy()) == 2
    model.fit(X, Y, batch_size=64, verbose=0)
