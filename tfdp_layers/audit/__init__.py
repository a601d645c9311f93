"""Audits: how much a training gives away, measured, beside how much it claims to."""

import importlib
from typing import TYPE_CHECKING, Any

from tfdp_layers.calls import explained

_NAMES = {
    "Audit": "report",
    "Canaries": "canaries",
    "CanaryScores": "scoring",
    "Family": "guarantees",
    "GaussianFamily": "guarantees",
    "Guesses": "statistics",
    "PointFamily": "guarantees",
    "ReleaseFamily": "guarantees",
    "audit_steps": "mechanisms",
    "audit_training": "one_run",
    "audited": "one_run",
    "clopper_pearson": "statistics",
    "guess": "statistics",
    "make_canaries": "canaries",
    "many_runs_bound": "statistics",
    "matched_filter": "mechanisms",
    "observed": "observing",
    "of_ledger": "guarantees",
    "one_run_bound": "statistics",
    "one_run_epsilon": "statistics",
    "one_run_p_value": "statistics",
    "one_run_refutes": "statistics",
    "repeated_scores": "mechanisms",
    "stream_scores": "streams",
    "with_canaries": "one_run",
}
_ELSEWHERE = {"worst_case": "tfdp_layers.zoo.worst_cases"}
"""It builds models, which this room does not: the name stays where users know it."""

if TYPE_CHECKING:  # What type checkers see. A test compares it with the table above.
    from tfdp_layers.audit.canaries import Canaries as Canaries
    from tfdp_layers.audit.canaries import make_canaries as make_canaries
    from tfdp_layers.audit.guarantees import Family as Family
    from tfdp_layers.audit.guarantees import GaussianFamily as GaussianFamily
    from tfdp_layers.audit.guarantees import PointFamily as PointFamily
    from tfdp_layers.audit.guarantees import ReleaseFamily as ReleaseFamily
    from tfdp_layers.audit.guarantees import of_ledger as of_ledger
    from tfdp_layers.audit.mechanisms import audit_steps as audit_steps
    from tfdp_layers.audit.mechanisms import matched_filter as matched_filter
    from tfdp_layers.audit.mechanisms import repeated_scores as repeated_scores
    from tfdp_layers.audit.observing import observed as observed
    from tfdp_layers.audit.one_run import audit_training as audit_training
    from tfdp_layers.audit.one_run import audited as audited
    from tfdp_layers.audit.one_run import with_canaries as with_canaries
    from tfdp_layers.audit.report import Audit as Audit
    from tfdp_layers.audit.scoring import CanaryScores as CanaryScores
    from tfdp_layers.audit.statistics import Guesses as Guesses
    from tfdp_layers.audit.statistics import clopper_pearson as clopper_pearson
    from tfdp_layers.audit.statistics import guess as guess
    from tfdp_layers.audit.statistics import many_runs_bound as many_runs_bound
    from tfdp_layers.audit.statistics import one_run_bound as one_run_bound
    from tfdp_layers.audit.statistics import one_run_epsilon as one_run_epsilon
    from tfdp_layers.audit.statistics import one_run_p_value as one_run_p_value
    from tfdp_layers.audit.statistics import one_run_refutes as one_run_refutes
    from tfdp_layers.audit.streams import stream_scores as stream_scores
    from tfdp_layers.zoo.worst_cases import worst_case as worst_case
else:  # What runs. See `tfdp_layers/__init__.py`.
    __all__ = sorted([*_NAMES, *_ELSEWHERE])

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            return explained(getattr(importlib.import_module(f"tfdp_layers.audit.{_NAMES[name]}"), name))
        if name in _ELSEWHERE:
            return explained(getattr(importlib.import_module(_ELSEWHERE[name]), name))
        raise AttributeError(f"module 'tfdp_layers.audit' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
