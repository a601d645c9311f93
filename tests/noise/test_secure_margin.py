"""Secure noise is wide enough for what rounding to its grid adds to a record, for any noise multiplier and size."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.noise import NoiseSource, SecureNoise


@pytest.mark.parametrize("count", [1, 10_000, 10**9])
@pytest.mark.parametrize("multiplier", [0.0, 1.0, 30.0, 2.0**14, 5e5, 3e8])
def test_noise_over_what_a_record_moves_is_at_least_as_stated(multiplier: float, count: int) -> None:
    source, stddev, rounded = SecureNoise(), 0.7, 2.0**-30 * multiplier * np.sqrt(count)
    if rounded >= 1.0:
        with pytest.raises(ValueError, match="too coarse for a noise multiplier"):
            source.widened([stddev], multiplier, count)
        return
    (drawn,) = source.widened([stddev], multiplier, count)
    assert drawn == stddev or rounded > 2.0**-12
    one = tf.ones([1], tf.float64)
    used = float(source.perturbed(0.0 * one, drawn, one)[0])
    spacing = 2.0 ** (np.floor(np.log2(drawn)) - 30)
    if multiplier:
        contribution = stddev / multiplier + spacing * np.sqrt(count)
        assert used / contribution >= multiplier * (1 - 1e-9)


class Widened(SecureNoise):
    """Keeps what it was asked for."""

    def widened(self, stddevs, noise_multiplier, count):
        self.asked = noise_multiplier, count
        return super().widened(stddevs, noise_multiplier, count)


def test_each_release_asks_for_its_own_multiplier_and_size() -> None:
    source = Widened()
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(2)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 5.0, noise_source=source), "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), batch_size=2, verbose=0)
    assert source.asked == (5.0, 8)
    layer = tfdp.layers.DPCentering(3.0, noise_source=source)
    layer.adapt(np.ones((4, 3), "float32"))
    assert source.asked[0] == 3.0


class Doubled(NoiseSource):
    """Draws twice what it is asked for, and keeps both."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.drawn = [], []

    def widened(self, stddevs, noise_multiplier, count):
        self.asked += stddevs
        return [2.0 * one for one in stddevs]

    def perturbed(self, total, stddev, noise):
        self.drawn.append(stddev)
        return super().perturbed(total, stddev, noise)


def fitted(source):
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(2)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 5.0, noise_source=source), "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), batch_size=2, verbose=0)


def ledger():
    return tfdp.accounting.Ledger()


RELEASES = {
    "fit": fitted,
    "adapt": lambda source: tfdp.layers.DPCentering(3.0, noise_source=source).adapt(np.ones((4, 3), "float32")),
    "metric": lambda source: tfdp.release_metric(
        np.arange(8) / 8.0, ledger(), lower=0.0, upper=1.0, stddev=0.5, noise_source=source
    ),
    "quantiles": lambda source: tfdp.preprocessing.quantiles(
        np.arange(8) / 8.0, ledger(), [0.5], lower=0.0, upper=1.0, noise_multiplier=5.0, noise_source=source
    ),
    "vocabulary": lambda source: tfdp.preprocessing.vocabulary(
        ["a b", "b c", "c a"], ledger(), noise_multiplier=5.0, failure=1e-6, noise_source=source
    ),
}


@pytest.mark.parametrize("name", RELEASES)
def test_what_is_drawn_is_what_the_source_widened(name):
    source = Doubled()
    RELEASES[name](source)
    assert source.asked
    assert {*source.drawn} == {2.0 * one for one in source.asked}
