"""Short ways to describe runs."""

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Sampling


def release_of(sampling: Sampling, multiplier: float, examples: int = 60_000, **flags: bool) -> Release:
    return Release((GroupNoise("all", 1.0, multiplier),), sampling, examples, **flags)


def ledger_of(release: Release, steps: int) -> Ledger:
    ledger = Ledger()
    token = ledger.begin(release)
    ledger.reserve(token, steps)
    ledger.settle(token, steps)
    return ledger
