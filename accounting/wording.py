"""Words and numbers of privacy statements."""

import math
import textwrap

__all__ = ["distribution", "groupings_in_words", "owners_in_words", "rounded_up", "row", "rows_in_words"]

_WIDTH = 96


def row(label: str, text: str) -> str:
    """A labelled paragraph."""
    return textwrap.fill(text, _WIDTH, initial_indent=f"{label + ':':13}", subsequent_indent=" " * 13)


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value: nobody may be told of less than the truth."""
    value = float(value)
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    text = f"{value:.{digits}g}"
    return text if float(text) >= value else f"{float(text) + unit:.{digits}g}"


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


def groupings_in_words(differ: str, unit: str) -> list[str]:
    """What a statement says where trainings may have been given other units; `differ` is that of `grouping.differing`.

    Nothing where they were given the same.
    """
    if differ == "surely":
        return [
            f"WARNING: what was released here was given different groupings of records into {unit}s. One epsilon over"
            f" all of it holds for a {unit} only if its id, or name, means the same {unit} in each of them: where each"
            f" time other records of the same {unit}s were trained on, say. Were patients meant in one and hospitals in"
            " another, it holds for neither: use a ledger, and a model, for each."
        ]
    if differ == "perhaps":
        return [
            f"Which records belong to one {unit} was given several times, in different programs or by an older version,"
            f" so whether it was the same each time cannot be told: the epsilon holds for a {unit} whose id, or name,"
            " means the same one in all of them."
        ]
    return []


def distribution(shape: float) -> str:
    """The name of the distribution of the number of trials."""
    named = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
    return named.get(shape, f"truncated negative binomial (shape {shape:g})")
