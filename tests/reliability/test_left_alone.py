"""What a training leaves as it was costs nothing: others who begin with the same public numbers pay nothing for it."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.released import is_paid_for

RNG = np.random.default_rng(0)
PUBLIC = RNG.normal(size=(6, 4)).astype("float32")
X, Y = RNG.normal(size=(12, 6)).astype("float32"), np.zeros((12, 2), "float32")


def trained(rate, begin=PUBLIC, sampling=None):
    first = keras.layers.Dense(4, "tanh", kernel_initializer=keras.initializers.Constant(begin))
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(rate), noise_multiplier=1.0), "mse")
    model.fit(X, Y, sampling=sampling or tfdp.sampling.Poisson(4), verbose=0)
    return model


@pytest.mark.parametrize("sampling", [tfdp.sampling.Poisson(4), tfdp.sampling.FixedSize(4)], ids=["alike", "otherwise"])
def test_what_a_training_did_not_move_is_nobodys_copy(sampling):
    """It was paid for twice, and refused where the other training's draws do not add up with it."""
    still = trained(0.0)
    np.testing.assert_array_equal(still.get_weights()[0], PUBLIC)
    assert still.privacy_statement(1e-3).steps == 3
    assert trained(0.1, sampling=sampling).privacy_statement(1e-3).steps == 3


def test_what_moved_and_is_copied_then_is():
    model = trained(0.1)
    assert trained(0.1, begin=model.get_weights()[0]).privacy_statement(1e-3).steps == 6


def test_an_identity_that_noise_came_out_as_is_not_recognised():
    """Where noise leaves no positive mean eigenvalue, the whitener is the identity: so are many layers' kernels."""
    whitening = tfdp.layers.DPWhitening(1e3, noise_source=tfdp.noise.SeededNoise(0))
    for _ in range(20):
        whitening.adapt(X)
        if np.array_equal(whitening.get_weights()[0], np.eye(6)):
            break
    else:
        raise AssertionError("the noise left a positive mean eigenvalue 20 times")
    assert not is_paid_for(np.eye(6, dtype="float32"))
