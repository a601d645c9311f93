"""Registered layers own all that they train, and nothing replaces the step that the certificate is about."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.layers import ClippedConv2D, ClippedDense, ClippedLayerNormalization
from tfdp_layers.layers.dense import ClippedDense as Dense
from tfdp_layers.sensitivity import SensitivityGroup

CLIPS = {"input_clip": 1.0, "upstream_clip": 0.1}
X, Y = np.ones((8, 3), np.float32), np.zeros(8, np.int64)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fitted(*layers, kind=tfdp.PrivateSequential, optimizer=None, **options):
    model = kind([keras.Input((3,)), *layers])
    model.compile(optimizer or tfdp.optimizers.NoisyOptimizer("sgd", 1.0), LOSS, **options)
    return model


def fit(model, **options):
    return model.fit(X, Y, batch_size=4, verbose=0, **options)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: ClippedLayerNormalization(upstream_clip=1000.0),
        lambda: keras.layers.PReLU(),
        lambda: ClippedDense(3, **CLIPS),
    ],
    ids=["normalization", "prelu", "dense"],
)
def test_a_trainable_layer_as_activation_is_refused(inner):
    activation = inner()
    activation.build((None, 3))
    model = fitted(ClippedDense(3, activation=activation, **CLIPS))
    refused = r"which trains weights of its own|used outside its layer"
    with pytest.raises(ValueError, match=refused):
        model.sensitivities()
    with pytest.raises(ValueError, match=refused):
        fit(model)
    activation.trainable = False
    assert [len(group.variables) for group in model.sensitivities()] == [2]


def test_a_registered_layer_that_states_each_part_is_taken():
    class Outer(Dense):
        """States its activation's weights as a group of its own."""

    @tfdp.sensitivity_of(Outer)
    def both(layer):
        inner = layer.activation
        own = tuple(v for v in layer.trainable_variables if not any(v is w for w in inner.trainable_variables))
        return [
            SensitivityGroup("own", own, layer.sensitivity()),
            SensitivityGroup("activation", tuple(inner.trainable_variables), inner.sensitivity()),
        ]

    activation = ClippedLayerNormalization(upstream_clip=0.5)
    activation.build((None, 3))
    names = [group.name for group in fitted(Outer(3, name="outer", activation=activation, **CLIPS)).sensitivities()]
    assert names == ["outer/own", "outer/activation"]


def tie_attribute(first, second):
    object.__setattr__(second, "_kernel", first._kernel)


def tie_value(first, second):
    second._kernel._value = first._kernel._value


@pytest.mark.parametrize("tie", [tie_attribute, tie_value])
def test_weights_tied_behind_keras_are_found(tie):
    first, second = ClippedDense(3, **CLIPS), ClippedDense(3, **CLIPS)
    model = fitted(first, second)
    assert len(model.sensitivities()) == 2
    tie(first, second)
    with pytest.raises(ValueError, match=r"share their numbers|of another layer"):
        model.sensitivities()


def test_convolutions_tied_behind_keras_are_found():
    first, second = ClippedConv2D(1, 1, **CLIPS), ClippedConv2D(1, 1, **CLIPS)
    model = tfdp.PrivateSequential([keras.Input((2, 2, 1)), first, second])
    tie_attribute(first, second)
    with pytest.raises(ValueError, match="of another layer"):
        model.sensitivities()


class MixesUp(tfdp.PrivateSequential):
    def train_step(self, data):
        x, y, w = data
        return super().train_step((0.5 * x + 0.5 * x[::-1], y, w))


class OwnLoss(tfdp.PrivateSequential):
    def compute_loss(self, *args, **kwargs):
        return 0.0


class OwnFit(tfdp.PrivateSequential):
    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


@pytest.mark.parametrize(("kind", "name"), [(MixesUp, "train_step"), (OwnLoss, "compute_loss"), (OwnFit, "fit")])
def test_a_subclass_that_replaces_the_step_is_refused(kind, name):
    with pytest.raises(ValueError, match=rf"overrides {name}\(\)"):
        fit(fitted(ClippedDense(3, **CLIPS), kind=kind))


def test_a_step_replaced_on_the_object_is_refused():
    model = fitted(ClippedDense(3, **CLIPS))
    model.compute_loss = lambda *args, **kwargs: 0.0
    with pytest.raises(ValueError, match=r"overrides compute_loss\(\)"):
        fit(model)


def test_an_optimizer_that_replaces_the_release_is_refused():
    class Quiet(tfdp.optimizers.NoisyOptimizer):
        def release(self, sums, *args, **kwargs):
            return super().release([s * 100.0 for s in sums], *args, **kwargs)

    with pytest.raises(ValueError, match=r"overrides release\(\)"):
        fit(fitted(ClippedDense(3, **CLIPS), optimizer=Quiet("sgd", 1.0)))


def test_a_clip_of_any_name_cannot_change_while_fit_runs():
    class Limited(Dense):
        """A clip under a name of its own."""

        limit = 0.1

    @tfdp.sensitivity_of(Limited)
    def stated(layer):
        return 2.0 * layer.limit

    layer = Limited(3, **CLIPS)
    model = fitted(layer, run_eagerly=True)

    class Changes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            layer.limit = 10.0

    with pytest.raises(RuntimeError, match="changed while fit runs"):
        fit(model, callbacks=[Changes()])
    assert model.ledger.steps == 1


@pytest.mark.slow
def test_freezing_and_unfreezing_between_fits_is_traced():
    first, second = ClippedDense(3, **CLIPS), ClippedDense(3, **CLIPS)
    model = fitted(first, second)
    fit(model)
    before = [np.array(v) for v in first.trainable_variables]
    first.trainable = False
    fit(model)
    for old, new in zip(before, first.weights, strict=True):
        np.testing.assert_array_equal(old, new)
    assert [g.name for g in model.sensitivities()] == [second.name]


@pytest.mark.slow
def test_another_optimizer_without_compile_trains():
    model = fitted(ClippedDense(3, **CLIPS))
    fit(model)
    model.optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(10.0), 1.0)
    before = model.get_weights()
    fit(model)
    assert all(np.any(old != new) for old, new in zip(before, model.get_weights(), strict=True))
    assert model.ledger.steps == 4
