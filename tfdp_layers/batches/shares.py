"""How the share of a class, which warnings advise to pay for, is released before a `fit` that got these arguments."""

from collections.abc import Mapping
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.sampling import Sampling

__all__ = ["share_of"]

_POISSON = " (and then train by Poisson sampling: one ledger counts under one neighbouring relation)"


def share_of(
    y: Any = None,
    *,
    unit: str = "record",
    records_per_owner: int = 1,
    examples: int | None = None,
    sampling: Sampling | None = None,
) -> str:
    """The call of `tfdp.release_metric`, as the caller of `fit` would write it, for the records of label 1.

    It runs as it stands where the caller's names are those of `fit`'s arguments, before that `fit`, which then goes on
    with the same ledger: ids or owners are given to both. Of samplings of another neighbouring relation, which no
    release before a `fit` has, it says so. Of labels of several outputs it leaves open which ones are meant.

    Args:
        y: the labels as `fit` got them.
        unit, records_per_owner: as of `tfdp.PrivateBatches`.
        examples: the declared number of records, or of units; None where nobody declared one.
        sampling: of the `fit`.
    """
    whose = {"unit": ", unit_ids=unit_ids", "owner": f", owners=owners, records_per_owner={records_per_owner}"}
    declared = "" if examples is None else f", examples={examples}"
    other = sampling is not None and sampling.relation is not NeighboringRelation.ADD_OR_REMOVE_ONE
    return (
        f"tfdp.release_metric({_column(y)} == 1, model.ledger, stddev=0.01{declared}{whose.get(unit, '')})"
        f"{_POISSON if other else ''}"
    )


def _column(y: Any) -> str:
    """One number a record: the labels themselves, the only column of a table of them, or the second of one-hot rows."""
    if isinstance(y, Mapping | tuple | list):
        return "labels"
    shape: Any = getattr(y, "shape", ())
    place = "" if len(shape) < 2 else f"[:, {min(1, shape[1] - 1)}]"
    return f"y.iloc{place}" if place and hasattr(y, "iloc") else f"y{place}"
