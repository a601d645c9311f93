"""Clipped layers are the Keras layers, but for the clips; models of them know their bounds, or are refused by name."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from certify import keras_twin, original_type

from tfdp_layers.layers import (
    BoundedLayer,
    ClippedConv1D,
    ClippedConv2D,
    ClippedConv3D,
    ClippedDense,
    ClippedDepthwiseConv2D,
)
from tfdp_layers.sensitivity import sensitivity_groups, sensitivity_of

kl = keras.layers
CLIPS = {"input_clip": 2.0, "upstream_clip": 0.5}
NEVER = {"input_clip": 1e8, "upstream_clip": 1e8}
ONE_USE = 0.5 * math.hypot(2.0, 1.0)

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


def dense(units: int = 3, **options: Any) -> ClippedDense:
    return ClippedDense(units, **(CLIPS | options))


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


@pytest.mark.parametrize("functional", [False, True])
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
    with pytest.raises(TypeError, match=clip):
        layer_type(*arguments, **{key: value for key, value in CLIPS.items() if key != clip})
    with pytest.raises(ValueError, match=rf"`{clip}`.*Received: {clip}=-1"):
        layer_type(*arguments, **(CLIPS | {clip: -1}))


def test_an_unknown_bound_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"spatial_l1.*patch.*Received: bound='l2'"):
        ClippedConv2D(4, 3, bound="l2", **CLIPS)


def test_the_patch_bound_needs_the_spatial_dimensions_it_was_built_for() -> None:
    layer = ClippedConv2D(4, 3, bound="patch", **CLIPS)
    with pytest.raises(ValueError, match=r"not fixed.*spatial_l1"):
        layer.build((None, None, 8, 1))
    layer = ClippedConv2D(4, 3, bound="patch", **CLIPS)
    layer(np.zeros((1, 8, 8, 1)))
    with pytest.raises(ValueError, match=r"built for spatial dimensions \(8, 8\)"):
        layer(np.zeros((1, 9, 8, 1)))
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


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64", "int8_from_float32"])
def test_types_that_the_bound_does_not_cover_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"computes in|quantized"):
        dense(dtype=dtype)(np.ones((2, 5), np.float32))


# Bounds of models


def bounds(model: keras.Model) -> dict[str, float]:
    return {group.name: group.bound for group in sensitivity_groups(model)}


def test_groups_cover_every_trainable_weight_once_with_its_layers_bound() -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            ClippedConv2D(2, 3, use_bias=False, name="conv", **CLIPS),
            kl.Flatten(),
            kl.Dropout(0.5),
            dense(name="dense"),
        ]
    )
    groups = sensitivity_groups(model)
    assert bounds(model) == {"conv": pytest.approx(1.0), "dense": pytest.approx(ONE_USE)}
    covered = [id(v) for group in groups for v in group.variables]
    assert sorted(covered) == sorted(id(v) for v in model.trainable_variables)


def test_a_shared_layer_counts_once_for_each_use_also_in_nested_models() -> None:
    shared = dense(5, name="shared")
    inputs = keras.Input((5,))
    inner = keras.Model(inputs, shared(shared(inputs)), name="inner")
    outer = keras.Input((5,))
    model = keras.Model(outer, kl.Add()([inner(inner(outer)), dense(5, name="once")(outer)]))
    assert bounds(model) == {"inner/shared": pytest.approx(4 * ONE_USE), "once": pytest.approx(ONE_USE)}
    model = keras.Sequential([keras.Input((5,)), inner, shared])
    assert bounds(model) == {"inner/shared": pytest.approx(3 * ONE_USE)}


def test_the_bound_of_a_shared_layer_is_attained_by_no_fewer_uses() -> None:
    """Two uses of one layer on one record, aligned: the gradient is twice that of one, not sqrt(2) times."""
    shared = dense(1, use_bias=False)
    inputs = keras.Input((2, 5))
    model = keras.Model(inputs, [shared(inputs[:, 0]), shared(inputs[:, 1])])
    with tf.GradientTape() as tape:
        loss = 100.0 * tf.add_n([tf.reduce_sum(out) for out in model(tf.ones((1, 2, 5)) * 100.0)])
    norm = float(tf.norm(tape.gradient(loss, shared.kernel.value)))
    assert norm == pytest.approx(bounds(model)[shared.name], rel=1e-4)


def test_frozen_layers_need_no_bound_and_partly_frozen_ones_keep_theirs() -> None:
    model = keras.Sequential([keras.Input((5,)), kl.Dense(4), kl.BatchNormalization(), dense(name="last")])
    model.layers[0].trainable = model.layers[1].trainable = False
    assert bounds(model) == {"last": pytest.approx(ONE_USE)}


class Wrapped(kl.Layer):
    """A layer with a bounded layer inside, in a loop that no trace could be trusted to count."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense(5)

    def call(self, inputs: Any) -> Any:
        return self.inner(self.inner(inputs))


