"""Functions in which records meet, or places or the number of records count: none may be proved.

Each takes records (batch, 6) and gives a row for each. `SUMS` are of what is released instead: sums that are not
additive though every row may be.
"""

from helpers.proof.mixing import (
    adding,
    aimed,
    attempts,
    counting,
    crossing,
    decoding,
    drawing,
    holding,
    indexing,
    listing,
    looping,
    moving,
    narrowing,
    numbers,
    orders,
    outside,
    ranks,
    reserving,
    sorting,
    texts,
    timing,
    tricks,
)
from helpers.proof.mixing.base import ROWS, SUMS

__all__ = ["ROWS", "SUMS"]
KINDS = (
    adding,
    aimed,
    attempts,
    counting,
    crossing,
    decoding,
    drawing,
    holding,
    indexing,
    listing,
    looping,
    moving,
    narrowing,
    numbers,
    orders,
    outside,
    ranks,
    reserving,
    sorting,
    texts,
    timing,
    tricks,
)
"""Importing them registers their functions."""
