"""Signs that a person, or a measurement, is in several records: then a record is not what is to be protected."""

import numpy as np

from tfdp_layers.batches.blocks import warn_of_blocks
from tfdp_layers.batches.padding import warn_of_padding
from tfdp_layers.batches.pairs import warn_of_pairs
from tfdp_layers.batches.repeats import warn_of_rounds
from tfdp_layers.batches.stores import Store
from tfdp_layers.batches.windows import warn_of_windows

__all__ = ["warn_of_several"]


def warn_of_several(store: Store, unit: str, positions: np.ndarray | None = None) -> None:
    """Warns of them, before anything is drawn. Equal records are looked for as these are charged: `warn_of_repeated`.

    Of records that do not lie in memory some are read for it, see `Store.near`; who has the longest alone is not looked
    for there.

    Args:
        unit: that is protected; of other than records nothing is said but where sources go round, and where blocks of
            units go on in one another.
        positions: (records,) which unit each record belongs to, where there are units.
    """
    warn_of_rounds(len(store), store.rows(), unit)
    if unit == "record" or positions is not None:
        inputs, labels = store.near()
        warn_of_blocks(inputs, labels, positions)
        warn_of_padding(store.inputs(), positions)
    if unit == "record":
        warn_of_windows(inputs)
        warn_of_pairs(store.inputs())
