"""What is said of rows that come several times, and tables in which they do so by chance."""

from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.accounting.repeats import repeated


def of(*arrays):
    return repeated(footprint_of(arrays, arrays).sketch)


def cells(kinds, columns):
    return lambda rng, count: rng.integers(0, kinds, (count, columns))
