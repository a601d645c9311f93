"""What the size and the bits of sum + noise tell of a record: of the default source, and of what it was made against.

Run: python benchmarks/noise_bits.py [--tries 20] [--weights 20000]

A record alone reaches some weights, so that all other sums there are 0, and who looks knows the deviation of the noise
and how far the record would move each sum. Printed:

- reach: of 20,000 records, each drawn in 1 of 20 of 200 steps with noise 0.35, how many show beyond the largest number
  that 32 bits of a radius give, where noise alone never comes; with such radii, and with those of the source.
- bits: how often it is told right whether the record is there, in one step with noise 50 (epsilon 0.06 at delta 1e-5),
  by which float32 numbers noise alone gives; added plainly, and on the grid.
- parity: the same by how many sums are odd, of noise that is rounded to the grid, and of the source's.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfdp_layers.noise import NoiseSource, normals
from tfdp_layers.noise.grid import GRID_BITS

FLAGS = flags.FLAGS
flags.DEFINE_integer("tries", 20, "Steps, half of them with the record.", lower_bound=2)
flags.DEFINE_integer("weights", 20_000, "That the record alone reaches, for the parity.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the words of bits.")

EDGE, NOISE = math.sqrt(2 * 33 * math.log(2)), 50.0


def numbers(count: int, rng: np.random.Generator, radius_bits: int = 96) -> np.ndarray:
    """Standard normal numbers before they are put on the grid, by the source's own formula."""
    first, second = (tf.constant(rng.integers(0, 2**32, count, dtype=np.uint32)) for _ in range(2))
    below = tf.constant(0.5) if radius_bits == 32 else tf.constant(rng.random(count, np.float32) + 2.0**-65, tf.float32)
    return np.asarray(normals.box_muller(first, second, below)[0])


def reach(rng: np.random.Generator) -> None:
    """Every visit is of one of 20,000 records; a number beyond the edge shows whose it is."""
    records, visits, noise = 20_000, 200_000, 0.35
    for bits in (32, 96):
        own = numbers(visits, rng, bits) + 1.0 / noise
        shown = len({*(np.flatnonzero(own > EDGE) % records)})
        alone = "never" if bits == 32 else "seldom"
        print(
            f"reach, radii of {bits} bits: {shown} of {records} records beyond {EDGE:.2f}, where noise alone {alone} is"
        )


def told(release: Callable[[bool], np.ndarray], score: Callable[[np.ndarray], float]) -> str:
    """How often the half of the steps with the higher scores is that with the record, of all."""
    there = np.arange(FLAGS.tries) % 2 == 1
    scores = np.array([score(release(bool(one))) for one in there])
    guess = scores > np.median(scores)
    return f"{int(max(np.sum(guess == there), np.sum(guess != there)))} of {FLAGS.tries}"


def bits() -> None:
    """Of 380 weights; by the share of numbers that are a float32 number times the deviation."""

    def released(record: bool, plain: bool) -> np.ndarray:
        source, total = NoiseSource(), tf.fill([380], 380**-0.5 if record else 0.0)
        (stddev,) = source.widened([NOISE], NOISE, 380)
        stddev = float(stddev) if plain else stddev
        return np.asarray(source.perturbed(total, stddev, source.normal([380]) if not plain else _raw(380)))

    def share(found: np.ndarray) -> float:
        (stddev,) = NoiseSource().widened([NOISE], NOISE, 380)
        near = (found / np.float32(stddev)).astype(np.float32)
        around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
        return float(np.mean(np.any([np.float32(stddev) * one == found for one in around], axis=0)))

    for plain in (True, False):
        name = "added plainly" if plain else "on the grid"
        print(f"bits, {name}: told right {told(lambda one, plain=plain: released(one, plain), share)}")


def _raw(count: int) -> tf.Tensor:
    return tf.constant(numbers(count, np.random.default_rng(FLAGS.seed + int.from_bytes(np.random.bytes(4), "big"))))


def parity(rng: np.random.Generator) -> None:
    """The record moves each sum by an odd number of units."""
    unit, odd = 2.0**-GRID_BITS, 2 * round(0.5 * 2**GRID_BITS / NOISE * FLAGS.weights**-0.5) + 1

    def released(record: bool, rounded: bool) -> np.ndarray:
        raw = np.round(numbers(FLAGS.weights, rng).astype(np.float64) / unit)
        own = raw if rounded else np.asarray(NoiseSource().normal([FLAGS.weights]), np.float64) / unit
        return own + odd * record

    for rounded in (True, False):
        name = "numbers rounded to the grid" if rounded else "the source's numbers"
        print(f"parity, {name}: told right {told(lambda one, r=rounded: released(one, r), lambda k: np.mean(k % 2))}")


def main(_argv: list[str]) -> None:
    rng = np.random.default_rng(FLAGS.seed)
    reach(rng)
    bits()
    parity(rng)


if __name__ == "__main__":
    app.run(main)
