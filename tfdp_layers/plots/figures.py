"""How all pictures look, and their alternative texts."""

import os
from collections.abc import Iterator
from typing import Any

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "tfdp.plots draws with matplotlib, which is not installed: pip install '.[plots]' in the checkout, or pip"
        " install matplotlib."
    ) from error

from tfdp_layers.accounting.plain_files import refuse_no_path

__all__ = ["Figure", "alt_text", "described", "drawn", "framed", "named", "save", "styles"]

_COLOURS = ("#0b3c6f", "#c8501e", "#3c8c5a", "#8a5ba6", "#b8860b", "#5a5a5a")
"""Dark blue, orange, green, violet, gold, grey: told apart by people who see fewer colours; of unlike lightness."""
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
_MARKERS = "osD^vP"
_INK = "#1a1a1a"


def framed(width: float = 6.4, height: float = 4.0, columns: int = 1) -> tuple[Figure, list[Any]]:
    """A white figure with axes side by side."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    found = figure.subplots(1, columns, squeeze=False)[0]
    for axes in found:
        axes.grid(True, color="#d9d9d9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_INK, labelsize=10)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
    return figure, list(found)


def named(axes: Any, x: str, y: str, title: str) -> None:
    """Says what is on the axes; the title stands above the labels of the left axis, too."""
    axes.set_xlabel(x, color=_INK, fontsize=11)
    axes.set_ylabel(y, color=_INK, fontsize=11)
    axes.figure.suptitle(title, color=_INK, fontsize=11, x=0.01, ha="left")


def styles() -> Iterator[dict[str, Any]]:
    """Of one line after the other: colour, dash and marker, none of which comes back before all were used."""
    number = 0
    while True:
        one = number % len(_COLOURS)
        turn = number // len(_COLOURS)
        yield {
            "color": _COLOURS[one],
            "linestyle": _DASHES[(one + turn) % len(_DASHES)],
            "marker": _MARKERS[(one + turn) % len(_MARKERS)],
            "markersize": 4.5,
            "linewidth": 1.8,
        }
        number += 1


def drawn(axes: Any, lines: dict[str, tuple[list[float], list[float]]], always_named: bool = False) -> None:
    """Draws lines by their names; a legend where there are several."""
    for (name, (x, y)), style in zip(lines.items(), styles(), strict=False):
        axes.plot(x, y, label=name, markevery=max(1, len(x) // 12), **style)
    if len(lines) > 1 or always_named:
        axes.legend(frameon=True, facecolor="white", edgecolor="#d9d9d9", fontsize=9.5, labelcolor=_INK)


def described(figure: Figure, text: str) -> Figure:
    """The figure, with an alternative text: for who cannot see it."""
    vars(figure)["_tfdp_alt_text"] = " ".join(text.split())
    return figure


def alt_text(figure: Figure) -> str:
    """What a figure of this module shows, in words. Raises ValueError for another figure."""
    text = getattr(figure, "_tfdp_alt_text", None)
    if text is None:
        raise ValueError(f"Only figures of tfdp.plots have a text of their own. Received: {figure!r}.")
    return str(text)


def save(figure: Figure, path: str | os.PathLike[str]) -> str:
    """Writes a figure to a file (png, svg, pdf), its alternative text in the file's metadata; returns the text.

    Raises:
        ValueError: another figure than those of this module, or a file type that matplotlib does not write.
        OSError: the file cannot be written.
    """
    refuse_no_path(path, "The path of a picture", "epsilon.png")
    text, kind = alt_text(figure), os.path.splitext(os.fspath(path))[1].lower()
    key = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}.get(kind)
    figure.savefig(path, metadata=None if key is None else {key: text})
    return text
