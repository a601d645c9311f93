"""Layers known to break the independence of records: why no bound on one record holds with them, and the fix."""

from typing import Any

import keras
import numpy as np

from tfdp_layers.certificates.constants import refusal_of_constants
from tfdp_layers.layers.adapted import AdaptedLayer


def refuse_mixing(layer: keras.layers.Layer, model: keras.Model | None = None) -> None:
    """Raises ValueError for a layer that lets one record reach another's gradient, or carries state from private
    data; with the way that fits the model that it stands in.
    """
    reason = mixing_reason(layer, model)
    if reason:
        raise ValueError(f"Layer {layer.name!r} is {type(layer).__name__}: {reason}")


def mixing_reason(layer: keras.layers.Layer, model: keras.Model | None = None) -> str | None:
    """Why the layer breaks the independence of records, with the fix; None if it is not known to."""
    kl = keras.layers
    if isinstance(layer, kl.BatchNormalization) and layer.trainable:
        return (
            "it averages over the batch, so one record moves every other record's gradient and no bound holds."
            f"{_freezing(layer, model)} model = tfdp.replace_batch_normalization(model) makes a model with"
            " keras.layers.GroupNormalization in its place; by='frozen' keeps its moving averages, as does"
            " layer.trainable = False."
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


def _freezing(layer: Any, model: keras.Model | None) -> str:
    """How to freeze such layers alone, for one whose averages were made elsewhere; empty where nothing speaks for it.

    So it is where the averages moved, as in a network with weights of other data, or where the model in which the layer
    stands is called with training=False. Empty, too, for a layer within one that is no model, whose layers have no
    names to be found by.
    """
    around = [] if model is None else _around(layer, model)
    nodes = [node for base in around or () for node in base._inbound_nodes]
    quiet = any(node.arguments.kwargs.get("training") is False for node in nodes)
    if around is None or not (quiet or _moved(layer)):
        return ""
    where = "".join(["model", *(f".get_layer({base.name!r})" for base in around)])
    return (
        " To train the other layers of a network with weights of public data (keras.applications), freeze these alone,"
        f" before compile:\n\n    for one in {where}.layers:\n"
        "        if isinstance(one, keras.layers.BatchNormalization):\n            one.trainable = False\n\n"
        "Its averages stay as they are then. Or, for a network that begins anew:"
    )


def _around(layer: Any, model: Any) -> list[Any] | None:
    """The models within a model that lead to a layer, the outermost first; None where something else is around it."""
    found: list[Any] = []
    while all(one is not layer for one in model.layers):
        inside = (one for one in model.layers if isinstance(one, keras.Model) and layer in one._flatten_layers())
        model = next(inside, None)
        if model is None:
            return None
        found.append(model)
    return found


def _moved(layer: Any) -> bool:
    """Whether averages are not those with which Keras begins."""
    held = getattr(layer, "moving_mean", None), getattr(layer, "moving_variance", None)
    return any(one is not None and np.any(np.asarray(one) != begun) for one, begun in zip(held, (0, 1), strict=True))
