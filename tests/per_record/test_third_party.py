"""Formulas of classes that are known by name: for exactly that class, and only where it computes what they say."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
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
        lambda x, scale: x * scale + 0.0 * tf.sqrt(x),
        lambda x, scale: tf.math.log(x) * scale,
    ],
    ids=["one more", "an offset", "scaled twice", "another shape", "fails", "NaN of some", "logarithms"],
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
    assert error_of(model_of(other(), 4, 6), normal(4, 6), "graph") < 1e-4  # by its own call
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


class Bank(kl.Layer):
    """Two experts, all tokens along one axis."""

    activation, intermediate_dim = staticmethod(tf.nn.silu), 3

    def build(self, shape):
        made = [self.add_weight(shape=(2, *sizes)) for sizes in ((shape[-1], 3), (shape[-1], 3), (3, shape[-1]))]
        self._expert_feedforward_gate_dense, self._expert_feedforward_intermediate_dense = made[:2]
        self._expert_feedforward_output_dense = made[2]

    def call(self, tokens):
        gate, up, down = self.weights
        hidden = tf.nn.silu(tf.einsum("th,ehm->etm", tokens, gate)) * tf.einsum("th,ehm->etm", tokens, up)
        return tf.einsum("etm,emh->eth", hidden, down)


class Mixture(kl.Layer):
    """One of two experts for each token, and a loss over all tokens."""

    num_experts, top_k = 2, 1

    def __init__(self, coefficient):
        super().__init__()
        self.router_aux_loss_coef = coefficient
        self._sparse_feedforward_gate_dense, self.expert_bank = kl.Dense(2, use_bias=False), Bank()

    def build(self, shape):
        self._sparse_feedforward_gate_dense.build(shape)
        self.expert_bank.build(shape)

    def call(self, hidden_states, attention_mask=None, training=None):
        tokens = tf.reshape(hidden_states, (-1, hidden_states.shape[-1]))
        logits = self._sparse_feedforward_gate_dense(tokens)
        best = tf.transpose(tf.one_hot(tf.argmax(logits, -1), 2))
        if training:
            self.add_loss(self.router_aux_loss_coef * tf.reduce_mean(logits))
        outputs = tf.reduce_sum(self.expert_bank(tokens) * best[..., None], axis=0)
        return tf.reshape(outputs, tf.shape(hidden_states)), logits


def mixture_model(coefficient, frozen=False):
    layer = named(Mixture, "keras_hub.src.models.mixtral.mixtral_decoder", "MixtralSparseMoeBlock")(coefficient)
    x = keras.Input((4, 6))
    outputs = layer(kl.Dense(6)(x))[0]
    layer.trainable = not frozen
    return keras.Model(x, kl.Dense(2)(outputs))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "behind frozen experts"])
def test_a_mixture_of_experts_whose_own_call_lays_tokens_along_the_batch(frozen):
    model = mixture_model(0.0, frozen)
    assert error_of(model, normal(4, 6)) < 1e-4
    trained = private(mixture_model(0.0, frozen))
    assert tfdp.check_independence(trained).proved


@pytest.mark.parametrize("frozen", [False, True], ids=["all", "behind frozen experts"])
def test_a_loss_over_the_tokens_of_all_records_is_refused_with_the_fix(frozen):
    with pytest.raises(ValueError, match=r"a loss over the tokens of all records.*router_aux_loss_coef=0\.0") as e:
        private(mixture_model(0.1, frozen)).sensitivities()
    assert "does not compute what" not in str(e.value)


def test_tensors_without_records_keep_their_sizes_in_the_comparison():
    rng = np.random.default_rng(0)
    given = {"one a record": (7, 3), "four a record": (28, 3), "of none": (4, 4), "of all": (1, 5)}
    found = {name: agreement.random_like(tf.zeros(shape), rng, 7).shape.as_list() for name, shape in given.items()}
    assert found == {"one a record": [2, 3], "four a record": [8, 3], "of none": [4, 4], "of all": [1, 5]}


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
