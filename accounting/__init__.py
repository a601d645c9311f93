"""Accounting: what was released, what it costs, and how to state it. Imports no TensorFlow."""

from tfdp_layers.accounting.accountant import Epsilon, EpsilonCurve, epsilon, nominal_epsilon, together
from tfdp_layers.accounting.budget import Budget, BudgetExhausted
from tfdp_layers.accounting.calibration import affordable_steps, calibrate_noise_multiplier
from tfdp_layers.accounting.events import (
    GroupNoise,
    MetricRelease,
    Release,
    UnitMetricRelease,
    UnitRelease,
    joint_noise_multiplier,
)
from tfdp_layers.accounting.ledger import Entry, Ledger, LedgerError
from tfdp_layers.accounting.numeric_sparse import NumericSparse
from tfdp_layers.accounting.planning import PlannedRun, RunPlan, plan
from tfdp_layers.accounting.profile import exact_multiplier, privacy_profile
from tfdp_layers.accounting.selection import Selection
from tfdp_layers.accounting.statement import Statement
from tfdp_layers.accounting.token_selection import TokenSelection
from tfdp_layers.calls import explain

__all__ = [
    "Budget",
    "BudgetExhausted",
    "Entry",
    "Epsilon",
    "EpsilonCurve",
    "GroupNoise",
    "Ledger",
    "LedgerError",
    "MetricRelease",
    "NumericSparse",
    "PlannedRun",
    "Release",
    "RunPlan",
    "Selection",
    "Statement",
    "TokenSelection",
    "UnitMetricRelease",
    "UnitRelease",
    "affordable_steps",
    "calibrate_noise_multiplier",
    "epsilon",
    "exact_multiplier",
    "joint_noise_multiplier",
    "nominal_epsilon",
    "plan",
    "privacy_profile",
    "together",
]

explain(globals(), __all__)
