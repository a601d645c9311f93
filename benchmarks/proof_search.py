"""Searches for false proofs: random functions of records, each proved or not, and checked in numbers where it is.

    python benchmarks/proof_search.py --graphs 5000 --first 0

Functions are drawn from seeds (`tests/helpers/proof/random_graphs.py`): sensible and mixing operations alike. What is
proved of an output is checked in batches of 1 to 5 records: against each record alone, and in another order.
"""

import argparse
import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.proof import random_graphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=5000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--length", type=int, default=8, help="operations that are tried in each")
    options = parser.parse_args()
    started, proofs, functions, faults = time.perf_counter(), 0, 0, []
    for done, seed in enumerate(range(options.first, options.first + options.graphs), 1):
        fault, count = random_graphs.false_proof(seed, options.length)
        proofs, functions = proofs + count, functions + (count > 0)
        if fault:
            faults.append((seed, fault))
            print(f"seed {seed}: {fault}", flush=True)
        if done % 250 == 0 or done == options.graphs:
            print(
                f"{done} functions, seeds {options.first} to {seed}: {functions} with something proved, {proofs} proofs"
                f" checked, {len(faults)} false; {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    print(", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "numpy")))


if __name__ == "__main__":
    main()
