"""What leaves a use of a layer that bounds itself: its outputs, and nothing else that it computed of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["Border"]


class Border:
    """Between the uses of layers that bound themselves and all else in a step: outputs alone cross it.

    What a layer computed from the copies of weights may be used otherwise: by a gradient of the outputs with respect to
    the inputs, or found in the graph. Its own gradient would reach the weights past the bound.

    Args:
        copies: of the weights, in the graph that is being traced.
    """

    def __init__(self, copies: Sequence[tf.Tensor]) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._within = {one.ref() for one in copies}  # and all that uses computed from them
        self._crossing: set[Any] = set()
        self._uses: set[str] = set()
        self._start = self.made()

    def made(self) -> int:
        """How many operations there are."""
        return len(self._graph.get_operations())

    def used(self, start: int) -> None:
        """The operations from this one on are those of a use that ended just now."""
        for operation in self._graph.get_operations()[start:]:
            self._uses.add(operation.name)
            if any(tensor.ref() in self._within for tensor in operation.inputs):
                self._within.update(tensor.ref() for tensor in operation.outputs)

    def crossed(self, outputs: Any) -> None:
        """A use gives these tensors out."""
        self._crossing.update(one.ref() for one in keras.tree.flatten(outputs) if tf.is_tensor(one))

    def check(self) -> None:
        """Raises ValueError where something else than a layer's outputs is used outside of it."""
        kept = self._within - self._crossing
        for operation in self._graph.get_operations()[self._start :]:
            if operation.name not in self._uses and any(tensor.ref() in kept for tensor in operation.inputs):
                raise ValueError(
                    f"Operation {operation.name!r} uses what a layer that bounds itself computed of its weights inside,"
                    " where nothing bounds a record's influence on their gradient. Use the layer's outputs alone. Is it"
                    " a gradient with respect to inputs, as of a gradient penalty? Then no bound covers it: write one"
                    " layer of your own whose call holds the weights and the gradient, and compile with"
                    " tfdp.optimizers.ClippedOptimizer."
                )
