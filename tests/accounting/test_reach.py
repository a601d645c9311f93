"""What a statement says that the guarantee is for, and what not."""

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.accounting.events import KINDS
from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.reach import covered, exclusions
from tfdp_layers.accounting.selection import Selection
from tfdp_layers.accounting.token_selection import TokenSelection


@pytest.mark.parametrize("unit", ["record", "unit", "owner", NumericSparse.unit])
def test_warnings_are_no_more_covered_than_errors_are(unit):
    """They count records without noise: "300 different ids become 299"."""
    assert sum("rror messages and warnings" in text for text in exclusions(unit, ())) == 1


@pytest.mark.parametrize("unit", ["record", "unit", "owner"])
def test_whatever_can_be_released_is_named_as_covered(unit):
    alone = covered(unit, {"step"})
    purposes = {purpose for _, purpose in KINDS.values()} | {TokenSelection.purpose, Selection.purpose}
    for purpose in purposes - {"step"}:
        assert covered(unit, {"step", purpose}) != alone, purpose
    assert "quantiles" in covered(unit, {"whole_data"})
    assert "quantiles" not in alone, "a training alone names no more than it released"


def test_a_statement_of_quantiles_covers_them():
    ledger = Ledger(dataset="visits")
    tfdp.preprocessing.quantiles(np.linspace(0, 1, 300), ledger, [0.5], lower=0.0, upper=1.0, noise_multiplier=20.0)
    assert "statistics released with noise: quantiles" in Statement.from_ledger(ledger, 1e-5).covered
