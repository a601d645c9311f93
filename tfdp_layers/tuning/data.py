"""What `fit` says of records and validation data, said once before a search: within its trials nobody would hear it."""

from typing import Any

from tfdp_layers.batches.base import Batches
from tfdp_layers.models.fit_arguments import labels_of
from tfdp_layers.models.held_records import warn_of_held_records
from tfdp_layers.models.labels import check_labels
from tfdp_layers.models.statistics import warn_of_statistics
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.models.validation import check_validation
from tfdp_layers.models.validation_rows import warn_of_private_rows

__all__ = ["check_data"]


def check_data(batches: Batches, validation: Any, *, tried: PrivateTraining, beginning: PrivateTraining) -> None:
    """Raises ValueError for labels and validation data that no trial could use, and warns of what `fit` warns of.

    Those are validation data that are copies of records, or rows of the same array, and statistics of the records, or
    rows of them, in the model.

    Args:
        batches: of the private records.
        validation: of the search; None without any.
        tried: a model that was trained on made-up records.
        beginning: a model like it, which was not.
    """
    state, (inputs, labels) = tried._privacy, batches.arrays()
    check_labels(tried, state.loss, labels_of(batches))
    if validation is not None:
        loss = state.loss_of(tried._names_of_outputs())
        check_validation(tried, validation, loss, compiled=state.loss)
        warn_of_private_rows(batches, validation)
    warn_of_statistics(beginning, inputs, labels, batches.share)
    if not warn_of_held_records(beginning, None, inputs, labels):
        warn_of_held_records(tried, state.graph, inputs, labels)
