"""What kernels leave as they find the memory is not taken for a function of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof.hostile_inputs import CALLS, LEFT, changed_by_memory, square
from helpers.variants import slow_but
from tfdp_layers.proof import prove_rows
from tfdp_layers.proof.functional import FUNCTIONAL, is_functional
from tfdp_layers.proof.unwritten import STRIPPER, reads_unwritten

SPEC = tf.TensorSpec((None, 4, 4))


def finite(x: Any) -> Any:
    return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))


def of_switched_off(x: Any) -> Any:
    return tf.raw_ops.Svd(input=x, compute_uv=False).u + tf.reduce_sum(x, (1, 2))


def symmetric(x: Any) -> Any:
    return tf.matmul(x, x, transpose_b=True) + tf.eye(4)


def doubled(x: Any) -> Any:
    for _ in range(40):
        x = 0.5 * x + 0.5 * x
    return x


MORE = {
    "a factor, without what is not finite": lambda x: finite(tf.linalg.cholesky(symmetric(x))),
    "a factor as it is": lambda x: tf.linalg.cholesky(x),
    "of a constant": lambda x: x + tf.linalg.cholesky(tf.constant([[1.0, 2.0], [2.0, 1.0]]))[0, 1],
    "the upper triangle": lambda x: tf.linalg.band_part(tf.linalg.cholesky(x), 0, -1),
    "a band above": lambda x: tf.linalg.band_part(tf.linalg.cholesky(x), -1, 1),
    "a diagonal above": lambda x: tf.linalg.diag_part(tf.linalg.cholesky(x), k=1),
    "beside the lower one": lambda x: (lambda f: tf.linalg.band_part(f, -1, 0) + f)(tf.linalg.cholesky(x)),
    "handed on": lambda x: tf.linalg.band_part(tf.function(tf.linalg.cholesky)(x), -1, 0),
    "vectors that are not computed": of_switched_off,
    "a product of whole numbers": lambda x: tf.matmul(tf.cast(tf.linalg.cholesky(x), tf.int32), tf.cast(x, tf.int32)),
    "a scaled factor": lambda x: finite(0.5 * tf.linalg.cholesky(x)),
}
LONG = tf.TensorSpec((None, None))
PROVED = {
    "the lower triangle": lambda x: finite(tf.linalg.band_part(tf.linalg.cholesky(x), -1, 0)),
    "a scaled one": lambda x: tf.linalg.band_part(-0.5 * tf.linalg.cholesky(x) / tf.constant(3.0), -1, 0),
    "one of another type": lambda x: tf.linalg.band_part(tf.cast(tf.linalg.cholesky(x), tf.float64), -1, 0),
    "one that is often doubled": lambda x: tf.linalg.band_part(doubled(tf.linalg.cholesky(x)), -1, 0),
    "a product of a scaled one": lambda x: tf.matmul(2.0 * tf.linalg.cholesky(symmetric(x)), x),
    "a band below": lambda x: tf.linalg.band_part(tf.linalg.cholesky(x), 1, 0),
    "a factor that is checked": keras.ops.cholesky,
    "an upper factor that is checked": lambda x: keras.ops.linalg.cholesky(x, upper=True),
    "the determinant": lambda x: tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(symmetric(x)))), 1),
    "numbers of a covariance": lambda x: tf.matmul(tf.linalg.cholesky(symmetric(x)), x),
    "singular values": lambda x: tf.linalg.svd(x, compute_uv=False),
    "eigenvalues": lambda x: tf.linalg.eigvalsh(x),
    "singular vectors": lambda x: tf.linalg.svd(x)[1],
}


@pytest.mark.parametrize("name", MORE)
def test_what_a_kernel_leaves_unwritten_is_not_proved(name: str) -> None:
    report = prove_rows(MORE[name], SPEC)
    assert not report.proved
    assert report.status == "unknown"
    assert "as it finds the memory" in str(report)


@pytest.mark.parametrize("name", PROVED)
def test_what_every_kernel_writes_is_proved(name: str) -> None:
    report = prove_rows(PROVED[name], SPEC)
    assert report.proved, report


def test_the_lower_triangle_of_a_factor_is_all_that_its_readers_depend_on() -> None:
    """So it is of a product, too: each entry of it meets one that is NaN, whatever is above."""
    x, given = tf.constant(square("indefinite")), tf.constant(square("definite"))
    lower = tf.linalg.band_part(tf.linalg.cholesky(x), -1, 0)
    assert np.all(np.isnan(np.asarray(lower)[:, np.tri(6, dtype=bool)]))
    for filled in (0.0, np.inf, 1e30):
        factor = tf.where(tf.linalg.band_part(tf.ones_like(lower), -1, 0) > 0, lower, filled)
        for options in ({}, {"transpose_a": True}):
            assert np.all(np.isnan(np.asarray(tf.matmul(factor, given, **options))))
            assert np.all(np.isnan(np.asarray(tf.matmul(given, factor, transpose_b=bool(options)))))


def test_the_gradient_of_a_factor_reads_no_more() -> None:
    """It multiplies the factor, solves by it, and asks for its shape."""

    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            factor = tf.linalg.cholesky(x)
            half = tf.reduce_sum(tf.linalg.triangular_solve(factor, x) + tf.matmul(factor, x))
        return tape.gradient(half, x)

    graph = tf.function(slope, autograph=False).get_concrete_function(SPEC).graph
    factors = [one for one in graph.get_operations() if one.type == "Cholesky"]
    assert factors
    assert not any(map(reads_unwritten, factors))


def test_a_model_that_reads_it_is_refused_with_the_fix() -> None:
    class Factors(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.reshape(finite(tf.linalg.cholesky(x)), (-1, 16))

    model = tfdp.PrivateSequential([keras.Input((4, 4)), Factors(), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", l2_norm_clip=1.0, noise_multiplier=1.0), "mse")
    with pytest.raises(
        ValueError,
        match=r"^Memory that nothing wrote.*Cholesky.*triangle, which tf.linalg.band_part\(factor, -1, 0\) makes",
    ):
        model.fit(np.ones((8, 4, 4), np.float32), np.ones((8, 1), np.float32), batch_size=4, epochs=1, verbose=0)


def test_transforms_of_axes_that_may_be_empty_are_not_proved() -> None:
    """Of nothing the kernel writes nothing, however long the result is."""
    nothing = np.zeros((8, 0), np.float32)
    assert changed_by_memory(lambda: tf.raw_ops.RFFT(input=nothing, fft_length=[8])) == [0]
    assert not prove_rows(lambda x: tf.math.real(tf.raw_ops.RFFT(input=x, fft_length=[8])), LONG).proved
    assert prove_rows(lambda x: tf.math.real(tf.raw_ops.RFFT(input=x, fft_length=[8])), tf.TensorSpec((None, 9))).proved
    assert prove_rows(lambda x: tf.abs(tf.signal.rfft(x)), LONG).proved
    assert np.size(tf.signal.rfft(nothing)) == 0


QUICK = ["MatrixBandPart", "Svd", "SelfAdjointEigV2", "Qr", "MaxPool", "ResizeBilinear", "UnsortedSegmentMax"]


@pytest.mark.parametrize("name", slow_but(QUICK, CALLS))
def test_every_entry_is_written_whatever_the_inputs_are(name: str) -> None:
    assert name.split(" ")[0] in FUNCTIONAL
    found, computed = [], 0
    for text, call in calls_of(name):
        try:
            found += [(text, output) for output in changed_by_memory(call)]
        except tf.errors.OpError:  # the kernel refuses the input
            continue
        computed += 1
    assert computed
    assert found == []


def calls_of(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    for text, call in CALLS[name].items():
        yield f"{name}: {text}", call


def test_a_check_that_tensorflow_is_told_to_take_out_is_none() -> None:
    """A factor of `keras.ops.cholesky` is then read whatever it holds."""
    report = prove_rows(lambda x: finite(keras.ops.cholesky(x)), SPEC)
    assert report.proved
    tf.config.optimizer.set_experimental_options({STRIPPER: True})
    try:
        assert "as it finds the memory" in str(prove_rows(lambda x: finite(keras.ops.cholesky(x)), SPEC))
        assert prove_rows(lambda x: tf.linalg.band_part(keras.ops.cholesky(x), -1, 0), SPEC).proved
    finally:
        tf.config.optimizer.set_experimental_options({STRIPPER: False})


@pytest.mark.parametrize("name", LEFT)
def test_results_that_show_the_memory_are_read_by_nobody(name: str) -> None:
    assert changed_by_memory(LEFT[name])
    graph = tf.function(LEFT[name], autograph=False).get_concrete_function().graph
    (operation,) = [one for one in graph.get_operations() if one.type == name]
    assert reads_unwritten(operation)
    assert not is_functional(operation)


def test_what_is_read_of_the_same_kernels_elsewhere_is_written() -> None:
    for call in (CALLS["BlockLSTMV2"]["2 steps"], CALLS["BlockLSTMGradV2"]["2 steps"], CALLS["RFFT3D"][""]):
        graph = tf.function(call, autograph=False).get_concrete_function().graph
        assert not any(map(reads_unwritten, graph.get_operations()))


def test_a_kernel_that_leaves_entries_unwritten_is_found() -> None:
    indefinite = square("indefinite")
    assert changed_by_memory(lambda: tf.raw_ops.Cholesky(input=indefinite)) == [0]
    assert changed_by_memory(lambda: tf.raw_ops.Cholesky(input=square("definite"))) == []
