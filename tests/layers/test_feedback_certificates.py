"""No record exceeds the bounds of layers of feedback alignment; a witness attains them."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp_layers as tfdp
from helpers.certify import (
    HOSTILE,
    KINDS,
    SCALES,
    SLACK,
    assert_flow_below_is_each_records_own,
    distance,
    extreme,
    influences,
)
from helpers.feedback_cases import CLASSES, FEATURES, UNITS, releaser, stack
from helpers.variants import slow_but
from tfdp_layers.layers import FeedbackStack
from tfdp_layers.rules.rows import L2


def witness(layer: FeedbackStack, group: int) -> tuple[np.ndarray, np.ndarray]:
    """A record that attains the bound of a group. All weights zero: sigmoids are at their steepest, and at 1/2."""
    for variable in layer.trainable_variables:
        variable.assign(np.zeros(variable.shape))
    e = np.ones(CLASSES)
    if group < len(UNITS):  # the error that the feedback matrix stretches most, first through the one above it
        matrix = np.asarray(layer.feedbacks[group], np.float64)
        if layer.alignment == "sequential" and group == 0:
            matrix = np.asarray(layer.feedbacks[1], np.float64) @ matrix / 4
        e = np.linalg.svd(matrix)[0][:, 0]
    return np.full(FEATURES, 1e3, np.float32), (1e3 * e).astype(np.float32)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("group", range(3))
def test_a_witness_attains_the_bound_of_each_layer(group, use_bias):
    layer = stack(use_bias=use_bias)
    x, e = witness(layer, group)
    found = distance(releaser(layer, group)(x[None], e[None])) / layer.sensitivities()[group]
    assert 1 - 1e-4 <= found <= 1 + SLACK


def test_a_clip_of_delta_is_attained_whatever_the_activation():
    steep = lambda x: 7.0 * tf.tanh(3.0 * x)  # noqa: E731 (without a derivative_bound: the clip is enough)
    layer = stack(activation=steep, delta_clip=0.01, activation_clip=1.0)
    x, e = np.full(FEATURES, 2.0, np.float32), np.full(CLASSES, 1e3, np.float32)
    for kernel, bias in layer.affines:  # 7 tanh(0.3) = 2 at each unit: beyond the clip, and steep
        kernel.assign(np.zeros(kernel.shape))
        bias.assign(np.full(bias.shape, 0.1))
    for group, bound in enumerate(layer.sensitivities()[:2]):
        assert distance(releaser(layer, group)(x[None], e[None])) == pytest.approx(bound, rel=1e-4)
        assert bound == pytest.approx(0.01 * np.sqrt(2))


def test_the_sequential_bound_covers_both_matrices_in_a_row():
    """No witness joins both matrices' largest directions here; the numerical supremum stays below the product."""
    layer = stack(alignment="sequential")
    x, e = witness(layer, 0)
    found = distance(releaser(layer, 0)(x[None], e[None])) / layer.sensitivities()[0]
    assert 0.3 < found <= 1 + SLACK


CASES = {
    "direct": {},
    "sequential": {"alignment": "sequential"},
    "relu": {"activation": "relu", "use_bias": False},
    "delta": {"delta_clip": 1e-3, "activation": "elu"},
}


