"""Words and numbers of privacy statements."""

import math
import textwrap

__all__ = ["distribution", "owners_in_words", "rounded_up", "row", "rows_in_words"]

_WIDTH = 96


def row(label: str, text: str) -> str:
    """A labelled paragraph."""
    return textwrap.fill(text, _WIDTH, initial_indent=f"{label + ':':13}", subsequent_indent=" " * 13)


def rounded_up(value: float) -> str:
    """Four significant digits, never below the value: a statement may not say less than the truth."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    text = f"{value:.4g}"
    return text if float(text) >= value else f"{float(text) + unit:.4g}"


def rows_in_words(records_per_unit: int, views: int) -> str:
    """How many rows of each drawn one entered a step together, with {unit} for its word; empty for one."""
    parts = [f"with up to {records_per_unit} of its records"] if records_per_unit > 1 else []
    parts += [f"{views} times, once for each view"] if views > 1 else []
    each = ", each record " if len(parts) > 1 else ""
    if not parts:
        return ""
    return (
        f"each drawn {{unit}} entered {each.join(parts)}; the gradient of the mean of their losses was bounded as one"
        " contribution"
    )


def owners_in_words(records_per_owner: int, owner: str) -> str:
    """How many of the records one owner owns, with the word for it."""
    records = "record" if records_per_owner == 1 else "records"
    return f"no {owner} owns more than {records_per_owner} {records} of them, alone or with others"


def distribution(shape: float) -> str:
    """The name of the distribution of the number of trials."""
    named = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
    return named.get(shape, f"truncated negative binomial (shape {shape:g})")
