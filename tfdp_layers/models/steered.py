"""What is said of decisions by private numbers, of weights that something else than a step changed, and of errors."""

from tfdp_layers.accounting.wording import BEGINNING
from tfdp_layers.caller import warn

__all__ = ["BROKEN_OFF", "CHANGED", "RAN_OUT", "STEERED", "STOPPED", "warn_of_steering"]

BROKEN_OFF = BEGINNING + (
    " after {made} of its {planned} steps: whether, and when, may depend on what a record holds (one that cannot be"
    " read, or looked up), and that is not covered. Unless the error had nothing to do with the records, publish"
    " neither this number of steps nor what the training left: train anew without such an error, from weights of"
    " before."
)
"""Of a training that may tell of a record by how far it got."""

RAN_OUT = (
    "The data of a training ran out after {made} of its {planned} steps. Where the number of batches depends on what"
    " records hold (take_while, a filter of batches), that is not covered; where it is public, nothing is lost."
)
"""Of a pipeline that declares more than it gives."""

STOPPED = (
    "A training was ended after {made} of its {planned} planned steps, by a callback, its own loop or an error. Where"
    " released weights decided that (by public validation data, say), epsilon is that of {made} steps, taken by"
    " themselves: what covers when it ended, too, is the epsilon of all {planned}, or of as many of them as its budget"
    " affords, at the same delta. Where counts or the clock decided, nothing is lost."
)
"""Of a training that may be as long as its releases had it be; benchmarks/stopped_by_releases.py measures it."""

CHANGED = (
    "Averages and copies of what this model released cost nothing more, and copies of what another training ended with"
    " are counted; what it took from records, as fit of another model that shares these layers does, is not in this"
    " statement."
)
"""What follows of weights that were changed between two steps."""

STEERED = (
    "If that depended on what it read, the released weights are chosen by numbers of the private data without noise,"
    " and the guarantee does not cover it."
)
"""What follows of a decision by a private number."""


def warn_of_steering(sentence: str) -> None:
    """Warns that a callback may have decided by private numbers, after the sentence that says which."""
    warn(
        f"{sentence} {STEERED} Decide by public validation data (val_...) or by 'epsilon'. Where it only shows the"
        " numbers, and decides by the epoch, say, make two callbacks of it. The model's statement says so, too.",
    )
