"""What data must be prepared by, learned privately: each mechanism charges a ledger before it releases anything."""

from tfdp_layers.preprocessing.ranks import quantiles
from tfdp_layers.preprocessing.tokens import vocabulary

__all__ = ["quantiles", "vocabulary"]
