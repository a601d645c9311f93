"""How long a proof takes for networks of 100 layers, and what else their first `fit` does.

    python benchmarks/proof_time.py --layers 100

Prints for each network the number of its layers and of the operations that were interpreted, the seconds of tracing
the sums (`traced_sums`), and those of the proof: the least and the largest of the repetitions, on this machine as it
is. Run it alone.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof.models import prove_traced, traced_sums

kl = keras.layers


def dense(count: int) -> Any:
    """Dense layers, each followed by a dropout or a normalization of its own record's values."""
    pairs = [(kl.Dense(16), kl.LayerNormalization() if i % 2 else kl.Dropout(0.1)) for i in range(count // 2)]
    return keras.Sequential([keras.Input((16,)), *(layer for pair in pairs for layer in pair), kl.Dense(1)])


def convolutions(count: int) -> Any:
    """Residual blocks of four layers: a convolution, a group normalization, an activation and the sum."""
    inputs = tensor = keras.Input((8, 8, 8))
    for _ in range(count // 4):
        inner = kl.GroupNormalization(4)(kl.Conv2D(8, 3, padding="same")(tensor))
        tensor = kl.Add()([tensor, kl.Activation("relu")(inner)])
    return keras.Model(inputs, kl.Dense(1)(kl.GlobalAveragePooling2D()(tensor)))


def attention(count: int) -> Any:
    """Blocks of a transformer, of ten layers each."""
    inputs = tensor = keras.Input((6, 16))
    for _ in range(count // 10):
        normal = kl.LayerNormalization()(tensor)
        tensor = kl.Add()([tensor, kl.Dropout(0.1)(kl.MultiHeadAttention(2, 8)(normal, normal))])
        inner = kl.Activation("gelu")(kl.Dense(32)(kl.LayerNormalization()(tensor)))
        tensor = kl.Add()([tensor, kl.Dropout(0.1)(kl.Dense(16)(inner))])
    return keras.Model(inputs, kl.Dense(1)(kl.GlobalAveragePooling1D()(tensor)))


NETWORKS: dict[str, Callable[[int], Any]] = {"dense": dense, "convolutions": convolutions, "attention": attention}


def measured(name: str, count: int, repeat: int) -> str:
    network = NETWORKS[name](count)
    layers = len(list(network._flatten_layers(include_self=False)))
    model = tfdp.make_private(network)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=1.0), "mse")
    specs = tf.TensorSpec((None, *network.input_shape[1:])), tf.TensorSpec((None, 1))
    start = time.perf_counter()
    traced = traced_sums(model, *specs)
    tracing, seconds = time.perf_counter() - start, []
    for _ in range(repeat):
        report = prove_traced(model, traced)
        if not report.proved:
            raise SystemExit(f"{name}: not proved: {report}")
        seconds.append(report.seconds)
    spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
    return f"{name}: {layers} layers, {report.operations} operations: tracing {tracing:.1f} s, proof {spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for name in options.networks:
        print(measured(name, options.layers, options.repeat), flush=True)


if __name__ == "__main__":
    main()
