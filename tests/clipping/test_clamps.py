"""Clamps on every record's gradient: each entry within its bound, each record within 1, in whatever form it comes."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.clipping import clamps
from tfdp_layers.clipping.clamps import AdaptiveClamping, ClampedEntries
from tfdp_layers.per_record.contributions import Lookups, Products, Stored
from tfdp_layers.sensitivity import Role

RECORDS, CLIP = 5, 0.5
RNG = np.random.default_rng(0)


class Variable:
    """What the sums ask of a variable."""

    def __init__(self, path, *shape):
        self.path, self.shape = path, tf.TensorShape(shape)


KERNEL, BIAS, TABLE = Variable("kernel", 3, 4), Variable("bias", 4), Variable("table", 7, 4)
LIMITS = {
    id(KERNEL): np.exp(RNG.normal(-1, 1, (3, 4))).astype("float32"),
    id(BIAS): np.float32(0.3),
    id(TABLE): np.exp(RNG.normal(-1, 1, (7, 4))).astype("float32"),
}
"""s of each weight: of the variable's shape, or one number for all."""

WEIGHTS = 12 + 4 + 28
TENSORS = {key: tf.constant(value) for key, value in LIMITS.items()}
ENTRIES = ClampedEntries(TENSORS)


def bounding(switched=True, **options):
    return AdaptiveClamping(CLIP, lambda: switched, lambda variable, weights: TENSORS[id(variable)], **options)


def records(scale=1.0):
    """Factors of gradients: x u^T for the kernel, u for the bias, and u at seven tokens for the table."""
    rng = np.random.default_rng(1)
    x, u, v = rng.normal(size=(RECORDS, 3)), rng.normal(size=(RECORDS, 4)), rng.normal(size=(RECORDS, 7, 4))
    tokens = np.stack([rng.permutation(7) for _ in range(RECORDS)])
    tokens[1:3, 1:4] = tokens[1:3, :1]  # one token several times
    return [scale * x, scale * u, tokens, scale * v]


def parts_of(x, u, tokens, v):
    x, u, v = (tf.constant(one, tf.float32) for one in (x, u, v))
    return {
        id(KERNEL): Products(KERNEL, x[:, tf.newaxis], u[:, tf.newaxis]),
        id(BIAS): Stored(BIAS, u),
        id(TABLE): Lookups(TABLE, tf.constant(tokens), v),
    }


def gradients(x, u, tokens, v):
    """The same of each record, written out: three lists of arrays in float64."""
    table = np.zeros((len(x), 7, 4))
    for i, row in enumerate(tokens):
        np.add.at(table[i], row, v[i])
    return [np.einsum("bi,bj->bij", x, u), u, table]


def sums(bound, factors, present=None):
    """The bounded sums of all weights, then the statistics."""
    present = np.ones(len(factors[0]), "float32") if present is None else np.array(present, "float32")
    groups = bound.groups([("layer", (KERNEL, BIAS, TABLE))])
    return [np.asarray(s, np.float64) for s in bound.sums(groups, parts_of(*factors), tf.constant(present))]


def length(arrays):
    return math.sqrt(sum(np.sum(np.square(a)) for a in arrays))


# Each entry -----------------------------------------------------------------------------------------------------------


def test_entries_lie_within_their_bounds_and_those_that_did_stay_as_they_are():
    for variable in (KERNEL, BIAS):
        values = np.random.default_rng(2).normal(size=(50, *variable.shape)).astype("float32")
        limit = np.broadcast_to(LIMITS[id(variable)], variable.shape)
        found = np.asarray(ENTRIES(variable, tf.constant(values), None))
        np.testing.assert_array_equal(found, np.clip(values, -limit, limit))
        assert (np.abs(values) > limit).any()
        assert (np.abs(values) < limit).any()


def test_rows_of_a_table_have_the_bounds_of_their_tokens_and_unused_places_stay_zero():
    values = np.random.default_rng(2).normal(size=(2, 3, 4)).astype("float32")
    tokens = np.array([[6, 0, 3], [2, -1, -1]])  # negative: no token
    values[1, 1:] = 0.0
    found = np.asarray(ENTRIES(TABLE, tf.constant(values), tf.constant(tokens)))
    limit = LIMITS[id(TABLE)][np.maximum(tokens, 0)]
    np.testing.assert_array_equal(found, np.clip(values, -limit, limit))
    np.testing.assert_array_equal(found[1, 1:], 0.0)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("variable", [KERNEL, Variable("scalar", 3, 4)], ids=["array", "number"])
def test_outer_products_are_clamped_as_if_written_out(variable, start):
    """A tile of a matrix at a time; where x is zero, the bound on u is infinite, and the product must stay zero."""
    entries = ClampedEntries(TENSORS | {id(variable): TENSORS.get(id(variable), tf.constant(0.4))})
    x, u = np.array([0.0, -3.0], "float32"), np.array([1e-3, -2.0, 50.0, 0.1], "float32")
    inputs = tf.constant(np.concatenate([np.full(start, 7.0, "float32"), x]))  # of which a tile takes two
    factors = [factor[0, start:] for factor in entries.of_inputs(variable, inputs[tf.newaxis])]
    found = np.asarray(entries.outer(variable, start, 2)(factors, tf.constant(u)))
    limit = np.broadcast_to(np.asarray(entries.clamps[id(variable)]), (3, 4))[start : start + 2]
    np.testing.assert_allclose(found, np.clip(np.outer(x, u), -limit, limit), rtol=1e-6)


