"""Which records to train on, where they have several owners each, so that no owner owns many of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdp_layers.batches.owners import Owners, checked_limit
from tfdp_layers.batches.placeholders import warn_of_names
from tfdp_layers.batches.spellings import warn_of_spellings
from tfdp_layers.sampling.base import whole_number

__all__ = ["LimitedOwners", "limit_owners"]

_ORDERS = ("rare", "random")


@dataclass(frozen=True)
class LimitedOwners:
    """What `limit_owners` kept of what there was; all of it follows from who owns which record.

    Attributes:
        records, records_kept: how many there are, and how many were kept.
        owners, owners_kept: how many people own a record, and how many own one that was kept.
        most, most_kept: how many records one of them owns at most, and of those that were kept.
    """

    records: int
    records_kept: int
    owners: int
    owners_kept: int
    most: int
    most_kept: int

    def __str__(self) -> str:
        return (
            f"Kept {self.records_kept:,} of {self.records:,} records, and with them {self.owners_kept:,} of"
            f" {self.owners:,} owners; one of them owns at most {self.most_kept:,} of these, and {self.most:,} of all."
        )


def limit_owners(
    owners: Any, records_per_owner: int = 1, *, order: str = "rare", seed: int = 0
) -> tuple[np.ndarray, LimitedOwners]:
    """Chooses records of which nobody owns more than `records_per_owner`, alone or with others.

    Records are looked at one after the other, and kept while no owner of theirs has enough.

    Formal guarantee: none of its own, and it costs nothing, under ONE condition: that who owns which record is public.
    Which records are kept depends on that and on the seed alone, never on what records hold. So it is the same for two
    neighbouring data sets, which differ in what the records of one owner hold: see `fit(..., owners=...)`. Where it is
    secret that a record is there, or whose it is, this proves NOTHING: without one owner's records other records would
    be kept, of people who share none with that owner.

    No record that is left out could be added, and with at most m owners a record it keeps at least 1 / m of the most
    that can be kept. Proof: let O be the largest choice and S this one. A record of O outside S has an owner u with
    k records in S; of u O holds at most k, so outside S at most as many as S holds of u outside O. Each record of S
    outside O is counted by at most m owners, so |O - S| <= m |S - O|, and |O| <= m |S|. It is attained where k = 1,
    {1, 2} is kept, and {1, 3} and {2, 4} are left out.

    Args:
        owners: (records,), (records, most owners of one), or a list of lists: integers or strings, see
            `tfdp.PrivateBatches`. Whoever is named twice owns a record once; None and empty strings stand for nobody.
        records_per_owner: at least 1. More keeps more records, and each step then costs more.
        order: "rare" looks first at the records whose owners own few records, counted together: it keeps more. "random"
            does not prefer people with few records.
        seed: of the order, among equals if it is "rare"; it is no secret.

    Returns: the indices of the records that are kept, rising, and what was kept in numbers.
    Raises: ValueError for owners or settings that cannot be used.
    Source: Ganesh, McKenna, McMahan, Smith, Wu 2025, arXiv:2503.03622, section 4 (greedy contribution bounding).

    Example:
        kept, report = tfdp.preprocessing.limit_owners(owners, records_per_owner=2)
        model.fit(x[kept], y[kept], owners=owners[kept], records_per_owner=2, callbacks=[budget])
        # Of a list of lists: owners=[owners[record] for record in kept]
    """
    limit, seed = checked_limit(records_per_owner), whole_number("seed", seed, minimum=0)
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {_ORDERS}. Received: {order!r}.")
    owned = Owners(owners)
    warn_of_names(owned.names, owned.counts, "owners", one_each=False)
    warn_of_spellings(owned.names.tolist(), "owners")
    sequence = np.random.default_rng(seed).permutation(len(owned))
    if order == "rare":
        together = np.bincount(owned.records, owned.counts[owned.indices])
        sequence = sequence[np.argsort(together[sequence], kind="stable")]
    kept = _greedy(owned, limit, sequence)
    kept_counts = np.bincount(owned.indices[np.isin(owned.records, kept)], minlength=len(owned.names))
    return kept, LimitedOwners(
        records=len(owned),
        records_kept=len(kept),
        owners=len(owned.names),
        owners_kept=int(np.sum(kept_counts > 0)),
        most=int(np.max(owned.counts)),
        most_kept=int(np.max(kept_counts)),
    )


def _greedy(owned: Owners, limit: int, sequence: np.ndarray) -> np.ndarray:
    """The records that are kept when they are looked at in this order, rising."""
    # Plain lists: three times as fast here as arrays of numpy, whose calls would be on three numbers each.
    left, starts, indices = [limit] * len(owned.names), owned.starts.tolist(), owned.indices.tolist()
    kept = []
    for record in sequence.tolist():
        mine = indices[starts[record] : starts[record + 1]]
        if all([left[owner] for owner in mine]):
            for owner in mine:
                left[owner] -= 1
            kept.append(record)
    return np.sort(np.array(kept, dtype=np.int64))
