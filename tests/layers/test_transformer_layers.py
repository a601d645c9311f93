"""Transformer layers are Keras' own but for the clips; models of them know their bounds, or are refused by name."""

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK, original_type
from helpers.transformer_cases import (
    CASES,
    CLIPS,
    FEATURES,
    FEW,
    UPSTREAM,
    Case,
    attention,
    clips_of,
    einsum,
    ordinary,
)
from helpers.variants import slow_but
from tfdp_layers.certificates.certificate import sensitivity_groups
from tfdp_layers.layers import (
    ClippedDense,
    ClippedEinsumDense,
    ClippedEmbedding,
    ClippedGroupNormalization,
    ClippedLayerNormalization,
    ClippedMultiHeadAttention,
)
from tfdp_layers.layers import attention as attention_module

kl = keras.layers
TYPES = {
    ClippedEmbedding: {"input_dim": 7, "output_dim": 4},
    ClippedEinsumDense: {"equation": "abc,cd->abd", "output_shape": (None, 3)},
    ClippedLayerNormalization: {},
    ClippedGroupNormalization: {},
    ClippedMultiHeadAttention: {"num_heads": 2, "key_dim": 4},
}


# The Keras layer, but for the clips


@pytest.mark.parametrize("layer_type", TYPES)
def test_every_argument_of_keras_is_accepted_and_kept(layer_type: type) -> None:
    config = original_type(layer_type)(**TYPES[layer_type], name="named", trainable=False).get_config()
    clips = clips_of(layer_type)
    kept = layer_type.from_config(config | clips).get_config()
    assert {key: kept[key] for key in config} == config
    assert {key: kept[key] for key in set(kept) - set(config)} == clips
    for name, parameter in list(inspect.signature(original_type(layer_type).__init__).parameters.items())[1:]:
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            layer_type(**(TYPES[layer_type] | {name: config.get(name, parameter.default)} | clips))


@pytest.mark.parametrize("case", slow_but(CASES[::2], CASES), ids=str)
def test_where_no_clip_binds_outputs_and_gradients_are_those_of_keras(case: Case) -> None:
    never = {key: 1e8 for key in clips_of(case.layer_type)}
    clipped = case.layer(**never)
    plain, x = case.twin(clipped), tf.constant(ordinary(case))
    results = []
    for layer in (clipped, plain):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
            loss = tf.reduce_sum(tf.sin(outputs + 1.0))
        sources = [x] if x.dtype.is_floating else []
        gradients = tape.gradient(loss, sources + [v.value for v in layer.trainable_variables])
        results.append([outputs, *[tf.convert_to_tensor(g) for g in gradients]])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", slow_but(FEW, CASES), ids=str)
def test_the_forward_pass_is_that_of_keras_whatever_the_clips(case: Case) -> None:
    layer = case.layer(**{key: 1e-3 for key in clips_of(case.layer_type)})
    x = ordinary(case)
    expected = case.twin(layer)(x)
    if case.layer_type is ClippedEinsumDense:  # which clips its input
        scale = 1e-3 / np.linalg.norm(x.reshape(len(x), -1), axis=1)
        expected = case.twin(layer)(x * scale.reshape(-1, *[1] * len(case.shape)))
    np.testing.assert_allclose(layer(x), expected, rtol=1e-3, atol=1e-6)


def test_masks_are_those_of_keras_and_unknown_tokens_read_zeros() -> None:
    layer = ClippedEmbedding(3, 2, mask_zero=True, **UPSTREAM)
    ids = np.array([[0, 1, 2, 3, -1, 2**31 - 1]])
    table, outputs = np.asarray(layer(np.array([0, 1, 2]))), layer(ids)
    np.testing.assert_array_equal(outputs[0], np.concatenate([table, np.zeros((3, 2))]))
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    tokens = keras.Input((6,), dtype="int32")
    embedded = layer(tokens)
    attend = ClippedMultiHeadAttention(2, 4, **CLIPS)
    model = keras.Model(tokens, attend(embedded, embedded))
    before = np.asarray(model(ids))
    layer.embeddings.assign(table + np.outer([1, 0, 0], [5, 5]))
    np.testing.assert_allclose(model(ids)[:, 1:], before[:, 1:], rtol=1e-5)  # the masked token is attended by nobody