def hostile(shape_x: tuple[int, ...], shape_e: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [(extreme(*x, shape_x, rng), extreme(*e, shape_e, rng)) for x, e in HOSTILE]


def kinds():
    return st.tuples(st.sampled_from(KINDS), st.sampled_from(SCALES))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(CASES)),
    rows=st.lists(st.tuples(kinds(), kinds()), min_size=2, max_size=4),
    weights=st.sampled_from([0.0, 1e-20, 1.0, 1e20, np.nan, np.inf]),
    feedback=st.sampled_from([1.0, 1e6, 1e30, np.nan]),
    seed=st.integers(0, 2**16),
)
def test_no_record_exceeds_the_bound_whatever_weights_and_matrices_are(name, rows, weights, feedback, seed):
    layer = stack(**CASES[name])
    for variable in layer.weights:
        scale = feedback if any(variable is b for b in layer.feedbacks) else weights
        with np.errstate(invalid="ignore"):
            variable.assign(np.asarray(variable) * np.float32(scale))
    rng = np.random.default_rng(seed)
    x = np.stack([extreme(*kind, (FEATURES,), rng) for kind, _ in rows])
    e = np.stack([extreme(*kind, (CLASSES,), rng) for _, kind in rows])
    release = releaser(layer)
    bounds = np.repeat(layer.sensitivities(), 2 if layer.use_bias else 1)
    alone = [release(x[[i]], e[[i]]) for i in range(len(rows))]
    together = release(x, e)
    for i, part in enumerate(alone):
        others = np.arange(len(rows)) != i
        rest = release(x[others], e[others])
        for group, stated in enumerate(layer.weight_groups()):
            variables, bound = stated.variables, stated.bound
            pick = slice(group * len(variables), (group + 1) * len(variables))
            assert distance(part[pick]) <= bound * (1 + SLACK), (rows[i], group)
            assert distance(together[pick], rest[pick]) <= bound * (1 + SLACK), (rows[i], group)
    for bound, total, *parts in zip(bounds, together, *alone, strict=True):
        np.testing.assert_allclose(total, np.sum(parts, axis=0), atol=SLACK * bound)


def test_records_that_are_not_finite_contribute_zero_and_leave_others_alone():
    layer = stack()
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(3, size)).astype(np.float32) for size in (FEATURES, CLASSES))
    clean = releaser(layer)(x[:2], e[:2])
    for spoiled, value in itertools.product(("x", "e"), (np.nan, np.inf, -np.inf)):
        bad_x, bad_e = x.copy(), e.copy()
        (bad_x if spoiled == "x" else bad_e)[2, 1] = value
        assert distance(releaser(layer)(bad_x[2:], bad_e[2:])[:2]) == 0.0
        if spoiled == "e":
            for a, b in zip(releaser(layer)(bad_x, bad_e), clean, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)
    # As in training: a record that is not finite has an error that is not finite, so no layer learns from it.
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    bad_x = x.copy()
    bad_x[2] = np.nan
    without = model.bounded_gradient_sums(x[:2], np.array([0, 1]))
    for a, b in zip(model.bounded_gradient_sums(bad_x, np.array([0, 1, 2])), without, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("name", slow_but(sorted(CASES)[:1], sorted(CASES)))
def test_graph_and_xla_keep_the_bound_and_agree_with_eager(name, mode):
    layer = stack(**CASES[name])
    records = [witness(stack(**CASES[name]), 0), *hostile((FEATURES,), (CLASSES,))]
    x, e = (np.stack(parts) for parts in zip(*records, strict=True))
    total = np.linalg.norm(layer.sensitivities())
    assert distance(releaser(layer, mode=mode)(x, e), releaser(layer)(x, e)) <= 1e-4 * total
    assert max(influences(releaser(layer, mode=mode), records)) <= total * (1 + SLACK)


def test_convolutions_below_are_clipped_record_by_record():
    """The paper's hybrid: each convolution's gradient, driven by the feedback, clipped to a share of its own."""
    features = 4 * 4 * 2
    feedback = FeedbackStack([5], "tanh", CLASSES, activation_clip=1.0, error_clip=0.3, delta_clip=0.2)
    below = [keras.Input((6, 6, 1)), keras.layers.Conv2D(2, 3, activation="tanh"), keras.layers.Reshape((features,))]
    model = tfdp.PrivateSequential([*below, feedback])
    clipping = {"l2_norm_clip": 0.4, "clipping": "per_layer"}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, **clipping), loss)
    assert [(g.bound, g.self_bounded) for g in model.sensitivities()][-1] == (0.4, False)
    rng = np.random.default_rng(8)
    x = (rng.normal(size=(9, 6, 6, 1)) * 3.0 ** rng.integers(-5, 3, (9, 1, 1, 1))).astype("float32")
    y = rng.integers(0, CLASSES, 9)
    weights = [v.value for v in model.layers[0].trainable_variables]
    expected, norms = [np.zeros(w.shape) for w in weights], []
    for i in range(9):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(y[i : i + 1], model(x[i : i + 1], training=True)))
        parts = [np.asarray(g, np.float64) for g in tape.gradient(value, weights)]
        norms.append(np.sqrt(sum(np.sum(g**2) for g in parts)))
        expected = [t + g * min(1.0, 0.4 / norms[-1]) for t, g in zip(expected, parts, strict=True)]
    assert min(norms) < 0.4 < max(norms)
    for found, total in zip(model.bounded_gradient_sums(x, y), expected, strict=False):
        np.testing.assert_allclose(found, total, rtol=1e-3, atol=1e-6)


