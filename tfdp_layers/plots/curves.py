"""Lines: epsilon along a training; accuracy, noise and delta against epsilon; what a plan compares."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp_layers.accounting import RunPlan, privacy_profile
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.calibration import estimated_noise_multiplier
from tfdp_layers.accounting.logs import is_unprotected, metric_of
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.plots.figures import Figure, described, drawn, framed, named
from tfdp_layers.plots.sources import Points, by_name, epsilon_points, history_of, ledger_of, scalars_of
from tfdp_layers.sampling import Sampling

__all__ = ["accuracy", "epsilon", "noise", "plan", "profile"]


_FEW = 6


def epsilon(*sources: Any, delta: float | None = None, budget: float | None = None, **named_sources: Any) -> Figure:
    """Draws epsilon against steps (of a History against epochs), a line for each source.

    Args:
        sources: Ledgers, private models, Histories of a fit with a `PrivacyBudget`, or folders of logs.
        delta: for ledgers; 1e-5 if left out. Histories and logs hold epsilon at the delta they were made with.
        budget: draws a line that epsilon was to keep below.
        named_sources: the same, under names of your own.

    Raises: ValueError for a source that does not tell epsilon, and for sources by steps beside sources by epochs.
    """
    given = by_name(sources, named_sources, "run")
    found = {name: epsilon_points(one, delta) for name, one in given.items()}
    axis = {unit for _, unit in found.values()}
    if len(axis) > 1:
        raise ValueError("Histories count epochs and the others steps: draw them apart, or give ledgers for all.")
    lines = {name: points for name, (points, _) in found.items()}
    figure, (axes,) = framed()
    drawn(axes, lines)
    if budget is not None:
        axes.axhline(budget, color="#1a1a1a", linewidth=1.2, linestyle=(0, (2, 2)))
        axes.annotate(
            f"budget {rounded_up(budget, 6)}", (0.02, budget), (0, 4), ("axes fraction", "data"), "offset points"
        )
    (unit,) = axis
    at = f" (delta {rounded_up(delta or 1e-5, 6)})" if unit == "step" and any(map(ledger_of, given.values())) else ""
    named(axes, f"{unit}s", "epsilon", f"Privacy spent{at}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    ends = "; ".join(f"{name}: {rounded_up(y[-1], 3)} after {x[-1]:.0f} {unit}s" for name, (x, y) in lines.items())
    limit = "" if budget is None else f" A line marks the budget, {rounded_up(budget, 6)}."
    return described(figure, f"Line chart of epsilon against {unit}s. {ends}.{limit}")


def accuracy(
    *sources: Any, metric: str = "val_accuracy", baseline: float | None = None, **named_sources: Any
) -> Figure:
    """Draws a metric against epsilon, a line for each source.

    Args:
        sources: pairs (epsilons, values) of finished trainings, in any order; or, of one training, a History of a fit
            with a `PrivacyBudget` and validation data, or a folder of `PrivacyTensorBoard`. Values may be lists of
            repeated runs: then their means are drawn, and bars from the least to the largest.
        metric: of a History; in a folder `validation/NAME` of `val_NAME`. One of the training data carries no noise,
            and no epsilon covers it: the picture says so. A History knows what its numbers are of; in a mapping, as
            `history.history` is, `val_...` stands for public validation data by your word.
        baseline: the same without privacy; draws a line.
        named_sources: the same, under names of your own.

    Raises: ValueError for a source that does not tell both.
    """
    found = {n: _pairs(one, metric) for n, one in by_name(sources, named_sources, "training").items()}
    figure, (axes,) = framed()
    drawn(axes, {name: (x, [float(np.mean(v)) for v in y]) for name, (x, y) in found.items()})
    for line, (x, y) in zip(list(axes.lines), found.values(), strict=True):
        if any(len(v) > 1 for v in y):
            axes.vlines(x, [min(v) for v in y], [max(v) for v in y], color=line.get_color(), linewidth=1.2)
    what, noted = metric_of(metric).replace("_", " "), ""
    given = (*sources, *named_sources.values())
    if any(history_of(one) and is_unprotected(one, metric) for one in given):
        noted = ", of the training data: without noise, not to be published"
    if baseline is not None:
        axes.axhline(baseline, color="#1a1a1a", linewidth=1.2, linestyle=(0, (2, 2)))
        axes.margins(y=0.12)
        axes.annotate("without privacy", (0.02, baseline), (0, 4), ("axes fraction", "data"), "offset points")
    everything = [value for x, _ in found.values() for value in x]
    if min(everything) > 0 and max(everything) >= 8 * min(everything):
        axes.set_xscale("log")
        _plain_ticks(axes, everything)
    named(axes, "epsilon", what, f"{what.capitalize()} against epsilon{noted}")
    ends = "; ".join(f"{n}: {np.mean(y[-1]):.3g} at epsilon {rounded_up(x[-1], 3)}" for n, (x, y) in found.items())
    return described(figure, f"Line chart of {what} against epsilon{noted}. {ends}.")


def _pairs(source: Any, metric: str) -> tuple[list[float], list[list[float]]]:
    """Epsilons, ascending, and values at each."""
    if isinstance(source, tuple | list) and len(source) == 2:
        try:
            x = [float(value) for value in source[0]]
            y = [[float(v) for v in np.ravel(value)] for value in source[1]]
        except (TypeError, ValueError):
            x, y = [], []
        if not x or len(x) != len(y) or not all(y):
            raise ValueError(f"A pair is (epsilons, values), as many of the one as of the other. Received: {source!r}.")
        order = sorted(range(len(x)), key=x.__getitem__)
        return [x[n] for n in order], [y[n] for n in order]
    logs = history_of(source)
    if logs is None and not hasattr(source, "ledger"):
        tags = scalars_of(source) if isinstance(source, str) or hasattr(source, "__fspath__") else {}
        spent, values = (dict(zip(*tags.get(t, ([], [])), strict=True)) for t in _tags(metric))
        logs = {"epsilon": [], metric: []}
        for step in sorted(set(spent) & set(values)):
            logs["epsilon"].append(spent[step])
            logs[metric].append(values[step])
    if not logs or not logs.get("epsilon") or not logs.get(metric):
        held = "" if logs is None else f" It holds {sorted(name for name, values in logs.items() if values)}."
        raise ValueError(
            f"Accuracy against epsilon needs epsilon and {metric!r}: a History of a fit with a PrivacyBudget and"
            f" validation_data, a folder of PrivacyTensorBoard, or a pair (epsilons, values).{held}"
        )
    return logs["epsilon"], [[value] for value in logs[metric]]


def _tags(metric: str) -> tuple[str, str]:
    return "privacy/epsilon", f"validation/{metric_of(metric)}"


def noise(
    sampling: Sampling | Sequence[Sampling],
    examples: int,
    epochs: int,
    delta: float = 1e-5,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0),
) -> Figure:
    """Draws the noise multiplier that each epsilon needs (to about 1%), a line for each sampler.

    Args:
        sampling: one or several of `tfdp.sampling`.
        examples: the declared, public number of records.
        epochs: of the training.
        delta: of the budget.
        epsilons: of the budgets that are compared.

    Raises: ValueError for arguments out of range.
    """
    samplers = (
        [sampling] if isinstance(sampling, Sampling) else list(sampling) if isinstance(sampling, Sequence) else []
    )
    if not samplers or not all(isinstance(one, Sampling) for one in samplers):
        raise ValueError(f"sampling is one or several of tfdp.sampling, such as Poisson(256). Received: {sampling!r}.")
    if isinstance(epochs, bool) or not isinstance(epochs, int | np.integer) or epochs < 1:
        raise ValueError(f"epochs must be a whole number of at least 1. Received: {epochs!r}.")
    targets = sorted(float(value) for value in epsilons)
    lines: dict[str, Points] = {}
    for one in samplers:
        steps = epochs * one.steps_per_epoch(examples)
        needed = [estimated_noise_multiplier(value, delta, one, examples, steps) for value in targets]
        lines[f"{one.kind}, batches of {one.batch_size:,}"] = (targets, needed)
    figure, (axes,) = framed()
    drawn(axes, lines, always_named=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes, targets)
    _plain_ticks(axes, [value for _, y in lines.values() for value in y], vertical=True)
    title = f"Noise that a budget needs: {examples:,} records, {epochs} epochs, delta {rounded_up(delta, 6)}"
    named(axes, "epsilon", "noise multiplier", title)
    ends = "; ".join(
        f"{n}: {rounded_up(y[0], 3)} at epsilon {rounded_up(x[0], 6)}, {rounded_up(y[-1], 3)} at {rounded_up(x[-1], 6)}"
        for n, (x, y) in lines.items()
    )
    return described(figure, f"Line chart of the noise multiplier against epsilon, both logarithmic. {ends}.")


def profile(*sources: Any, delta: float | None = None, **named_sources: Any) -> Figure:
    """Draws the privacy profile: the delta that everything in a ledger proves at each epsilon.

    Args:
        sources: Ledgers, private models, or files of ledgers.
        delta: marks this one, and the epsilon beside it.
        named_sources: the same, under names of your own.

    Raises: ValueError for another source, or a ledger of which nothing can be proved.
    """
    lines: dict[str, Points] = {}
    for name, source in by_name(sources, named_sources, "ledger").items():
        ledger = ledger_of(source)
        if ledger is None:
            raise ValueError(f"A privacy profile is drawn of a Ledger or a private model. Received: {source!r}.")
        x, y = privacy_profile(ledger)
        shown = y > 1e-12
        if not shown.any():
            raise ValueError("Nothing is proved of this ledger: it is empty, or something was released without noise.")
        lines[name] = ([float(value) for value in x[shown]], [float(value) for value in y[shown]])
    figure, (axes,) = framed()
    drawn(axes, lines)
    axes.set_yscale("log")
    marked = ""
    if delta is not None:
        axes.axhline(check_delta(delta), color="#1a1a1a", linewidth=1.2, linestyle=(0, (2, 2)))
        axes.annotate(
            f"delta {rounded_up(delta, 6)}",
            (0.98, delta),
            (0, 4),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
        )
        marked = f" A line marks delta {rounded_up(delta, 6)}."
    named(axes, "epsilon", "delta", "Privacy profile: each point is a guarantee")
    axes.set_xlim(left=0)
    ends = "; ".join(
        f"{name}: down to delta {rounded_up(min(y), 2)} at epsilon {rounded_up(max(x), 3)}"
        for name, (x, y) in lines.items()
    )
    return described(figure, f"Line chart of delta, logarithmic, against epsilon. {ends}.{marked}")


def plan(found: RunPlan) -> Figure:
    """Draws what `tfdp.plan` returned: how far gradients can stand out of the noise, a line for each batch size.

    Raises: ValueError for anything else.
    """
    if not isinstance(found, RunPlan):
        raise ValueError(f"A plan is what tfdp.plan returns. Received: {found!r}.")
    lines: dict[str, Points] = {}
    for run in sorted(found.runs, key=lambda one: (one.batch_size, one.epochs)):
        x, y = lines.setdefault(f"batch size {run.batch_size:,}", ([], []))
        x.append(float(run.epochs))
        y.append(run.share)
    figure, (axes,) = framed()
    drawn(axes, lines, always_named=True)
    axes.set_xscale("log")
    _plain_ticks(axes, [float(run.epochs) for run in found.runs])
    title = f"{found.examples:,} records, epsilon {rounded_up(found.epsilon, 6)} at delta {rounded_up(found.delta, 6)}"
    named(axes, "epochs", "signal, of the most that the budget buys", title)
    ends = "; ".join(f"{name}: {y[-1]:.2g} at {x[-1]:g} epochs" for name, (x, y) in lines.items())
    best = f"Start from batches of {found.recommended.batch_size:,} and {found.recommended.epochs} epochs."
    return described(figure, f"Line chart of the signal against epochs. {ends}. {best}")


def _plain_ticks(axes: Any, values: Sequence[float], vertical: bool = False) -> None:
    """Ticks of a logarithmic axis as plain numbers: the values, if few; else 1, 2 and 5 times a power of ten."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if 0.8 * low <= m * 10.0**p <= 1.25 * high]
    labels = [f"{tick:g}" for tick in ticks]
    if len(set(values)) <= _FEW and not vertical:
        ticks = sorted(set(values))
        labels = [rounded_up(tick, 6) for tick in ticks]  # they may be epsilons, of any digits
    axis = axes.yaxis if vertical else axes.xaxis
    axis.set_ticks(ticks, labels)
    axis.set_ticks([], minor=True)
