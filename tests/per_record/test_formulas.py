"""Each layer's per-record norms, gradients and weighted sums are those of a loop over batches of one."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from helpers.layer_cases import CASES, FEW, Block, Scales, ids, normal, stack
from helpers.oracle import error_of, largest_error, measured, one_by_one, recorded, upstream
from helpers.variants import slow_but

recording_module = importlib.import_module(
    "tfdp_layers.per_record.recording"
)  # the package exports a function so named
registry_module = importlib.import_module("tfdp_layers.per_record.registry")
kl = keras.layers
RTOL = 1e-4
few = settings(max_examples=6, deadline=None)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", slow_but(FEW, CASES))
def test_every_layer_kind(name):
    assert error_of(*CASES[name]()) < RTOL


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["graph"], ["graph", "xla"]))
def test_compiled(mode):
    a = keras.Input((6,), dtype="int32")
    dense = kl.Dense(4, activation="tanh")
    h = dense(dense(kl.Embedding(5, 4)(a)))
    h = kl.LayerNormalization()(kl.Conv1D(4, 3, padding="same")(h))
    if mode == "graph":  # XLA takes long to compile it
        h = kl.GRU(4, return_sequences=True)(h)
    outputs = kl.Dense(2)(kl.Flatten()(h))
    assert error_of(keras.Model(a, outputs), ids(6), mode) < RTOL


def products_that_broadcast(graph):
    """Products of matrices over more than one axis of batches by one matrix."""
    ranks = [[t.shape.rank for t in op.inputs] for op in graph.get_operations() if op.type.startswith("BatchMatMul")]
    return [both for both in ranks if both[0] != both[1] and max(both) > 3]


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 16, 8), (2, 1, 4, 4), (1, None, 4)], ids=str)
@pytest.mark.parametrize("kind", ["dense", "lora", "tied", "mixed"])
def test_no_product_is_of_a_kind_that_tensorflow_gets_wrong(kind, shape):
    """With oneDNN, TensorFlow 2.21 multiplies (batch, 1, k, n) by (n, m) wrongly, or crashes."""
    width = shape[-1]
    table = kl.ReversibleEmbedding(12, width, tie_weights=True)
    x = keras.Input(shape)
    if kind == "tied":
        table.build(None)
        outputs = table(x, reverse=True)
    else:
        dense = kl.Dense(12, dtype="mixed_float16" if kind == "mixed" else None)
        outputs = kl.Dense(3, dtype="float32")(dense(x))
        if kind == "lora":
            dense.enable_lora(2)
    model, known = keras.Model(x, outputs), [5 if n is None else n for n in shape]
    c = upstream(model, normal(*known))

    def gradients(given):
        return [part.weighted_sum(tf.ones(len(c[0]))) for part in recorded(model, given, c).values()]

    traced = tf.function(gradients).get_concrete_function(tf.TensorSpec((len(c[0]), *known)))
    assert not products_that_broadcast(traced.graph)
    if kind != "mixed":
        assert error_of(model, normal(*known)) < RTOL


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_layers_without_a_formula(mode):
    assert error_of(*stack((2, 4), Scales(), kl.Dense(3)), mode, allow_generic=True) < RTOL


GENERIC = ["dense over positions", "einsum", "conv2d", "separable", "transposed", "depthwise", "embedding", "norms",
           "prelu", "attention", "composite", "lora"]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", slow_but(["einsum", "conv2d", "norms", "attention"], GENERIC))
def test_the_fast_path_is_the_generic_path(name, monkeypatch):
    model, x = CASES[name]()
    c = upstream(model, x)
    fast = recorded(model, x, c)
    monkeypatch.setattr(registry_module, "_FORMULAS", {})
    slow = recorded(model, x, c, allow_generic=True)
    assert fast.keys() == slow.keys()
    references = {key: np.asarray(part.gradients()) for key, part in slow.items()}
    largest = max(np.abs(reference).max() for reference in references.values())
    for key, part in fast.items():
        assert type(slow[key]).__name__ == "Stored"
        # That of a key's bias is zero but for rounding: softmax does not change with it.
        size = max(np.abs(references[key]).max(), 1e-2 * largest)
        np.testing.assert_allclose(part.gradients(), references[key], rtol=RTOL, atol=RTOL * size)


# Drawn shapes and settings --------------------------------------------------------------------------------------------

RECURRENT_OPTIONS = ("use_bias", "go_backwards", "return_sequences", "zero_output_for_mask")
small = st.integers(1, 4)


@few
@given(
    st.lists(small, min_size=0, max_size=2), small, st.integers(1, 24), st.booleans(), st.sampled_from([None, "gelu"])
)
def test_dense(positions, inputs, units, bias, activation):
    assert error_of(*stack((*positions, inputs), kl.Dense(units, activation, bias))) < RTOL


@st.composite
def convolutions(draw):
    """A convolution of any kind, and the shape of one record."""
    rank = draw(st.integers(1, 2))
    kind = draw(st.sampled_from(["Conv", "Conv", "DepthwiseConv", "SeparableConv", "ConvTranspose"]))
    channels, size = draw(st.integers(1, 2)), draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    first, stride = draw(st.booleans()), draw(st.integers(1, 2))
    dilation = draw(st.integers(1, 2)) if stride == 1 and kind == "Conv" else 1
    # Wider than there are filters: Keras 3.15 adds a channels-first bias along the width where they are as many.
    space = [dilation * (k - 1) + draw(st.integers(9, 11)) for k in size]
    paddings = ["valid", "same"] + (["causal"] if rank == 1 and kind == "Conv" and not first else [])
    options = {
        "kernel_size": size,
        "strides": stride,
        "padding": draw(st.sampled_from(paddings)),
        "data_format": "channels_first" if first else "channels_last",
        "use_bias": draw(st.booleans()),
    }
    if kind == "Conv":
        options["dilation_rate"] = dilation
    if kind == "DepthwiseConv":
        options["depth_multiplier"] = draw(st.integers(1, 2))
    else:
        options["filters"] = draw(st.integers(1, 3))
    name = f"Conv{rank}DTranspose" if kind == "ConvTranspose" else f"{kind}{rank}D"
    return name, options, (channels, *space) if first else (*space, channels)


@settings(max_examples=12, deadline=None)
@given(convolutions())
def test_convolutions(drawn):
    name, options, shape = drawn
    model, x = stack(shape, getattr(kl, name)(**options))
    try:
        model(x)
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
        reject()  # channels first: some processors have no kernel for it, and Keras does not train either
    assert error_of(model, x) < RTOL


@few
@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=3, max_size=3), st.integers(1, 3))
def test_repeated_tokens(drawn, units):
    model, _ = stack((5,), kl.Embedding(4, units))
    assert error_of(model, tf.constant(drawn)) < RTOL


@pytest.mark.slow
@few
@given(
    st.sampled_from([kl.SimpleRNN, kl.LSTM, kl.GRU]),
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=3, max_size=3),
    st.fixed_dictionaries(
        {n: st.booleans() for n in ("use_bias", "go_backwards", "return_sequences", "zero_output_for_mask")}
    ),
)
def test_recurrent_layers_with_masks(kind, kept, options):
    inputs, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
    model = keras.Model([inputs, mask], kind(3, **options)(inputs, mask=mask))
    assert error_of(model, [normal(4, 2), tf.constant(kept)]) < RTOL


@few
@given(st.integers(1, 2), small, st.booleans(), st.booleans(), st.booleans())
def test_attention_with_masks(heads, size, bias, causal, cross):
    a, b, mask = keras.Input((4, 3)), keras.Input((5, 3)), keras.Input((4, 5 if cross else 4), dtype="bool")
    other = b if cross else a
    y = kl.MultiHeadAttention(heads, size, use_bias=bias)(a, other, attention_mask=mask, use_causal_mask=causal)
    kept = tf.constant(np.random.default_rng(size).random((3, *mask.shape[1:])) < 0.7)
    assert error_of(keras.Model([a, b, mask], y), [normal(4, 3), normal(5, 3), kept]) < RTOL


def test_states_given_and_returned():
    a, h = keras.Input((4, 2)), keras.Input((2,))
    first = kl.LSTM(3, return_state=True, return_sequences=True)
    sequence, *states = first(a)
    y, last = kl.GRU(3, return_state=True)(sequence, initial_state=kl.Dense(3)(h))
    model = keras.Model([a, h], [y, last, *states])
    assert error_of(model, [normal(4, 2), normal(2)]) < RTOL


@pytest.mark.parametrize("dtype", ["float64", "mixed_float16", "mixed_bfloat16"])
def test_other_types_are_summed_in_float32(dtype):
    layers = [kl.Conv1D(3, 2, dtype=dtype), kl.LayerNormalization(dtype=dtype), kl.GRU(3, dtype=dtype)]
    model, x = stack((5, 2), *layers, kl.Dense(2, dtype=dtype))
    c = upstream(model, x)
    assert all(p.weighted_sum(tf.ones((3,))).dtype == tf.float32 for p in recorded(model, x, c).values())
    # Float16 keeps 11 bits, bfloat16 8.
    assert error_of(model, x) < {"float64": RTOL, "mixed_float16": 1e-2, "mixed_bfloat16": 1e-1}[dtype]


def test_frozen_weights_have_no_contribution():
    dense, last = kl.Dense(3), kl.Dense(2)
    model, x = stack((4,), dense, last)
    dense.trainable = False
    found = recorded(model, x, upstream(model, x))
    assert found.keys() == {id(v) for v in last.trainable_variables}


# Planted bugs ---------------------------------------------------------------------------------------------------------


def test_squared_norms_added_over_uses_are_seen(monkeypatch):
    """The known trap: a Dense used four times came out at a quarter of its norm."""
    model, x = stack((3, 4), Block())
    c = upstream(model, x)
    exact = one_by_one(model, x, c)
    assert largest_error(measured(model, x, c), exact) < RTOL

    merged = recording_module.merged

    def adds_squares(uses):
        whole = merged(uses)
        if len(uses) == 1:
            return whole
        whole.squared_norms = lambda: tf.add_n([use.squared_norms() for use in uses])
        whole.rounding = lambda: None
        return whole

    monkeypatch.setattr(recording_module, "merged", adds_squares)
    assert largest_error(measured(model, x, c), exact) > 100 * RTOL
