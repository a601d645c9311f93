"""Private records that come back as public ones are known by their place in memory."""

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
