"""The pictures of docs/choosing.md and docs/tuning.md, of public arithmetic and of the runs kept there.

    python benchmarks/pictures.py

Prints the Markdown of each, with its alternative text. It draws; it trains nothing.
"""

from pathlib import Path

import numpy as np

from tfdp_layers import plots
from tfdp_layers.accounting import GroupNoise, Ledger, Release, Selection, epsilon
from tfdp_layers.plots.figures import Figure, described, drawn, framed, named
from tfdp_layers.sampling import Poisson

DOCS = Path(__file__).resolve().parent.parent / "docs"
STEP = Release((GroupNoise("all weights", 1.0, 2.0433),), Poisson(128), 1200)
MEANS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def spent(release, count) -> float:
    ledger = Ledger()
    ledger.reserve(ledger.begin(release), count)
    return float(epsilon(ledger, 1e-4))


def price() -> Figure:
    """What a search costs: the epsilon of the trial that costs 3 alone, times a random number of trials."""
    lines = {"every trial charged": (list(MEANS), [spent(STEP, 200 * round(mean)) for mean in MEANS])}
    for name, shape in {"logarithmic": 0.0, "geometric": 1.0, "Poisson": np.inf}.items():
        paid = [spent(Selection((((STEP, 200),),), mean, float(shape)), 1) for mean in MEANS]
        lines[f"best one shown, {name}"] = (list(MEANS), paid)
    figure, (axes,) = framed()
    drawn(axes, lines)
    axes.set_xscale("log")
    axes.set_xticks(MEANS, [f"{mean:g}" for mean in MEANS])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    named(axes, "trials, on average", "epsilon at delta 1e-4", "What a search over trainings of epsilon 3 costs")
    ends = "; ".join(f"{name}: {y[3]:.3g} for 10 trials, {y[-1]:.3g} for 50" for name, (_, y) in lines.items())
    return described(figure, f"Line chart of epsilon against the mean number of trials. {ends}.")


PICTURES = {
    "noise.png": lambda: plots.noise([Poisson(256), Poisson(1024), Poisson(4096)], 60_000, 40),
    "tuning.png": price,
}


def main() -> None:
    for name, draw in PICTURES.items():
        print(f"![{plots.save(draw(), DOCS / name)}]({name})")


if __name__ == "__main__":
    main()
