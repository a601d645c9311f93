"""What it costs to fetch a drawn batch: wall and processor milliseconds a batch, for arrays in memory and on disk.

Run from the root of the checkout, with the package installed:

    python benchmarks/fetching.py                      # MNIST- and CIFAR-sized random records, batches of 2048 and 256
    python benchmarks/fetching.py --batch_size 512 --batches 200 --pad

Three ways are timed, interleaved; the best of --rounds is printed:
- tensors: `PrivateBatches.dataset()` as it is for arrays in memory: indices are drawn, tf.data gathers from tensors.
- rows: a generator of NumPy rows, what `dataset()` does for memory-mapped or larger arrays, here on an array in memory.
- mapped: the same on a memory-mapped file, which is in the page cache after the first round.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags

from tfdp_layers import PrivateBatches
from tfdp_layers.sampling import Poisson

_BATCH_SIZES = flags.DEFINE_multi_integer("batch_size", [2048, 256], "expected batch sizes")
_BATCHES = flags.DEFINE_integer("batches", 40, "batches timed in a round", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "rounds, of which the best is printed", lower_bound=1)
_PAD = flags.DEFINE_boolean("pad", False, "pad the batches to a few sizes")

_SHAPES = {"mnist": (60000, 28, 28, 1), "cifar": (50000, 32, 32, 3)}


def _timed(batches: Iterator[Any], count: int) -> tuple[float, float]:
    """(wall, processor) milliseconds a batch, of all threads."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(batches)
    return (time.perf_counter() - wall) / count * 1e3, (time.process_time() - processor) / count * 1e3


def _measure(x: np.ndarray, mapped: np.ndarray, y: np.ndarray, batch_size: int) -> dict[str, tuple[float, float]]:
    sampling, pad = Poisson(batch_size), _PAD.value
    in_memory, on_disk = PrivateBatches(x, y, sampling), PrivateBatches(mapped, y, sampling)
    datasets = {
        "tensors": in_memory.dataset(pad),
        "rows": in_memory._dataset(pad, in_memory._read_by_rows()).prefetch(2),
        "mapped": on_disk.dataset(pad),
    }
    best: dict[str, tuple[float, float]] = {}
    for _ in range(_ROUNDS.value):
        for name, dataset in datasets.items():
            # A new iterator a round: a waiting one would have its next batches ready, and be timed too fast.
            batches = iter(dataset)
            _timed(batches, 5)
            best[name] = min(best.get(name, (np.inf, np.inf)), _timed(batches, _BATCHES.value))
            del batches
    return best


def main(arguments: list[str]) -> None:
    del arguments
    rng = np.random.default_rng(0)
    print("records  batch  way      wall ms  processor ms")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in _SHAPES.items():
            x = rng.random(shape, dtype=np.float32)
            y = rng.integers(0, 10, shape[0])
            path = os.path.join(folder, f"{name}.npy")
            np.save(path, x)
            for batch_size in _BATCH_SIZES.value:
                for way, (wall, processor) in _measure(x, np.load(path, mmap_mode="r"), y, batch_size).items():
                    print(f"{name:8} {batch_size:5}  {way:8} {wall:7.2f}  {processor:12.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
