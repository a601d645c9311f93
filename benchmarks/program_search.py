"""Random programs of public calls: does a model ever state less than what truly reached its weights?

    PYTHONPATH=tests python benchmarks/program_search.py --programs 5000 --seed 0

What a program is made of, and what is true, says `tests/helpers/programs.py`. Prints each program whose statement is
too small, with its seed, and at the end how many programs, calls and releases there were.
"""

import argparse
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from helpers.programs import run_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow it")
    parser.add_argument("--length", type=int, default=8, help="calls of a program")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started, releases, failed, calls = time.monotonic(), 0, [], Counter()
    for seed in range(options.seed, options.seed + options.programs):
        with tempfile.TemporaryDirectory() as folder:
            try:
                world = run_program(seed, Path(folder), options.length)
            except Exception as error:  # a statement that is too small, or an error that no user should see
                failed.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}")
                traceback.print_exc(limit=-3)
                continue
            releases += len(world.events)
            calls.update(world.done)
    took = time.monotonic() - started
    print(f"{options.programs} programs, {sum(calls.values())} calls, {releases} releases, {took:.0f} s")
    print(f"failed: {failed or 'none'}")
    print(dict(calls))


if __name__ == "__main__":
    main()
