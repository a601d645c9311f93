"""The arrays that a record of a source is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["leaves_of", "stacked", "triple"]


class Typed(Protocol):
    """What is known of an array of each record: a `Field`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


def stacked(records: Sequence[Any], fields: Sequence[Typed]) -> list[np.ndarray]:
    """Those of all records, (records, ...) each but for weights, to look at; none where a record cannot be drawn.

    Many times faster than reading them one by one, with all that is checked there.
    """
    found = [*zip(*(leaves_of(triple(one)[:2]) for one in records), strict=True)]
    made = [np.stack(column).astype(field.dtype, copy=False) for column, field in zip(found, fields, strict=False)]
    alike = all(one.shape[1:] == field.shape for one, field in zip(made, fields, strict=False))
    finite = all(np.isfinite(one).all() for one in made if one.dtype.kind == "f")
    return made if alike and finite and len(made) == len(fields) - 1 else []


def triple(record: Any) -> tuple[Any, Any, Any]:
    """x, y and the weight of a record, None where it has none."""
    if isinstance(record, tuple) and len(record) in (2, 3):
        x, y, weight = (*record, None)[:3]
        return x, y, weight[0] if np.shape(weight) == (1,) else weight  # a column of weights, as Keras takes it
    if isinstance(record, tuple):
        raise ValueError(
            f"A record must be (x, y), (x, y, sample_weight), or x alone. Received a tuple of {len(record)}: put the"
            " inputs into one dict or tuple, for instance by tfdp.records(source, transform)."
        )
    return record, None, None


def leaves_of(structure: Any) -> list[Any]:
    """The arrays of a record. A list is one: of numbers."""
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in leaves_of(structure[key])]
    if isinstance(structure, tuple):
        return [leaf for part in structure for leaf in leaves_of(part)]
    return [] if structure is None else [structure]
