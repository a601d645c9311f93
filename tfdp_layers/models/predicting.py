"""What a model predicts for records comes from these records, whoever trains on it."""

from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting.footprint import predicted_for
from tfdp_layers.structure import KerasMixin

__all__ = ["Predicting"]


class Predicting(KerasMixin):
    """Mixin for Keras models: a training on what `predict` gave is one on the records that it was given.

    So it warns of the ledger of this model, if that was trained on them, as of every other one.
    """

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras."""
        return from_records(super().predict(x, *args, **kwargs), x)

    def predict_on_batch(self, x: Any) -> Any:
        """As in Keras."""
        return from_records(super().predict_on_batch(x), x)


def from_records(made: Any, given: Any) -> Any:
    """What was made, of which is noted that it was computed from the records given, row for row."""
    arrays = [one for one in keras.tree.flatten(made) if isinstance(one, np.ndarray)]
    predicted_for(arrays, keras.tree.flatten(given))
    return made
