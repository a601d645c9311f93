"""One blank image more in a draw, in raw units before a normalization of each: how far that moves the released sum.

    python benchmarks/blank_records.py --value -1024 --images 15
    python benchmarks/blank_records.py --networks 30

A step of DP-SGD without noise on so many images and on one more, all of one number, all drawn: their sums differ by one
record's contribution, which is at most 1 in units of the clip, where none of the others changes by its last bits. First
with as many rows as are drawn, then as `fit` fills them up (`batches/heights.py`), then in pieces of one height.

With --networks, random small ones (convolutions, GroupNormalization, LayerNormalization) at 4 to 73 images: the largest
movement at as many rows as are drawn, and at each other panel of rows; and how far what one image adds differs by its
place. Other kernels of the same processor:
`ONEDNN_MAX_CPU_ISA=AVX2` (or SSE41), `TF_ENABLE_ONEDNN_OPTS=0`, `TF_NUM_INTRAOP_THREADS=16` before the command.
docs/guarantee.md, "Other records' rounding"; `models/blank.py` warns of such records.
"""

import argparse
import warnings
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.heights import PANEL, filled
from tfdp_layers.models import opening

kl = keras.layers
PANELS = (1, 8, 16, PANEL, 2 * PANEL)


def private(layers: list[Any], shape: tuple[int, ...]) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input(shape), *layers, kl.Dense(2)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1.0, "flat")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def released(images: np.ndarray, expected: int, units: int = 0, **options: Any) -> np.ndarray:
    """The sum of one step over these images, in units of the clip: (weights,)."""
    keras.utils.set_random_seed(1)
    layers = [kl.Conv2D(4, 3), kl.GroupNormalization(-1), kl.Flatten()]
    layers += [kl.Dense(units, activation="relu")] if units else []
    model = private(layers, images.shape[1:])
    before = model.get_weights()
    labels = np.zeros(len(images), "int32")
    model.fit(images, labels, batch_size=expected, examples=expected, steps_per_epoch=1, verbose=0, **options)
    moved = [(old - new).ravel() for old, new in zip(before, model.get_weights(), strict=True)]
    return expected * np.concatenate(moved).astype(np.float64)


def movement(images: np.ndarray, **options: Any) -> float:
    """How far the last image moves the sum of a step of `fit`, in bounds."""
    return float(
        np.linalg.norm(np.subtract(*(released(some, len(images), **options) for some in (images[:-1], images))))
    )


def network(rng: np.random.Generator) -> tuple[Any, tuple[int, ...], list[str]]:
    """A random private network with normalizations, the shape of its images, and the names of its layers."""
    keras.utils.set_random_seed(int(rng.integers(1 << 30)))
    side, layers = int(rng.choice([6, 8, 9, 12, 16])), []
    for _ in range(rng.integers(1, 3)):
        kinds = kl.Conv2D, kl.SeparableConv2D, kl.DepthwiseConv2D, kl.Dense
        filters, size = int(rng.choice([2, 3, 4, 8, 16])), int(rng.choice([1, 2, 3]))
        kind, among = kinds[rng.integers(4)], {"padding": str(rng.choice(["valid", "same"]))}
        if kind is kl.Conv2D:
            among["strides"] = int(rng.choice([1, 1, 2]))
        sizes = {kl.Dense: (filters,), kl.DepthwiseConv2D: (size,)}.get(kind, (filters, size))
        layers.append(kind(*sizes, **({} if kind is kl.Dense else among)))
        groups, axes = (-1, 1)[rng.integers(2)], (-1, (1, 2, 3))[rng.integers(2)]
        layers.append(kl.GroupNormalization(groups) if rng.random() < 0.5 else kl.LayerNormalization(axis=axes))
        layers.append(kl.Activation(str(rng.choice(["linear", "relu", "tanh"]))))
    layers.append(kl.Flatten() if rng.random() < 0.6 else kl.GlobalAveragePooling2D())
    shape = side, side, int(rng.choice([1, 3, 4]))
    return private(layers, shape), shape, [f"{type(layer).__name__} {layer.name}" for layer in layers]