def test_what_flows_on_below_is_each_records_own():
    layer = stack()
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(2, size)).astype(np.float32) for size in (FEATURES, CLASSES))
    assert_flow_below_is_each_records_own(layer, x, e)


# Planted bugs ---------------------------------------------------------------------------------------------------------


def largest(layer: FeedbackStack) -> float:
    """The largest influence on any group, over its bound, of witnesses and of hostile records."""
    rng = np.random.default_rng(0)
    ordinary = [tuple(1e4 * rng.normal(size=n).astype(np.float32) for n in (FEATURES, CLASSES)) for _ in range(3)]
    worst = 0.0
    for group, bound in enumerate(layer.sensitivities()):
        records = [witness(layer, group), *ordinary, *hostile((FEATURES,), (CLASSES,))]
        worst = max(worst, *(influence / bound for influence in influences(releaser(layer, group), records)))
    return worst


@pytest.fixture(scope="module")
def honest() -> float:
    return largest(stack())


def activation_clip_forgotten(patch):
    patch.setattr(FeedbackStack, "logits", patched_rules("activation"))


def delta_clip_forgotten(patch):
    patch.setattr(FeedbackStack, "logits", patched_rules("delta", "error"))


def bias_forgotten(patch):
    patch.setattr(
        FeedbackStack,
        "sensitivities",
        lambda self: [d * c for d, c in zip((*self.delta_clip, self.error_clip), self.activation_clip, strict=True)],
    )


def factor_of_the_feedback_forgotten(patch):
    patch.setattr("tfdp_layers.layers.feedback_stack.delta_clips", lambda n, *rest: [1e3] * n)
    patch.setattr(FeedbackStack, "sensitivities", lambda self: [0.25 * 0.3 * c * 0.1 for c in self.activation_clip])


def multiplied_by_zero_instead_of_selected(patch):
    patch.setattr(tf.math, "multiply_no_nan", tf.multiply)


class Unbounded(L2):
    """The rule that someone forgot."""

    def scales(self, rows):
        return tf.ones(tf.shape(rows)[:1])


def patched_rules(*forgotten):
    honest = FeedbackStack.logits

    def logits(self, x):
        from tfdp_layers.layers import feedback_stack

        rules = feedback_stack.FeedbackRules
        feedback_stack.FeedbackRules = lambda activation, error, delta: rules(
            *(
                Unbounded(rule.bound) if rule and name in forgotten else rule
                for name, rule in zip(("activation", "error", "delta"), (activation, error, delta), strict=True)
            )
        )
        try:
            return honest(self, x)
        finally:
            feedback_stack.FeedbackRules = rules

    return logits


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "bug",
    [
        activation_clip_forgotten,
        delta_clip_forgotten,
        bias_forgotten,
        factor_of_the_feedback_forgotten,
        multiplied_by_zero_instead_of_selected,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(bug, honest, monkeypatch):
    assert honest <= 1 + SLACK
    bug(monkeypatch)
    assert largest(stack()) > 1 + 100 * SLACK
