"""Signs that a person, or a measurement, is in several records: then a record is not what is to be protected."""

from tfdp_layers.accounting.people import People
from tfdp_layers.batches.blocks import warn_of_blocks
from tfdp_layers.batches.lags import warn_of_lags
from tfdp_layers.batches.padding import warn_of_padding
from tfdp_layers.batches.pairs import warn_of_pairs
from tfdp_layers.batches.repeats import warn_of_rounds
from tfdp_layers.batches.stores import Store
from tfdp_layers.batches.windows import warn_of_windows

__all__ = ["warn_of_several"]


def warn_of_several(store: Store, people: People | None = None) -> None:
    """Warns of them, before anything is drawn. Equal records are looked for as these are charged: `warn_of_repeated`.

    What is protected is a person, where it is said whose the records are: then it counts what records have in common
    that have no unit, or owner, in common.

    Of records that do not lie in memory some are read for it, see `Store.near`; who has the longest alone is not looked
    for there.

    Args:
        people: whose the records are; None where a record is what is protected. Blocks, padding and lagged columns
            beside others are not looked for where some have several owners.
    """
    store.in_rounds = warn_of_rounds(len(store), store.rows(), people)
    inputs, labels = store.near()
    positions, blocks = None if people is None else people.positions, False
    if people is None or positions is not None:
        blocks = warn_of_blocks(inputs, labels, positions)
        warn_of_padding(store.inputs(), positions)
    overlap = warn_of_windows(inputs, people)
    if not (blocks or overlap) and positions is not None:
        warn_of_lags(inputs, labels, positions)
    warn_of_pairs(store.inputs(), labels=store.labels(), people=people, within=not overlap)
