"""What a `fit` is going to do: from which epoch, to which, and how many steps that makes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from tfdp_layers.callbacks.steering import flatten_callbacks
from tfdp_layers.caller import warn


@dataclass(frozen=True)
class Plan:
    """The steps of one `fit`, if nothing ends it before.

    Attributes:
        first_epoch: how many epochs an earlier `fit` made of it.
        epochs: the number of the last epoch, counted from 1.
        steps_of_an_epoch: the last call of the compiled step makes as many steps as any other, also where fewer are
            left, so this is a multiple of Keras' `steps_per_execution`.
    """

    first_epoch: int
    epochs: int
    steps_of_an_epoch: int

    @property
    def steps(self) -> int:
        """All of them."""
        return max(0, self.epochs - self.first_epoch) * self.steps_of_an_epoch

    def __str__(self) -> str:
        epochs = f"{self.epochs} epochs" if self.epochs != 1 else "1 epoch"
        if self.first_epoch:
            epochs = f"epochs {self.first_epoch + 1} to {self.epochs}"
        return f"{self.steps:,} steps ({epochs})"


def plan_of(model: keras.Model, arguments: Mapping[str, Any], restores: bool = True) -> Plan:
    """The plan of a `fit` with these arguments, by name, of a built model.

    Where a `keras.callbacks.BackupAndRestore` will go on from a checkpoint, it is loaded now, with what it cost: that
    joins the ledger, and the epochs that it made are not planned again.

    Args:
        restores: whether this process runs such callbacks.
    """
    for callback in flatten_callbacks(arguments.get("callbacks")) if restores else ():
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            callback.set_model(model)
            keras.callbacks.BackupAndRestore.on_train_begin(callback)
    together, asked = int(model.steps_per_execution), int(arguments["steps_per_epoch"])
    calls = -(-asked // together)
    if calls * together > asked:
        warn(
            f"steps_per_execution={together} makes {calls * together:,} steps of an epoch of {asked:,}: each call of"
            " the compiled step makes all of its steps, and each step costs privacy. Compile with a number that divides"
            f" {asked:,}, or fit with a multiple of {together} as steps_per_epoch."
        )
    first = getattr(model, "_initial_epoch", None) or arguments.get("initial_epoch", 0)
    return Plan(int(first), int(arguments.get("epochs", 1)), calls * together)
