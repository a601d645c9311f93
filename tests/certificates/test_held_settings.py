"""Slopes and settings that bounds rest on are those of the step: others are refused there."""

import collections
import copy
import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.held_models import GENTLE, InTraining, chain, fit, share
from helpers.variants import slow_but
from tfdp_layers.activations import TemperedSigmoid, tempered_sigmoid
from tfdp_layers.layers.stretching import stretch
from tfdp_layers.sensitivity import frozen

kl, tl = keras.layers, tfdp.layers


# Slopes


def stated(x: Any) -> Any:
    return 20.0 * keras.ops.tanh(x)


stated.derivative_bound = 1.0


def gentle(x: Any) -> Any:
    return keras.ops.tanh(x)


gentle.derivative_bound = 1.0
wrapped = functools.wraps(gentle)(lambda x: 20.0 * gentle(x))


class Leaky(TemperedSigmoid):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) + 30.0 * x


def between(activation: Any, way: str = "in the layer") -> Any:
    first = {"activation": activation} if way == "in the layer" else {}
    layers = [tl.LipschitzDense(4, input_clip=1.0, **first, **GENTLE), tl.LipschitzDense(2, upstream_clip=1.0)]
    return chain((4,), layers[0], *([] if first else [kl.Activation(activation)]), layers[1])


@pytest.mark.parametrize("way", ["in the layer", "a layer of its own"])
@pytest.mark.parametrize("activation", [stated, wrapped, Leaky()], ids=["stated", "wrapped", "inherited"])
def test_no_bound_rests_on_a_slope_that_somebody_states(activation: Any, way: str) -> None:
    with pytest.raises(ValueError, match=r"by its activation .*whose slope is not known, or stated and enforced by"):
        between(activation, way).sensitivities()


@pytest.mark.slow
def test_such_an_activation_trains_between_clips() -> None:
    first = tl.LipschitzDense(4, activation=stated, input_clip=1.0, upstream_clip=1.0, **GENTLE)
    model = chain((4,), first, tl.LipschitzDense(2, input_clip=1.0, upstream_clip=1.0))
    fit(model)
    assert share(model) <= 1.0


@pytest.mark.parametrize("activation", slow_but(["relu"], ["relu", "gelu", "tempered"]))
def test_known_slopes_count(activation: str) -> None:
    model = between(tempered_sigmoid(1.0, 3.0, 0.5) if activation == "tempered" else activation)
    assert 0.1 < share(model) <= 1.0


def test_a_steep_stated_slope_in_fixed_feedback_is_a_clip() -> None:
    """There it may be wrong: delta is clipped, whatever the activation does."""
    model = chain((4,), tl.FeedbackStack([4], stated, 2, activation_clip=1.0))
    assert share(model, 100.0) <= 1.0


def test_the_numbers_of_a_tempered_sigmoid_stay() -> None:
    activation = tempered_sigmoid()
    with pytest.raises(AttributeError, match=r"does not change.*tempered_sigmoid\(scale=5.0\)"):
        activation.scale = 5.0
    activation.note = "mine"
    assert between(activation).sensitivities()


@pytest.mark.slow
def test_numbers_that_are_set_past_that_are_seen_where_the_layer_is_used() -> None:
    activation = tempered_sigmoid(1.0, 4.0, 0.5)

    def steeper(x: Any) -> Any:
        vars(activation)["scale"] = 100.0
        return x

    layers = (
        tl.LipschitzDense(4, activation=activation, input_clip=1.0, **GENTLE),
        tl.LipschitzDense(2, upstream_clip=1.0),
    )
    with pytest.raises(ValueError, match="was changed within the step"):
        share(chain((4,), InTraining(steeper), *layers))


def test_a_list_that_is_changed_in_the_step_is_seen() -> None:
    conv = tl.LipschitzConv2D(2, 3, strides=3, padding="same", input_clip=1.0, upstream_clip=0.5)
    conv.strides = [3, 3]

    def overlap(x: Any) -> Any:
        conv.strides = [1, 1]
        return x

    model = chain((9, 9, 1), InTraining(overlap), conv, kl.GlobalAveragePooling2D())
    with pytest.raises(ValueError, match="was changed within the step"):
        share(model)


