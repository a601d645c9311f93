"""Functions that bound one record's rows, by norms or entry by entry, and the rounding that the norms allow for."""

from tfdp_layers.calls import explain
from tfdp_layers.rules.entries import Clamp, EntryRule, Tanh
from tfdp_layers.rules.rows import L2, AffineL2, PatchL2, Rule, SpatialL1
from tfdp_layers.rules.sequences import EinsumL2, TokenL1

__all__ = ["L2", "AffineL2", "Clamp", "EinsumL2", "EntryRule", "PatchL2", "Rule", "SpatialL1", "Tanh", "TokenL1"]

explain(globals(), __all__)
