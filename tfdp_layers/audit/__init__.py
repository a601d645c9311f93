"""Audits: how much a training gives away, measured, beside how much it claims to."""

import importlib
from typing import Any

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
    "worst_case": "worst_cases",
    "with_canaries": "one_run",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"tfdp_layers.audit.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'tfdp_layers.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
