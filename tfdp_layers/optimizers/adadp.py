"""AdaDP: noise and step size adapted to each coordinate, sound by default."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.clipping.clamps import AdaptiveClamping
from tfdp_layers.clipping.filters import sizes
from tfdp_layers.noise import stddevs_beside_statistics
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.noise_multiplier import CALIBRATE, refuse_calibrating_printed
from tfdp_layers.rules.rows import check_bound
from tfdp_layers.sensitivity import LARGEST_SUM, Role, SensitivityGroup

ESTIMATORS = ("query", "layer", "coordinate")
_LIMITS = (0.01, 10.0)
"""Of a clamp, over C / sqrt(P), at which its noise is that of a clip to C: a clamp of noise alone must not run away."""
_RATE = 0.2
"""How fast the scales of "query" move: a factor exp(-rate * distance from the median) a step."""


@keras.saving.register_keras_serializable(package="tfdp_layers")
class AdaDPOptimizer(PrivateOptimizer):
    """Clamps every coordinate of each record's gradient to its own size, adds noise of that size, and steps as RMSProp.

    At first each record's gradient is clipped to L2 norm C. Once the variance, over the weights, of sqrt(E') is above a
    threshold, coordinate j is clamped to [-s_j, s_j], s_j = clip_factor * sqrt(E'_j), and gets noise of standard
    deviation noise_multiplier * sqrt(P) * s_j on its sum, P being the number of weights. E' estimates the squared size
    of the gradient.

    As printed, E' is updated with the gradient before the noise: the clamps and the noise scales give it away, and
    nothing is private. Here E' depends on released values alone:

    - "query": a noisy count, paid for by one percent of each step's precision, of the records whose gradient's root
      mean square is below the scale, for each variable; the scale moves to the median of the records.
    - "layer": for each variable the mean square of the noisy gradient, less the noise's variance, averaged with
      `noise_decay`.
    - "coordinate": the same for each weight by itself, as printed but for the noise.

    The clamps stay within 0.01 to 10 times C / sqrt(P).

    Args:
        learning_rate: a number or a Keras schedule.
        noise_multiplier: sigma*, of every step, in both phases, or "calibrate": see `PrivateOptimizer`.
        clip_factor: beta.
        l2_norm_clip: C, in units of per-record loss per unit of weight.
        rate_decay: gamma; the step's second moment keeps 1 - gamma of itself.
        noise_decay: gamma'; E' keeps gamma' of itself.
        variance_threshold: G.
        adaptive_rate: False steps as plain gradient descent ("AdaN" of the paper).
        adaptive_noise: False keeps the L2 clip and its uniform noise for good ("AdaL").
        as_published: the printed algorithm, for study: E' from the gradients before clip and noise. The ledger holds
            that they were released without noise: epsilon is infinite; a `PrivacyBudget` refuses to start unless it
            accepts the nominal figure.
        scale_estimator: "layer", "query" or "coordinate". On MNIST "layer" was the most accurate: it switches to the
            clamps only where the released gradients stand out of their noise.
        allow_generic: see `ClippedOptimizer`.
        noise_allocation, noise_source, name: see `PrivateOptimizer`.

    Formal guarantee: each step is one Gaussian mechanism of the given noise multiplier, whatever the state: the sum
    over all coordinates of s_j^2 / sigma_j^2 is noise_multiplier^-2 (lemma 1 of the source). What is released is in
    units of C, or of s_j sqrt(P), in which its bound is 1 and its noise is the same in both phases. Not with
    `as_published`.
    Raises: ValueError for an unknown estimator or a number out of its range.
    Source: Xu et al. 2019, "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning",
        algorithm 1. Readings taken where it is ambiguous: the variance is that of sqrt(E') (line 7); the noise is added
        once to the sum of a lot (lines 13 and 26), whose expected size divides it; lots are drawn as in `fit`.
    """

    _FIXED = (
        *PrivateOptimizer._FIXED,
        *("clip_factor", "l2_norm_clip", "rate_decay", "noise_decay", "variance_threshold", "allow_generic"),
        *("adaptive_rate", "adaptive_noise", "as_published", "scale_estimator"),
    )

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.002,
        noise_multiplier: float | str = CALIBRATE,
        clip_factor: float = 1.2,
        l2_norm_clip: float = 4.0,
        rate_decay: float = 0.1,
        noise_decay: float = 0.9,
        variance_threshold: float = 1e-6,
        adaptive_rate: bool = True,
        adaptive_noise: bool = True,
        as_published: bool = False,
        *,
        scale_estimator: str = "layer",
        allow_generic: bool = False,
        **kwargs: Any,
    ) -> None:
        refuse_calibrating_printed(noise_multiplier, as_published)
        check_bound(clip_factor=clip_factor, l2_norm_clip=l2_norm_clip)
        _check(l2_norm_clip, scale_estimator, variance_threshold, rate_decay=rate_decay, noise_decay=noise_decay)
        inner = (
            keras.optimizers.RMSprop(learning_rate, rho=1.0 - rate_decay, epsilon=1e-12)
            if adaptive_rate
            else keras.optimizers.SGD(learning_rate)
        )
        super().__init__(inner, noise_multiplier, **kwargs)
        self.clip_factor, self.l2_norm_clip = float(clip_factor), float(l2_norm_clip)
        self.rate_decay, self.noise_decay = float(rate_decay), float(noise_decay)
        self.variance_threshold = float(variance_threshold)
        self.adaptive_rate, self.adaptive_noise = bool(adaptive_rate), bool(adaptive_noise)
        self.as_published = bool(as_published)
        self.scale_estimator = "coordinate" if as_published else scale_estimator
        self.allow_generic = bool(allow_generic)
        self._bounding = self._clamping(self.allow_generic)
        self._batch_size = 1
        self._moments: dict[int, Any] = {}
        self._switch: Any = None

    def _clamping(self, allow_generic: bool) -> AdaptiveClamping:
        """What bounds each record, by the state of this optimizer."""
        return AdaptiveClamping(
            self.l2_norm_clip,
            switched=self.switched,
            clamp=self.clamp,
            clip_factor=self.clip_factor,
            counted=self.adaptive_noise and self.scale_estimator == "query",
            unprotected=self.as_published and self.adaptive_noise,
            allow_generic=allow_generic,
        )

    # The state, all of it from released values ------------------------------------------------------------------------

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        if not self.adaptive_noise or self._switch is not None:
            return
        with tf.init_scope():
            self._switch = self.add_variable((), dtype="float32", initializer="zeros", name="clamps_in_force")
            for i, variable in enumerate(variables):
                shape = variable.shape if self.scale_estimator == "coordinate" else ()
                moment = self.add_variable(shape, dtype="float32", initializer="zeros", name=f"squared_size_{i}")
                self._moments[id(variable)] = moment

    def switched(self) -> Any:
        """Whether the clamps are in force: () boolean."""
        return tf.constant(False) if self._switch is None else tf.convert_to_tensor(self._switch.value) > 0.0

    def size(self, variable: keras.Variable, weights: int) -> tf.Tensor:
        """sqrt(E'): of the variable's shape, or one number for all its weights."""
        moment = self._moments.get(id(variable))
        if moment is None:
            return tf.constant(self._start(weights))
        value = tf.convert_to_tensor(moment.value)
        if self.scale_estimator == "query":  # held as the logarithm of its ratio to the start
            return self._start(weights) * tf.exp(value)
        return tf.sqrt(tf.maximum(value, 0.0))

    def clamp(self, variable: keras.Variable, weights: int) -> tf.Tensor:
        """s_j of a model in which `weights` weights are clamped: of the variable's shape, or one number."""
        low, high = (limit * self._start(weights) for limit in _LIMITS)
        return tf.clip_by_value(self.clip_factor * self.size(variable, weights), low, high)

    def _start(self, weights: int) -> float:
        return self.l2_norm_clip / math.sqrt(weights)

    # What it does with what was released ------------------------------------------------------------------------------

    @property
    def bounding(self) -> AdaptiveClamping:
        return self._bounding

    @property
    def nominal_noise_multiplier(self) -> float | None:
        return self.multiplier.number if self._bounding.unprotected else None

    def stddevs(self, groups: Sequence[SensitivityGroup]) -> list[float]:
        """The noise of each group; statistics get a small fixed share of the precision, weights the rest."""
        private = [group for group in groups if group.role is not Role.UNPROTECTED]
        noises = stddevs_beside_statistics(private, self.multiplier.number, self.noise_allocation)
        found = dict(zip(map(id, private), noises, strict=True))
        return [found.get(id(group), 0.0) for group in groups]

    def release(
        self,
        sums: Sequence[tf.Tensor],
        variables: Sequence[keras.Variable],
        groups: Sequence[SensitivityGroup],
        batch_size: int,
        weight_terms: Callable[[], Sequence[tf.Tensor | None]] | None = None,
        public_sums: Callable[[], Sequence[tf.Tensor]] | None = None,
    ) -> tf.Tensor:
        self._batch_size = batch_size
        return super().release(sums, variables, groups, batch_size, weight_terms, public_sums)

    def in_units(
        self, means: list[tf.Tensor], variables: Sequence[Any], groups: Sequence[SensitivityGroup]
    ) -> list[tf.Tensor]:
        """Times C, or past the switch times s_j sqrt(P)."""
        units = {key: unit for group in groups if group.role is Role.OPTIMIZER for key, unit in self._units(group)}
        return [m * units[id(v)] if id(v) in units else m for m, v in zip(means, variables, strict=True)]

    def _units(self, group: SensitivityGroup) -> list[tuple[int, tf.Tensor]]:
        """Of each weight of the group, by its id: what 1 stands for in its sums, as the state is."""
        weights, switched = sizes(group.variables), self.switched()
        return [
            (id(v), tf.where(switched, self.clamp(v, weights) * math.sqrt(weights), self.l2_norm_clip))
            for v in group.variables
        ]

    def after_noise(
        self,
        means: list[tf.Tensor],
        statistics: Sequence[tf.Tensor],
        variables: Sequence[Any],
        groups: Sequence[SensitivityGroup],
    ) -> list[tf.Tensor]:
        """Back to the units of the gradient, by the state from which the step was made; then the state moves."""
        released = self.in_units(means, variables, groups)
        found = [
            (group, stddev)
            for group, stddev in zip(groups, self.stddevs(groups), strict=True)
            if group.role is Role.OPTIMIZER
        ]
        if not found or not self.adaptive_noise:
            return released
        ((group, stddev),) = found
        noises = {key: stddev / self._batch_size * unit for key, unit in self._units(group)}
        gradients = {id(v): g for g, v in zip(released, variables, strict=True)}
        self._estimate(group.variables, gradients, noises, statistics)
        self._decide(group.variables, sizes(group.variables))
        return released

    def _estimate(
        self,
        variables: Sequence[keras.Variable],
        gradients: dict[int, tf.Tensor],
        noises: dict[int, tf.Tensor],
        statistics: Sequence[tf.Tensor],
    ) -> None:
        """Moves E', given the released gradients, their noise's standard deviations, and released statistics."""
        if self.as_published:  # the statistic is the gradient itself, without noise
            parts = tf.split(statistics[-1], [math.prod(v.shape) for v in variables])
            gradients = {id(v): tf.reshape(part, v.shape) for v, part in zip(variables, parts, strict=True)}
            noises = dict.fromkeys(gradients, 0.0)
        for i, variable in enumerate(variables):
            moment = self._moments[id(variable)]
            value = tf.convert_to_tensor(moment.value)
            if self.scale_estimator == "query":
                above = tf.clip_by_value(0.5 - (statistics[i] + 0.5), -1.0, 1.0)
                low, high = (math.log(limit / self.clip_factor) for limit in _LIMITS)
                moment.assign(tf.clip_by_value(value + _RATE * above, low, high))
                continue
            gradient, noise = gradients[id(variable)], noises[id(variable)]
            if self.scale_estimator == "layer":  # half the sum of squares, written nowhere
                squared = tf.nn.l2_loss(gradient) * (2.0 / math.prod(variable.shape)) - tf.square(noise)
            else:
                squared = tf.square(gradient) - tf.square(noise)
            moment.assign(self.noise_decay * value + (1.0 - self.noise_decay) * squared)

    def _decide(self, variables: Sequence[keras.Variable], weights: int) -> None:
        """The clamps are in force while the variance of sqrt(E') over all weights is above the threshold."""
        spread = [(self.size(v, weights), math.prod(v.shape)) for v in variables]

        def over_all(function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
            """The mean over all weights of a function of their sizes, of which many have one number for all."""
            return tf.add_n([tf.reduce_mean(function(sizes_)) * (count / weights) for sizes_, count in spread])

        mean = over_all(tf.identity)
        variance = over_all(lambda sizes_: tf.square(sizes_ - mean))
        self._switch.assign(tf.where(variance > self.variance_threshold, 1.0, 0.0))

    def get_config(self) -> dict[str, Any]:
        inner = self.inner_optimizer.get_config()
        numbers = ("clip_factor", "l2_norm_clip", "rate_decay", "noise_decay", "variance_threshold")
        choices = ("adaptive_rate", "adaptive_noise", "as_published", "scale_estimator")
        config = super().get_config() | {name: getattr(self, name) for name in (*numbers, *choices)}
        config.pop("optimizer")
        return config | {"learning_rate": inner["learning_rate"], "allow_generic": self._bounding.allow_generic}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> "AdaDPOptimizer":
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate, custom_objects=custom_objects)
        return cls(**(config | {"learning_rate": rate}))


def _check(l2_norm_clip: float, scale_estimator: str, variance_threshold: float, **decays: float) -> None:
    """Raises ValueError for an argument out of its range."""
    if l2_norm_clip > LARGEST_SUM:  # sums are in units of the gradient until they are over the clamps
        raise ValueError(f"`l2_norm_clip` must be at most {LARGEST_SUM:g}. Received: {l2_norm_clip!r}.")
    if scale_estimator not in ESTIMATORS:
        raise ValueError(f"`scale_estimator` must be one of {ESTIMATORS}. Received: {scale_estimator!r}.")
    for name, value in decays.items():
        if not 0.0 < value < 1.0:
            raise ValueError(f"`{name}` must be between 0 and 1. Received: {name}={value!r}.")
    if not 0.0 <= variance_threshold < math.inf:
        raise ValueError(
            f"`variance_threshold` must be finite and at least 0. Received: {variance_threshold!r}. It is the"
            " variance of sqrt(E') above which the clamps come into force."
        )
