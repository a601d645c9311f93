"""A class where an object belongs is told what it is, wherever the public API takes an object."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.instances import replaced

X = np.zeros((8, 2), "float32")
MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
COMPILED = tfdp.make_private(MODEL)
COMPILED.compile(tfdp.optimizers.ClippedOptimizer("adam", 1.0), "mse")
OPTIMIZERS = tfdp.optimizers


class Source:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return X[0]


SLIPS = {
    "Adam": lambda: OPTIMIZERS.ClippedOptimizer(keras.optimizers.Adam),
    "SGD": lambda: OPTIMIZERS.NoisyOptimizer(keras.optimizers.SGD),
    "RMSprop": lambda: OPTIMIZERS.TanhFilteredOptimizer(keras.optimizers.RMSprop),
    "ClippedOptimizer": lambda: tfdp.make_private(MODEL).compile(OPTIMIZERS.ClippedOptimizer, "mse"),
    "Huber": lambda: tfdp.make_private(MODEL).compile(OPTIMIZERS.ClippedOptimizer("adam"), [keras.losses.Huber]),
    "Sequential": lambda: tfdp.make_private(keras.Sequential),
    "Model": lambda: tfdp.replace_batch_normalization(keras.Model),
    "StringLookup": lambda: tfdp.public(keras.layers.StringLookup),
    "Poisson": lambda: tfdp.PrivateBatches(X, sampling=tfdp.sampling.Poisson),
    "Cyclic": lambda: COMPILED.fit(X, X, sampling=tfdp.sampling.Cyclic),
    "FixedSize": lambda: tfdp.layers.DPCentering(1.0).adapt(X, tfdp.sampling.FixedSize),
    "TruncatedPoisson": lambda: tfdp.accounting.calibrate_noise_multiplier(
        1.0, 1e-5, tfdp.sampling.TruncatedPoisson, 99, 9
    ),
    "Partition": lambda: tfdp.declare_sampling(
        tf.data.Dataset.from_tensor_slices((X, X)).batch(4), tfdp.sampling.Partition, examples=8
    ),
    "SeededNoise": lambda: OPTIMIZERS.ClippedOptimizer("adam", noise_source=tfdp.noise.SeededNoise),
    "Correlated": lambda: OPTIMIZERS.ClippedOptimizer("adam", noise=tfdp.noise.Correlated),
    "Source": lambda: tfdp.records(Source),
    "PrivacyBudget": lambda: COMPILED.fit(X, X, callbacks=[tfdp.callbacks.PrivacyBudget]),
    "Ledger": lambda: setattr(tfdp.make_private(MODEL), "ledger", tfdp.accounting.Ledger),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_class_in_the_place_of_an_object_is_named_with_the_fix(name):
    with pytest.raises(ValueError, match=rf"{name}, a class[,.]"):
        SLIPS[name]()


@pytest.mark.parametrize(
    "look",
    [
        lambda model: tfdp.accounting.epsilon(model, 1e-5),
        lambda model: tfdp.accounting.Statement.from_ledger("ledger.json", 1e-5),
        lambda model: tfdp.release_metric([True], model, stddev=0.1),
        lambda model: tfdp.preprocessing.quantiles([0.5], model, [0.5], lower=0.0, upper=1.0, noise_multiplier=1.0),
    ],
)
def test_a_model_or_a_path_in_the_place_of_a_ledger_is_told_so(look):
    with pytest.raises(ValueError, match=r"in a ledger: give model\.ledger"):
        look(tfdp.make_private(MODEL))


@pytest.mark.parametrize("delta", [{}, {"delta": None}])
def test_a_statement_without_delta_asks_for_it(delta):
    with pytest.raises(ValueError, match=r"Give delta, .*delta=1e-5"):
        tfdp.make_private(MODEL).privacy_statement(**delta)


def test_a_name_of_units_needs_units():
    model = tfdp.make_private(MODEL)
    with pytest.raises(ValueError, match=r"unit_name='patient', and this ledger protects one record.*unit_ids"):
        model.privacy_statement(1e-5, unit_name="patient")
    with pytest.raises(ValueError, match="for example 'patient'"):
        model.privacy_statement(1e-5, unit_name="a\nPrivacy: epsilon = 0")


def test_methods_that_were_put_on_an_object_are_named():
    class Thing:
        size = 1

        def __init__(self):
            self.kept = len

        def act(self):
            return self.size

    thing = Thing()
    assert replaced(thing) == []
    thing.size, thing.other = 2, len
    assert replaced(thing) == []
    thing.act = lambda: 3
    assert replaced(thing) == ["act"]
