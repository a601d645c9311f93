"""Whole ledgers, as text and as files, to damage."""

import hashlib
import json
from pathlib import Path

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import GroupNoise, Ledger, MetricRelease, NumericSparse, Release, Selection
from tfdp_layers.sampling import Cyclic, Poisson, TruncatedPoisson
from tfdp_layers.sampling.correlated import Correlated

STEP = release_of(Poisson(600), 1.0)
OTHER = release_of(Poisson(600), 2.0)
VERSION_0_1 = Path(__file__).parents[1] / "data" / "version_0_1.ledger.json"


def mark_of(path):
    return path.with_name(path.name + ".mark")


def spend(path, steps, release=STEP, together=1):
    """Counts so many steps in a file, one after another."""
    ledger = Ledger(path, dataset="mnist")
    token = ledger.begin(release)
    for _ in range(steps // together):
        ledger.reserve(token, together)
        ledger.settle(token, together)
    ledger.close()


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


def whole_epochs_ledger():
    ledger, groups = Ledger(), (GroupNoise("a", 0.5, 1.5),)
    for steps in (7, 2):
        ledger.reserve(ledger.begin(Release(groups, Cyclic(600), 60_000, noise=Correlated(0.9))), steps)
    return ledger.to_json()


def whole_search_ledger():
    metric = MetricRelease((GroupNoise("score", 0.5, 90.0),), Poisson(60_000), 60_000)
    ledger = Ledger()
    ledger.reserve(ledger.begin(Selection((((STEP, 50), (metric, 1)), ((OTHER, 90),)), 10.0, 0.5)), 2)
    ledger.reserve(ledger.begin(Selection((((STEP, 50),),), 3.0, float("inf"))), 1)
    return ledger.to_json()


LEDGERS = [whole_ledger(), whole_party_ledger(), whole_epochs_ledger(), whole_search_ledger()]


def sealed(tree):
    """The tree with the digest that belongs to it, where it has one: damage has to be found by what it damages."""
    try:
        head = {
            name: tree[name]
            for name in ("format", "uid", "dataset", "budget", "secret", "sequence", "after")
            if name in tree
        }
        lines = [json.dumps(head), *(json.dumps(release, sort_keys=True) for release in tree["releases"])]
        lines += [json.dumps(row) for row in tree["entries"]]
    except (TypeError, KeyError):
        return tree
    return tree | {"digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]}


def whole_file(folder):
    """A ledger's file with rows in its log, and what its mark says."""
    path = folder / "ledger.json"
    ledger = Ledger(path, dataset="mnist")
    for multiplier, times in ((1.0, 3), (2.0, 3)):
        token = ledger.begin(Release((GroupNoise("a", 1.0, multiplier),), Poisson(600), 60_000))
        for _ in range(times):
            ledger.reserve(token, 1)
            ledger.settle(token, 1)
    ledger.close()
    return path.read_bytes(), path.with_name("ledger.json.mark").read_bytes()
