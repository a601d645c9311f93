"""Bars: bounds and noise of each group of weights, and what audits found."""

from typing import Any

from tfdp_layers.accounting.stated_releases import StatedRelease
from tfdp_layers.accounting.wording import rounded_down, rounded_up
from tfdp_layers.audit.report import Audit
from tfdp_layers.plots.figures import Figure, described, framed, named
from tfdp_layers.plots.sources import by_name, statement_of

__all__ = ["audit", "groups"]

_DARK, _LIGHT = "#0b3c6f", "#e3a184"
_LONGEST = 34
_MOST_GROUPS = 30


def groups(source: Any, delta: float | None = None) -> Figure:
    """Draws, for each group of weights, the bound on what one record adds to a step's sum, and the noise on that sum.

    Of the release with most steps, where there are several.

    Args:
        source: a Statement, a Ledger, or a private model.
        delta: for ledgers; any, as it does not change the picture.

    Raises: ValueError for another source, or one without steps.
    """
    steps = [one for one in statement_of(source, delta).releases if isinstance(one, StatedRelease)]
    if not steps:
        raise ValueError("Nothing to draw: no step was released, so there are no groups of weights.")
    release = max(steps, key=lambda one: one.steps)
    shown = release.groups[:_MOST_GROUPS]
    figure, (axes,) = framed(height=1.9 + 0.45 * len(shown))
    rows = range(len(shown))
    bars = {"noise (standard deviation)": 2, "bound on one record": 1}
    for shift, (label, field) in zip((0.2, -0.2), bars.items(), strict=True):
        values = [group[field] for group in shown]
        drawn = axes.barh(
            [row + shift for row in rows],
            values,
            0.38,
            label=label,
            color=_LIGHT if field == 2 else _DARK,
            edgecolor="#1a1a1a",
            hatch="///" if field == 2 else None,
            linewidth=0.6,
        )
        axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3, fontsize=9)
    axes.set_yticks(list(rows), [_short(name) for name, _, _ in shown])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(False, axis="y")
    left_out = "" if len(shown) == len(release.groups) else f" (first {len(shown)} of {len(release.groups)} groups)"
    named(axes, "loss per unit of weight", "", f"What one record adds to a sum, and the noise on it{left_out}")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2, fontsize=9.5, frameon=False)
    text = "; ".join(f"{name}: bound {bound:.3g}, noise {stddev:.3g}" for name, bound, stddev in shown)
    return described(figure, f"Bar chart of bounds and noise for each group of weights. {text}.")


def audit(*audits: Audit, **named_audits: Audit) -> Figure:
    """Draws, for each audit, the epsilon claimed and the one that the attack refutes.

    Args:
        audits: what `tfdp.audit` returned.
        named_audits: the same, under names of your own.

    Raises: ValueError for anything else.
    """
    found = by_name(audits, named_audits, "audit")
    wrong = next((one for one in found.values() if not isinstance(one, Audit)), None)
    if wrong is not None:
        raise ValueError(f"An audit is what tfdp.audit returns (model.audit, audit_training). Received: {wrong!r}.")
    figure, (axes,) = framed(height=1.7 + 0.55 * len(found))
    for row, one in enumerate(found.values()):
        lower, claimed = one.audited_epsilon_lower, one.claimed_epsilon
        axes.plot([lower, claimed], [row, row], color="#8c8c8c", linewidth=2, zorder=1)
        axes.plot(lower, row, "<" if one.refuted else ">", color="#c8501e", markersize=9, zorder=2)
        axes.plot(claimed, row, "|", color=_DARK, markersize=18, markeredgewidth=3, zorder=2)
        verdict = ", which is false" if one.refuted else ""
        claims, refutes = f"claims {rounded_up(claimed, 3)}{verdict}", f"refutes {rounded_down(lower, 3)}"
        texts = ((refutes, lower, 10), (claims, claimed, -18))
        for text, x, shift in texts:
            axes.annotate(text, (x, row), (0, shift), "data", "offset points", ha="center", fontsize=9.5)
    axes.set_yticks(list(range(len(found))), [_short(name) for name in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.margins(x=0.15)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.grid(False, axis="y")
    named(axes, "epsilon", "", "What is claimed, and what the attack refutes")
    told = "; ".join(
        f"{name}: claims {rounded_up(one.claimed_epsilon, 3)}, the attack refutes"
        f" {rounded_down(one.audited_epsilon_lower, 3)}" + (", so the claim is false" if one.refuted else "")
        for name, one in found.items()
    )
    return described(figure, f"Chart of audits. {told}.")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
