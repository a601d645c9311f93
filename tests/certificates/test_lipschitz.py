"""Norms followed through a model bound every Lipschitz layer: attained, never exceeded, refused where they are lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import influences
from helpers.lipschitz_cases import PULL, RADIUS, SIZE, aligned, chain, pictures, released, sequence, stated
from helpers.private_models import product
from helpers.variants import slow_but
from tfdp_layers.certificates import lipschitz
from tfdp_layers.certificates.certificate import sensitivity_groups
from tfdp_layers.layers import ClippedDense, GroupSort, LipschitzDense, lipschitz_base
from tfdp_layers.layers.lipschitz_base import LipschitzLayer
from tfdp_layers.layers.stretching import stretch

kl = keras.layers
NETWORKS: dict[str, Callable[[], Any]] = {
    "dense": chain,
    "dense with biases": lambda: chain(bias=True),
    "pictures": pictures,
    "relu": lambda: chain(activation="relu"),
    "sigmoid": lambda: chain(activation="sigmoid"),
}


def test_every_layer_of_a_chain_states_the_bounds_of_its_ends() -> None:
    bounds = [group.bound for group in chain().sensitivities()]
    assert bounds == pytest.approx([RADIUS * PULL] * 3, rel=1e-4)
    assert min(bounds) >= RADIUS * PULL


def test_biases_count_in_the_gradient_and_in_what_the_layers_above_take() -> None:
    bounds = list(stated(chain(bias=True)).values())
    assert bounds == pytest.approx([PULL * np.hypot(r, 1.0) for r in (RADIUS, RADIUS + 0.5, RADIUS + 1.0)], rel=1e-4)


@pytest.mark.parametrize("name", slow_but(["dense with biases"], ["dense with biases", "relu"]))
def test_one_record_attains_every_layers_bound_at_once(name: str) -> None:
    model = NETWORKS[name]()
    x, y = aligned(model)
    found = released(model, x, y)
    assert len(found) == 3
    assert all(0.999 <= share <= 1 + SLACK for share in found.values()), found


@pytest.mark.parametrize("name", slow_but(["dense"], ["dense", "pictures", "sigmoid"]))
def test_no_record_exceeds_a_bound(name: str) -> None:
    assert max(influences(NETWORKS[name]())) <= 1 + SLACK


@pytest.mark.slow
def test_no_record_exceeds_a_bound_under_xla_whatever_the_weights_are() -> None:
    model = chain(bias=True, depth=2)
    for layer, value in zip(model.layers[::2], (1e20, np.nan), strict=True):
        layer.kernel.assign(np.full(layer.kernel.shape, value, np.float32))
    assert max(influences(model, "xla")) <= 1 + SLACK


@pytest.mark.slow
def test_that_records_do_not_meet_is_proved() -> None:
    assert tfdp.check_independence(chain(bias=True, depth=2)).proved


@pytest.mark.slow
def test_fit_states_the_bounds_and_a_saved_model_keeps_them(tmp_path: Path) -> None:
    model = pictures()
    x = np.random.default_rng(0).normal(size=(24, 8, 8, 2)).astype(np.float32)
    model.compile(
        tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, np.arange(24) % 3, sampling=tfdp.sampling.Poisson(8), epochs=1, verbose=0)
    statement = str(model.privacy_statement(delta=1e-5))
    for group in model.sensitivities():
        assert f"{group.name}: one record moves the sum by at most {group.bound:.6g}" in " ".join(statement.split())
    assert "is proved" in statement
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [g.bound for g in loaded.sensitivities()] == [g.bound for g in model.sensitivities()]
    np.testing.assert_array_equal(loaded(x), model(x))
    plain = model.to_keras()
    np.testing.assert_allclose(plain(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(type(layer).__module__.startswith("keras.") for layer in plain._flatten_layers())


# Graphs


def test_branches_add_up_and_a_layer_used_twice_counts_both_calls() -> None:
    inputs = keras.Input((SIZE,))
    shared = LipschitzDense(SIZE, name="shared")
    one = LipschitzDense(SIZE, input_clip=RADIUS, name="first")(inputs)
    both = kl.Add()([shared(one), shared(GroupSort()(one))])
    model = keras.Model(inputs, LipschitzDense(2, upstream_clip=PULL, name="last")(both))
    bounds = stated(model)
    expected = {"first": 2 * RADIUS * PULL, "shared": 2 * RADIUS * PULL, "last": 2 * RADIUS * PULL}
    assert bounds == pytest.approx(expected, rel=1e-4)


def test_nested_models_are_followed_through() -> None:
    inner_inputs, inputs = keras.Input((SIZE,)), keras.Input((SIZE,))
    inner = keras.Model(inner_inputs, GroupSort()(LipschitzDense(SIZE, name="inside")(inner_inputs)), name="inner")
    stack = keras.Sequential([keras.Input((SIZE,)), LipschitzDense(SIZE, upstream_clip=PULL, name="top")], name="stack")
    outputs = stack(inner(inner(LipschitzDense(SIZE, input_clip=RADIUS, name="entry")(inputs))))
    bounds = stated(keras.Model(inputs, outputs))
    assert bounds == pytest.approx({"entry": 1.0, "inside": 2.0, "top": 1.0}, rel=1e-4)


def test_what_lies_below_an_input_clip_and_above_an_upstream_clip_may_be_anything() -> None:
    model = keras.Sequential(
        [
            keras.Input((SIZE,)),
            ClippedDense(SIZE, input_clip=1.0, upstream_clip=1.0, name="below"),
            kl.LayerNormalization(center=False, scale=False),
            LipschitzDense(4, input_clip=RADIUS, upstream_clip=PULL, name="between"),
            ClippedDense(SIZE, gradient_clip=0.1, name="above"),
        ]
    )
    bounds = stated(model)
    assert bounds["between"] == pytest.approx(RADIUS * PULL, rel=1e-4)


class Doubling(kl.Flatten):
    """A subclass of a layer whose stretch is known."""

    def call(self, inputs: Any) -> Any:
        return 2.0 * super().call(inputs)


REFUSED = {
    "no input clip": (lambda: sequence(first={}), "'one'.*norm of its input.*the model's input.*`input_clip`"),
    "no upstream clip": (lambda: sequence(last={}), "'two'.*upstream gradient.*the model's output.*`upstream_clip`"),
    "an unknown layer": (lambda: sequence(kl.UnitNormalization()), "UnitNormalization"),
    "a subclass": (lambda: sequence(Doubling()), "Doubling"),
    "coarser rounding": (lambda: sequence(kl.Flatten(dtype="bfloat16")), "Flatten"),
    "an operation": (lambda: sequence(kl.Lambda(lambda x: 2.0 * x)), "Lambda"),
    "a steep activation": (lambda: sequence(kl.Activation("exponential")), "Activation"),
    "a bias without clip": (
        lambda: sequence(first={"input_clip": RADIUS, "use_bias": True}),
        "the bias of layer 'one'.*`bias_clip`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_lost_norm_is_refused_by_the_name_of_what_lost_it(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        stated(model())


def test_an_output_beside_the_clipped_one_is_refused() -> None:
    inputs = keras.Input((SIZE,))
    hidden = LipschitzDense(SIZE, input_clip=RADIUS)(inputs)
    with pytest.raises(ValueError, match="the model's output"):
        stated(keras.Model(inputs, [hidden, LipschitzDense(2, upstream_clip=PULL)(hidden)]))


def added_to(other: Any) -> keras.Model:
    """A model whose second layer takes the sum of the first one's output and something of another shape or norm."""
    inputs = keras.Input((3, SIZE))
    hidden = LipschitzDense(SIZE, input_clip=RADIUS)(inputs)
    return keras.Model(inputs, LipschitzDense(2, upstream_clip=PULL)(kl.Add()([hidden, other(inputs)])))