class Bent(ClippedDense):
    """A subclass may bend the gradient."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return 100.0 * super().call(inputs, training=training)


class OwnCall(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = dense(5)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class OwnSequentialCall(keras.Sequential):
    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(super().call(inputs))


def adapted() -> keras.layers.Normalization:
    layer = kl.Normalization()
    layer.adapt(np.random.default_rng(0).normal(size=(8, 5)))
    return layer


def model_of(*layers: Any, shape: tuple[int, ...] = (5,)) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *layers])


def called(model: keras.Model) -> keras.Model:
    model(np.zeros((1, 5), np.float32))
    return model


def with_own_weight() -> keras.Model:
    model = model_of(dense())
    model.scale = model.add_weight(shape=(), name="scale")
    return model


REFUSED: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "plain Dense": (lambda: model_of(kl.Dense(3)), r"'dense.*Use tfdp.layers.ClippedDense in its place.*make_private"),
    "plain Conv2D": (lambda: model_of(kl.Conv2D(2, 3), shape=(5, 5, 1)), r"tfdp.layers.ClippedConv2D"),
    "no twin": (
        lambda: model_of(kl.PReLU(), dense()),
        r"PReLU.*sensitivity_of.*trainable = Fal",
    ),
    "BatchNormalization": (
        lambda: model_of(kl.BatchNormalization(), dense()),
        r"BatchNormalization: it averages over the batch.*GroupNormalization.*trainable = False",
    ),
    "weightless BatchNormalization": (
        lambda: model_of(kl.BatchNormalization(center=False, scale=False), dense()),
        r"averages over the batch",
    ),
    "nested BatchNormalization": (
        lambda: model_of(model_of(kl.BatchNormalization(), dense(5)), dense()),
        r"averages over the batch",
    ),
    "stateful LSTM": (
        lambda: keras.Sequential([keras.Input(batch_shape=(2, 4, 5)), kl.LSTM(3, stateful=True), dense()]),
        r"LSTM: it carries state.*stateful=False",
    ),
    "plain LSTM": (lambda: model_of(kl.LSTM(3), dense(), shape=(4, 5)), r"LSTM\) has trainable weights and no bound"),
    "adapted Normalization": (lambda: model_of(adapted(), dense()), r"Normalization: its state was learned by adapt"),
    "activity regularizer": (lambda: model_of(dense(activity_regularizer="l2")), r"activity regularizer.*kernel_reg"),
    "weight of the model": (with_own_weight, r"Weight .*scale.* is covered by 0 bounds.*put them into a layer"),
    "subclassed model": (lambda: called(OwnCall()), r"OwnCall defines its own call.*PrivateModel\(inputs, outputs\)"),
    "subclassed Sequential": (lambda: OwnSequentialCall([keras.Input((5,)), dense(5)]), r"OwnSequentialCall defines"),
    "nested subclassed": (lambda: model_of(OwnCall(), dense()), r"OwnCall\) has trainable weights and no bound"),
    "TimeDistributed": (
        lambda: model_of(kl.TimeDistributed(dense()), shape=(4, 5)),
        r"TimeDistributed\) has trainable weights and no bound",
    ),
    "Bidirectional": (
        lambda: model_of(kl.Bidirectional(kl.SimpleRNN(3)), dense(), shape=(4, 5)),
        r"Bidirectional\) has trainable weights and no bound",
    ),
    "custom wrapper": (lambda: model_of(Wrapped(), dense()), r"Wrapped\) has trainable weights and no bound"),
    "subclassed layer": (lambda: model_of(Bent(3, **CLIPS)), r"Bent\) has trainable weights and no bound"),
    "not built": (lambda: keras.Sequential([dense()]), r"not built.*keras.Input"),
}
for mixer in ("MixUp", "CutMix"):
    if hasattr(kl, mixer):
        REFUSED[mixer] = (
            lambda mixer=mixer: model_of(getattr(kl, mixer)(), kl.Flatten(), dense(), shape=(4, 4, 3)),
            rf"{mixer}: it blends records",
        )


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused_by_name_with_the_mend(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sensitivity_groups(build())


def positions_folded_into_rows() -> keras.Model:
    inputs = keras.Input((4, 3))
    rows = dense(3)(keras.ops.reshape(inputs, (-1, 3)))
    return keras.Model(inputs, keras.ops.reshape(rows, (-1, 4, 3)))


def kernel_used_by_an_operation() -> keras.Model:
    layer, inputs = dense(3), keras.Input((3,))
    return keras.Model(inputs, keras.ops.matmul(layer(inputs), layer.kernel))


def kernel_used_by_a_lambda() -> keras.Model:
    layer, inputs = dense(3), keras.Input((3,))
    return keras.Model(inputs, kl.Lambda(lambda x: tf.matmul(x, layer.kernel))(layer(inputs)))


def layer_used_in_a_loop() -> keras.Model:
    layer, inputs = dense(3), keras.Input((6, 3))
    looped = kl.Lambda(lambda x: tf.transpose(tf.map_fn(layer, tf.transpose(x, (1, 0, 2))), (1, 0, 2)))(inputs)
    return keras.Model(inputs, layer(looped))


@pytest.mark.parametrize(
    "build",
    [positions_folded_into_rows, kernel_used_by_an_operation, kernel_used_by_a_lambda, layer_used_in_a_loop],
)
def test_a_use_that_the_layers_bound_does_not_cover_is_refused(build: Callable[[], keras.Model]) -> None:
    with pytest.raises(ValueError, match=r"rows for|used outside its layer|inside a loop"):
        sensitivity_groups(build())


def test_normalization_with_public_constants_is_allowed() -> None:
    model = model_of(kl.Normalization(mean=0.5, variance=2.0), dense(name="last"))
    assert bounds(model) == {"last": pytest.approx(ONE_USE)}


def test_a_bound_is_registered_once_and_must_be_positive() -> None:
    with pytest.raises(ValueError, match="ClippedDense has a registered bound already"):
        sensitivity_of(ClippedDense)(lambda layer: 1.0)

    @sensitivity_of(Wrapped)
    def nonsense(layer: Any) -> float:
        return math.nan

    from tfdp_layers import sensitivity

    try:
        with pytest.raises(ValueError, match="must be above 0 and at most"):
            sensitivity_groups(model_of(Wrapped()))
    finally:
        del sensitivity._BOUNDS[Wrapped]
