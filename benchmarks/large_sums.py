"""How far one more record moves the float32 sum over a large batch, relative to its bound, in orders made to hurt.

Run: python benchmarks/large_sums.py [--sizes 2048,16384,65536] [--piece 2048]

Half of the records add the whole bound, the other half take half a unit in the last place of the sum at its largest
(of a piece's, where there are pieces): a running sum that one more record lifted over a power of two ignores them.
Printed are the largest ratios, over kernel and bias; 1 is what the noise is scaled to. `hostile`: the large ones first
in each piece, after the record more. `drawn`: in random order, as `fit` adds them, the same for both batches but for
the record more, after which all move on by a place (a divergence of two mixtures is at most that of their parts).
Tried there are several kinds of batches, places, and orders.
"""

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("sizes", ["256", "2048", "16384", "65536"], "Records in a batch.")
flags.DEFINE_integer("piece", 2048, "Records that are added in float32; 0: all.")
flags.DEFINE_integer("draws", 2, "Orders drawn.")


def private(kind: str) -> Any:
    """A model of one weight group, whose labels are its records' upstream gradients."""
    inputs = keras.Input((1,))
    if kind == "clipped":
        layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=1.0)
        optimizer = tfdp.optimizers.NoisyOptimizer("sgd", 0.0)
    else:
        layer = keras.layers.Dense(1)
        optimizer = tfdp.optimizers.ClippedOptimizer("sgd", 0.0, 2.0**0.5)
    model = tfdp.PrivateModel(inputs, layer(inputs))
    model.compile(optimizer, lambda y, p: tf.reduce_sum(y * p, axis=-1))
    model.optimizer.build(model.trainable_variables)
    return model


def sums(model: Any, labels: np.ndarray, piece: int) -> np.ndarray:
    """What a step on records of ones with these upstream gradients releases before its noise: kernel and bias."""
    x, y = tf.ones((len(labels), 1)), tf.constant(labels[:, None], tf.float32)
    weights = tf.ones(len(labels))
    model._privacy.run = types.SimpleNamespace(groups=model.sensitivities())
    try:
        found = model._piecewise(x, y, weights, piece) if piece else model._piece(x, y, weights)
    finally:
        model._privacy.run = None
    return np.concatenate([np.ravel(np.asarray(total, np.float64)) for total in found])


def hostile(size: int, length: int) -> np.ndarray:
    """Labels in the hostile order, made for running sums over `length` records."""
    length = min(size, length)
    ulp = 2.0 ** (np.floor(np.log2(length / 2)) - 23)
    one = np.where(np.arange(length) < length // 2, 1.0, -ulp / 2)
    return np.tile(one, size // length).astype("float32")


def batches(size: int) -> dict[str, np.ndarray]:
    """Batches whose sums round badly in whatever order: ties of every scale, equal numbers, any numbers."""
    rng = np.random.default_rng(0)
    found = {f"ties {length}": hostile(size, length) for length in (256, 2048, 16384, 65536) if length <= size}
    found |= {f"all {value}": np.full(size, value, "float32") for value in (0.1, 0.7, 1 / 3)}
    return found | {"uniform": rng.uniform(0, 1, size).astype("float32")}


def ratio(model: Any, labels: np.ndarray, piece: int, more: float, place: int) -> float:
    """The distance that one more record, of this label and at this place, moves the sums, over its bound."""
    (group,) = model.sensitivities()
    longer = np.insert(labels, place, np.float32(more))
    return float(np.linalg.norm(sums(model, longer, piece) - sums(model, labels, piece)) / group.bound)


def drawn(model: Any, labels: np.ndarray, piece: int, draws: int) -> float:
    """The largest ratio in random orders, wherever the record comes in."""
    found = []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(labels)
        found += [ratio(model, order, piece, more, place) for place in (0, len(labels) // 3) for more in (1.0, -1.0)]
    return max(found)


def main(_: list[str]) -> None:
    for kind in ("clipped", "ordinary"):
        model = private(kind)
        for size in map(int, FLAGS.sizes):
            ordered = ratio(model, hostile(size, FLAGS.piece or size), FLAGS.piece, 1.0, 0)
            found = {name: drawn(model, labels, FLAGS.piece, FLAGS.draws) for name, labels in batches(size).items()}
            worst = max(found, key=lambda name: found[name])
            print(f"{kind} {size:6d} records: hostile {ordered:.5f}, drawn {found[worst]:.5f} ({worst})", flush=True)


if __name__ == "__main__":
    app.run(main)
