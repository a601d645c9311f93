"""Formulas of classes that are known by name: for exactly that class, and only where it computes what they say."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.layer_cases import normal
from helpers.oracle import error_of
from helpers.private_models import private
from tfdp_layers.per_record import agreement, per_record_formulas
from tfdp_layers.per_record.registry import entry_of

kl = keras.layers
LLAMA = "keras_hub.src.models.llama.llama_layernorm"


def named(kind, module=LLAMA, name="LlamaLayerNorm"):
    """The class under the name of another package's."""
    kind.__module__, kind.__qualname__, kind.__name__ = module, name, name
    return kind


def norm(compute, **names):
    """A layer of one scale, under the name of KerasHub's RMS normalization for Llama."""

    class Norm(kl.Layer):
        epsilon = 1e-6

        def build(self, shape):
            self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

        def call(self, x):
            return compute(x / tf.sqrt(tf.reduce_mean(x**2, -1, keepdims=True) + self.epsilon), self.scale)

    return named(Norm, **names)


def model_of(layer, *shape):
    return keras.Sequential([keras.Input(shape), layer])


def test_a_class_that_computes_what_the_formula_says():
    assert error_of(model_of(norm(lambda x, scale: x * scale)(), 4, 6), normal(4, 6)) < 1e-4


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, scale: x * (1 + scale),
        lambda x, scale: x * scale + 0.01 * scale,
        lambda x, scale: x * scale * tf.reduce_sum(scale) / tf.cast(tf.size(scale), tf.float32),
        lambda x, scale: (x * scale)[:, :1],
        lambda x, scale: tf.matmul(x, tf.eye(7)) * scale,
    ],
    ids=["one more", "an offset", "scaled twice", "another shape", "fails"],
)
def test_a_class_of_that_name_that_computes_otherwise_is_refused(compute):
    layer = norm(lambda x, scale: x * scale)()
    model = model_of(layer, 4, 6)
    type(layer).call = norm(compute).call  # another version of the package
    with pytest.raises(ValueError, match=r"LlamaLayerNorm\) does not compute what the per-record") as e:
        private(model).sensitivities()
    assert layer.name in str(e.value)


def test_a_subclass_is_not_taken_for_the_class():
    whole = norm(lambda x, scale: x * scale)
    other = type("Other", (whole,), {"call": lambda self, x: x + self.scale})
    with pytest.raises(ValueError, match="no formula gives"):
        private(model_of(other(), 4, 6)).sensitivities()
    assert entry_of(whole()) is not None
    assert entry_of(other()) is None


def test_the_comparison_is_made_once_for_each_class_and_setting(monkeypatch):
    kind, calls = norm(lambda x, scale: x * scale), []
    own = kind.call
    kind.call = lambda self, x: calls.append(x) or own(self, x)
    first = model_of(kind(), 4, 6)
    private(first).sensitivities()
    built = len(calls)
    private(first).sensitivities()
    assert len(calls) == built  # the layer's own call is replaced, and not compared again
    layer = kind()
    private(model_of(layer, 5, 6)).sensitivities()
    assert len(calls) == built + 2  # built for another shape, and compared


def test_a_registered_name():
    @per_record_formulas("some_package.layers.Shift")
    def shift(layer, record, inputs):
        return record.offset(layer.shift, inputs)

    class Shift(kl.Layer):
        def build(self, shape):
            self.shift = self.add_weight(shape=shape[-1:])

        def call(self, x):
            return x + self.shift

    named(Shift, "some_package.layers", "Shift")
    assert error_of(model_of(Shift(), 4, 6), normal(4, 6)) < 1e-4
    with pytest.raises(ValueError, match=r"some_package.layers.Shift has a per-record formula"):
        per_record_formulas("some_package.layers.Shift")(shift)


def test_a_formula_that_is_not_compared_is_seen(monkeypatch):
    """Planted: without the comparison, a step would train another function than the layer predicts with."""
    layer = norm(lambda x, scale: x * (1 + scale))()
    model, x = model_of(layer, 4, 6), normal(4, 6)
    monkeypatch.setattr(agreement, "compare", lambda *args: None)
    assert error_of(model, x) < 1e-4  # the gradient of the scale happens to be the same ...
    layer.scale.assign(np.ones(6))
    trained = private(model)
    with tf.GradientTape() as tape:
        from tfdp_layers.per_record import Recorder, recording

        with recording(model, Recorder(tape)):
            inside = model(x)
    assert np.abs(np.asarray(inside - trained(x))).max() > 0.5  # ... but what is computed is not
