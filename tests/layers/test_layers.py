"""Clipped layers are the Keras layers, but for the clips, and refuse what their bounds do not cover."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import built, keras_twin, original_type, releaser
from helpers.clipped_dense import CLIPS, dense
from helpers.variants import slow_but
from tfdp_layers.certificates.certificate import sensitivity_groups
from tfdp_layers.layers import (
    BoundedLayer,
    ClippedConv1D,
    ClippedConv2D,
    ClippedConv3D,
    ClippedDense,
    ClippedDepthwiseConv2D,
    ClippedEinsumDense,
    ClippedEmbedding,
)

kl = keras.layers
NEVER = {"input_clip": 1e8, "upstream_clip": 1e8}
LAYERS: list[tuple[type, tuple[int, ...], dict[str, Any]]] = [
    (ClippedDense, (5,), {"units": 3}),
    (ClippedDense, (4, 5), {"units": 3, "use_bias": False}),
    (ClippedConv1D, (8, 2), {"filters": 3, "kernel_size": 3, "padding": "causal", "dilation_rate": 2}),
    (ClippedConv1D, (2, 8), {"filters": 3, "kernel_size": 3, "padding": "causal", "data_format": "channels_first"}),
    (ClippedConv2D, (6, 5, 2), {"filters": 4, "kernel_size": (3, 2), "strides": 2, "padding": "same"}),
    (ClippedConv2D, (6, 5, 2), {"filters": 4, "kernel_size": 3, "bound": "patch", "groups": 2}),
    (ClippedConv3D, (4, 4, 3, 2), {"filters": 2, "kernel_size": 2, "use_bias": False, "bound": "patch"}),
    (ClippedDepthwiseConv2D, (6, 6, 2), {"kernel_size": 3, "depth_multiplier": 2, "bound": "patch"}),
    (ClippedDepthwiseConv2D, (2, 6, 6), {"kernel_size": 3, "data_format": "channels_first"}),
]
each_layer = pytest.mark.parametrize(("layer_type", "shape", "options"), LAYERS)
each_type = pytest.mark.parametrize(
    "layer_type", [ClippedDense, ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D]
)


def both(layer: BoundedLayer, shape: tuple[int, ...]) -> tuple[BoundedLayer, Any]:
    """The layer and the Keras layer with the same weights."""
    twin = keras_twin(layer)
    for one in (layer, twin):
        one.build((None, *shape))
    twin.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in twin.get_weights()])
    layer.set_weights(twin.get_weights())
    return layer, twin


# The Keras layer, but for the clips


@each_type
def test_every_argument_of_keras_is_accepted_and_kept(layer_type: type) -> None:
    original = original_type(layer_type)
    names = [n for n, p in inspect.signature(original.__init__).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = {"units": 4, "filters": 4, "kernel_size": 3, "name": "named", "trainable": False}
    config = original(
        **{key: value for key, value in given.items() if key in [*names, "name", "trainable"]}
    ).get_config()
    clipped = layer_type.from_config(config | CLIPS)
    kept = clipped.get_config()
    assert {key: kept[key] for key in config} == config
    assert set(kept) - set(config) == set(CLIPS) | ({"bound"} if layer_type is not ClippedDense else set())
    assert len(names) > 10
    for name in names[1:]:
        default = inspect.signature(original.__init__).parameters[name].default
        value = config.get(name, None if default is inspect.Parameter.empty else default)
        layer_type(**({key: config[key] for key in given if key in config} | {name: value} | CLIPS))


@each_layer
def test_where_no_clip_binds_outputs_and_gradients_are_those_of_keras(
    layer_type: type, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    clipped, plain = both(layer_type(activation="tanh", **options, **NEVER), shape)
    x = tf.constant(np.random.default_rng(1).normal(size=(3, *shape)), tf.float32)
    results = []
    for layer in (clipped, plain):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
            loss = tf.reduce_sum(outputs**2)
        results.append([outputs, *tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert clipped.count_params() == plain.count_params()
    assert clipped.compute_output_shape((None, *shape)) == plain.compute_output_shape((None, *shape))


@pytest.mark.parametrize("clips", [NEVER, {"gradient_clip": 1e8}])
def test_a_bias_along_another_axis_than_the_last_is_not_taken_for_the_last_ones(clips: dict[str, float]) -> None:
    # keras.ops.add does where both are as long: then entries of several channels met in one, beyond the bound.
    convolution = built(ClippedConv2D(4, 3, data_format="channels_first", **clips), (2, 5, 6))
    einsum = built(ClippedEinsumDense("abc,cd->abd", output_shape=(4, 4), bias_axes="b", **clips), (4, 5))
    rng = np.random.default_rng(0)
    for layer, shape, axes in ((convolution, (2, 5, 6), (0, 2, 3)), (einsum, (4, 5), (0, 2))):
        x = rng.normal(size=(2, *shape)).astype(np.float32)
        u = rng.normal(size=layer(x).shape).astype(np.float32)
        bias = releaser(layer)(x, u)[1]
        np.testing.assert_allclose(np.squeeze(bias), u.sum(axis=axes), rtol=1e-4, atol=1e-4)


def test_where_the_input_clip_binds_the_output_is_that_of_the_scaled_record() -> None:
    clipped, plain = both(dense(), (5,))
    x = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32) * 10
    scaled = x * CLIPS["input_clip"] / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(clipped(x), plain(scaled), rtol=1e-3)


def test_integer_inputs_work_as_in_keras() -> None:
    clipped, plain = both(ClippedDense(3, **NEVER), (5,))
    x = np.arange(10, dtype=np.int32).reshape(2, 5)
    np.testing.assert_allclose(clipped(x), plain(x), rtol=1e-5)


def stack(layer_type: type, shape: tuple[int, ...], options: dict[str, Any], functional: bool) -> keras.Model:
    layers = [layer_type(**options, **CLIPS), kl.Flatten(), dense()]
    if not functional:
        return keras.Sequential([keras.Input(shape), *layers])
    tensor = inputs = keras.Input(shape)
    for layer in layers:
        tensor = layer(tensor)
    return keras.Model(inputs, tensor)


@pytest.mark.few(5)
@pytest.mark.parametrize("functional", slow_but([False], [False, True]))
@each_layer
def test_models_save_load_and_clone(
    layer_type: type, shape: tuple[int, ...], options: dict[str, Any], functional: bool, tmp_path: Path
) -> None:
    model = stack(layer_type, shape, options, functional)
    x = np.random.default_rng(3).normal(size=(2, *shape)).astype(np.float32)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    bounds = [group.bound for group in sensitivity_groups(model)]
    for copy in (loaded, clone):
        np.testing.assert_array_equal(copy(x), model(x))
        assert [group.bound for group in sensitivity_groups(copy)] == bounds
        ours, theirs = (
            [layer.get_config() for layer in m.layers if isinstance(layer, BoundedLayer)] for m in (model, copy)
        )
        assert ours == theirs
        assert copy.count_params() == model.count_params()


# What a layer refuses


@each_type
@pytest.mark.parametrize("clip", ["input_clip", "upstream_clip"])
def test_clips_are_required_and_checked(layer_type: type, clip: str) -> None:
    arguments = [4] if layer_type in (ClippedDense, ClippedDepthwiseConv2D) else [4, 3]
    with pytest.raises(ValueError, match=f"give both.*{next(key for key in CLIPS if key != clip)}"):
        layer_type(*arguments, **{key: value for key, value in CLIPS.items() if key != clip})
    with pytest.raises(ValueError, match=rf"`{clip}`.*Received: {clip}=-1"):
        layer_type(*arguments, **(CLIPS | {clip: -1}))


def test_an_unknown_bound_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"spatial_l1.*patch.*Received: bound='l2'"):
        ClippedConv2D(4, 3, bound="l2", **CLIPS)


def test_the_patch_bound_needs_fixed_spatial_dimensions_and_counts_those_of_each_call() -> None:
    layer = ClippedConv2D(4, 3, bound="patch", **CLIPS)
    with pytest.raises(ValueError, match=r"not fixed.*spatial_l1"):
        layer.build((None, None, 8, 1))
    layer = ClippedConv2D(4, 3, bound="patch", **CLIPS)
    for size in (8, 3, 20):
        x = np.full((1, size, size, 1), 100.0, np.float32)
        clipped = np.asarray(layer.input_rule(tf.constant(x)))
        patches = np.asarray(tf.image.extract_patches(clipped, [1, 3, 3, 1], [1] * 4, [1] * 4, "VALID"))
        assert np.linalg.norm(patches) == pytest.approx(layer.input_clip, rel=1e-3)
        assert layer(x).shape == (1, size - 2, size - 2, 4)
    assert ClippedConv2D(4, 3, **CLIPS)(np.zeros((1, 9, 8, 1))).shape == (1, 7, 6, 4)


def low_rank(layer: ClippedDense) -> None:
    layer.enable_lora(2)


def as_integers(layer: ClippedDense) -> None:
    layer.quantize("int8", type_check=False)


@pytest.mark.parametrize("change", [low_rank, as_integers])
def test_a_layer_changed_after_it_was_built_is_refused(change: Callable[[ClippedDense], None]) -> None:
    layer = dense()
    model = keras.Sequential([keras.Input((5,)), layer])
    change(layer)
    with pytest.raises(ValueError, match="LoRA enabled or is quantized"):
        layer(np.ones((2, 5), np.float32))
    with pytest.raises(ValueError, match="LoRA enabled or is quantized"):
        sensitivity_groups(model)


@pytest.mark.parametrize("private", [False, True], ids=["a Keras model", "a private model"])
def test_quantizing_a_model_leaves_the_layer_as_it_is_and_says_what_to_do(private: bool) -> None:
    layer = dense()
    kind = tfdp.PrivateSequential if private else keras.Sequential
    model = kind([keras.Input((5,)), layer])
    x, before = np.ones((2, 5), np.float32), layer.get_weights()
    with pytest.warns(UserWarning, match=r"is not quantized.*model\.to_keras\(\), then quantize"):
        model.quantize("int8")
    assert layer.quantization_mode is None
    np.testing.assert_array_equal(layer.get_weights()[0], before[0])
    if private:
        plain = model.to_keras()
        expected = np.asarray(plain(x))
        plain.quantize("int8")
        np.testing.assert_allclose(plain(x), expected, atol=0.05 * np.abs(expected).max() + 0.05)


SPARSE = tf.sparse.from_dense(np.eye(5, dtype=np.float32))
RAGGED = tf.ragged.constant([[1, 2], [3]])


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (dense, SPARSE, r"ClippedDense\) gets a sparse tensor.*Make it dense: sparse=False"),
        (lambda: ClippedEmbedding(5, 2), SPARSE, "gets a sparse tensor"),
        (lambda: ClippedEmbedding(5, 2), RAGGED, r"ClippedEmbedding\) gets a ragged tensor.*x\.to_tensor"),
    ],
)
def test_sparse_and_ragged_tensors_are_refused_in_plain_words(layer: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer()(given)


def test_a_quantized_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="quantized"):
        dense(dtype="int8_from_float32")(np.ones((2, 5), np.float32))