def sums_of(model: Any, shape: tuple[int, ...]) -> Any:
    """The bounded sums of any number of rows, as in `fit`: with a known one TensorFlow may choose other kernels."""
    signature = tf.TensorSpec((None, *shape)), tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None,))
    function = tf.function(model.bounded_gradient_sums, input_signature=signature)

    def sums(images: np.ndarray, there: np.ndarray) -> np.ndarray:
        parts = function(tf.constant(images), tf.zeros(len(there), tf.int32), tf.constant(there))
        return np.concatenate([np.asarray(one, np.float64).ravel() for one in parts])

    return sums


def places(model: Any, shape: tuple[int, ...], value: float, rng: np.random.Generator) -> float:
    """How far what one blank image adds differs by its place, and by 1 to 4 panels of other images, in bounds."""
    sums, found = sums_of(model, shape), []
    for rows in (PANEL, 2 * PANEL, 4 * PANEL):
        others = rng.normal(size=(rows, *shape)).astype("float32")
        for place in range(rows):
            images, there = others.copy(), (np.arange(rows) == place).astype("float32")
            images[place] = value
            found.append(sums(images, there))
    return float(max(np.linalg.norm(one - found[0]) for one in found))


def largest(model: Any, shape: tuple[int, ...], value: float, panel: int) -> float:
    """The largest movement by one image of `value` more, of 4 to 73, on batches filled up to whole panels of rows."""
    sums, before, found = sums_of(model, shape), None, 0.0
    for count in range(4, 74):
        there = (np.arange(filled(count, panel)) < count).astype("float32")
        images = np.float32(value) * np.broadcast_to(there[:, None, None, None], (len(there), *shape))
        after = sums(images, there)
        found = found if before is None else max(found, float(np.linalg.norm(after - before)))
        before = after
    return found


def search(networks: int, seed: int) -> None:
    total, moved = dict.fromkeys(PANELS, 0.0), 0.0
    for number in range(seed, seed + networks):
        rng = np.random.default_rng(number)
        model, shape, names = network(rng)
        values = (1000.0, -1024.0, float(rng.integers(33, 4000)))
        found = {panel: max(largest(model, shape, value, panel) for value in values) for panel in PANELS}
        moved = max(moved, *(places(model, shape, value, rng) for value in values))
        total = {panel: max(total[panel], found[panel]) for panel in PANELS}
        if max(found.values()) > 1.02:
            print(f"network {number}, {shape}: {rows(found)} ({', '.join(names)})", flush=True)
    print(f"{networks} networks, largest movement in bounds: {rows(total)}")
    print(f"what one image adds, by its place in 1 to 4 panels of other images, differs by {moved:g} bounds")


def rows(found: dict[int, float]) -> str:
    return ", ".join(f"{'as drawn' if panel == 1 else f'x {panel}'} {moved:.3f}" for panel, moved in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--value", type=float, default=-1024.0, help="of every pixel")
    parser.add_argument("--images", type=int, nargs="+", default=[3, 7, 15, 31], help="in the draw, before one more")
    parser.add_argument("--networks", type=int, default=0, help="random ones, in the place of one")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--side", type=int, default=8, help="of an image, in pixels")
    parser.add_argument("--channels", type=int, default=3, help="of an image")
    parser.add_argument("--units", type=int, default=0, help="of a wide layer behind the normalization; 0 for none")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.networks:
        search(arguments.networks, arguments.seed)
        return
    for count in arguments.images:
        shape = arguments.side, arguments.side, arguments.channels
        images = np.full((count + 1, *shape), arguments.value, "float32")
        with mock.patch.object(opening, "panels", return_value=False):
            drawn = movement(images, units=arguments.units)
        filled_up = movement(images, units=arguments.units)
        found = f"{drawn:.3f} bounds at the rows drawn; in panels of {PANEL}, as fit does, {filled_up:.3f}"
        pieces = movement(images, units=arguments.units, physical_batch_size=PANEL)
        print(f"{count} to {count + 1} images of {arguments.value:g}: {found}; in pieces of {PANEL} {pieces:.3f}")


if __name__ == "__main__":
    main()
