"""Convolutions in groups of channels: kernel gradients of each record, no record's channels among another group's."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.layer_cases import stack
from helpers.oracle import largest_error, measured, one_by_one, recorded, upstream
from helpers.variants import slow_but
from tfdp_layers.per_record import convolutions, groups
from tfdp_layers.per_record.groups import GroupBlocks, between_all, convolve
from tfdp_layers.per_record.joining import joined

kl = keras.layers
CASES: dict[str, tuple[tuple[int, ...], Any]] = {
    "same, strided": ((5, 6, 4), lambda: kl.Conv2D(6, 3, strides=2, padding="same", groups=2)),
    "a group a channel": ((4, 5, 3), lambda: kl.Conv2D(6, 2, groups=3)),
    "dilated": ((6, 7, 4), lambda: kl.Conv2D(4, (2, 3), dilation_rate=(3, 2), groups=2, padding="same")),
    "one pixel": ((3, 2, 4), lambda: kl.Conv2D(8, 1, groups=4)),
    "causal": ((7, 4), lambda: kl.Conv1D(6, 3, dilation_rate=2, groups=2, padding="causal")),
    "space": ((3, 4, 3, 4), lambda: kl.Conv3D(4, 2, groups=2, strides=(1, 2, 1))),
    "channels first": ((6, 5, 4), lambda: kl.Conv2D(8, 3, groups=2, data_format="channels_first", padding="same")),
}
each_case = pytest.mark.parametrize("name", slow_but(["same, strided"], CASES))


@functools.cache
def reference(name: str) -> tuple[Any, Any, Any, list[np.ndarray]]:
    """A model of one convolution, records, the loss' coefficients, and gradients by Keras of one record at a time."""
    shape, layer = CASES[name]
    model, x = stack(shape, layer())
    c = upstream(model, x)
    return model, x, c, one_by_one(model, x, c)


def kernels(name: str) -> Any:
    """What each record adds to the kernel."""
    model, x, c, _ = reference(name)
    return recorded(model, x, c)[id(model.layers[0].kernel)]


def error(name: str, mode: str) -> float:
    model, x, c, exact = reference(name)
    return largest_error(measured(model, x, c, mode), exact)


@each_case
@pytest.mark.parametrize("mode", slow_but(["graph"], ["eager", "graph", "xla"]))
def test_each_records_gradient_is_that_of_a_batch_of_one(name: str, mode: str) -> None:
    assert type(kernels(name)) is GroupBlocks
    assert error(name, mode) < 1e-4


@each_case
def test_outputs_are_those_of_keras(name: str) -> None:
    model, x, _, _ = reference(name)
    (one,) = model.layers
    options = {"strides": one.strides, "dilation_rate": one.dilation_rate, "data_format": one.data_format}
    options["padding"] = "valid" if one.padding == "causal" else one.padding
    found, expected = convolve(x, one.kernel, **options), keras.ops.conv(x, one.kernel, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_infinite_weight_stays_in_its_group() -> None:
    kernel = between_all(tf.constant([[np.inf, 1.0, 2.0, 3.0]]), 2)
    np.testing.assert_array_equal(kernel, [[np.inf, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 3.0]])


def test_rows_of_a_unit_are_added_before_their_norm() -> None:
    part = kernels("same, strided")
    several = part.like(*(tf.concat([v, v[::-1] * 2.0], axis=0) for v in (part.x, part.u)))
    expected = np.asarray(several.gradients()).reshape(3, 2, *part.variable.shape).sum(axis=1)
    units = joined(several.like(several.x, several.u), 2)
    np.testing.assert_allclose(units.squared_norms(), np.sum(expected**2, axis=(1, 2, 3, 4)), rtol=1e-4)
    np.testing.assert_allclose(units.gradients(), expected, rtol=1e-4, atol=1e-4)
    fresh = joined(several.like(several.x, several.u), 2).rows(1, 1)
    np.testing.assert_allclose(fresh.gradients(), expected[1:2], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_large_kernel_is_not_written_out_for_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_STORED", 0)
    assert type(kernels("same, strided")) is convolutions.KernelGradients
    assert error("same, strided", "graph") < 1e-4


@pytest.mark.parametrize("bug", ["channels in another order", "taps in another order"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "channels in another order":
        honest = groups.channels_first
        monkeypatch.setattr(groups, "channels_first", lambda rows: honest(tf.reverse(rows, [-1])))
    else:
        taps = GroupBlocks._patches
        monkeypatch.setattr(GroupBlocks, "_patches", lambda self, x, out: tf.reverse(taps(self, x, out), [2]))
    assert error("same, strided", "graph") > 1e-2


def test_no_step_of_a_model_in_groups_calls_xla() -> None:
    """Which compiles for seconds, and takes a hundred times as long as an ordinary convolution."""
    model, x = stack((6, 6, 4), kl.Conv2D(6, 3, groups=2), kl.Conv2D(6, 3, groups=3))
    c = [tf.ones((len(x), 2, 2, 6))]

    def sums(x: tf.Tensor) -> list[tf.Tensor]:
        return [part.weighted_sum(part.squared_norms()) for part in recorded(model, x, c).values()]

    graph = tf.function(sums, autograph=False).get_concrete_function(tf.constant(x)).graph
    assert all("_XlaMustCompile" not in f.attr for f in graph.as_graph_def().library.function)
