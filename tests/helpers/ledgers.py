"""Whole ledgers, as text, to damage."""

import json

from tfdp_layers.accounting import GroupNoise, Ledger, MetricRelease, NumericSparse, Release
from tfdp_layers.sampling import Poisson, TruncatedPoisson


def whole_ledger():
    ledger = Ledger(dataset="mnist", budget=(50.0, 1e-5))
    groups = (GroupNoise("a", 0.5, 1.5), GroupNoise("b", 2.0, 6.0))
    for release, steps in (
        (Release(groups, Poisson(600), 60_000), 5),
        (Release(groups, TruncatedPoisson(600, 700), 60_000, nominal_noise_multiplier=2.0, generator="secure"), 3),
        (MetricRelease(groups[:1], Poisson(60_000), 60_000), 1),
    ):
        ledger.reserve(ledger.begin(release), steps)
    return ledger.to_json()


def whole_party_ledger():
    ledger = Ledger()
    ledger.reserve(ledger.begin(NumericSparse(1.0, 2.0, 3.0, 4.0)), 7)
    return ledger.to_json()


LEDGERS = [whole_ledger(), whole_party_ledger()]


def without_digest(text):
    """Without it damage has to be found by what it damages."""
    return {key: value for key, value in json.loads(text).items() if key != "digest"}
