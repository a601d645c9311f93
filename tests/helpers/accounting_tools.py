"""Short ways to describe runs, and to damage ledgers."""

import hashlib
import json
from typing import Any

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Sampling


def release_of(sampling: Sampling, multiplier: float, examples: int = 60_000, **flags: bool) -> Release:
    return Release((GroupNoise("all", 1.0, multiplier),), sampling, examples, **flags)


def charged(ledger: Ledger, release: Release, steps: int) -> Ledger:
    """The ledger, with so many steps more."""
    token = ledger.begin(release)
    ledger.reserve(token, steps)
    ledger.settle(token, steps)
    return ledger


def ledger_of(release: Release, steps: int) -> Ledger:
    return charged(Ledger(), release, steps)


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON value of a ledger with the digests that belong to it: what an attacker can do, and chance cannot."""
    if "releases" not in value:  # format 1
        lines = [json.dumps([value.get("uid"), value.get("dataset"), value.get("budget")], sort_keys=True)]
        for entry in value["entries"]:
            lines.append(f"{entry['uid']} {entry['steps']} {json.dumps(entry['release'], sort_keys=True)}")
        return value | {"digest": _digest(lines)}
    names = ("format", "uid", "dataset", "budget", "secret", "sequence", "after")
    lines = [json.dumps({name: value[name] for name in names if name in value})]
    lines += [json.dumps(release, sort_keys=True) for release in value["releases"]]
    lines += [json.dumps(row) for row in value["entries"]]
    digest, log = _digest(lines), []
    sealed = value | {"digest": digest, "log": log}
    for uid, release, steps, *_ in value["log"]:
        digest = _digest([digest, json.dumps([uid, release, steps], sort_keys=True)])
        log.append([uid, release, steps, digest])
    return sealed


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
