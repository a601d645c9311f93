"""Searches for records that move a step's sums by more than is stated, with nobody who thinks of the case.

    python benchmarks/sensitivity_search.py --programs 500 --first 0

A program is a random network of `tests/helpers/layer_cases.py` with random weights, a random way to clip, with XLA or
without. Its batch climbs (`tests/helpers/record_search.py`): records are drawn anew, scaled, copied, negated, repeated
or cancelled within, and a change stays where the worst record's influence on the sums did not fall. Ends with 1 where
one is above 1.001 bounds, or the sums are not those of the records alone.
"""

import argparse
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import record_search

LIMIT = 1.001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=60, help="mutations of each batch")
    parser.add_argument("--records", type=int, default=3, help="in a batch")
    options = parser.parse_args()
    worst: dict[str, tuple[float, float, int]] = {}
    started, over = time.perf_counter(), 0
    for seed in range(options.first, options.first + options.programs):
        found = record_search.search(seed, options.rounds, options.records)
        what = found.what.split(", ")[-2]
        influence, mixing, at = worst.get(what, (0.0, 0.0, seed))
        worst[what] = (
            max(influence, found.influence),
            max(mixing, found.mixing),
            seed if found.influence > influence else at,
        )
        if not (found.influence <= LIMIT and found.mixing <= LIMIT - 1):
            over += 1
            print(f"seed {seed}: {found}", flush=True)
    for what, (influence, mixing, seed) in worst.items():
        print(f"{what}: at most {influence:.7f} bounds (seed {seed}); sums within {mixing:.1e} of the records' own")
    print(f"{options.programs} programs, {over} over the limit, {time.perf_counter() - started:.0f} s")
    print(", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "numpy")))
    sys.exit(over > 0)


if __name__ == "__main__":
    main()
