"""Numbers that noise came out as, and that are full of none, are recognised in nobody's weights."""

import numpy as np

import tfdp_layers as tfdp
from tfdp_layers.accounting.released import is_paid_for

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")


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
