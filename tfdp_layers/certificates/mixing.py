"""Layers known to break the independence of records: why no bound on one record holds with them, and the fix."""

import keras

from tfdp_layers.certificates.constants import refusal_of_constants
from tfdp_layers.layers.adapted import AdaptedLayer


def refuse_mixing(layer: keras.layers.Layer) -> None:
    """Raises ValueError for a layer that lets one record reach another's gradient, or carries state from private
    data.
    """
    reason = mixing_reason(layer)
    if reason:
        raise ValueError(f"Layer {layer.name!r} is {type(layer).__name__}: {reason}")


def mixing_reason(layer: keras.layers.Layer) -> str | None:
    """Why the layer breaks the independence of records, with the fix; None if it is not known to."""
    kl = keras.layers
    if isinstance(layer, kl.BatchNormalization) and layer.trainable:
        return (
            "it averages over the batch, so one record moves every other record's gradient and no bound holds."
            " model = tfdp.replace_batch_normalization(model) makes a model with keras.layers.GroupNormalization in its"
            " place; by='frozen' keeps its moving averages, as does layer.trainable = False."
        )
    mixers = tuple(getattr(kl, name) for name in ("MixUp", "CutMix") if hasattr(kl, name))
    if mixers and isinstance(layer, mixers):
        return "it blends records with one another, so no bound on one record holds. Augment each record by itself."
    if getattr(layer, "stateful", False):
        return (
            "it carries state from one batch into the next, so a record acts beyond its own step. Set stateful=False."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        return (
            "it has an activity regularizer, a loss over the batch that no clip sees. Use kernel_regularizer (its"
            " gradient is added after the noise), or put the term into the per-record loss: make the layer's output an"
            " output of the model, keras.Model(x, {'out': y, 'code': h}), with loss={'out': 'mse', 'code': lambda y, p:"
            " 0.001 * keras.ops.sum(keras.ops.abs(p), axis=-1)}, and zeros for the labels of 'code'."
        )
    if isinstance(layer, AdaptedLayer) and not layer.adapted:
        return "it was not adapted yet, and holds nothing. Call its adapt(data) first; its cost joins the ledger."
    return refusal_of_constants(layer)
