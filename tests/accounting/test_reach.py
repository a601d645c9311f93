"""What a statement says that the guarantee is not for."""

import pytest

from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.reach import exclusions


@pytest.mark.parametrize("unit", ["record", "unit", "owner", NumericSparse.unit])
def test_warnings_are_no_more_covered_than_errors_are(unit):
    """They count records without noise: "300 different ids become 299"."""
    assert sum("rror messages and warnings" in text for text in exclusions(unit, ())) == 1
