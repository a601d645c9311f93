"""Models with a ledger of their own or a given one, and what `fit` says of other ledgers."""

import warnings
from collections.abc import Callable
from typing import Any

import keras

import tfdp_layers as tfdp


def compiled(layers: list[Any], ledger: Any = None) -> Any:
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 2.0), "mse")
    if ledger is not None:
        model.ledger = ledger
    return model


def said(do: Callable[[], Any]) -> list[Any]:
    """What warns of other ledgers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [one for one in caught if "Other ledgers" in str(one.message)]
