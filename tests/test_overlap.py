"""Private records that come back as public ones are known by their place in memory."""

from typing import Any

import numpy as np
import pytest

from tfdp_layers.overlap import overlap

RECORDS = np.arange(24.0).reshape(6, 4)
COLUMNS = np.asfortranarray(RECORDS)


@pytest.mark.parametrize(
    ("some", "others", "found"),
    [
        ([RECORDS], [RECORDS], True),
        ([RECORDS[2:]], [np.ones(3), RECORDS[:3]], True),
        ([RECORDS], [RECORDS.T[::-1]], True),
        ([RECORDS], [RECORDS.copy()], False),
        ([RECORDS[:3]], [RECORDS[3:]], False),
        ([COLUMNS[:3]], [COLUMNS[3:]], False),  # they interleave
        ([None, "a"], [RECORDS, None], False),
    ],
)
def test_arrays_that_have_a_number_in_common(some: list, others: list, found: bool) -> None:
    assert overlap(some, others) is found
    assert overlap(others, some) is found


class Frame:
    """A table of two columns, of several types: as an array it is a copy."""

    dtypes = ("float64", "int64")

    def __init__(self, numbers: np.ndarray, counts: np.ndarray) -> None:
        self.columns = {"numbers": numbers, "counts": counts}

    def items(self) -> Any:
        return self.columns.items()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.stack([*self.columns.values()], axis=1)


def test_a_table_is_known_as_the_object_and_by_its_columns() -> None:
    numbers, counts = np.arange(6.0), np.arange(6)
    table = Frame(numbers, counts)
    assert overlap([table], [np.ones(3), table])
    assert overlap([table], [Frame(numbers[:2], counts[:2].copy())])
    assert overlap([table], [counts[3:]])
    assert not overlap([table], [Frame(numbers.copy(), counts.copy())])
    assert not overlap([Frame(numbers[:3], counts[:3])], [Frame(numbers[3:], counts[3:])])
