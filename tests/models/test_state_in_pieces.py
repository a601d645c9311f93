"""What layers write in a step does not tell how many pieces the drawn records filled."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.models import building
from tfdp_layers.sampling import Poisson

kl = keras.layers
STEPS, EXAMPLES = 12, 10
WAYS = {
    "graph": {},
    "XLA": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "several": {"steps_per_execution": 3},
}


class Counts(kl.Layer):
    """Counts its calls where Keras does not look, and acts by that after a long time."""

    def __init__(self, **options):
        super().__init__(**options)
        self.hidden = {"calls": tf.Variable(0.0, trainable=False)}

    def call(self, x, training=False):
        if training:
            self.hidden["calls"].assign_add(1.0)
        return tf.where(self.hidden["calls"] > 1e6, -x, x)


LAYERS = {
    "masks": lambda: kl.Dropout(0.3, seed=1),
    "a counter": Counts,
    "power iterations": lambda: kl.SpectralNormalization(kl.Dense(4)),
}


def state_of(model, kind):
    layer = model.layers[2]
    if kind == "masks":
        return np.array(layer.seed_generator.state)
    return layer.hidden["calls"].numpy() if kind == "a counter" else np.array(layer.vector_u)


def model_of(kind, **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = tfdp.make_private(keras.Model(inputs, kl.Dense(2)(LAYERS[kind]()(kl.Dense(4, trainable=False)(inputs)))))
    rate = keras.optimizers.SGD(0.0)  # weights stay: what is written depends on the number of calls alone
    model.compile(tfdp.optimizers.ClippedOptimizer(rate, 0.5, 1.0), "mse", **options)
    return model


def fitted(kind, records, size, batch=5, **options):
    model = model_of(kind, **WAYS[options.pop("way", "graph")])
    rng = np.random.default_rng(records)
    x, y = rng.normal(size=(records, 4)).astype("float32"), rng.normal(size=(records, 2)).astype("float32")
    model.fit(
        x,
        y,
        sampling=Poisson(batch),
        examples=EXAMPLES,
        steps_per_epoch=STEPS,
        verbose=0,
        physical_batch_size=size,
        **options,
    )
    return model


CASES = [f"{kind}/{way}" for kind in LAYERS for way in WAYS]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", slow_but([f"{kind}/graph" for kind in LAYERS] + ["masks/XLA", "masks/eager"], CASES))
def test_what_a_training_leaves_tells_its_steps_and_not_its_draws(case):
    kind, way = case.split("/")
    left = [state_of(fitted(kind, records, 1, way=way), kind) for records in (10, 4)]
    whole = state_of(fitted(kind, 10, None, way=way), kind)
    for one in left:
        np.testing.assert_allclose(one, whole, rtol=1e-6)
    if kind == "masks":
        assert whole.tolist() == [1, STEPS]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", slow_but(["graph", "XLA"], WAYS))
def test_an_empty_draw_counts_as_any_other(way):
    """Of one record, in 12 draws of each with probability 1/10 few hold it."""
    whole = state_of(fitted("a counter", 10, None, way=way), "a counter")  # and what measurements before it called
    for size in (1, 2):
        assert state_of(fitted("a counter", 1, size, 1, way=way), "a counter") == whole


def test_persons_fill_pieces_too():
    model = fitted("masks", 10, 1, unit_ids=np.arange(10) // 2, records_per_unit=2, batch=2)
    assert state_of(model, "masks").tolist() == [1, STEPS]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_it_the_draws_are_told(monkeypatch):
    """The planted bug."""
    monkeypatch.setattr(building, "state_written", lambda *_, **__: [])
    assert state_of(fitted("a counter", 10, 1), "a counter") > state_of(fitted("a counter", 10, None), "a counter")
