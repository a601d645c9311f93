"""Whom the records of a release belong to: to nobody else, to units that own several, or to several owners each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfdp_layers.accounting.people import People
from tfdp_layers.batches.alignment import refuse_other_rows
from tfdp_layers.batches.behind import moved_in
from tfdp_layers.batches.items import is_source
from tfdp_layers.batches.owners import Owners, checked_limit
from tfdp_layers.batches.placeholders import warn_of_names
from tfdp_layers.batches.places import refuse_moved
from tfdp_layers.batches.spellings import warn_of_spellings
from tfdp_layers.batches.stores import Store
from tfdp_layers.batches.units import Units, one_id_each

__all__ = ["Whose", "ids_of", "unit_of", "whose_of"]


@dataclass(frozen=True)
class Whose:
    """Whose contribution a release of all records hides.

    Attributes:
        unit: "record", "unit" or "owner", as in `tfdp.accounting.Release`.
        units: which records belong to which unit; None unless `unit` is that.
        records_per_owner: how many of the records one owner owns at most, which was checked; 1 where there are none.
        owners: who owns each record; None unless `unit` is "owner".
    """

    unit: str = "record"
    units: Units | None = None
    records_per_owner: int = 1
    owners: Owners | None = None

    @property
    def grouped(self) -> bool:
        """Whether it is said which records belong together."""
        return self.units is not None or self.owners is not None

    @property
    def people(self) -> People | None:
        """Whose each record is; None where a record is what is protected."""
        if self.owners is not None:
            return People(self.owners.records, self.owners.indices, len(self.owners))
        return None if self.units is None else People.by(self.units.positions)

    @property
    def owned_by(self) -> int:
        """How many owners there are; 0 where records are told apart by units, or not at all."""
        return 0 if self.owners is None else len(self.owners.names)

    def grouping(self, secret: str, records: Iterable[bytes] | None = None) -> str:
        """The `grouping` of a release (see `Units.grouping`); empty for records, and where no secret is known."""
        groups = self.owners if self.units is None else self.units
        return "" if groups is None or not secret else groups.grouping(secret, records)

    def stated(self, secret: str, records: Iterable[bytes] | None = None) -> dict[str, Any]:
        """What a release says of it, by the names of its fields. Arguments as of `grouping`."""
        whose = {"unit": self.unit, "records_per_owner": self.records_per_owner, "owners": self.owned_by}
        return whose | {"grouping": self.grouping(secret, records)}

    def entering(self, records: Any) -> Any:
        """The records that enter a sum: all of them, or of each unit one, chosen afresh at random."""
        return records if self.units is None else records[self.units.one_each()]


def ids_of(held: Any, unit_ids: Any, owners: Any) -> Any:
    """The ids of records that may bring ids of their own (`tfdp.records`). Raises ValueError where both are given."""
    if held is not None and (unit_ids is not None or owners is not None):
        raise ValueError(
            "These records say whose they are already, by tfdp.records(..., unit_ids=...). Leave unit_ids and owners"
            " out here, or there."
        )
    return unit_ids if held is None else held


def unit_of(unit_ids: Any, owners: Any, records_per_owner: Any) -> str:
    """What these arguments protect: "record", "unit" or "owner". Raises ValueError for two answers, or half of one."""
    if owners is None and records_per_owner is not None:
        raise ValueError(
            f"records_per_owner={records_per_owner!r} needs to know who owns each record: give owners, too. Records"
            " of one owner each are told apart by unit_ids, with records_per_unit."
        )
    if owners is not None and unit_ids is not None:
        raise ValueError(
            "unit_ids and owners are two ways to say whom a record belongs to, with two guarantees. Give unit_ids"
            " where each record belongs to one person; owners where one may belong to several."
        )
    return "owner" if owners is not None else "record" if unit_ids is None else "unit"


def whose_of(
    records: int,
    unit_ids: Any,
    owners: Any,
    records_per_owner: Any,
    given: tuple[str, Any] = ("x", None),
    *,
    scores: bool = False,
    **beside: Any,
) -> Whose:
    """Reads the arguments by which `fit`, and what else releases records, is told whom each of them belongs to.

    Args:
        records: how many there are.
        given: what holds them, as the caller gave it, after its name.
        scores: whether they are scores, one of each person most often: then ids that are all different are no news.
        beside: what else the caller gave row for row, labels and weights, by name.

    Raises: ValueError for ids or owners that do not tell it of each record, whose index of pandas says that they are of
        other records (by that of the records, or of what is beside them), or that are given by place beside a pipeline
        that moves records; for labels or weights whose index says so; and for owners of more records than stated.
    """
    unit = unit_of(unit_ids, owners, records_per_owner)
    refuse_other_rows(*given, **beside, unit_ids=unit_ids, owners=owners)
    _refuse_other_places(given[1], unit_ids, owners)
    if unit == "unit":
        units = Units(unit_ids, records)
        warn_of_names(units.names, units.counts, "unit_ids", given[1] is not None and not scores)
        warn_of_spellings(units.names.tolist(), "unit_ids")
        return Whose(unit, units)
    if unit == "record":
        return Whose()
    limit = checked_limit(1 if records_per_owner is None else records_per_owner)
    owned = Owners(owners, records)
    one_each = given[1] is not None and not scores and len(owned.records) == len(owned)
    warn_of_names(owned.names, owned.counts, "owners", one_each)
    owned.refuse_more(limit)
    warn_of_spellings(owned.names.tolist(), "owners")
    return Whose(unit, records_per_owner=limit, owners=owned)


def _refuse_other_places(x: Any, unit_ids: Any, owners: Any) -> None:
    """Raises ValueError for the name of an entry, and ids or owners by place, where records lie at other places."""
    by_index = isinstance(x, Store) or (x is not None and is_source(x))
    if isinstance(unit_ids, str) and by_index:
        raise ValueError(
            f"unit_ids={unit_ids!r} names an entry, and `fit` takes the ids themselves. Of a tf.data pipeline whose x"
            f" is a dict: tfdp.records(dataset, unit_ids={unit_ids!r}). Of a source: {one_id_each(unit_ids)}"
        )
    if (unit_ids is None and owners is None) or (isinstance(x, Store) and x.unit_ids is not None):
        return  # said within the records, or checked as they were made
    refuse_moved(x.moved if isinstance(x, Store) else moved_in(x), "unit_ids" if owners is None else "owners")
