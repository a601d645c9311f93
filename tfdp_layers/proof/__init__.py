"""Proves from a traced graph that records do not meet: that what is released is a sum over records, each by itself.

`prove_sums` for a private model, `prove` for any traced function, `prove_rows` for layers. A rule for each operation
says how its result depends on the records; an operation without one is refused as unknown.
"""

from tfdp_layers.proof import (
    arrays,
    control,
    convolutions,
    decoding,
    elementwise,
    gathering,
    inner,
    joins,
    lists,
    products,
    randomness,
    reductions,
    reshaping,
    samplers,
    shapes,
    slicing,
    state,
    texts,
)
from tfdp_layers.proof.models import prove_sums
from tfdp_layers.proof.proving import prove, prove_rows
from tfdp_layers.proof.report import Finding, Report

__all__ = ["Finding", "Report", "prove", "prove_rows", "prove_sums"]

FAMILIES = (
    arrays,
    control,
    convolutions,
    decoding,
    elementwise,
    gathering,
    inner,
    joins,
    lists,
    products,
    randomness,
    reductions,
    reshaping,
    samplers,
    shapes,
    slicing,
    state,
    texts,
)
"""Importing them registers their rules, and how they compute with known integers."""
