"""No record exceeds the bounds of transformer layers; witnesses attain them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.certify import SLACK, releaser
from helpers.transformer_cases import ATTENTIONS, CASES, EINSUMS, FEW, NORMALIZATIONS, Case, ordinary, shares
from helpers.variants import slow_but
from tfdp_layers.layers import ClippedEmbedding
from tfdp_layers.layers import normalization as normalization_module
from tfdp_layers.layers.einsum import FaithfulEinsumDense
from tfdp_layers.rules.rows import L2, bound_upstream, per_record
from tfdp_layers.rules.sequences import EinsumL2, TokenL1

each_kind = pytest.mark.parametrize("case", FEW, ids=str)


@pytest.mark.parametrize("case", slow_but(CASES[::2], CASES), ids=str)
def test_witnesses_attain_every_bound(case: Case) -> None:
    layer = case.layer()
    records = case.witnesses(layer, case.output_shape(layer))
    if records:
        found = np.max([shares(layer, releaser(layer)(x[None], u[None])) for x, u in records], axis=0)
        assert np.all((found >= 1 - 1e-4) & (found <= 1 + SLACK)), found
    else:
        assert case.lengths != (1, 2)


def worst(case: Case, layer: Any, mode: str = "graph", weights: tuple[float, ...] = (1.0,)) -> float:
    """The largest share of a bound that a record takes, among records of zeros; infinite unless they add up.

    weights: factors of the layer's weights to try.
    """
    release = releaser(layer, mode)
    records = case.witnesses(layer, case.output_shape(layer)) + case.hostile(layer)
    x, u = (np.stack(parts) for parts in zip(*records, strict=True))
    chosen = np.eye(len(records), dtype=bool)
    only = [[np.where(row.reshape(-1, *[1] * (p.ndim - 1)), p, 0).astype(p.dtype) for p in (x, u)] for row in chosen]
    original, found = [np.asarray(v) for v in layer.trainable_variables], 0.0
    for factor in weights:
        for variable, value in zip(layer.trainable_variables, original, strict=True):
            variable.assign(value * np.float32(factor))
        alone = [release(*one) for one in only]
        found = max(found, *[float(np.max(shares(layer, part))) for part in alone])
        sums = [np.sum(parts, axis=0) for parts in zip(*alone, strict=True)]
        gap = shares(layer, [a - b for a, b in zip(release(x, u), sums, strict=True)])
        found = found if np.all(gap <= 1e-4) else np.inf
    return found


@pytest.mark.parametrize("case", slow_but(FEW, CASES), ids=str)
def test_no_hostile_record_exceeds_the_bounds_whatever_the_weights(case: Case) -> None:
    assert worst(case, case.layer(), weights=(1.0, 1e20, np.nan)) <= 1 + SLACK


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("case", slow_but(FEW[:1], FEW[:-1]), ids=str)
def test_eager_and_xla_keep_the_bounds(case: Case, mode: str) -> None:
    assert worst(case, case.layer(), mode) <= 1 + SLACK


@each_kind
def test_a_record_whose_gradient_is_not_finite_adds_exactly_nothing(case: Case) -> None:
    layer = case.layer()
    release, target = releaser(layer), case.output_shape(layer)
    x, u = ordinary(case), np.ones((3, *target), np.float32)
    expected = release(x[:2], u[:2])
    for bad in (np.nan, np.inf):
        u[2] = bad
        for ours, theirs in zip(release(x, u), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        assert all(np.all(g == 0) for g in release(x[2:], u[2:]))


@pytest.mark.parametrize("case", [NORMALIZATIONS[1], FEW[-1]], ids=str)
def test_a_record_whose_input_is_not_finite_adds_nothing_to_what_sees_it(case: Case) -> None:
    layer = case.layer()
    x = ordinary(case, 1)
    x[0, 1, 2] = np.nan
    found = shares(layer, releaser(layer)(x, np.ones((1, *case.output_shape(layer)), np.float32)))
    assert np.all(found[:3] == 0)  # of attention: query, key and value; what follows sees zeros


def test_rounding_over_many_tokens_stays_inside() -> None:
    layer = ClippedEmbedding(2, 3, upstream_clip=1.0)
    tokens, u = np.ones((1, 100_000), np.int32), np.full((1, 100_000, 3), 0.1, np.float32)
    layer.build()
    found = shares(layer, releaser(layer)(tokens, u))
    assert 0.95 <= found[0] <= 1 + SLACK
    smallest = ClippedEmbedding(2, 3, upstream_clip=1e-10)
    smallest.build()
    assert shares(smallest, releaser(smallest)(tokens, np.full(u.shape, 1e-20, np.float32)))[0] <= 1 + SLACK


# Planted bugs


def euclidean_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenL1, "norm", lambda self, rows: L2(self.bound).norm(rows))


def bias_forgotten_in_the_norm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EinsumL2, "norm", lambda self, rows: L2(self.bound).norm(rows))


def upstream_clip_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normalization_module, "bound_upstream", lambda rows, rule: rows)


def gamma_and_beta_clipped_apart(patch: pytest.MonkeyPatch) -> None:
    def apart(rows: Any, rule: L2) -> Any:
        return tf.concat([bound_upstream(part, rule) for part in tf.split(rows, 2, axis=1)], 1)

    patch.setattr(normalization_module, "bound_upstream", apart)


def bias_summed_over_the_wrong_axes(patch: pytest.MonkeyPatch) -> None:
    honest = EinsumL2.__init__
    patch.setattr(
        EinsumL2,
        "__init__",
        lambda self, bound, clip, positions, bias, **k: honest(self, bound, clip, positions, positions, **k),
    )


def unscaled_behind_the_bound(patch: pytest.MonkeyPatch) -> None:
    def call(self: Any, inputs: Any, training: Any = None) -> Any:
        scales = self.input_rule.scales(inputs)
        outputs = keras.ops.einsum(self.equation, self.input_rule(inputs), self.kernel)
        outputs = outputs / per_record(scales, outputs) + self.bias
        return bound_upstream(outputs, self.upstream_rule)

    patch.setattr(FaithfulEinsumDense, "call", call)


PLANTED = [
    (euclidean_tokens, FEW[0]),
    (bias_forgotten_in_the_norm, EINSUMS[1]),
    (bias_forgotten_in_the_norm, ATTENTIONS[0]),
    (bias_summed_over_the_wrong_axes, EINSUMS[4]),
    (upstream_clip_forgotten, NORMALIZATIONS[0]),
    (gamma_and_beta_clipped_apart, NORMALIZATIONS[0]),
    (unscaled_behind_the_bound, ATTENTIONS[0]),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("bug", "case"), PLANTED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_planted_bug_is_found(bug: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worst(case, case.layer()) <= 1 + SLACK
    bug(monkeypatch)
    assert worst(case, case.layer()) > 1 + 100 * SLACK
