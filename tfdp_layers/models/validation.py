"""Whether validation data can be evaluated, said before a step is paid for."""

import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.alignment import refuse_other_rows
from tfdp_layers.batches.records import arrays, common_length
from tfdp_layers.models.inputs import check_inputs
from tfdp_layers.models.labels import check_label_shapes, check_labels
from tfdp_layers.models.texts import check_texts
from tfdp_layers.per_record.losses import PerRecordLoss
from tfdp_layers.structure import outputs_of

__all__ = ["check_validation"]


def check_validation(model: Any, given: Any, loss: PerRecordLoss, *, compiled: Any = None, steps: Any = None) -> None:
    """Raises ValueError for validation data that the first evaluation, after an epoch that was paid for, would end at.

    Arrays and tf.data pipelines are looked at; of other data nothing is known before they are read. Whose rows they
    are says `validation_rows`.

    Args:
        given: `validation_data` of `fit`.
        loss: the compiled one, taken apart.
        compiled: the loss as `compile` got it.
        steps: `validation_steps` of `fit`.
    """
    try:
        if isinstance(given, tf.data.Dataset):
            _check_pipeline(model, given, loss, steps)
        elif isinstance(given, list | tuple) or hasattr(given, "__array__"):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(given)
            refuse_other_rows("x", x, y=y, sample_weight=weights)
            x, y = arrays("x", x), None if y is None else arrays("y", y)
            common_length(x=x, y=y, sample_weight=None if weights is None else arrays("sample_weight", weights))
            _check(model, _specs(x), _specs(y), loss)
            check_labels(model, compiled, y)
    except ValueError as error:
        raise ValueError(f"In validation_data, {error}") from None


def _check(model: Any, x: Any, y: Any, loss: PerRecordLoss) -> None:
    check_texts(model, x)
    check_inputs(model, x)
    check_label_shapes(outputs_of(model), loss, y)


def _check_pipeline(model: Any, dataset: tf.data.Dataset, loss: PerRecordLoss, steps: Any) -> None:
    if steps is None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "the pipeline is endless, and so would be its first evaluation. Leave out .repeat(), or give"
            " validation_steps=."
        )
    spec = dataset.element_spec
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is not None for leaf in tf.nest.flatten(spec)):
        return  # of ragged, sparse and unknown tensors Keras' evaluation knows more than we
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    try:
        check_inputs(model, x)
    except ValueError:
        if _fits(model, keras.tree.map_structure(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), x)):
            raise ValueError("the pipeline gives single records. Make batches of them: dataset.batch(256).") from None
        raise
    _check(model, x, y, loss)


def _fits(model: Any, x: Any) -> bool:
    with contextlib.suppress(ValueError):
        check_inputs(model, x)
        return True
    return False


def _specs(structure: Any) -> Any:
    """What a pipeline would say of the arrays."""

    def spec(leaf: np.ndarray) -> tf.TensorSpec:
        text = leaf.dtype.kind in "USO"
        return tf.TensorSpec((None, *leaf.shape[1:]), tf.string if text else tf.as_dtype(leaf.dtype))

    return None if structure is None else keras.tree.map_structure(spec, structure)
