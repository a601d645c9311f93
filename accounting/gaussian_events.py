"""Which Gaussian mechanism an event of dp-accounting is."""

import math
from collections.abc import Mapping
from dataclasses import replace

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from tfdp_layers.accounting.owned_records import HAS_PLD
from tfdp_layers.accounting.truncated_draws import is_truncated
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = [
    "Counts",
    "canonical",
    "exact_gaussian",
    "fewer",
    "is_sampled_gaussian",
    "joined",
    "of_draws",
    "sampled_gaussian",
]

Counts = tuple[tuple[DpEvent, int], ...]
"""Distinct events, and how often each was released."""


def canonical(counts: Mapping[DpEvent, int]) -> Counts:
    """The counts in one order, without what was never released or reveals nothing.

    Guarantee: whatever bounds what is returned bounds the counts. Of Gaussian mechanisms that are equal but for noise
    multipliers of the same 12 digits (one number, rounded by way of other groups of weights), all are counted as the
    one of the least noise: more noise is post-processing of it.
    """
    alike: dict[object, list[tuple[DpEvent, int]]] = {}
    for event, count in counts.items():
        if count and not isinstance(event, NoOpDpEvent):
            alike.setdefault(_to_digits(event), []).append((event, count))
    kept = []
    for same in alike.values():
        loudest, _ = min(same, key=lambda one: _noise_of(one[0]) or 0.0)
        kept.append((loudest, sum(count for _, count in same)))
    return tuple(sorted(kept, key=repr))


def fewer(counts: Counts, most: int) -> Counts | None:
    """At most `most` settings in the place of more, of about as much noise and as large draws; None if too many differ.

    Guarantee: whatever bounds what is returned bounds the counts. Settings that stand together are counted as one of
    the least noise of them, of which more noise is post-processing, and, of Poisson draws, of the largest probability.
    Proof of the latter: draws of probability q' < q are draws of q of a data set of which each record takes part with
    probability q' / q, by chance of its own. Given who takes part, neighbours are neighbours, or equal; that is the
    same for both, and joint convexity takes the mean over it. Ranges of noise and probability widen until few are
    left, from a thousandth on, and so does about what epsilon is above that of all settings composed.
    """
    width = 0.001
    while width < 1.0:
        together: dict[object, list[tuple[DpEvent, int]]] = {}
        for event, count in counts:
            together.setdefault(_about(event, width), []).append((event, count))
        if len(together) <= most:
            return tuple(sorted((_of_all(same) for same in together.values()), key=repr))
        width *= 1.2
    return None


def _about(event: DpEvent, width: float) -> object:
    """What is equal of settings that may stand together."""
    if _noise_of(event) is None or min(sampled_gaussian(event)) <= 0.0:
        return event
    probability, noise = sampled_gaussian(event)
    near = math.floor(math.log(noise) / width)
    if isinstance(event, PoissonSampledDpEvent | OwnerDpEvent):
        return type(event), getattr(event, "records", 1), near, math.floor(math.log(probability) / width)
    return repr(event).replace(f"noise_multiplier={noise!r}", f"noise_multiplier~{near}")


def _of_all(same: list[tuple[DpEvent, int]]) -> tuple[DpEvent, int]:
    """The setting that costs no less than each of these, and how often all of them were released."""
    event, _ = min(same, key=lambda one: _noise_of(one[0]) or 0.0)
    count = sum(count for _, count in same)
    if isinstance(event, PoissonSampledDpEvent | OwnerDpEvent):
        probability = max(sampled_gaussian(one)[0] for one, _ in same)
        if isinstance(event, OwnerDpEvent):
            return replace(event, sampling_probability=probability), count
        return PoissonSampledDpEvent(probability, event.event), count
    return event, count


def _to_digits(event: DpEvent) -> object:
    """What is equal of Gaussian mechanisms whose noise multipliers differ behind their 12th digit alone."""
    noise = _noise_of(event)
    if noise is None:
        return event
    return repr(event).replace(f"noise_multiplier={noise!r}", f"noise_multiplier={noise:.12g}")


def _noise_of(event: DpEvent) -> float | None:
    """The noise multiplier of a Gaussian mechanism, on whatever draw; None of other events."""
    noise = getattr(getattr(event, "event", event), "noise_multiplier", None)
    return None if noise is None else float(noise)


def exact_gaussian(counts: Counts) -> float | None:
    """The one Gaussian mechanism that equals the composition, as a noise multiplier; None if an event is subsampled."""
    precision = 0.0
    for event, count in counts:
        multiplier = _full_batch_multiplier(event)
        if multiplier is None:
            return None
        precision += count / multiplier**2
    return precision**-0.5


def joined(counts: Counts) -> Counts:
    """The same composition, with one Gaussian mechanism in the place of all those on all records.

    Guarantee: whatever bounds what is returned bounds the composition. Gaussian mechanisms of noise multipliers z_i
    compose, adaptively too, to exactly one of multiplier (sum of z_i^-2)^(-1/2); the one returned has a hair less
    noise, by more than the sum may be rounded. A stream of correlated noise is billions of charges, each of next to no
    loss: what is discretised, or composed one after the other, needs them as one.
    """
    gaussians = tuple((event, count) for event, count in counts if (_full_batch_multiplier(event) or 0.0) > 0.0)
    if sum(count for _, count in gaussians) < 2:
        return counts
    try:
        multiplier = (exact_gaussian(gaussians) or 0.0) * (1.0 - (len(gaussians) + 8) * 2.0**-52)
    except ArithmeticError:  # noise of which no float holds the square
        return counts
    if not 0.0 < multiplier < math.inf:
        return counts
    rest = tuple(one for one in counts if one not in gaussians)
    return tuple(sorted((*rest, (GaussianDpEvent(multiplier), 1)), key=repr))


def of_draws(relation: NeighboringRelation) -> NeighboringRelation:
    """The relation by which dp-accounting knows what Poisson draws cost: of emptied records that of removed ones.

    A record that contributes nothing, drawn or not, changes the sum as one that is not there: both data sets of either
    relation give the same two distributions. Gaussian mechanisms on all records are asked for by no relation.
    """
    special = relation is NeighboringRelation.REPLACE_SPECIAL
    return NeighboringRelation.ADD_OR_REMOVE_ONE if special else relation


def is_sampled_gaussian(event: DpEvent) -> bool:
    """Whether privacy loss distributions support it under add-or-remove: a Gaussian on a Poisson draw or on all."""
    if isinstance(event, OwnerDpEvent) or is_truncated(event):
        return HAS_PLD
    plain = isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent)
    return plain or isinstance(event, GaussianDpEvent)


def sampled_gaussian(event: DpEvent) -> tuple[float, float]:
    """(sampling probability, noise multiplier) of an event that PLD supports."""
    if isinstance(event, OwnerDpEvent):
        return event.sampling_probability, event.noise_multiplier
    if isinstance(event, PoissonSampledDpEvent):
        return event.sampling_probability, event.event.noise_multiplier
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return event.sample_size / event.source_dataset_size, event.event.noise_multiplier
    return getattr(event, "sampling_probability", 1.0), event.noise_multiplier


def _full_batch_multiplier(event: DpEvent) -> float | None:
    if isinstance(event, GaussianDpEvent):
        return event.noise_multiplier
    if isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 1.0:
        return _full_batch_multiplier(event.event)
    if isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size == event.source_dataset_size:
        return _full_batch_multiplier(event.event)
    return None
