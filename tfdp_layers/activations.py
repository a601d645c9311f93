"""Activations: how steep each one is at most, and the tempered sigmoid."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["TemperedSigmoid", "derivative_bound", "tempered_sigmoid"]

# The derivative of GELU, Phi(x) + x phi(x), is largest at sqrt(2); those of SiLU and mish at roots of transcendental
# equations (2.3994 and 1.4906). Each rounded up in the last digit.
_DERIVATIVE_BOUNDS = {
    "celu": 1.0,
    "elu": 1.0,
    "gelu": 1.12890415,
    "hard_sigmoid": 1.0 / 6.0,
    "hard_silu": 1.5,
    "hard_tanh": 1.0,
    "leaky_relu": 1.0,
    "linear": 1.0,
    "log_sigmoid": 1.0,
    "mish": 1.08849817,
    "relu": 1.0,
    "relu6": 1.0,
    "selu": 1.0507009873554805 * 1.6732632423543773,
    "sigmoid": 0.25,
    "silu": 1.09983933,
    "softplus": 1.0,
    "softsign": 1.0,
    "soft_shrink": 1.0,
    "sparse_plus": 1.0,
    "sparse_sigmoid": 0.5,
    "squareplus": 1.0,
    "tanh": 1.0,
    "tanh_shrink": 1.0,
}
# Keras computes celu as max(x, 0) + expm1(min(x, 0)). Of numbers that it takes for equal, TensorFlow's maximum and
# minimum both pass the whole gradient on: at 0, and at numbers so small that kernels take them for 0.
_COMPUTED_AT_TIES = {"celu": 2.0}
_COARSE = 2.0**-21  # eight units of float32
_ROUNDED_AT_ZERO = {"elu": 1.0, "selu": 1.76}
"""Functions that are 0 at 0 and take numbers near 1 from each other there: how large these are."""
_PLAIN = (1e-30, 1e30)
"""Scales between these are rounded relative to their size."""


def derivative_bound(activation: str | Callable[..., Any] | None) -> float:
    """The largest absolute value of an activation's derivative, from which layers of fixed feedback choose a clip.

    That of a callable of your own is on your word: no bound rests on it, since the clip is enforced whatever the
    callable does. Where a bound would, in Lipschitz layers, `known_slope` counts.

    Args:
        activation: None (linear), the name of a Keras activation, the function itself, or a callable with a number
            `derivative_bound`.

    Raises: ValueError if it is not known, or infinite (exponential).
    """
    function = keras.activations.get(activation)
    own = getattr(function, "derivative_bound", None)
    if own is not None:
        return check_derivative_bound(own)
    known = known_name(function)
    if known is not None:
        return _DERIVATIVE_BOUNDS[known]
    name = getattr(function, "__name__", repr(function))
    if function is keras.activations.exponential:
        raise ValueError("The derivative of 'exponential' has no upper bound. Use another activation, or `delta_clip`.")
    raise ValueError(
        f"No bound on the derivative of activation {name!r} is known. State it as an attribute,"
        f" `{name}.derivative_bound = 1.0`, or bound the feedback itself with `delta_clip`, or use one of:"
        f" {', '.join(_DERIVATIVE_BOUNDS)}."
    )


def known_slope(function: Any) -> float | None:
    """The largest absolute value of the gradient of a function of Keras or this library; None of any other.

    Guarantee: it holds of the gradient that TensorFlow computes, but for roundings, for every float32 number up to
    1e18 that the function gets: where the function has a kink, or Keras computes it of several that have, this may be
    steeper than the function of mathematics (celu: 2). The function is known by identity, or by being of exactly
    `TemperedSigmoid`: what a callable states of itself, inherits or takes over from one that it wraps is no proof.
    """
    if type(function) is TemperedSigmoid:
        return function.derivative_bound
    name = known_name(function)
    return None if name is None else _COMPUTED_AT_TIES.get(name, _DERIVATIVE_BOUNDS[name])


def known_name(function: Any) -> str | None:
    """Keras' name of a function whose derivative is known."""
    return next((name for name in _DERIVATIVE_BOUNDS if function is getattr(keras.activations, name, None)), None)


