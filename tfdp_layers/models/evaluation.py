"""What the compiled losses and metrics are given of an output, in training and in evaluation alike."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.callbacks.steering import top_of
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.per_record.losses import as_column, as_columns, is_flat, is_mean
from tfdp_layers.structure import KerasMixin, outputs_of

__all__ = ["Evaluation"]


class Evaluation(KerasMixin):
    """Mixin for Keras models: losses and metrics of outputs of one number a record, (batch,), are those of (batch, 1).

    Keras' own means are over the last axis, which is the batch there: `evaluate` would average the means of batches
    of different sizes, weights would meet one number for all records, and "accuracy" would compare classes.
    """

    _privacy: PrivacyState

    @property
    def compiled_losses(self) -> list[Any]:
        """The compiled loss of each output, None where an output has none."""
        return self._privacy.loss_of(self._names_of_outputs()).losses

    def _names_of_outputs(self) -> list[str]:
        """Of the outputs in their order: the keys where the model gives a dict of them, else the names of layers."""
        structure = outputs_of(self) if self.built else None
        if isinstance(structure, dict) and not any(map(keras.tree.is_nested, structure.values())):
            return keras.tree.flatten({key: str(key) for key in structure})  # type: ignore[no-any-return]
        return list(getattr(self, "output_names", ["output"]))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """As in Keras, for `evaluate`; training takes losses apart by `PerRecordLoss`, to which these are equal."""
        if _any_flat(y_pred):
            pairs = zip(keras.tree.flatten(y_pred), self.compiled_losses, strict=True)
            y_pred = keras.tree.pack_sequence_as(y_pred, [as_column(p) if is_mean(loss) else p for p, loss in pairs])
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """As in Keras, for `evaluate`: metrics are built and updated as in training."""
        if not _any_flat(y_pred):
            return dict(super().compute_metrics(x, y, y_pred, sample_weight))
        self._update_metrics(x, y, y_pred, sample_weight, None)
        return self.get_metrics_result()

    def _build_metrics(self, y: Any, y_pred: Any) -> None:
        """Makes the compiled metrics for such labels and predictions (or their specs), once.

        "accuracy" is the binary one where predictions are one number a record, whether (batch, 1) or (batch,).
        """
        compiled = self._compile_metrics
        if compiled is not None and not compiled.built:
            compiled.build(y, keras.tree.map_structure(column_spec, y_pred))

    def _update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, present: tf.Tensor | None) -> None:
        """Updates compiled metrics with the rows of a batch.

        Args:
            present: (batch,), which rows are records and no padding: others do not count. None where all are.
        """
        compiled = self._compile_metrics
        if compiled is None:
            return
        self._build_metrics(y, y_pred)
        weights = compiled._flatten_y(sample_weight)
        leaves = list(zip(compiled._flatten_y(y), compiled._flatten_y(y_pred), strict=True))
        weights = weights * len(leaves) if len(weights) == 1 else weights
        for (y_true, prediction), weight, plain, weighted in zip(
            leaves, weights, compiled._flat_metrics, compiled._flat_weighted_metrics, strict=True
        ):
            for metric in plain.metrics if plain else ():
                if present is None or self.jit_compile or top_of(metric) == "keras":
                    update(metric, y_true, prediction, present)
                else:  # one that takes no weights, as Keras lets it, would count padding
                    update(metric, *_records_of((y_true, prediction, present), present > 0))
            for metric in weighted.metrics if weighted else ():
                update(metric, y_true, prediction, weight)


def _records_of(rows: Any, there: tf.Tensor) -> Any:
    """Of tensors (batch, ...) the rows that are there, by booleans (batch,); or all where none is."""
    kept = there | ~tf.reduce_any(there)
    return keras.tree.map_structure(lambda value: tf.boolean_mask(value, kept), rows)


def _any_flat(y_pred: Any) -> bool:
    return any(map(is_flat, keras.tree.flatten(y_pred)))


def update(metric: Any, y_true: Any, prediction: Any, weight: Any) -> None:
    """Updates a metric with the records of a batch. Raises ValueError where it gives one number for all of them."""
    if weight is not None and isinstance(metric, keras.metrics.IoU):  # which takes a weight for each entry
        entries = y_true if metric.sparse_y_true else y_true[..., 0]
        weight = tf.reshape(tf.cast(weight, metric.dtype), (-1, *[1] * (len(entries.shape) - 1)))
        weight = tf.broadcast_to(weight, tf.shape(entries))
    function = getattr(metric, "_fn", None)
    if top_of(metric if function is None else function) == "keras":  # some are means over the last axis, as losses are
        y_true, prediction = as_columns(y_true, prediction)
    try:
        metric.update_state(y_true, prediction, sample_weight=weight)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        found = None if function is None else function(y_true, prediction)
        if weight is None or found is None or getattr(found, "shape", None) != ():
            raise
        flat = len(prediction.shape) == 1
        fix = (
            "by leaving keras.ops.mean out" if flat else "keras.ops.mean(..., axis=-1) in place of keras.ops.mean(...)"
        )
        raise ValueError(
            f"Metric {metric.name!r} gives one number for a whole batch. Batches hold rows of padding, which must not"
            f" count, and records with weights: give one number for each record, for example {fix}."
        ) from error


def column_spec(prediction: Any) -> Any:
    """The spec of (batch, 1) for predictions (batch,), and others as they are."""
    return tf.TensorSpec((*prediction.shape, 1), prediction.dtype) if is_flat(prediction) else prediction
