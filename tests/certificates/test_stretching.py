"""How much layers between Lipschitz ones stretch: what TensorFlow computes, at ties, kinks and of any size."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.lipschitz_cases import PULL, RADIUS, aligned, chain, released, sequence, stated
from tfdp_layers.layers import GroupSort, LipschitzConv2D, LipschitzDense
from tfdp_layers.layers.stretching import stretch

kl = keras.layers


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (kl.MaxPooling2D(2, 1), (6, 6, 2)),
        (kl.MaxPooling2D(3, 2, padding="same"), (7, 7, 2)),
        (kl.AveragePooling2D(2), (6, 6, 2)),
        (kl.AveragePooling2D(3, 1, padding="same"), (5, 5, 2)),
        (kl.ReLU(negative_slope=0.5), (9,)),
        (kl.Activation("sigmoid"), (9,)),
        (kl.Activation("selu"), (9,)),
        (kl.ZeroPadding2D(1), (3, 3, 2)),
        (GroupSort(3), (3, 9)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_no_tensor_is_stretched_beyond_what_is_known(layer: Any, shape: tuple[int, ...]) -> None:
    known = stretch(layer, [(None, *shape)])
    assert known is not None
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(40, *shape))
    few = (normal, normal * 1e-3, np.ones((1, *shape)), np.eye(int(np.prod(shape))).reshape(-1, *shape))
    x = tf.constant(np.concatenate(few), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x)
        upstream = rng.normal(size=outputs.shape)
        upstream[40:] = 1.0
        u = tf.constant(upstream, tf.float32)
        loss = tf.reduce_sum(outputs * u)
    norms = [np.linalg.norm(np.reshape(t, (len(x), -1)), axis=1) for t in (x, outputs, u, tape.gradient(loss, x))]
    assert np.all(norms[1] <= (norms[0] * known.slope + known.offset) * (1 + 1e-6))
    assert np.all(norms[3] <= norms[2] * known.slope * (1 + 1e-6))


HALVES = (kl.MaxPooling2D, kl.AveragePooling2D)
TIES = [
    *(
        half(size, step, padding=way)
        for half in HALVES
        for size, step in ((2, 2), (3, 1), (3, 2))
        for way in ("same", "valid")
    ),
    *(kl.ReLU(negative_slope=slope, max_value=most) for slope in (0.0, 1.0) for most in (None, 0.0, 1.0, 6.0)),
    *(GroupSort(2), kl.ZeroPadding2D(1), kl.Cropping2D(1), kl.Activation("celu"), kl.Activation("hard_silu")),
]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_gradient_is_stretched_where_entries_are_equal_or_at_kinks(compiled: bool) -> None:
    """Of equal entries a window has one largest, and only that one gets the gradient."""
    shape, rng = (6, 6, 2), np.random.default_rng(0)
    values = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1.0, -1.0, 3.0, -3.0, 6.0, 1e10]
    few = [rng.choice(some, size=shape) for some in (values, [0.0, 1.0], values[:6]) for _ in range(8)]
    x = tf.constant(np.stack([*(np.full(shape, value) for value in values), *few]), tf.float32)

    for layer in TIES:
        known = stretch(layer, [(None, *shape)])
        assert known is not None

        @tf.function(jit_compile=compiled, autograph=False)
        def slope(x: Any, layer: Any = layer) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = layer(x)
            return outputs, tape.gradient(outputs, x)  # upstream: ones

        outputs, below = slope(x)
        norms = np.linalg.norm(np.reshape(below, (len(x), -1)), axis=1)
        assert np.all(norms <= known.slope * np.sqrt(np.size(outputs[0])) * (1 + 1e-6)), layer.get_config()


@pytest.mark.parametrize("activation", ["celu", "elu"])
def test_biases_of_a_blank_record_are_bounded_by_what_tensorflow_computes(activation: str) -> None:
    """The attack: each layer of celu would double the gradient that its bias gets."""
    model = chain(bias=True, activation=activation)
    x, y = aligned(model)
    for layer in model.layers[::2]:
        layer.bias.assign(np.zeros(layer.bias.shape))
    found = released(model, 0 * x, y)
    assert max(found.values()) <= 1 + SLACK, found


def test_norms_whose_squares_float32_does_not_hold_count_as_lost() -> None:
    ends = ({"input_clip": 1e17}, {"upstream_clip": PULL})
    stated(sequence(kl.Activation("squareplus"), first=ends[0], last=ends[1]))
    with pytest.raises(ValueError, match=r"more than 1e\+18, whose squares float32 does not hold"):
        stated(sequence(kl.Activation("squareplus"), first={"input_clip": 1e19}, last=ends[1]))


@pytest.mark.parametrize(
    ("middle", "lost", "verb"),
    [
        ({"input_clip": 1e19}, "by its input_clip=1e\\+19, with a norm of more than 1e\\+18", "puts out"),
        ({"input_clip": RADIUS, "upstream_clip": 1e19}, "by its upstream_clip=1e\\+19, with a norm", "passes down"),
        ({"input_clip": RADIUS, "activation": lambda x: x}, "by its activation '<lambda>', whose slope", "passes down"),
    ],
)
def test_a_layer_that_loses_its_own_norm_is_not_said_to_stand_elsewhere(middle: Any, lost: str, verb: str) -> None:
    """A clip of more than 1e18 bounds nothing, also where the activation makes less of it."""
    flat = tfdp.activations.tempered_sigmoid(1e-3, 1.0, 0.0)
    layer = LipschitzDense(4, name="own", **({"activation": flat} | middle))
    last = [] if "upstream_clip" in middle else [LipschitzDense(1, input_clip=1.0, upstream_clip=1.0)]
    model = tfdp.PrivateSequential([keras.Input((8,)), layer, *last])
    with pytest.raises(ValueError, match=rf"^Lipschitz layer 'own' \(LipschitzDense\): .*{lost}.*, {verb} (rec|grad)"):
        stated(model)


# Records of unknown size


def unknown_size(activation: Any, own: bool = False, ways: str = "argument") -> keras.Model:
    within = {"activation": activation} if ways == "argument" else {}
    between = [] if within else [kl.Activation(activation)]
    first = LipschitzConv2D(4, 3, input_clip=1.0, name="first", **within)
    last = LipschitzConv2D(2, 3, upstream_clip=1.0, name="last", **({"input_clip": 1.0} if own else {}))
    return tfdp.PrivateSequential([keras.Input((None, None, 3)), first, *between, last])


@pytest.mark.parametrize("ways", ["argument", "layer"])
@pytest.mark.parametrize(("activation", "times"), [("elu", 2.0), ("selu", 2.0), ("tempered", 4.0), ("tanh", 1.0)])
def test_what_is_0_at_0_is_followed_of_records_of_any_size(activation: str, times: float, ways: str) -> None:
    """Rounded near 0, a value may be twice what the slope says; the gradient is not."""
    function = tfdp.activations.tempered_sigmoid() if activation == "tempered" else activation
    slope = tfdp.activations.derivative_bound(function)
    model = unknown_size(function, ways=ways)
    found = stated(model)
    assert found["first"] == pytest.approx(stated(unknown_size("relu"))["first"] * slope, rel=1e-3)
    assert found["last"] == pytest.approx(stated(unknown_size("relu"))["last"] * slope * times, rel=1e-3)


@pytest.mark.parametrize("activation", ["sigmoid", "softplus"])
def test_what_is_not_0_at_0_is_followed_on_the_way_back_alone(activation: str) -> None:
    assert 0.0 < stated(unknown_size(activation, own=True))["first"] < np.inf
    with pytest.raises(
        ValueError, match=f"'first'.* by its activation '{activation}', which is not 0 at 0, .*below puts"
    ):
        stated(unknown_size(activation))


def test_convolutions_of_pictures_of_any_size_need_no_size() -> None:
    layers = [LipschitzConv2D(4, 3, input_clip=RADIUS, name="conv"), LipschitzConv2D(2, 3, upstream_clip=PULL)]
    bounds = stated(keras.Sequential([keras.Input((None, None, 1)), *layers]))
    assert bounds["conv"] >= 3 * RADIUS * PULL
