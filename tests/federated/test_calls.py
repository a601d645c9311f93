"""Steps are looked at in every form in which `fit` traces them, whichever party comes first."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.federated import CompiledEpochs, KerasTraining, flat_weights
from tfdp_layers.federated.calls import Call, calls_of_fit, joined, widened
from tfdp_layers.federated.step_state import key_of, state_of_step

RNG = np.random.default_rng(1)


def records(rows, length=None):
    shape = (rows, 4) if length is None else (rows, length, 4)
    return RNG.normal(size=shape).astype("float32"), RNG.normal(size=(rows, 1)).astype("float32")


class Memory(keras.layers.Layer):
    """Keeps a mean of its inputs, of those that are as `keeps` says."""

    def __init__(self, keeps):
        super().__init__()
        self.keeps, self.mean = keeps, tf.Variable(tf.zeros([4]), trainable=False)

    def compute_output_shape(self, shape):
        return shape

    def call(self, x, training=None):
        if not self.keeps(x.shape):
            return x
        found = x + self.mean
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(tf.reshape(x, (-1, 4)), 0))
        return found


KEEPS = {
    "long": lambda shape: len(shape) == 3 and (shape[1] is None or shape[1] > 8),
    "any length": lambda shape: len(shape) == 3 and shape[1] is None,
    "any size": lambda shape: shape[0] is None,
    "short": lambda shape: shape[0] == 4,
}
PARTIES = {  # the one that comes first, and two others
    "long": [(8, 8), (8, 16), (8, 16)],
    "any length": [(8, 8), (8, 16), (8, 16)],
    "any size": [(8,), (8,), (10,)],
    "short": [(10,), (8,), (8,)],
}


def uploads(kind, scale, way):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.GlobalAveragePooling1D()] if "l" in kind[:1] or "length" in kind else []
    model = keras.Sequential([keras.Input((None, 4) if layers else (4,)), Memory(KEEPS[kind]), *layers])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    weights = flat_weights(model)
    epochs, found = CompiledEpochs(model, 4), []
    generator = np.random.default_rng(2)
    data = [(generator.normal(size=(*shape, 4)), np.ones((shape[0], 1))) for shape in PARTIES[kind]]
    data = [(x.astype("float32") * (scale if place == 1 else 1.0), y) for place, (x, y) in enumerate(data)]
    if way == "fit":
        held = [KerasTraining(model, x, y, batch_size=4, shuffle=False) for x, y in data]
    else:
        held = [epochs.on(x, y) for x, y in data]
    for _ in range(2):
        found = [one(weights) for one in held]
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("way", ["fit", "compiled"])
@pytest.mark.parametrize("kind", KEEPS)
def test_no_upload_holds_another_partys_records_whatever_the_shapes(kind, way):
    """A branch for other sizes than the first party's was not looked at: told right 20 times of 20."""
    one, other = (uploads(kind, scale, way) for scale in (1.0, -50.0))
    for place in (0, 2):
        np.testing.assert_array_equal(one[place], other[place])
    assert (one[1] != other[1]).any()


class Sees(keras.Sequential):
    """Keeps the calls by which its steps were traced."""

    def train_step(self, data):
        self.seen.append(("train_step", [tuple(one.shape) for one in keras.tree.flatten(data)]))
        return super().train_step(data)

    def test_step(self, data):
        self.seen.append(("test_step", [tuple(one.shape) for one in keras.tree.flatten(data)]))
        return super().test_step(data)


X, Y = records(10)
FITS = {
    "any size": {"x": X, "y": Y},
    "one size": {"x": X[:8], "y": Y[:8]},
    "few": {"x": X[:3], "y": Y[:3]},
    "weights": {"x": X, "y": Y, "sample_weight": np.ones(10, "float32")},
    "class weights": {"x": X, "y": np.zeros(10, "int32"), "class_weight": {0: 1.0}},
    "split": {"x": X, "y": Y, "validation_split": 0.2},
    "validation": {"x": X, "y": Y, "validation_data": (X[:8], Y[:8])},
    "pipelines": {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(5), "y": None, "validation_data": (X, Y)},
}


@pytest.mark.filterwarnings("ignore:.*shuffle=True.*:UserWarning")
@pytest.mark.parametrize("kind", FITS)
def test_the_calls_are_those_of_fit(kind):
    given = dict(FITS[kind])
    model = Sees([keras.Input((4,)), keras.layers.Dense(1)])
    model.seen = []
    model.compile("sgd", "mse")
    size = None if kind == "pipelines" else 4
    model.fit(given["x"], given["y"], batch_size=size, verbose=0, **{n: v for n, v in given.items() if n not in "xy"})
    expected = [(one, [tuple(shape) for shape in shapes]) for one, shapes in model.seen]
    x, y = given.pop("x"), given.pop("y")
    calls = calls_of_fit(x, y, {"batch_size": size, **given})
    assert [(one.step, [tuple(spec.shape) for spec in keras.tree.flatten(one.batch)]) for one in calls] == expected


def test_calls_of_other_kinds_are_not_joined():
    one, other = (Call("train_step", (tf.TensorSpec((4, size)),)) for size in (3, 5))
    assert joined(one, other).batch[0].shape == (4, None)
    assert widened(one).batch[0].shape == (None, 3)
    for strange in (Call("test_step", other.batch), Call("train_step", other.batch * 2)):
        assert joined(one, strange) == one
    assert joined(one, Call("train_step", (tf.TensorSpec((4, 5, 1)),))) == one


def test_steps_are_looked_at_as_parties_of_several_lengths_have_them_traced():
    layer = Memory(KEEPS["any length"])
    model = keras.Sequential([keras.Input((None, 4)), layer, keras.layers.GlobalAveragePooling1D()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    for expected, length in ((False, 8), (True, 16)):
        KerasTraining(model, *records(8, length), batch_size=4)
        state, _ = state_of_step(model, lambda: [])
        assert (key_of(layer.mean) in {one.key for one in state.variables}) == expected
