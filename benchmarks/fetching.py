"""What it costs to fetch a drawn batch: wall and processor milliseconds a batch, for arrays in memory and on disk.

Run from the root of the checkout, with the package installed:

    python benchmarks/fetching.py                      # MNIST- and CIFAR-sized random records, batches of 2048 and 256
    python benchmarks/fetching.py --batch_size 512 --batches 200 --pad
    python benchmarks/fetching.py --records scans --batch_size 256       # of 10 kB

Ways are timed, interleaved; the best of --rounds is printed:
- tensors: `PrivateBatches.dataset()` as it is for arrays in memory: indices are drawn, tf.data gathers from tensors.
- rows: a generator of NumPy rows, what `dataset()` does for memory-mapped or larger arrays, here on an array in memory.
- mapped: the same on a memory-mapped file, which is in the page cache after the first round.
- source: records of that file through `__getitem__`, by two threads (`tfdp.records`).
and for comparison, not private:
- generator: `tf.data.Dataset.from_generator` over that file in random order, in batches.
- map: `Dataset.map(tf.numpy_function, num_parallel_calls=2)` by random index, in batches.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers import PrivateBatches
from tfdp_layers.sampling import Poisson

_BATCH_SIZES = flags.DEFINE_multi_integer("batch_size", [2048, 256], "expected batch sizes")
_BATCHES = flags.DEFINE_integer("batches", 40, "batches timed in a round", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "rounds, of which the best is printed", lower_bound=1)
_PAD = flags.DEFINE_boolean("pad", False, "pad the batches to a few sizes")

_SHAPES = {"mnist": (60000, 28, 28, 1), "cifar": (50000, 32, 32, 3), "scans": (20000, 50, 50, 1)}
_RECORDS = flags.DEFINE_multi_enum("records", ["mnist", "cifar"], list(_SHAPES), "records of which size")


class _Source:
    """Records of a file, one by one."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.x[index], self.y[index]


def _by_generator(source: _Source, batch_size: int) -> tf.data.Dataset:
    def records() -> Iterator[tuple[np.ndarray, Any]]:
        for index in np.random.default_rng(0).permutation(len(source)):
            yield source[index]

    signature = (tf.TensorSpec(source.x.shape[1:], tf.float32), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(records, output_signature=signature).batch(batch_size).prefetch(2).repeat()


def _by_map(source: _Source, batch_size: int) -> tf.data.Dataset:
    def record(index: tf.Tensor) -> Any:
        return tf.numpy_function(lambda i: source[i % len(source)], [index], [tf.float32, tf.int64])

    found = tf.data.Dataset.random(seed=0).map(record, num_parallel_calls=2)
    return found.batch(batch_size).prefetch(2)


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
        "source": PrivateBatches(tfdp.records(_Source(mapped, y)), None, sampling).dataset(pad),
        "generator": _by_generator(_Source(mapped, y), batch_size),
        "map": _by_map(_Source(mapped, y), batch_size),
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
    print("records  batch  way         wall ms  processor ms  records a second")
    with tempfile.TemporaryDirectory() as folder:
        for name in _RECORDS.value:
            shape = _SHAPES[name]
            x = rng.random(shape, dtype=np.float32)
            y = rng.integers(0, 10, shape[0])
            path = os.path.join(folder, f"{name}.npy")
            np.save(path, x)
            for batch_size in _BATCH_SIZES.value:
                for way, (wall, processor) in _measure(x, np.load(path, mmap_mode="r"), y, batch_size).items():
                    rate = batch_size / wall * 1e3
                    print(
                        f"{name:8} {batch_size:5}  {way:10} {wall:8.2f}  {processor:12.2f}  {rate:16,.0f}", flush=True
                    )


if __name__ == "__main__":
    app.run(main)
