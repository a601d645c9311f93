"""What is learned of fixed features before a layer is trained on them: their mean and second moments, with noise."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdp_layers.layers import DPCentering, DPWhitening
from tfdp_layers.layers.adapted import AdaptedLayer
from tfdp_layers.models.model import PrivateModel
from tfdp_layers.sampling import Sampling
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["adapt", "apply", "preparation"]

_ROWS = 500


def preparation(recipe: Recipe, blocks: Sequence[tuple[int, int]]) -> PrivateModel | None:
    """(batch, features) -> (batch, features): centered, then each block whitened; None where the recipe has neither.

    Args:
        recipe: with the noise multipliers of the two releases.
        blocks: (positions, channels) of the blocks that stand side by side in the features.
    """
    if not recipe.centering_noise and not recipe.whitening_noise:
        return None
    sizes = [positions * channels for positions, channels in blocks]
    inputs = keras.Input((sum(sizes),))
    found: Any = inputs
    if recipe.centering_noise:
        # No clip of the mean distorts: within an image every group's mean square is at most 1.
        found = DPCentering(recipe.centering_noise, math.sqrt(sum(sizes)))(found)
    if recipe.whitening_noise:
        ends = list(itertools.accumulate(sizes))
        parts = [
            _whitened(found, recipe.whitening_noise, (end - size, ends[-1] - end), block)
            for size, end, block in zip(sizes, ends, blocks, strict=True)
        ]
        found = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return PrivateModel(inputs, found, name="preparation")


def _whitened(features: Any, noise: float, around: tuple[int, int], block: tuple[int, int]) -> Any:
    """One block, whitened over its channels. `around` counts the features before and after it."""
    column = keras.layers.Reshape((features.shape[1], 1))(features)
    cut = keras.layers.Reshape(block)(keras.layers.Cropping1D(around)(column))
    # About the median of such records' own norms, by public images: see docs/accuracy.md.
    clip = math.sqrt(2.0 * math.sqrt(block[1]))
    return keras.layers.Flatten()(DPWhitening(noise, clip)(cut))


def adapt(model: PrivateModel, x: np.ndarray, sampling: Sampling) -> None:
    """Releases what each layer needs, in their order: charged to the model's ledger before it is made.

    The number of records is declared: the data sets of the zoo are published, with their numbers.
    """
    assert model.ledger is not None  # looking joins its layers' accounts to it
    for layer in model.layers:
        if isinstance(layer, AdaptedLayer):
            layer.adapt(apply(keras.Model(model.input, layer.input), x), sampling, len(x))


def apply(model: keras.Model, x: np.ndarray) -> np.ndarray:
    """What the model puts out for each record, in half precision: a large set fits in memory."""
    found = np.empty((len(x), *model.output_shape[1:]), np.float16)
    for start in range(0, len(x), _ROWS):
        found[start : start + _ROWS] = model(x[start : start + _ROWS].astype("float32"))
    return found
