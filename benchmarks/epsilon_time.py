"""How long one epsilon of Poisson draws takes, and how it compares with dp-accounting's on the finest grid.

    python benchmarks/epsilon_time.py

The ratio is ours, which ends on a coarser grid where that changes little, to the pessimistic epsilon of dp-accounting's
own distributions, visited point by point, at the interval that ours may go down to. Theirs rounds, too: it is larger by
5e-4 where draws are rarest. Below their optimistic epsilon (of privacy buckets: loose after many steps) none may lie.
Not compared where rounding would show in theirs (a step at delta 1e-12). Minutes, for theirs.
"""

import math
import time

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution

from tfdp_layers.accounting.loss_distributions import pld_epsilon, pld_interval
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.rounding import left_of

_ROUNDED = 1e-3  # of delta
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
CASES = [
    (probability, multiplier, steps, delta)
    for probability in (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)
    for multiplier, steps, delta in (
        (0.3, 1, 1e-8),
        (0.3, 100, 1e-5),
        (0.5, 1_000, 1e-8),
        (0.6, 4_000, 1e-7),
        (0.7, 100_000, 1e-7),
        (1.0, 1, 1e-12),
        (1.0, 10_000, 1e-6),
        (2.0, 100_000, 1e-8),
        (5.0, 10_000, 1e-9),
        (20.0, 100_000, 1e-7),
    )
]
"""Sampling probability, noise multiplier, steps, delta."""


def theirs(multiplier: float, probability: float, interval: float, steps: int, delta: float, above: bool) -> float:
    with quiet():
        single = privacy_loss_distribution.from_gaussian_mechanism(
            multiplier,
            sampling_prob=probability,
            value_discretization_interval=interval,
            pessimistic_estimate=above,
            use_connect_dots=above,
        )
        return float(single.self_compose(steps).get_epsilon_for_delta(delta))


def main() -> None:
    ratios, spent = [], [0.0, 0.0]
    for probability, multiplier, steps, delta in CASES:
        counts = ((PoissonSampledDpEvent(probability, GaussianDpEvent(multiplier)), steps),)
        interval, left = pld_interval(counts), left_of(delta, steps, _ROUNDED)
        started = time.process_time()
        found = pld_epsilon(counts, RELATION, delta)
        ended = time.process_time()
        if left is None:
            continue
        whole = theirs(multiplier, probability, interval, steps, left, above=True)
        took = (ended - started, time.process_time() - ended)
        least = theirs(multiplier, probability, interval, steps, delta, above=False)
        spent = [spent[0] + took[0], spent[1] + took[1]]
        ratio = found / whole if whole > 0.0 else 1.0
        ratios.append(ratio if math.isfinite(ratio) else 1.0)
        said = f"epsilon {found:.6g} in {took[0]:.2f} s, theirs {whole:.6g} in {took[1]:.2f} s, ratio {ratio:.6f}"
        below = " BELOW THE OPTIMISTIC ONE" if found < least * (1.0 - 1e-9) else ""
        print(f"q {probability:g}, z {multiplier:g}, {steps:,} steps, {delta:g}: {said}{below}", flush=True)
    print(f"{len(ratios)} settings: ratio {min(ratios):.6f} to {max(ratios):.6f}")
    print(f"{spent[0]:.1f} s, theirs {spent[1]:.1f} s")


if __name__ == "__main__":
    main()