# What is refused

REFUSED = {
    "batch in the kernel": (lambda: einsum("ab,abc->ac", (3,), 2, None).layer(), "batch in inputs and outputs"),
    "batch moved": (lambda: einsum("abc,cd->bad", (4, 3), (4, 2), None).layer(), "first label must be the batch"),
    "batch in the bias": (lambda: einsum("ab,bc->ac", (3,), 2, "ac").layer(), "batch in bias_axes='ac'"),
    "summed input": (lambda: einsum("abc,cd->ad", (4, 3), 2, "d").layer(), r"sums the input over \['b'\]"),
    "diagonal": (lambda: einsum("abb,bc->ac", (4, 4), 2, "c").layer(), "repeats a label"),
    "normalized batch": (
        lambda: ClippedLayerNormalization(axis=[0, -1], **UPSTREAM).build((4, 4)),
        "over axis 0, the batch",
    ),
    "grouped batch": (lambda: ClippedGroupNormalization(2, axis=0, **UPSTREAM).build((4, 4)), "over axis 0, the batch"),
    "attended batch": (lambda: attention((4,), attention_axes=[0]).layer(), "attends over axis 0"),
    "missing clip": (lambda: attention((4,), input_clip={"query": 1.0}).layer(), "one for each projection"),
    "clip of a projection": (
        lambda: attention((4,), upstream_clip=dict.fromkeys(("query", "key", "value", "output"), 0.0)).layer(),
        r"upstream_clip\['query'\]",
    ),
    "clip of a table": (lambda: ClippedEmbedding(3, 2, upstream_clip=float("nan")), "`upstream_clip` must be a number"),
    "half precision": (
        lambda: ClippedEmbedding(3, 2, dtype="bfloat16", **UPSTREAM)(np.zeros((1, 2), int)),
        "computes in bfloat16",
    ),
    "half precision attention": (
        lambda: ClippedMultiHeadAttention(2, 4, dtype="float16", **CLIPS)(*np.ones((2, 1, 4, FEATURES))),
        "computes in float16",
    ),
    "LoRA": (lambda: ClippedEmbedding(3, 2, lora_rank=1, **UPSTREAM)(np.zeros((1, 2), int)), "LoRA enabled"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_a_projection_that_does_not_bound_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "bound_in_place", lambda *args: None)
    inputs = keras.Input((4, FEATURES))
    with pytest.raises(ValueError, match=r"attend/query.*EinsumDense.*no bound"):
        sensitivity_groups(keras.Model(inputs, ClippedMultiHeadAttention(2, 4, name="attend", **CLIPS)(inputs, inputs)))


def test_tables_of_positions_must_be_looked_up_for_each_record() -> None:
    tokens = keras.Input((4,), dtype="int32")
    table, words = ClippedEmbedding(4, 2, **UPSTREAM), ClippedEmbedding(7, 2, **UPSTREAM)
    with pytest.raises(ValueError, match=r"rows for"):
        sensitivity_groups(keras.Model(tokens, words(tokens) + table(keras.ops.zeros_like(tokens[0]))))
    positions = tokens * 0 + keras.ops.arange(4)
    assert [g.bound for g in sensitivity_groups(keras.Model(tokens, words(tokens) + table(positions)))] == [0.5, 0.5]


def test_a_tied_table_is_refused() -> None:
    tokens = keras.Input((4,), dtype="int32")
    words = ClippedEmbedding(7, 2, **UPSTREAM)
    logits = kl.Lambda(lambda x: tf.matmul(x, words.embeddings, transpose_b=True))(words(tokens))
    with pytest.raises(ValueError, match="used outside its layer"):
        sensitivity_groups(keras.Model(tokens, logits))


# Models


def transformer(**clips: Any) -> keras.Model:
    """A small encoder of every kind of layer, clipped where clips are given."""
    upstream = {key: value for key, value in clips.items() if key == "upstream_clip"}
    table, norm, group, attend, product, dense = (
        (kl.Embedding, kl.LayerNormalization, kl.GroupNormalization, kl.MultiHeadAttention, kl.EinsumDense, kl.Dense)
        if not clips
        else (
            ClippedEmbedding,
            ClippedLayerNormalization,
            ClippedGroupNormalization,
            ClippedMultiHeadAttention,
            ClippedEinsumDense,
            ClippedDense,
        )
    )
    tokens = keras.Input((6,), dtype="int32")
    x = table(9, 8, mask_zero=True, name="words", **upstream)(tokens)
    normal = norm(name="norm", **upstream)(x)
    x = kl.Add()([x, attend(2, 4, dropout=0.1, name="attend", **clips)(normal, normal)])
    hidden = product("abc,cd->abd", (None, 16), activation="gelu", bias_axes="d", name="up", **clips)(x)
    x = kl.Add()([x, dense(8, name="down", **clips)(hidden)])
    x = group(2, name="group", **upstream)(x)
    return keras.Model(tokens, dense(3, name="logits", **clips)(kl.GlobalAveragePooling1D()(x)))


NAMES = [
    "words",
    "norm",
    "attend/query",
    "attend/key",
    "attend/value",
    "attend/output",
    "up",
    "down",
    "group",
    "logits",
]


@pytest.mark.slow
def test_a_transformer_trains_within_its_certificates() -> None:
    model = transformer(**CLIPS)
    private = tfdp.PrivateModel(model.input, model.output)
    optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(1e-2), noise_multiplier=1.0)
    private.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert [group.name for group in private.sensitivities()] == NAMES
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (64, 6)), rng.integers(0, 3, 64)
    before = private.get_weights()
    private.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert all(np.any(a != b) for a, b in zip(before, private.get_weights(), strict=True))
    place = {id(v): i for i, v in enumerate(private.trainable_variables)}
    for tokens in (x[:1], np.zeros((1, 6), int), np.full((1, 6), 3), np.full((1, 6), 10**6)):
        sums = private.bounded_gradient_sums(tokens, y[:1])
        for group in private.sensitivities():
            norm = np.sqrt(sum(np.sum(np.asarray(sums[place[id(v)]], np.float64) ** 2) for v in group.variables))
            assert norm <= group.bound * (1 + SLACK), group.name


