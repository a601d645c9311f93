"""A search whose oracle chooses each trial's batch size by what earlier trials released: how far delta is exceeded.

    python benchmarks/adaptive_trials.py --trials 2 --epsilon 3
    python benchmarks/adaptive_trials.py --trials 5 --noise 3

Every trial makes `epochs` epochs of Poisson draws, or of all records where the batch is that large. With --epsilon its
noise is found as `tfdp.tuning.PrivateTuner` does where optimizers leave it open: after trial k of n all of them state
epsilon sqrt(k / n) at `delta`. With --noise it is fixed, and what the search states is the epsilon of what it made. The
worst rule sees the privacy loss of all trials so far, and takes the batch size that leads to the largest delta at the
stated epsilon; a control takes one batch size for all. Dynamic programming over the loss, of privacy loss
distributions (dp_accounting, rounded up to multiples of `WIDTH`), for a record that is removed and one that is added.
docs/guarantee.md, "What a later fit does".
"""

import argparse
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.signal import fftconvolve

WIDTH = 2e-3
Trial = tuple[float, int]  # noise multiplier, batch size


class Search:
    """What searches with these numbers cost."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.cost, self.all_of = functools.cache(self._cost), functools.cache(self._all_of)
        self.epsilon, self.found = functools.cache(self._epsilon), functools.cache(self._found)
        most = given.epsilon or max(self.epsilon(((given.noise, size),) * given.trials) for size in given.sizes)
        self.losses = np.arange(-round((most + 12) / WIDTH), round((most + 16) / WIDTH) + 1)

    def _cost(self, noise: float, size: int) -> Any:
        """The privacy loss distribution of one trial."""
        steps = self.given.epochs * math.ceil(self.given.records / size)
        if size == self.given.records:
            return pld.from_gaussian_mechanism(noise / math.sqrt(steps), value_discretization_interval=WIDTH)
        share = size / self.given.records
        one = pld.from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=WIDTH)
        return one.self_compose(steps)

    def _all_of(self, trials: tuple[Trial, ...]) -> Any:
        return self.cost(*trials[0]) if len(trials) == 1 else self.all_of(trials[:-1]).compose(self.cost(*trials[-1]))

    def _epsilon(self, trials: tuple[Trial, ...]) -> float:
        return float(self.all_of(trials).get_epsilon_for_delta(self.given.delta))

    def _found(self, made: tuple[Trial, ...], size: int) -> float:
        """The noise of the next trial."""
        if self.given.noise:
            return float(self.given.noise)
        target = self.given.epsilon * math.sqrt((len(made) + 1) / self.given.trials)
        return float(brentq(lambda z: self._epsilon((*made, (z, size))) - target, 0.4, 200.0, xtol=2e-4)) + 2e-4

    def delta(self, sizes: Sequence[int], relation: str) -> float:
        """The largest delta of a rule that chooses among these sizes, at the epsilon that the search states."""

        @functools.cache
        def value(made: tuple[Trial, ...]) -> Any:
            """By the loss so far, the delta that the rest leads to."""
            if len(made) == self.given.trials:
                stated = self.given.epsilon or self.epsilon(made)
                return np.maximum(0.0, -np.expm1(stated - self.losses * WIDTH))
            options = []
            for size in sizes:
                noise = self.found(made, size)
                then = value(tuple(sorted((*made, (noise, size)))) if self.given.noise else (*made, (noise, size)))
                options.append(self._expected(then, self.cost(noise, size), relation))
            return np.max(options, axis=0)

        return float(value(())[-self.losses[0]])

    def _expected(self, then: Any, cost: Any, relation: str) -> Any:
        """By the loss before a trial, the mean of what follows it; whatever has no finite loss counts as 1."""
        loss = getattr(cost, f"_pmf_{relation}").to_dense_pmf()
        lowest, chances = loss._lower_loss, loss._probs
        left, right = max(0, -lowest), max(0, lowest + len(chances))
        padded = np.pad(then, (left, right), mode="edge")
        first = left + lowest + len(chances) - 1
        return fftconvolve(padded, chances[::-1])[first : first + len(then)] + loss._infinity_mass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--epsilon", type=float, default=0.0)
    way.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 400])
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--delta", type=float, default=1e-5)
    given = parser.parse_args()
    search = Search(given)
    for name, sizes in [("worst rule", given.sizes), *((f"control, always {one}", [one]) for one in given.sizes)]:
        removed, added = (search.delta(sizes, relation) / given.delta for relation in ("remove", "add"))
        print(f"{name}: {removed:.2f} delta of a record removed, {added:.2f} of one added")


if __name__ == "__main__":
    main()
