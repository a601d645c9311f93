"""The reach of a guarantee, in words: what it covers, what it does not, and what it assumes."""

from collections.abc import Collection
from typing import Any

from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.numeric_sparse import NumericSparse

__all__ = ["assumptions", "covered", "exclusions"]

_LATER = (
    " If what was released later (by a next fit, another trial, an evaluation of later weights) decided that these"
    " weights were kept, all of that counts, too: state the ledger that counts it."
)
_ASSUMPTIONS = (
    "One record is one person; someone with several records is protected less.",
    "The number of records and the batch size count as public, whether they were given or counted, also of the records"
    " of each metric: they stand in this statement. Which records a metric is over was not chosen by what they hold.",
    "Whether a record is among these was decided from it alone, or by chance that nobody knows: not by ranks, quotas,"
    " outlier tests or seeded shuffles of all records. And each was made of its own data alone.",
    "The initial weights are public, or their own privacy cost is in this ledger.",
    "Scaling constants, class weights and sample weights were not computed from the private data.",
    "Validation data are public.",
    "The seeds of sampling and noise are secret and were used once.",
    "No record is such, made so or blank in raw units before a normalization, that the last bits of what is computed of"
    " it, which depend on how many rows are computed beside it, turn its gradient around.",
    "No setting was chosen by looking at unprotected numbers of this or an earlier run on the same data.",
    "All that was released of these data is in this ledger: a model of the same data whose training another ledger"
    " counts (of a comparison, of each fold) adds its epsilon to this one." + _LATER,
)
_UNIT_ASSUMPTIONS = (
    "The {unit} of each record is as the ids that training was given say, which mean the same {unit} in all that this"
    " ledger paid for; someone with several ids is protected less.",
    "The number of {unit}s and the batch size, in {unit}s, count as public, whether they were given or counted, also of"
    " each metric: they stand in this statement. Which {unit}s a metric is over was not chosen by what they hold.",
    *_ASSUMPTIONS[2:],
)
_ONE_NUMBER = (
    "The neighbours of a training have one batch size and one number of {unit}s: these set the rate of its draws, and"
    " divide its sums. Where the number was counted, epsilon hides what a {unit} holds, as beside an empty one; that"
    " the {unit} is there at all, only where the number was given (examples=) and does not depend on it."
)
"""Of add-or-remove: of n - 1 in the place of n, rate and divisor differ as well. (An owner's records are emptied.)"""
_PARTS = (
    "A part of a {unit} is hidden less than the whole: whether one of its records is there, or what it holds, is"
    " protected only as two whole {unit}s are."
)
_OWNER_ASSUMPTIONS = (
    "Who owns which record is public, and as the owners that training was given say, who are the same in all that this"
    " ledger paid for; an owner under several names is protected less.",
    "Which records were trained on, of those that there are, was decided by who owns which, or by chance, and never by"
    " what records hold.",
    "The number of records and the batch size, in records, are public: both stand in this statement.",
    *_ASSUMPTIONS[3:],
)
_COVERED = "the released weights, the optimizer's state, the noise multiplier, the number of steps, and epsilon"
_COMPUTED = "; and whatever is computed from these and from public data alone, as an exported model is"
_MORE = {
    "whole_data": "; and the statistics released with noise: quantiles, and what layers were adapted to",
    "metric": "; and the metrics released with noise",
    "vocabulary": "; and the vocabularies released with noise",
    "selection": "; of a search the best trial's settings and score",
}
"""Covered, too, where something of this purpose was released: of each but "step", whose releases are the weights."""
_SEARCH_ASSUMPTION = (
    "A search draws the settings of each trial at random, from one public distribution and by a source that nobody"
    " else knows; its trials share nothing, and their scores depend on public data and on what the trial released."
)
_SEARCH_EXCLUSIONS = ("How many trials a search made, how long it took, and every trial but the best.",)
_METRIC_ASSUMPTION = "Each number in a released metric was computed from one record and from what was released before."
_EXCLUSIONS = (
    "Training loss and training metrics, also in the progress bar and in logs.",
    "Gradient norms and clipped fractions.",
    "The number of records drawn in a step, also where padded sizes or step times show it.",
    "Error messages and warnings about records.",
    "Predictions of private records, and how many of them are right: both are computed from these records anew.",
)

_PARTY_ASSUMPTIONS = (
    "That this party takes part, in how many rounds, and how many records it declares is public.",
    "Bound, threshold, fraction and epsilon of an upload were chosen without looking at the party's data.",
    "The initial weights do not depend on the party's data, or their own privacy cost is in this ledger.",
    "The keys of noise and selection are secret and were used once.",
    "All that was released of these data is in this ledger: where they take part under two names, or a person's records"
    " are at several parties, the epsilons add up." + _LATER,
)
_ASSUMED = {NumericSparse.unit: _PARTY_ASSUMPTIONS, "unit": _UNIT_ASSUMPTIONS, "owner": _OWNER_ASSUMPTIONS}
_PARTY_COVERED = "every upload of this party, what the server and the other parties compute from them, and epsilon"
_PARTY_EXCLUSIONS = (
    "The party's local weights, and its training loss and metrics.",
    "How long its training and selection take.",
    "Error messages and warnings about its records.",
)


def covered(unit: str, purposes: Collection[str]) -> str:
    """What the guarantee is for.

    Args:
        unit: whom the ledger protects.
        purposes: of the releases.
    """
    if unit == NumericSparse.unit:
        return _PARTY_COVERED
    return _COVERED + "".join(_MORE[one] for one in _MORE if one in purposes) + _COMPUTED


def assumptions(unit: str, word: str, purposes: Collection[str], relation: Any) -> tuple[str, ...]:
    """What it assumes.

    Args:
        word: what one of those is called who are protected.
        relation: between neighbouring data sets, of dp-accounting.
    """
    found = _ASSUMED.get(unit, _ASSUMPTIONS)
    added = relation is NeighboringRelation.ADD_OR_REMOVE_ONE and unit in ("record", "unit")
    trained = not {"step", "selection"}.isdisjoint(purposes)
    found = (*found[:2], *(_ONE_NUMBER,) * (added and trained), *found[2:])
    found += (_PARTS,) * (unit == "unit" and relation is not NeighboringRelation.REPLACE_ONE)
    found = tuple(text.replace("{unit}", word) for text in found)
    return found + (_METRIC_ASSUMPTION,) * ("metric" in purposes) + (_SEARCH_ASSUMPTION,) * ("selection" in purposes)


def exclusions(unit: str, purposes: Collection[str]) -> tuple[str, ...]:
    """What it is not for."""
    if unit == NumericSparse.unit:
        return _PARTY_EXCLUSIONS
    return _EXCLUSIONS + _SEARCH_EXCLUSIONS * ("selection" in purposes)