@pytest.mark.slow
def test_a_keras_transformer_becomes_private_and_ordinary_again(tmp_path: Path) -> None:
    plain = transformer()
    x = np.random.default_rng(0).integers(0, 9, (8, 6))
    private = tfdp.make_private(plain, bounding="backprop_clipping", input_clip=1e3, upstream_clip=0.1)
    np.testing.assert_allclose(private(x), plain(x), rtol=1e-4, atol=1e-5)
    assert [group.name for group in private.sensitivities()] == NAMES
    again = private.to_keras()
    assert not any(type(layer).__module__.startswith("tfdp_layers") for layer in again._flatten_layers())
    np.testing.assert_allclose(again(x), plain(x), rtol=1e-4, atol=1e-5)
    private.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(transformer(**CLIPS))
    np.testing.assert_array_equal(loaded(x), private(x))
    assert [g.bound for g in loaded.sensitivities()] == [g.bound for g in private.sensitivities()]
    assert [g.bound for g in sensitivity_groups(clone)] == [g.bound for g in sensitivity_groups(transformer(**CLIPS))]


def test_clips_of_projections_are_kept_and_stated() -> None:
    clips = {"query": 1.0, "key": 2.0, "value": 3.0, "output": 4.0}
    layer = ClippedMultiHeadAttention(2, 4, use_bias=False, name="attend", input_clip=clips, upstream_clip=0.5)
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    inputs = keras.Input((4, FEATURES))
    model = keras.Model(inputs, copy(copy(inputs, inputs), inputs))
    # Used twice, so each bound counts twice.
    assert {g.name: g.bound for g in sensitivity_groups(model)} == {f"attend/{k}": v for k, v in clips.items()}


def test_a_projection_called_past_its_attention_counts_as_a_use() -> None:
    inputs = keras.Input((4, FEATURES))
    layer = ClippedMultiHeadAttention(2, 4, name="attend", **CLIPS)
    outputs = layer(inputs, inputs)
    more = kl.Lambda(lambda x: layer.query_dense(x))(inputs)
    bounds = {g.name: g.bound for g in sensitivity_groups(keras.Model(inputs, [outputs, more]))}
    assert bounds["attend/query"] == pytest.approx(2 * bounds["attend/key"])