# Each record ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_past_the_switch_the_sum_is_that_of_clamped_gradients(scale):
    factors = records(scale)
    found = sums(bounding(), factors)
    for got, own, key in zip(found, gradients(*factors), LIMITS, strict=True):
        limit = LIMITS[key]
        wanted = np.clip(own, -limit, limit).sum(0) / limit / math.sqrt(WEIGHTS)
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_until_the_switch_the_sum_is_that_of_gradients_clipped_to_norm_1():
    factors = records()
    every = gradients(*factors)
    norms = [length([own[i] for own in every]) for i in range(RECORDS)]
    assert min(norms) > CLIP  # in units of the clip, each record has norm 1 then
    for got, own in zip(sums(bounding(False), factors), every, strict=True):
        np.testing.assert_allclose(got, np.einsum("b,b...->...", 1 / np.array(norms), own), rtol=1e-3, atol=1e-5)


HOSTILE = [1e30, 1e-30, 0.0, np.nan, np.inf]


def largest(bound):
    """The largest norm of what one record adds to the weights' sums, and to each statistic, over their bounds."""
    groups, reached = bound.groups([("layer", (KERNEL, BIAS, TABLE))]), 0.0
    for scale in (1.0, 1e4, *HOSTILE):
        found = sums(bound, [one[:1] for one in records(scale)])
        counts = [abs(s) / g.bound for s, g in zip(found[3:], groups[1:], strict=True)]
        reached = max(reached, length(found[:3]), *counts)
    return reached


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
def test_no_record_adds_more_than_1_and_one_adds_as_much(switched, counted):
    with np.errstate(all="ignore"):
        assert 0.99 < largest(bounding(switched, counted=counted)) <= 1.0


@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
def test_a_record_that_is_not_finite_adds_exactly_zero(switched):
    for hostile in (np.nan, np.inf, -np.inf):
        for spoiled in (0, 1, 3):
            factors = [one[:1].copy() for one in records()]
            factors[spoiled].flat[0] = hostile
            assert length(sums(bounding(switched), factors)) == 0.0


def test_a_clamp_from_above_alone_is_seen(monkeypatch):
    """The planted bug: large negative entries pass."""
    monkeypatch.setattr(ClampedEntries, "__call__", lambda self, v, values, rows: tf.minimum(values, 0.1))
    assert largest(bounding()) > 2.0


def test_clamps_that_are_not_divided_by_the_number_of_weights_are_seen(monkeypatch):
    monkeypatch.setattr(clamps, "sizes", lambda variables: 1)
    assert largest(bounding()) > 2.0


# Statistics -----------------------------------------------------------------------------------------------------------


def test_counts_tell_how_many_records_are_below_the_scale_and_nothing_of_padding():
    factors = records()
    below = []
    for own, variable in zip(gradients(*factors), (KERNEL, BIAS, TABLE), strict=True):
        mean = np.mean(np.square(own.reshape(RECORDS, -1)), axis=1)
        below.append(mean <= np.mean(np.square(LIMITS[id(variable)] / 1.2)))
    for present in ([1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]):
        found = sums(bounding(counted=True, clip_factor=1.2), factors, present)
        wanted = [np.sum(np.where(one, 0.5, -0.5)[np.array(present) > 0]) for one in below]
        np.testing.assert_allclose(found[3:], wanted)
    assert {bool(one) for flags in below for one in flags} == {True, False}


def test_groups_say_what_is_released_beside_the_weights():
    layers = [("layer", (KERNEL, BIAS)), ("other", (TABLE,))]
    (weights,) = bounding().groups(layers)
    assert (weights.variables, weights.bound) == ((KERNEL, BIAS, TABLE), 1.0)
    _, *statistics = bounding(counted=True).groups(layers)
    assert [(g.name.split()[-1], g.bound, g.role) for g in statistics] == [
        (name, 0.5, Role.STATISTIC) for name in ("kernel", "bias", "table")
    ]
    _, raw = bounding(unprotected=True).groups(layers)
    assert (raw.role, raw.shape) == (Role.UNPROTECTED, (WEIGHTS,))
    assert bounding(counted=True, unprotected=True).groups([]) == []


def test_the_printed_algorithm_releases_the_sum_as_it_is():
    factors = records()
    *_, raw = sums(bounding(unprotected=True), factors)
    np.testing.assert_allclose(raw, np.concatenate([g.sum(0).ravel() for g in gradients(*factors)]), rtol=1e-4)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf, True])
def test_a_clip_that_bounds_nothing_is_refused(clip):
    with pytest.raises(ValueError, match="l2_norm_clip"):
        AdaptiveClamping(clip)
