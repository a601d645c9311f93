"""One blank image more in a draw, in raw units before an instance normalization: how far that moves the released sum.

    python benchmarks/blank_records.py --value -1024 --images 15

A step of DP-SGD without noise on so many images and on one more, all of one number, all drawn: their sums differ by one
record's contribution, which is at most 1 in units of the clip, where none of the others changes by its last bits. The
same with each record computed by itself. docs/guarantee.md, "Other records' rounding"; `models/blank.py` warns of it.
"""

import argparse
import warnings
from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp


def released(images: np.ndarray, expected: int, **options: Any) -> np.ndarray:
    """The sum of one step over these images, in units of the clip: (weights,)."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.GroupNormalization(-1), keras.layers.Flatten()]
    model = tfdp.make_private(keras.Sequential([keras.Input(images.shape[1:]), *layers, keras.layers.Dense(2)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1.0, "flat")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    labels = np.zeros(len(images), "int32")
    model.fit(images, labels, batch_size=expected, examples=expected, steps_per_epoch=1, verbose=0, **options)
    moved = [(old - new).ravel() for old, new in zip(before, model.get_weights(), strict=True)]
    return expected * np.concatenate(moved).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--value", type=float, default=-1024.0, help="of every pixel")
    parser.add_argument("--images", type=int, nargs="+", default=[3, 7, 15, 31], help="in the draw, before one more")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for count in arguments.images:
        images = np.full((count + 1, 8, 8, 3), arguments.value, "float32")
        found = []
        for options in ({}, {"physical_batch_size": 1}):
            few, more = (released(some, count + 1, **options) for some in (images[:count], images))
            found.append(np.linalg.norm(more - few))
        together, alone = found
        print(f"{count} to {count + 1} images of {arguments.value:g}: {together:.3f} bounds; each alone {alone:.3f}")


if __name__ == "__main__":
    main()
