"""Whether ids are rows of the tables that look them up, said before anything is spent."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from tfdp_layers.batches.records import chunks
from tfdp_layers.certificates.lookups import Lookup, lookups
from tfdp_layers.structure import functional_class, inputs_of


def check_ids(model: keras.Model, x: Any) -> None:
    """Raises ValueError where an input holds ids beyond the table of an embedding that looks it up.

    A step would end at such a record, after it was paid for, with an error that shows the id. The message says how many
    rows there are, nothing of the records; that it is raised at all is not covered by the guarantee.

    Args:
        x: the records' arrays, in the structure that `fit` got.
    """
    if not model.built or not isinstance(model, keras.Sequential | functional_class()):
        return
    for name, array, found in _looked_up(model, x):
        direct = [one for one in found if one.direct]
        if not direct:
            continue
        least = min(direct, key=lambda one: one.rows)
        if any(chunk.size and (chunk.min() <= -1 or chunk.max() >= least.rows) for chunk in chunks(array)):
            raise ValueError(
                f"{name} holds ids outside of 0..{least.rows - 1}, and layer {least.layer!r} looks them up in a table"
                f" of {least.rows:,} rows. Give the layer as many rows (input_dim) as there are ids, or keep one for"
                f" unknown ids: numpy.where(({name} >= 0) & ({name} < {least.rows}), {name}, 0)."
            )


def _looked_up(model: keras.Model, x: Any) -> Iterator[tuple[str, np.ndarray, list[Lookup]]]:
    """Each input's name, as the caller would write it, its array, and what looks it up."""
    structure, found = inputs_of(model), lookups(model)
    if isinstance(x, Mapping):
        keys = sorted(structure) if isinstance(structure, Mapping) else [one.name for one in model.inputs]
        given = [(f"x[{key!r}]", x.get(key)) for key in keys]
    else:
        leaves = keras.tree.flatten(x)
        given = [("x" if len(leaves) == 1 else f"x[{place}]", leaf) for place, leaf in enumerate(leaves)]
    for (name, leaf), one in zip(given, found, strict=True) if len(given) == len(found) else ():
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufV":
            yield name, leaf, one