SUMS = {
    "a constant": lambda inputs: tf.fill((1, 3, SIZE), 100.0),
    "a tensor that is repeated": lambda inputs: LipschitzDense(SIZE, input_clip=RADIUS)(inputs[:, :1]),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_whose_norm_is_not_the_sum_of_norms_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"norm of its input.*\(Add\)"):
        stated(added_to(SUMS[name]))


def test_the_inputs_of_a_nested_model_count_in_whatever_order_they_are_given() -> None:
    a, b, inputs = keras.Input((SIZE,), name="a"), keras.Input((SIZE,), name="b"), keras.Input((SIZE,))
    inner = keras.Model({"b": b, "a": a}, LipschitzDense(2, upstream_clip=PULL, name="head")(kl.Add()([a, a, b])))
    one, two = (LipschitzDense(SIZE, input_clip=clip, name=f"to{clip}")(inputs) for clip in (1, 5))
    bounds = stated(keras.Model(inputs, inner({"a": two, "b": one})))
    assert bounds["head"] >= (2 * 5 + 1) * PULL
    assert bounds["to5"] >= 2 * 5 * PULL


class Bent(LipschitzDense):
    """A subclass, which may do anything."""

    def linear(self, inputs: Any, kernel: Any) -> Any:
        return 100.0 * super().linear(inputs, kernel)


def test_a_subclass_has_no_bound() -> None:
    with pytest.raises(ValueError, match="Bent"):
        sensitivity_groups(keras.Sequential([keras.Input((SIZE,)), Bent(2, input_clip=RADIUS, upstream_clip=PULL)]))


def hidden_call() -> keras.Model:
    inputs = keras.Input((SIZE,))
    layer = LipschitzDense(SIZE, input_clip=RADIUS, upstream_clip=PULL)
    hidden = layer(inputs)
    more = kl.Lambda(lambda x: layer(x), output_shape=(SIZE,))(inputs)
    return keras.Model(inputs, kl.Add()([hidden, more]))


def test_a_call_that_the_graph_does_not_show_is_refused() -> None:
    with pytest.raises(ValueError, match="called 2 times, of which the model's graph shows 1"):
        sensitivity_groups(hidden_call())


# Planted bugs


def biases_move_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LipschitzLayer, "reach", lambda self, below, shape: below)


def kernels_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LipschitzLayer, "bounded_kernel", lambda self, shape: tf.convert_to_tensor(self.kernel))


def the_last_clip_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lipschitz_base, "bound_upstream", lambda outputs, rule: outputs)


BUGS = [biases_move_nothing, kernels_as_they_are, the_last_clip_forgotten]


@pytest.mark.parametrize("bug", slow_but(BUGS[:1], BUGS))
def test_a_planted_bug_is_found(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    model = chain(bias=True)
    assert max(released(model, *aligned(model)).values()) > 1.05


@pytest.mark.slow
def test_norms_lost_and_not_followed_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown layer that is taken to stretch nothing."""
    monkeypatch.setattr(lipschitz, "stretch", lambda layer, shapes: stretch(GroupSort(), shapes))
    layers = [keras.Input((SIZE,)), LipschitzDense(SIZE, input_clip=RADIUS), kl.Rescaling(3.0)]
    model = tfdp.PrivateSequential([*layers, LipschitzDense(SIZE, upstream_clip=PULL)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), product)
    assert max(released(model, *aligned(model)).values()) > 2.9
