"""What `fit` got beside batches that hold it already, and where that goes."""

from collections.abc import Sequence

from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.declared import DeclaredBatches

__all__ = ["refuse_beside"]

_LABELS, _DRAWS = ("y", "sample_weight", "class_weight"), ("sampling", "examples", "batch_size")


def refuse_beside(batches: Batches, given: Sequence[str]) -> None:
    """Raises ValueError for these arguments of `fit`, beside batches."""
    if not given:
        return
    where = _of_declared(given) if isinstance(batches, DeclaredBatches) else _of_drawn(batches, given)
    raise ValueError(
        f"{type(batches).__name__} holds its labels, weights and sampling already; fit got {list(given)} as well."
        f" {where}"
    )


def _of_drawn(batches: Batches, given: Sequence[str]) -> str:
    size = ", the batch size as that of its sampling: tfdp.sampling.Poisson(n)" if "batch_size" in given else ""
    return f"Give them to {type(batches).__name__} instead{size}."


def _of_declared(given: Sequence[str]) -> str:
    parts = []
    if not set(given).isdisjoint(_LABELS):
        parts.append("Labels and weights belong into the batches: (x, y, sample_weight).")
    if not set(given).isdisjoint(_DRAWS):
        parts.append("How many records a batch has is declared: tfdp.declare_sampling(dataset, sampling, examples=n).")
    if not {*_LABELS, *_DRAWS}.issuperset(given):
        parts.append(
            "Whose records are in batches that your own code draws, and how often each enters, cannot be said. Give the"
            " single records, without .shuffle and .batch, and fit draws them: fit(tfdp.records(dataset, unit_ids=ids),"
            " batch_size=n), with views= and other arguments; arrays go to fit as they are."
        )
    return " ".join(parts)
