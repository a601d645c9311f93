"""Random numbers for several records at once are refused where replicas or pieces share a draw of records.

On one device that computes a draw at once all records meet the same random number: given it, what a record adds is a
function of that record alone, and the step is the mechanism that is accounted. Replicas and pieces draw a number each.
Then what a record adds depends on the one it is in, and a record more or less moves others from one to another: one
sign for all rows, with 41 records on two devices, moved a sum by three bounds. Equal numbers for all of them would do,
but then rows of two pieces would share masks of dropout, which come of the same seeds.
"""

from typing import Any

from tfdp_layers.batches.base import LONGEST_SUM
from tfdp_layers.models.run import Run
from tfdp_layers.proof.report import Report

__all__ = ["refuse_common_draws"]


def refuse_common_draws(model: Any, report: Report, run: Run) -> None:
    """Raises ValueError for random numbers of several records where replicas or pieces share a draw of records.

    Each of them draws other numbers, and which of them a record is in depends on the other records.
    """
    batches = run.batches
    largest, piece = batches.sampling.largest(batches.examples), batches.piece
    replicas = run.replicas is not None and run.replicas.share.of > 1
    pieces = piece is not None and (largest is None or largest > piece)
    if not report.common or not (replicas or pieces):
        return
    found = report.common[0]
    layer = f"Layer {found.layer!r} of model" if found.layer else "Model"
    parts = "on several devices" if replicas else f"in pieces of {piece:,}"
    instead = (
        "train on one device"
        if replicas
        else f"train without pieces: no physical_batch_size, and batches of at most {LONGEST_SUM:,}"
    )
    raise ValueError(
        f"{layer} {model.name!r} draws random numbers once for several records (operation {found.operation!r} of type"
        f" {found.type}), and the step computes a draw of records {parts}, each with other numbers: what a record"
        " adds would depend on where it lies, which depends on other records. Draw them for each row: of shape"
        " (keras.ops.shape(x)[0], ...), or in Dropout leave the batch axis of noise_shape None, as in"
        f" noise_shape=(None, 1, n). Or {instead}."
    )
