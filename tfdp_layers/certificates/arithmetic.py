"""Whether this process computes with float32 numbers as bounds take for given.

Bounds keep a margin for the rounding of float32. TensorFlow, and the libraries under it, can be told to round the
factors of float32 products to 8 or 11 bits: TensorFloat-32 on GPUs, TensorFlow's "auto_mixed_precision" options, and
variables of the environment that oneDNN reads. Norms from Gram matrices are differences of such products, so that what
is left of one may be all rounding: a record far above its bound then counts as one below it. And XLA can be told that
no number is NaN, whereupon it takes the tests out that refuse records; so does TensorFlow's "debug_stripper", which
takes checks out of graphs (CheckNumerics, Assert) that what is behind them rests on.
"""

import functools
import math
import os
from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.unwritten import STRIPPER, checks_stay
from tfdp_layers.proof.xla import clusters

__all__ = ["products_setting", "require_float32"]

_OPTIONS = ("auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16", "auto_mixed_precision_mkl")
_ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE")
_VARIABLES = dict.fromkeys(_ONEDNN, "STRICT") | {"NVIDIA_TF32_OVERRIDE": "0"}
"""What they may say. By the last one matrix products on GPUs round with TensorFloat-32 off, too (on an H200, 2026)."""
_FINE = 2.0**-12
"""1 + this is a float32 number; of bfloat16, float16 and TensorFloat-32 the nearest is 1."""
_INSTEAD = (
    " Rounding after the clips would exceed the bounds. For speed in 16 bits give the layers a policy, of which the"
    " bounds know: keras.mixed_precision.set_dtype_policy('mixed_bfloat16')."
)


def require_float32(compiled: bool) -> None:
    """Switches TensorFloat-32 off, and raises ValueError where products are rounded even so, or NaN is not seen.

    Also where checks are taken out of graphs.

    Args:
        compiled: whether XLA is asked to compile the step; it may compile parts of any.
    """
    compiled = compiled or clusters()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    options = tf.config.optimizer.get_experimental_options()
    if on := [name for name in _OPTIONS if options.get(name)]:
        raise ValueError(
            f"TensorFlow is told to compute float32 layers in 16 bits: tf.config.optimizer has {on[0]!r} on. Switch it"
            f" off: tf.config.optimizer.set_experimental_options({{{on[0]!r}: False}}).{_INSTEAD}"
        )
    if not checks_stay():
        raise ValueError(
            f"TensorFlow is told to take checks out of graphs: tf.config.optimizer has {STRIPPER!r} on. What is proved"
            " of a step rests on them: behind a check that numbers are finite, a Cholesky factor is read that other"
            " records' numbers may stand in where there is no check. Switch it off:"
            f" tf.config.optimizer.set_experimental_options({{{STRIPPER!r}: False}})."
        )
    told = [name for name, exact in _VARIABLES.items() if os.environ.get(name, exact).upper() != exact]
    if told or (rounded := _rounded(compiled)):  # a product of another size or kind may round where these do not
        shown = f"the environment has {told[0]}" if told else f"tried: {', '.join(rounded)}"
        raise ValueError(
            f"Products of float32 numbers are, or may be, rounded to fewer bits here ({shown}). Unset"
            f" {', '.join(_VARIABLES)} before Python starts.{_INSTEAD}"
        )
    if compiled and not _sees_what_is_not_finite():
        raise ValueError(
            "XLA is told that no number is NaN or infinite, and takes the tests out by which records that are not"
            " finite are refused: one such record would show in all weights. Remove xla_cpu_fast_math_honor_nans and"
            " xla_cpu_fast_math_honor_infs from XLA_FLAGS before Python starts."
        )


def products_setting() -> Hashable:
    """What may change how products round, and whether checks are made, while a training runs."""
    options = tf.config.optimizer.get_experimental_options()
    rounding = tf.config.experimental.tensor_float_32_execution_enabled()
    return rounding, clusters(), *[bool(options.get(name)) for name in _OPTIONS], checks_stay()


@functools.cache
def _sees_what_is_not_finite() -> bool:
    """Whether compiled code tells NaN and infinity from numbers; elsewhere TensorFlow's operations do."""

    @tf.function(autograph=False, jit_compile=True)
    def look(values: tf.Tensor) -> tf.Tensor:
        below = 1.0 / tf.maximum(values, 1.0) >= 0.5  # as the rules compare; for NaN False
        return tf.stack([tf.math.is_finite(values), tf.math.is_finite(tf.square(values)), below])

    seen = look(tf.constant([math.nan, math.inf, -math.inf, 1.0])).numpy()
    return [list(map(bool, row)) for row in seen] == [[False] * 3 + [True]] * 2 + [[False, False, True, True]]


@functools.cache
def _rounded(compiled: bool) -> tuple[str, ...]:
    """Which kinds of products round their factors, tried once in a process."""
    products = tf.function(_products, autograph=False, jit_compile=True) if compiled else _products
    found = products(tf.fill((4, 64, 64), 1.0 + _FINE))
    return tuple(name for name, (value, terms) in found.items() if float(value) < terms * (1.0 + _FINE / 2.0))


def _products(values: tf.Tensor) -> dict[str, Any]:
    """Of entries a: sums of products a * 1, one of each kind, and the number of their terms; exact in float32."""
    ones, images = tf.ones_like(values), tf.reshape(values, (4, 8, 8, 64))
    with tf.GradientTape() as tape:
        kernel = tf.ones((3, 3, 64, 16))
        tape.watch(kernel)
        convolved = tf.nn.conv2d(images, kernel, 1, "VALID")
    gradient = tape.gradient(convolved, kernel)
    return {
        "matrix product": (tf.matmul(values[0], ones[0])[0, 0], 64.0),
        "batched matrix product": (tf.matmul(values, ones, transpose_b=True)[0, 0, 0], 64.0),
        "convolution": (convolved[0, 0, 0, 0], 9 * 64.0),
        "gradient of a convolution's kernel": (gradient[0, 0, 0, 0], 4 * 36.0),
    }
