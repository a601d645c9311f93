"""A random number for all rows is one number in a step, so no step of several pieces has it."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.sampling import FixedSize

X, Y = np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")


def fitted(noise_shape, **options):
    layers = [keras.Input((4,)), keras.layers.Dropout(0.5, noise_shape=noise_shape), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", run_eagerly=options.pop("eager", False))
    given = {"sampling": FixedSize(4), "epochs": 1, "steps_per_epoch": 1, "verbose": 0} | options
    return model, lambda: model.fit(X, Y, **given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eager", [False, True])
def test_a_mask_for_all_rows_is_refused_in_pieces_before_anything_is_charged(eager):
    model, fit = fitted((1, 4), physical_batch_size=2, eager=eager)
    for _ in range(2):  # what a first call traced does not let a second one pass
        with pytest.raises(ValueError, match=r"Layer 'dropout.*once for several records.*pieces of 2.*noise_shape"):
            fit()
    assert not model.ledger.releases


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"physical_batch_size": 4}, {"views": 2}])
def test_it_is_taken_where_a_step_is_computed_at_once(options):
    model, fit = fitted((1, 4), **options)
    fit()
    assert model.ledger.steps == 1


@pytest.mark.filterwarnings("ignore")
def test_masks_of_rows_are_taken_in_pieces():
    model, fit = fitted((None, 4), physical_batch_size=2)
    fit()
    assert model.ledger.steps == 1
