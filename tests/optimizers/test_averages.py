"""Averages of released weights, by Keras' own means: post-processing that is evaluated, saved, and costs nothing."""

from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype("float32"), RNG.integers(0, 3, 60)
KEEP = 0.8


class Released(keras.callbacks.Callback):
    """The weights after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.weights.append(np.copy(self.model.get_weights()[0]))


def compiled(bounds: str, **averaging: Any) -> tfdp.PrivateSequential:
    descent = keras.optimizers.SGD(1.0, momentum=0.9, **averaging)
    if bounds == "layer":
        layer, optimizer = tfdp.layers.ClippedDense(3, gradient_clip=1.0), tfdp.optimizers.NoisyOptimizer(descent, 1.0)
    else:
        layer, optimizer = keras.layers.Dense(3), tfdp.optimizers.ClippedOptimizer(descent, 1.0, l2_norm_clip=1.0)
    model = tfdp.PrivateSequential([keras.Input((4,)), layer])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def mean_of(weights: list[np.ndarray]) -> np.ndarray:
    mean = weights[0]
    for one in weights[1:]:
        mean = KEEP * mean + (1 - KEEP) * one
    return mean


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("bounds", ["layer", "optimizer"])
def test_after_fit_the_weights_are_the_exponential_mean_at_the_same_cost(bounds: str, tmp_path) -> None:
    plain, model = compiled(bounds), compiled(bounds, use_ema=True, ema_momentum=KEEP)
    released = Released()
    plain.fit(X, Y, batch_size=20, epochs=2, verbose=0)
    model.fit(X, Y, batch_size=20, epochs=2, verbose=0, callbacks=[released])
    found = model.get_weights()[0]
    np.testing.assert_allclose(found, mean_of(released.weights), atol=1e-5)
    assert np.max(np.abs(found - released.weights[-1])) > 1e-2, "the last weights are not their mean"
    assert tfdp.accounting.epsilon(model.ledger, 1e-5) == tfdp.accounting.epsilon(plain.ledger, 1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], found)
    assert loaded.ledger.steps == len(released.weights) == 6
    loaded.fit(X, Y, batch_size=20, verbose=0)
    assert loaded.ledger.steps == 9
    np.testing.assert_array_equal(model.to_keras().get_weights()[0], found)


def test_evaluations_during_fit_are_of_the_mean_with_keras_own_callback() -> None:
    model = compiled("layer", use_ema=True, ema_momentum=KEEP)
    released, tested = Released(), []

    class Tested(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            tested.append(np.copy(self.model.get_weights()[0]))

    callbacks = [keras.callbacks.SwapEMAWeights(), Tested(), released]
    model.fit(
        X,
        Y,
        batch_size=20,
        epochs=2,
        verbose=0,
        validation_data=(X + 1, Y),
        validation_batch_size=60,
        callbacks=callbacks,
    )
    for epoch, found in enumerate(tested, start=1):
        np.testing.assert_allclose(found, mean_of(released.weights[: 3 * epoch]), atol=1e-5)
    assert len(tested) == 2