def rounded_at_zero(function: Any) -> float:
    """How far float32 may take a function, one with a `known_slope`, off f(0) near 0, beside what is relative to f(x).

    exp(x) - 1 is off by what exp(x) is rounded by: as much as x itself where x is 1e-7.
    """
    if type(function) is TemperedSigmoid:
        return (abs(function.scale) + abs(function.offset)) * _COARSE
    return _ROUNDED_AT_ZERO.get(known_name(function) or "", 0.0) * _COARSE


def steeper_values(function: Any) -> float:
    """How many times its `known_slope` |f(x)| / |x| may be as float32 computes it; infinite where no number is known.

    exp(x) of x just below 0 is a number just below 1, and these lie 2^-24 apart: the first that is not taken for 1 is
    off by half of that, as much as x is, so that exp(x) - 1 is twice x. Sigmoids are taken for 1/2 up to 2^-24, or up
    to 1.5 2^-25 as XLA computes them, where they are then off by all of 2^-24: 2.67 times x; four allows for scales.
    """
    if type(function) is TemperedSigmoid:
        known = function.offset == function.scale / 2.0 and _PLAIN[0] < abs(function.scale) < _PLAIN[1]
        return 4.0 if known else math.inf
    return 2.0 if known_name(function) in _ROUNDED_AT_ZERO else 1.0


def check_derivative_bound(value: Any) -> float:
    """Returns the value as a float. Raises ValueError unless it is a positive finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 < number < math.inf:
        raise ValueError(f"`derivative_bound` must be a positive finite number. Received: {value!r}.")
    return number


@keras.saving.register_keras_serializable(package="tfdp_layers")
class TemperedSigmoid:
    """x -> scale * sigmoid(inverse_temperature * x) - offset; made by `tempered_sigmoid`.

    Its three numbers stay what they are: bounds rest on them. Raises AttributeError where one is set again.
    """

    def __init__(self, scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0) -> None:
        if not all(math.isfinite(value) for value in (scale, inverse_temperature, offset)):
            raise ValueError(
                f"A tempered sigmoid takes finite numbers. Received: scale={scale!r},"
                f" inverse_temperature={inverse_temperature!r}, offset={offset!r}."
            )
        self.scale, self.inverse_temperature, self.offset = float(scale), float(inverse_temperature), float(offset)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("scale", "inverse_temperature", "offset") and name in vars(self):
            raise AttributeError(
                f"{name!r} of a tempered sigmoid does not change: bounds of layers rest on it. Make another one,"
                f" tfdp.activations.tempered_sigmoid({name}={value!r}), and give it to the layer."
            )
        super().__setattr__(name, value)

    @property
    def derivative_bound(self) -> float:
        """|scale * inverse_temperature| / 4, attained at 0."""
        return abs(self.scale * self.inverse_temperature) / 4.0

    def __call__(self, x: tf.Tensor) -> Any:
        return self.scale * keras.ops.sigmoid(self.inverse_temperature * x) - self.offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TemperedSigmoid) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((self.scale, self.inverse_temperature, self.offset))

    def get_config(self) -> dict[str, float]:
        """The arguments, for Keras' serialization."""
        return {"scale": self.scale, "inverse_temperature": self.inverse_temperature, "offset": self.offset}

    @classmethod
    def from_config(cls, config: dict[str, float]) -> "TemperedSigmoid":
        """Makes the activation of `get_config`."""
        return cls(**config)


def tempered_sigmoid(scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0) -> Callable[[Any], Any]:
    """An activation x -> scale * sigmoid(inverse_temperature * x) - offset, for any Keras layer; saved with the model.

    Bounded activations keep gradients, and so the loss to clipping, small. The defaults give tanh. Its derivative is at
    most |scale * inverse_temperature| / 4.

    Raises: ValueError for numbers that are not finite.
    Source: Papernot et al. 2021, arXiv:2007.14191.
    """
    return TemperedSigmoid(scale, inverse_temperature, offset)
