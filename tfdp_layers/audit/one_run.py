"""An audit by one training run with canaries."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.accounting import Ledger, epsilon
from tfdp_layers.accounting.sightings import apart
from tfdp_layers.audit import statistics
from tfdp_layers.audit.canaries import Canaries, make_canaries
from tfdp_layers.audit.guarantees import PointFamily, of_ledger
from tfdp_layers.audit.observing import observed
from tfdp_layers.audit.report import Audit
from tfdp_layers.audit.scoring import CanaryScores
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, Sampling

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["audit_training", "audited", "with_canaries"]


def audit_training(
    model: "PrivateTraining",
    x: Any,
    y: Any,
    canaries: Canaries | int = 500,
    *,
    kind: str = "gradient",
    sampling: Sampling | None = None,
    batch_size: int = 32,
    delta: float = 1e-5,
    confidence: float = 0.95,
    claimed: Ledger | None = None,
    sampling_seed: int | None = None,
    seed: int | None = None,
    **fit: Any,
) -> Audit:
    """Trains a model on records and canaries, and says which epsilon the canaries refute.

    The training is `model.fit` as it is; the model is then good for nothing else, since the canaries spoil it: audit a
    twin of the model that you use. Each step is read from inside, white-box; see `CanaryScores` for the attack.

    What it finds is computed from x and y without noise, and its steps are in the twin's ledger alone: of private
    records keep it to yourself, or audit on public ones.

    Args:
        model: private, compiled, new.
        x, y: the other records: arrays (records, ...).
        canaries: how many to make (of `kind`, see `make_canaries`), or canaries of your own.
        sampling: as in `fit`: Poisson, FixedSize, Partition or Cyclic. Canaries that are left out are missing under
            Poisson, replaced by their alternatives under FixedSize, and weighted with zero under Partition and Cyclic:
            by the sampler's neighbouring relation. Of correlated noise the attack does not make use: `stream_scores`
            does.
        delta, confidence: of the result.
        claimed: what is claimed to have been released, if not what the model's ledger says.
        sampling_seed, seed: for tests; of the draws, and of canaries and coins.
        fit: further arguments of `model.fit`: epochs, callbacks, verbose ...

    Returns: the claim (epsilon of the ledger, both records and canaries counted) and the bounds: the first and largest
        by f-differential privacy against the claimed mechanism itself, then two for (epsilon, delta) alone.
    Raises: ValueError for a sampling that canaries can't be put into, records of several to a person, and what `fit`
        raises.
    """
    refuse_groups(fit)
    if not isinstance(canaries, Canaries):
        canaries = make_canaries(x, y, canaries, kind, seed)
    sampling = Poisson(batch_size) if sampling is None else sampling
    batches = with_canaries(x, y, canaries, sampling, sampling_seed)
    groups = model.sensitivities()
    scores = CanaryScores(
        model,
        np.asarray(x),
        np.asarray(y),
        canaries,
        probability=sampling.batch_size / batches.examples,
        paired=isinstance(sampling, FixedSize),
        groups=groups,
        stddevs=model.optimizer.stddevs(groups),
        batch_size=sampling.batch_size,
    )
    with observed(model, scores.observe), apart(lambda ledger: ledger is model.ledger):
        model.fit(batches, **({"verbose": 0} | fit))
    return audited(model.ledger if claimed is None else claimed, scores.array(), canaries.included, delta, confidence)


def refuse_groups(fit: dict[str, Any]) -> None:
    """Raises ValueError for arguments of `fit` by which several records would be one contribution."""
    grouped = sorted({"unit_ids", "owners", "records_per_owner", "records_per_unit", "views"} & fit.keys())
    if grouped:
        raise ValueError(
            f"A canary is one record, put in or left out alone, and the audit got {grouped}. Leave that out: with the"
            " same sampling it tests the same clip and noise."
        )


def audited(
    ledger: Ledger,
    scores: np.ndarray,
    included: np.ndarray,
    delta: float,
    confidence: float = 0.95,
    rng: np.random.Generator | None = None,
) -> Audit:
    """What scores of canaries say about a claim: for attacks of your own.

    Args:
        ledger: what is claimed to have been released.
        scores: (canaries,), higher for those that seem to have been there, computed without the coins.
        included: (canaries,) boolean, the coins.
        delta, confidence: of the result.
        rng: orders equal scores, see `guess`. The operating system keys one if left out.
    """
    made = [max(2, int(fraction * len(scores))) for fraction in statistics.FRACTIONS]
    guesses = [statistics.guess(scores, included, number, rng) for number in made]
    family = of_ledger(ledger, delta)
    points = PointFamily(delta)
    each = 1.0 - (1.0 - confidence) / len(guesses)
    return Audit(
        claimed_epsilon=float(epsilon(ledger, delta)),
        audited_epsilon_lower=statistics.one_run_bound(guesses, family, confidence),
        delta=delta,
        confidence=confidence,
        assumption="by f-differential privacy, against the claimed mechanism with less noise",
        bounds={
            "(epsilon, delta) alone, f-differential privacy": statistics.one_run_bound(guesses, points, confidence),
            "(epsilon, delta) alone, one run": max(statistics.one_run_epsilon(g, delta, each) for g in guesses),
        },
        canaries=len(scores),
        included=int(np.sum(included)),
        guesses=guesses[0].made,
        correct=guesses[0].correct,
    )


def with_canaries(
    x: Any, y: Any, canaries: Canaries, sampling: Sampling, sampling_seed: int | None = None
) -> PrivateBatches:
    """The records and the canaries, put in or left out by their coins as the sampler's neighbours are."""
    x, y, keep = np.asarray(x), np.asarray(y), canaries.included
    examples = len(y) + len(keep)
    if isinstance(sampling, Poisson):
        x, y = np.concatenate([x, canaries.x[keep]]), np.concatenate([y, canaries.y[keep]])
        return PrivateBatches(x, y, sampling, examples=examples, seed=sampling_seed)
    rows = keep.reshape(-1, *[1] * (canaries.x.ndim - 1))
    labels = keep.reshape(-1, *[1] * (canaries.y.ndim - 1))
    if isinstance(sampling, FixedSize):
        put_x = np.where(rows, canaries.x, canaries.other_x)
        put_y = np.where(labels, canaries.y, canaries.other_y)
        return PrivateBatches(np.concatenate([x, put_x]), np.concatenate([y, put_y]), sampling, seed=sampling_seed)
    if isinstance(sampling, Partition | Cyclic):
        weights = np.concatenate([np.ones(len(y)), keep]).astype("float32")
        x, y = np.concatenate([x, canaries.x]), np.concatenate([y, canaries.y])
        return PrivateBatches(x, y, sampling, sample_weight=weights, seed=sampling_seed)
    raise ValueError(
        f"Canaries can't be left out of {type(sampling).__name__} draws: it fixes the number of rows without saying"
        " what stands in for a missing one. Audit with sampling.Poisson, FixedSize, Partition or Cyclic."
    )
