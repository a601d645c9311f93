"""How long it takes to find the noise of a target, before the first step of a training.

    python benchmarks/calibration_time.py

Compare versions by runs of both in turn, each in a process of its own: the first search of a process is the slowest.
"""

import time

import tfdp_layers as tfdp

EXAMPLES, DELTA = 300_000, 1e-6
CASES = ((5.0, 1, 100), (9.0, 100, 100), (2.0, 100, 300), (3.0, 2000, 256))
"""Targets, steps and batch sizes: few steps and little noise are the slow ones."""


def main() -> None:
    for target, steps, batch_size in CASES:
        started = time.perf_counter()
        found = tfdp.accounting.calibrate_noise_multiplier(
            target, DELTA, tfdp.sampling.Poisson(batch_size), EXAMPLES, steps
        )
        took = time.perf_counter() - started
        print(f"epsilon {target:g}, {steps:,} steps of {batch_size}: noise multiplier {found:.5f} in {took:.2f} s")


if __name__ == "__main__":
    main()
