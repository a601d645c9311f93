"""Time of filtered sums of one dense layer, in the library's ways and as XLA compiles them as they are written.

Run: taskset -c 0 python benchmarks/filtered_products.py [--rows 256] [--inputs 784] [--units 1000] [--rounds 7]

Milliseconds (median, smallest) of: one matrix product x^T u; the clipped sum of tanh(x_i u_i^T), by series (small
entries) and in tiles (large ones); the sum of clamps in tiles; and norms, sum and clamps as one XLA reduction each.
"""

import statistics
import time
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from absl import app, flags

from tfdp_layers.clipping.clamps import ClampedEntries
from tfdp_layers.clipping.filters import TanhEntries, filtered_sums
from tfdp_layers.per_record.contributions import Products
from tfdp_layers.rules.entries import Tanh

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 256, "Records.")
flags.DEFINE_integer("inputs", 784, "Inputs of the layer.")
flags.DEFINE_integer("units", 1000, "Its units.")
flags.DEFINE_integer("rounds", 7, "Interleaved rounds.")


def cases() -> dict[str, Any]:
    """Functions of x (rows, inputs) and u (rows, units), by name."""
    variable = SimpleNamespace(shape=(FLAGS.inputs, FLAGS.units))
    clamps = ClampedEntries({id(variable): tf.constant(0.05)})

    def ours(function: Any, scales: Any, size: float) -> Any:
        def total(x: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
            part: Any = Products(variable, x[:, tf.newaxis], size * u[:, tf.newaxis])
            return filtered_sums([variable], {id(variable): part}, function, scales, tf.ones_like(x[:, 0]))[0]

        return tf.function(total, autograph=False)

    def plain(reduce: Any) -> Any:
        outer = lambda x, u: reduce(x[:, :, tf.newaxis] * u[:, tf.newaxis, :])  # noqa: E731
        return tf.function(outer, jit_compile=True, autograph=False)

    clip, tanh = (lambda norms: 1.0 / tf.maximum(norms, 1.0)), TanhEntries(Tanh())
    return {
        "matrix product": tf.function(lambda x, u: tf.matmul(x, u, transpose_a=True), autograph=False),
        "tanh and clip, by series": ours(tanh, clip, 1.0),
        "tanh and clip, in tiles": ours(tanh, clip, 100.0),
        "clamps, in tiles": ours(clamps, 1.0, 1.0),
        "plain norms of tanh": plain(lambda z: tf.reduce_sum(tf.square(tf.tanh(z)), axis=(1, 2))),
        "plain sum of tanh": plain(lambda z: tf.reduce_sum(tf.tanh(z), axis=0)),
        "plain clamps": plain(lambda z: tf.reduce_sum(tf.clip_by_value(z, -0.05, 0.05), axis=0)),
    }


def main(_: list[str]) -> None:
    generator = tf.random.Generator.from_seed(0)
    x, u = generator.normal((FLAGS.rows, FLAGS.inputs)), 0.04 * generator.normal((FLAGS.rows, FLAGS.units))
    found: dict[str, list[float]] = {}
    functions = cases()
    for turn in range(1 + FLAGS.rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function(x, u).numpy()
            if turn:
                found.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
    for name, times in found.items():
        print(f"{name:26} {statistics.median(times):8.1f} {min(times):8.1f}")


if __name__ == "__main__":
    app.run(main)
