"""How far the sums of a batch are from the sums of its records alone, beside what rounding explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdp_layers.sensitivity import SensitivityGroup

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

_TOLERANCE = 1e-3
_SMALL = 0.01
"""Of its bound: a gradient below that may be nothing but rounding."""


@dataclass(frozen=True)
class Gap:
    """What was measured of one group of weights.

    Attributes:
        group: its name.
        size: L2 distance between the sum of a batch and those of its records alone.
        scale: the size that rounding is relative to.
        own: the norms of the records' own sums, added up.
        tolerance: the part of `scale` that rounding explains.
    """

    group: str
    size: float
    scale: float
    own: float
    tolerance: float

    def __str__(self) -> str:
        return f"Additivity gap {self.size:.3g} of {self.scale:.3g}"

    @property
    def explained(self) -> bool:
        """Whether rounding explains it. What is not finite, it does not."""
        return self.size <= self.tolerance * self.scale

    @property
    def doubt(self) -> str:
        """What to look at first where gradients are so small that the gap may be rounding; "" where they are not."""
        if not self.own < self.scale:
            return ""
        return (
            f" The gradients of {self.group!r} are so small on the synthetic records ({self.own:.1g} in all), that"
            " this may be rounding of a gradient that is zero. Does the loss change with the outputs? A cosine"
            " similarity of single numbers, or a softmax over one, does not."
        )


NONE = Gap("", 0.0, 1.0, 1.0, _TOLERANCE)
"""Where nothing was found, or nothing could be measured."""


def gap_of(
    model: "PrivateTraining",
    groups: Sequence[SensitivityGroup],
    together: Sequence[tf.Tensor],
    alone: Sequence[Sequence[tf.Tensor]],
) -> Gap:
    """The gap of that group of weights where it is the largest for its size.

    Noise is scaled to the bound of each group, so a gap in one of small gradients counts as much.

    Args:
        model: whose layers' types say what rounding explains.
        groups: of the model.
        together: the sums of a batch, in the order of the trainable variables.
        alone: those of each of its records.
    """
    summed = [tf.add_n(parts) for parts in zip(*alone, strict=True)]
    places = {id(v): i for i, v in enumerate(model.trainable_variables)}
    error = tolerance(model)
    found = [Gap("", 0.0, 1.0, 1.0, error)]
    for group in groups:
        mine = [places[id(v)] for v in group.variables]
        own = sum(norm_of([parts[i] for i in mine]) for parts in alone)
        size = norm_of([together[i] - summed[i] for i in mine])
        found.append(Gap(group.name, size, max(own, _SMALL * group.bound), own, error))
    return max(found, key=lambda one: one.size / one.scale if np.isfinite(one.size) else np.inf)


def tolerance(model: "PrivateTraining") -> float:
    """The relative gap that rounding explains: layers in float16 or bfloat16 round to 11 or 8 bits."""
    types = {tf.as_dtype(layer.compute_dtype) for layer in model._flatten_layers()}
    return max([_TOLERANCE, *[4.0 * float(ml_dtypes.finfo(t.as_numpy_dtype).eps) for t in types if t.is_floating]])


def norm_of(tensors: Sequence[tf.Tensor]) -> float:
    """The L2 norm of all of them together."""
    flat = (np.asarray(t, np.float64).reshape(-1) for t in tensors)
    return float(np.sqrt(sum(float(np.dot(one, one)) for one in flat)))