IN_PLACE = {
    "list": ([3, 3], lambda strides: strides.__setitem__(slice(None), [1, 1])),
    "array": (np.array([3, 3]), lambda strides: strides.fill(1)),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_numbers_that_are_changed_in_their_place_are_seen(kind: str) -> None:
    conv = tl.LipschitzConv2D(2, 3, strides=3, padding="same", input_clip=1.0, upstream_clip=0.5)
    conv.strides, change = IN_PLACE[kind]
    strides = conv.strides
    begun = list(strides)

    def overlap(x: Any) -> Any:
        change(strides)
        return x

    def back(x: Any) -> Any:
        strides[:] = begun
        return x

    model = chain((9, 9, 1), InTraining(overlap), conv, InTraining(back), kl.GlobalAveragePooling2D())
    with pytest.raises(ValueError, match="was changed within the step"):
        share(model)


def test_sizes_that_count_for_a_bound_are_tuples_or_lists() -> None:
    conv = tl.LipschitzConv2D(2, 3, strides=3, padding="same", input_clip=1.0, upstream_clip=0.5)
    model = chain((9, 9, 1), conv, kl.GlobalAveragePooling2D())
    conv.strides = [np.int64(3), 3]
    assert share(model) <= 1.0
    conv.strides = np.array([3, 3])
    with pytest.raises(ValueError, match=r"`strides` of a LipschitzConv2D is a tuple of integers"):
        share(model)


SETTINGS = (
    [np.array([1, 2]), collections.deque([1]), np.bool_(True), {1}, 1 + 2j, b"a", {"a": [1]}, range(3), [[1], (2,)]],
    [np.array([1, 3]), collections.deque([2]), np.bool_(False), {2}, 2 + 2j, b"b", {"a": [2]}, range(4), [[1], (3,)]],
)


def test_settings_of_any_plain_kind_are_compared_by_value() -> None:
    for one, other in zip(*SETTINGS, strict=True):
        assert frozen(one) == frozen(copy.deepcopy(one)) != frozen(other)
    itself: list[Any] = [1]
    itself.append(itself)
    assert frozen(itself)


@pytest.mark.parametrize("what", ["class of an activation", "type of numbers"])
def test_what_else_a_layer_computes_by_is_seen(what: str) -> None:
    activation, sort = tempered_sigmoid(), tl.GroupSort()
    policy = sort.dtype_policy

    def begin(x: Any) -> Any:
        if what == "type of numbers":
            sort.dtype_policy = "bfloat16"
        else:
            object.__setattr__(activation, "__class__", Leaky)
        return x

    def end(x: Any) -> Any:
        sort.dtype_policy = policy
        object.__setattr__(activation, "__class__", TemperedSigmoid)
        return x

    first = tl.LipschitzDense(4, activation=activation, input_clip=1.0, **GENTLE)
    last = tl.LipschitzDense(2, upstream_clip=1.0)
    model = chain((4,), InTraining(begin), first, sort, last, InTraining(end))
    assert model.sensitivities()
    with pytest.raises(ValueError, match="was changed within the step"):
        share(model)


VARIABLES = {
    "rate": (kl.Dropout(0.5), (None, 4)),
    "threshold": (kl.ReLU(), (None, 4)),
    "negative_slope": (kl.ReLU(), (None, 4)),
    "max_value": (kl.ReLU(6.0), (None, 4)),
    "pool_size": (kl.MaxPooling2D(2), (None, 4, 4, 1)),
    "strides": (kl.AveragePooling2D(2), (None, 4, 4, 1)),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_no_norm_is_followed_through_a_setting_that_is_a_variable(name: str) -> None:
    layer, shape = VARIABLES[name]
    value, sizes = getattr(layer, name), name in ("pool_size", "strides")
    assert stretch(layer, [shape]) is not None
    try:
        for kind in (tf.Variable, tf.constant) if not sizes else (np.array, tf.Variable):
            vars(layer)[name] = kind(value)
            assert stretch(layer, [shape]) is None
        if sizes:
            vars(layer)[name] = [tf.Variable(2), tf.Variable(2)]
            assert stretch(layer, [shape]) is None
    finally:
        vars(layer)[name] = value


METHODS = {"flatten": kl.Flatten, "frozen": lambda: tl.LipschitzDense(4, trainable=False, **GENTLE)}


@pytest.mark.parametrize("case", METHODS)
def test_no_norm_is_followed_through_a_method_that_was_put_on_a_layer(case: str) -> None:
    middle = METHODS[case]()
    model = chain((4,), tl.LipschitzDense(4, input_clip=1.0), middle, tl.LipschitzDense(2, upstream_clip=1.0))
    assert model.sensitivities()
    if case == "frozen":
        middle.bounded_kernel = lambda shape: 100.0 * middle.kernel
    else:
        middle.call = lambda x: 100.0 * x
    with pytest.raises(ValueError, match=f"nothing bounds the norm of its input, since layer {middle.name!r}"):
        model.sensitivities()


# Settings that are changed once a layer is built


def patches(**options: Any) -> Any:
    return tl.ClippedConv2D(2, 3, input_clip=1.0, upstream_clip=1.0, bound="patch", use_bias=False, **options)


@pytest.mark.parametrize("name", slow_but(["strides"], ["strides", "kernel_size"]))
def test_patches_are_counted_of_what_the_call_uses(name: str) -> None:
    conv = patches(strides=3)
    model = chain((9, 9, 1), conv, kl.GlobalAveragePooling2D())
    setattr(conv, name, (1, 1))
    assert 0.99 < share(model) <= 1.0


@pytest.mark.slow
def test_a_kernel_that_is_said_to_be_small_meets_an_entry_as_often_as_it_does() -> None:
    conv = tl.LipschitzConv2D(2, 3, padding="same", input_clip=1.0, upstream_clip=1.0)
    model = chain((9, 9, 1), conv, kl.GlobalAveragePooling2D())
    before = model.sensitivities()[0].bound
    conv.kernel_size = (1, 1)
    assert model.sensitivities()[0].bound == before


@pytest.mark.parametrize("name", ["units", "activation"])
def test_a_lipschitz_layer_that_computes_another_shape_than_it_says_is_refused(name: str) -> None:
    layer = tl.LipschitzDense(8, activation="sigmoid", input_clip=1.0, **GENTLE)
    model = chain((8,), layer, tl.LipschitzDense(2, upstream_clip=1.0))
    if name == "activation":  # of the same shape: counted anew
        layer.activation = keras.activations.tanh
        assert share(model) <= 1.0
        return
    layer.units = 1
    with pytest.raises(ValueError, match=r"gives records of shape \(8,\), and its settings say \(1,\)"):
        share(model)


GEOMETRY = {"groups": 2, "data_format": "channels_first"}


@pytest.mark.parametrize("name", GEOMETRY)
def test_a_geometry_that_is_not_certified_is_refused_when_it_is_set_later(name: str) -> None:
    conv = tl.LipschitzConv2D(2, 3, input_clip=1.0, upstream_clip=1.0)
    model = chain((9, 9, 1), conv, kl.GlobalAveragePooling2D())
    setattr(conv, name, GEOMETRY[name])
    with pytest.raises(ValueError, match="certifies kernels without groups"):
        model.sensitivities()


@pytest.mark.parametrize(("name", "value"), [("equation", "abc,cd->ad"), ("bias_axes", None)])
def test_an_equation_that_was_not_checked_is_refused(name: str, value: Any) -> None:
    layer = tl.ClippedEinsumDense(
        "abc,cd->abd", output_shape=(None, 2), bias_axes="d", input_clip=1.0, upstream_clip=1.0
    )
    model = chain((16, 3), layer, kl.GlobalAveragePooling1D())
    assert share(model) <= 1.0
    setattr(layer, name, value)
    with pytest.raises(ValueError, match="was built for"):
        layer(np.zeros((1, 16, 3), "float32"))


def test_an_equation_of_any_rank_is_held_to_that_which_it_was_checked_for() -> None:
    layer = tl.ClippedEinsumDense("...c,cd->...d", output_shape=(2,), input_clip=1.0, upstream_clip=1.0)
    layer(np.zeros((1, 4, 3), "float32"))
    layer(np.zeros((2, 9, 3), "float32"))
    layer.input_spec = None  # Keras' own check
    with pytest.raises(ValueError, match="was built for"):
        layer(np.zeros((1, 4, 5, 3), "float32"))


def test_axes_of_a_normalization_are_checked_in_each_use() -> None:
    layer = tl.ClippedLayerNormalization()
    layer(np.ones((4, 4), "float32"))
    layer.axis = 0
    with pytest.raises(ValueError, match="axis 0, the batch"):
        layer(np.ones((4, 4), "float32"))


FEEDBACK = {
    "stack": lambda: tl.FeedbackStack([4], "tanh", 2, activation_clip=0.1),
    "dense": lambda: tl.FeedbackDense(4, "tanh", 2, activation_clip=0.1),
}


@pytest.mark.parametrize("case", FEEDBACK)
def test_a_bias_that_was_made_counts(case: str) -> None:
    layer = FEEDBACK[case]()
    layer.build((None, 3))
    found = layer.sensitivities if case == "stack" else layer.sensitivity
    before = found()
    layer.use_bias = False
    assert found() == before
