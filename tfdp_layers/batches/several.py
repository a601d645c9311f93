"""Signs that a person, or a measurement, is in several records: then a record is not what is to be protected."""

from tfdp_layers.batches.pairs import warn_of_pairs
from tfdp_layers.batches.repeats import warn_of_rounds
from tfdp_layers.batches.stores import Store
from tfdp_layers.batches.windows import warn_of_windows

__all__ = ["warn_of_several"]


def warn_of_several(store: Store, unit: str) -> None:
    """Warns of them, before anything is drawn. Equal records are looked for as these are charged: `warn_of_repeated`.

    Args:
        unit: that is protected; of other than records nothing is said but where sources go round.
    """
    if (row := store.row()) is not None:
        warn_of_rounds(len(store), row, unit)
    if unit == "record":
        warn_of_windows(store.inputs())
        warn_of_pairs(store.inputs())
