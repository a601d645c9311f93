"""A thousand million numbers of the noise: do they have the tails, the moments and the independence of a normal law?

Run: python benchmarks/noise_tails.py [--numbers 1000000000]

Numbers are drawn as a step draws them, `NoiseSource.normal`, 8 million at a time, of a new key each. Printed: how many
lie beyond 1, 2, ... 6 standard deviations on each side, with what a normal law expects; the chi-squared test of the
counts in quarters of a deviation; the first four moments; and the correlations of neighbours, of numbers half a draw
apart, and of the squares of these. Nothing is beyond 11.6, where 96 uniform bits end (32 would end at 6.76).
"""

import numpy as np
import tensorflow as tf
from absl import app, flags
from scipy import stats

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_integer("numbers", 1_000_000_000, "How many numbers.", lower_bound=1)

TOGETHER = 8_000_000
EDGES = np.arange(-6.0, 6.01, 0.25)


@tf.function
def look(drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Counts between the edges, power sums 1 to 4, and sums of products; of float32 numbers."""
    places = tf.cast(tf.floor((drawn - EDGES[0]) / 0.25), tf.int32) + 1
    counts = tf.math.bincount(tf.clip_by_value(places, 0, len(EDGES)), minlength=len(EDGES) + 1, dtype=tf.int64)
    wide = tf.cast(drawn, tf.float64)
    powers = tf.stack([tf.reduce_sum(wide**power) for power in (1, 2, 3, 4)])
    half = TOGETHER // 2
    squares = wide**2 - 1.0
    pairs = [
        wide[:-1] * wide[1:],
        wide[:half] * wide[half:],
        squares[:-1] * squares[1:],
        squares[:half] * squares[half:],
    ]
    return counts, powers, tf.stack([tf.reduce_sum(one) for one in pairs])


def main(_argv: list[str]) -> None:
    source = tfdp.noise.NoiseSource()
    rounds = -(-FLAGS.numbers // TOGETHER)
    counts, powers, products, largest = np.zeros(len(EDGES) + 1), np.zeros(4), np.zeros(4), 0.0
    draw = tf.function(lambda: source.normal([TOGETHER]))
    for _ in range(rounds):
        source.rekey()
        drawn = draw()
        found = look(drawn)
        counts, powers, products = (a + b.numpy() for a, b in zip((counts, powers, products), found, strict=True))
        largest = max(largest, float(tf.reduce_max(tf.abs(drawn))))
    total = rounds * TOGETHER
    expected = total * np.diff(np.concatenate([[0.0], stats.norm.cdf(EDGES), [1.0]]))
    print(f"{total} numbers, the largest {largest:.3f}")
    for beyond in range(1, 7):
        below, above = counts[EDGES.searchsorted(-beyond) :: -1].sum(), counts[EDGES.searchsorted(beyond) + 1 :].sum()
        wanted = total * stats.norm.sf(beyond)
        print(f"beyond {beyond}: {below:.0f} below, {above:.0f} above; expected {wanted:.1f} +- {wanted**0.5:.1f}")
    enough = expected > 5
    statistic = float(((counts - expected)[enough] ** 2 / expected[enough]).sum())
    print(
        f"chi-squared of {enough.sum()} counts: {statistic:.1f}, p = {stats.chi2.sf(statistic, enough.sum() - 1):.3f}"
    )
    for power, (value, of_normal, variance) in enumerate(
        zip(powers, (0, 1, 0, 3), (1, 2, 15, 96), strict=True), start=1
    ):
        error = (variance / total) ** 0.5
        print(
            f"moment {power}: {value / total:+.6f}, {(value / total - of_normal) / error:+.1f} errors from {of_normal}"
        )
    names = ("neighbours", "half a draw apart", "squares of neighbours", "squares half a draw apart")
    for name, value, share, variance in zip(names, products, (1, 0.5, 1, 0.5), (1, 1, 4, 4), strict=True):
        error = (variance * share * total) ** 0.5
        print(f"correlation of {name}: {value / (share * total):+.2e}, {abs(value) / error:.1f} standard errors")


if __name__ == "__main__":
    app.run(main)
