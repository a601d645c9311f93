"""Words and numbers of privacy statements."""

import datetime
import importlib.metadata
import math
import re
import textwrap

from tfdp_layers._version import __version__

__all__ = [
    *("AS_SO_MANY", "BEGINNING", "BROKEN_OFF", "UNNAMED", "cost_text", "dataset_text", "distribution", "given_text"),
    *("meaning", "never_below", "owners_in_words", "rounded_down", "rounded_up", "row", "rows_in_words", "stated_by"),
    "times",
]

UNNAMED = (
    "not named: this ledger counts one model's trainings, and what else was released of the same records it does not"
    " know (a data set's does: Ledger(path, dataset='name'))"
)
"""In the place of the data set, where the ledger is that of a run."""

AS_SO_MANY = (
    "is protected less than will be stated: of k such records epsilon is mostly more than k times as large (tfdp"
    " epsilon ... --records-per-owner k computes it)."
)
"""What a person of several records is told of a guarantee for one."""

BEGINNING = "A training ended by an error out of a step, or of the drawing of its records,"
"""What begins a note about it."""

BROKEN_OFF = (
    BEGINNING
    + " among those that this ledger counts: how far it got may depend on what a record holds (one that cannot"
    " be read, or looked up), and that is not covered. Unless the error had nothing to do with the records, do not"
    " publish how many steps there were."
)
"""What statements of a ledger say where that training was another model's, or is over for long."""

_WIDTH = 96


def row(label: str, text: str) -> str:
    """A labelled paragraph."""
    return textwrap.fill(text, _WIDTH, initial_indent=f"{label + ':':13}", subsequent_indent=" " * 13)


def times(count: int) -> str:
    """How often, in words."""
    return "once" if count == 1 else f"{count} times"


def rounded_up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value: nobody may be told of less than the truth."""
    return never_below(float(value), f".{digits}g")


def rounded_down(value: float, digits: int = 4) -> str:
    """So many significant digits, never above the value: of what an attack proved, nobody may be told of more."""
    return never_below(-float(value), f".{digits}g").removeprefix("-")


def never_below(value: float, form: str) -> str:
    """The number by a format specification, never below the value: what rounds down comes out one higher.

    The digits alone are compared: what fills a width may itself be a digit, or a sign.
    """
    text, more, digits = format(value, form), 0.0, _digits_of(form)
    while math.isfinite(value) and _number_in(format(value + more, digits)) < value:
        more = max(2.0 * more, math.ulp(value))
        text = format(value + more, form)
    return text


def cost_text(epsilon: float, delta: float, digits: int = 4) -> str:
    """Both numbers as a statement of them prints them: never below the truth."""
    return f"epsilon = {rounded_up(epsilon, digits)} at delta = {rounded_up(delta, 6)}"


def given_text(epsilon: float, delta: float) -> str:
    """Both numbers of a budget as errors name it, to six digits: never below what was given."""
    return f"epsilon={rounded_up(epsilon, 6)} at delta={rounded_up(delta, 6)}"


_SPECIFICATION = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?\d*[,_]?(?P<precision>\.\d+)?[,_]?(?P<kind>[a-zA-Z%]?)", re.DOTALL)
"""A format specification of numbers: fill and align, sign, width, groups of digits, and what decides the digits."""


def _digits_of(form: str) -> str:
    """The specification of the digits alone, without fill, width, groups or a language's own signs."""
    parts = _SPECIFICATION.fullmatch(form)
    return "" if parts is None else (parts["precision"] or "") + parts["kind"].replace("n", "g")


def _number_in(text: str) -> float:
    return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)


_MEANS_LITTLE = 20.0
"""Epsilons whose factor, above 4e8, turns near certainty that somebody is not in the data into its opposite."""


def meaning(epsilon: float, delta: float, unit: str = "record", most: int = 0) -> str:
    """What the two numbers promise.

    Args:
        most: how many units the largest release was of; 0 where their number says nothing about delta, which is left
            out then. Where releases are of different ones there are more.
    """
    if not math.isfinite(epsilon):
        return "no bound on what the output reveals about a record"
    ratio = rounded_up(math.exp(epsilon)) if epsilon < 700 else "more than 1e+304"
    text = (
        f"whatever is observed of the covered output, its probability under two neighbouring data sets differs by at"
        f" most a factor e^epsilon = {ratio}, up to an additional delta = {rounded_up(delta, 6)}"
    )
    if epsilon > _MEANS_LITTLE:
        text += ". So large a factor is next to no protection: choose an epsilon of 10 or less"
    if most:
        chance = rounded_up(100.0 * min(1.0, most * delta) * (1.0 - 1e-12))  # 60, not 60.01, of 60000 times 1e-5
        text += (
            f". Delta is at worst as if each {unit}'s data were shown outright with that probability: those of any of"
            f" the {most} {unit}s of one release with {chance}% at most"
        )
    return text


def dataset_text(dataset: str, budget: tuple[float, float] | None, copied: bool = False) -> str:
    """Whose ledger it is that is stated, and to what it keeps. `copied`: by a copy, which knows nothing of later."""
    kept = f"; its budget is {cost_text(*budget, digits=6)}" if budget else ""
    until = ", as of when this copy of it was made" if copied else ""
    return f"{dataset!r}: all that was charged to its ledger, over all models, runs and released metrics{until}{kept}"


def stated_by() -> str:
    """The day, and the versions that a statement was made with."""
    accountants = importlib.metadata.version("dp-accounting")
    return f"{datetime.date.today()}, by tfdp-layers {__version__} with dp-accounting {accountants}"


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


def with_article(noun: str) -> str:
    """ "a patient", "an owner"."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def distribution(shape: float) -> str:
    """The name of the distribution of the number of trials."""
    named = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
    return named.get(shape, f"truncated negative binomial (shape {shape:g})")
