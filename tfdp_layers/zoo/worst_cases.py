"""Models and records made for the worst case of each method: one record attains the bound in every group of weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdp_layers.audit.mechanisms import Score, Weights
from tfdp_layers.layers import ClippedDense, FeedbackStack
from tfdp_layers.models.model import PrivateSequential
from tfdp_layers.noise import NoiseSource
from tfdp_layers.optimizers import AdaDPOptimizer, ClippedOptimizer, NoisyOptimizer, TanhFilteredOptimizer

__all__ = ["METHODS", "WorstCase", "worst_case"]

METHODS = ("backprop_clipping", "dfa", "dpsgd", "tanh", "adadp", "tanh as printed", "adadp as printed")
_INPUTS = 64
_FAR = 1e4


@dataclass(frozen=True, eq=False)
class WorstCase:
    """What `audit_steps` takes: a compiled model and two data sets that differ in one record.

    Attributes:
        model: with SGD of rate 1, so that its weights show what was released.
        present, absent: a record of zeros, with and without the record that attains the bounds.
        steps: of a run.
        score: None for the matched filter.
        nominal: whether the claim to attack is that of the publication.
    """

    model: Any
    present: tuple[np.ndarray, np.ndarray]
    absent: tuple[np.ndarray, np.ndarray]
    steps: int = 1
    score: Score | None = None
    nominal: bool = False


def worst_case(method: str, noise_multiplier: float, noise_source: str | NoiseSource = "default") -> WorstCase:
    """The worst case of a method of `METHODS`, two records drawn in every step.

    Raises: ValueError for an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}. Choose one of: {', '.join(METHODS)}.")
    name, printed = method.removesuffix(" as printed"), method.endswith(" as printed")
    source: dict[str, Any] = {"noise_source": noise_source}
    sgd = keras.optimizers.SGD(1.0)
    optimizer: Any = NoisyOptimizer(sgd, noise_multiplier, **source)
    if name == "dpsgd":
        optimizer = ClippedOptimizer(sgd, noise_multiplier, l2_norm_clip=1.0, **source)
    elif name == "tanh":
        optimizer = TanhFilteredOptimizer(sgd, noise_multiplier, as_published=printed, **source)
    elif name == "adadp":
        options: dict[str, Any] = {"adaptive_rate": False, "as_published": printed, "l2_norm_clip": 1.0}
        optimizer = AdaDPOptimizer(1.0, noise_multiplier, **options, **source)
    model = PrivateSequential([keras.Input((_INPUTS,)), *_layers(name)])
    model.compile(optimizer, keras.losses.MeanSquaredError())
    x, y = np.zeros((2, _INPUTS), "float32"), np.zeros((2, 1), "float32")
    leaking = name == "adadp" and printed
    # Feedback passes through the activation's slope, which is zero far out.
    x[1, : _INPUTS // 2 if leaking else None] = 0.25 if name == "dfa" else _FAR
    y[1] = -1e3 * _FAR  # so far that no step of a run reaches it
    settings: dict[str, Any] = {"steps": 2, "score": quiet_half} if leaking else {}
    return WorstCase(model, (x, y), (x[:1], y[:1]), nominal=printed, **settings)


def _layers(name: str) -> list[Any]:
    if name == "backprop_clipping":  # clips that get smaller towards the input bind in every layer
        return [
            ClippedDense(4, input_clip=1.0, upstream_clip=1e-3),
            ClippedDense(1, input_clip=1e-2, upstream_clip=1.0),
        ]
    if name == "dfa":
        return [FeedbackStack([4], "tanh", 1, activation_clip=[1.0, 1e-2], delta_clip=1e-3, error_clip=1.0)]
    # Weights of zero: predictions of zero, so the loss of the record of zeros has no gradient.
    return [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]


def quiet_half(history: Sequence[Weights]) -> float:
    """How little the second step moved the weights on which the record has no gradient.

    For AdaDP as printed: its noise follows the gradients before the noise. A record that moves one half of the weights
    switches the clamps on, and the noise of the other half collapses.
    """
    (before,), (after,) = history[1], history[2]
    return -float(np.sum(np.square((after - before)[_INPUTS // 2 :])))
