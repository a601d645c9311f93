"""The clip of each record's gradient of a layer's weights, by its own norm, inside the layer's backward pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.bounded import automatic_scales, bounded_sums, clip_scales
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import formula_of
from tfdp_layers.rules.rows import check_bound

AUTOMATIC = "automatic"
_STABILITY = 1e-3
"""Beside the norm of one layer's gradient: a tenth of what is usual beside that of all layers' (Bu et al. 2022)."""
Clip = float | str
"""A bound, or how one is chosen."""


@dataclass(frozen=True)
class GradientClip:
    """Scales each record's gradient g of all trainable weights of a layer, taken together, by its norm.

    A number C: by min(1, C / ||g||). "automatic": by 1 / (||g|| + 0.001), no threshold to choose.

    Units: per-record loss per unit of weight; "automatic" has none.
    Guarantee: ||scale(g) g|| is at most `bound`: C, or 1 (x / (x + 0.001) < 1). A g that is not finite, or whose square
        overflows float32, adds zero. The norm is exact but for rounding, which is added to it (`bounded_sums`): for a
        product over positions X^T U it is <X X^T, U U^T>^(1/2) or taken from X^T U written out, for one position
        ||x|| ||u||, and a bias adds the square of its own gradient under the root.
    Why the exact norm, and not the certificate (||X X^T||_F ||U U^T||_F)^(1/2) >= ||X^T U||_F: with T positions, n
        inputs and m units that takes min(T^2 n, T n^2) + min(T^2 m, T m^2) multiplications, never fewer than the
        min(T n m, T^2 (n + m)) of the exact norm. Where both terms take T^2, or both n^2 and m^2 (n^2 + m^2 >= 2 n m),
        that is seen at once; T^2 n + T m^2 is at least T n m where m <= T, and T^2 (n + m) where m > T.
    Raises: ValueError unless the clip is a number in the range of `check_bound`, or "automatic".
    Source: Abadi et al. 2016, arXiv:1607.00133, algorithm 1, by layer; norms: Goodfellow 2015, arXiv:1510.01799;
        "automatic": Bu et al. 2022, arXiv:2206.07136, "AUTO-S".
    """

    clip: Clip

    def __post_init__(self) -> None:
        if isinstance(self.clip, str) and self.clip != AUTOMATIC:
            raise ValueError(
                f"`gradient_clip` is a bound on each record's gradient, or {AUTOMATIC!r}. Received:"
                f" gradient_clip={self.clip!r}."
            )
        if not isinstance(self.clip, str):
            check_bound(gradient_clip=self.clip)

    @property
    def bound(self) -> float:
        """L2 bound on what one record adds to the summed gradient in one use of the layer."""
        return 1.0 if isinstance(self.clip, str) else self.clip

    def scales(self, norms: tf.Tensor) -> tf.Tensor:
        """What each record's gradient is multiplied by: (batch,) -> (batch,)."""
        return automatic_scales(norms, 1.0, _STABILITY) if isinstance(self.clip, str) else clip_scales(norms, self.clip)


def chosen_clip(gradient_clip: Clip | None, clips: Mapping[str, Any]) -> Clip | None:
    """The clip of the gradient: as given, "automatic" where no clip at all is given, None where the others are.

    Raises: ValueError where a clip is out of range, where both kinds are given, or some of the others are missing.
    """
    given = {name: value for name, value in clips.items() if value is not None}
    names = " and ".join(f"`{name}`" for name in clips)
    if given and gradient_clip is not None:
        raise ValueError(
            f"`gradient_clip` bounds the gradient by its own norm, {names} by those of its factors: give one or the"
            f" other. Received: gradient_clip={gradient_clip!r}, {given}."
        )
    if given and len(given) < len(clips):
        raise ValueError(f"{names} bound a record together: give both, or `gradient_clip` alone. Received: {given}.")
    if given:
        return None
    clip = AUTOMATIC if gradient_clip is None else gradient_clip
    return clip if isinstance(clip, str) and GradientClip(clip) else float(GradientClip(clip).clip)


def with_bounded_gradient(layer: Any, inputs: tf.Tensor, clip: GradientClip) -> Any:
    """The layer's outputs before its activation; its weights get each record's gradient as `clip` bounds it.

    Forward: that of the Keras layer. Backward: the weights get sum_i scale_i g_i; what flows on below is whole.

    Under a policy of 16 bits forward and what flows on below are in these, as in Keras; norms and sums in float32.

    Args:
        layer: of a subclass of a Keras layer that has a per-record formula, and computes like that layer.
        inputs: (batch, ...), numbers or ids.
    """
    inputs = tf.cast(inputs, layer.compute_dtype) if inputs.dtype.is_floating else inputs
    formula: Callable[..., Any] = formula_of(layer)
    variables = list(layer.variables)

    @tf.custom_gradient
    def outputs_of(x: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        # The weights come as tensors: a custom gradient must close over no variable.
        scope = keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True)))
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape, scope:
            below = [x] if x.dtype.is_floating else []
            tape.watch(below)
            record = Recorder(tape, activate=False)
            record.layer = layer.name
            outputs = formula(layer, record, x)

        def gradient(u: tf.Tensor) -> list[tf.Tensor | None]:
            sources = [*below, *record.watched]
            found = tape.gradient(outputs, sources, output_gradients=u, unconnected_gradients="zero")
            trained = [v for v in variables if v.trainable]
            parts = record.contributions(found[len(below) :])
            sums = dict(zip(map(id, trained), bounded_sums(trained, parts, clip.scales)[0], strict=True))
            return [found[0] if below else None, *[sums.get(id(v)) for v in variables]]

        return outputs, gradient

    return outputs_of(inputs, *[tf.convert_to_tensor(v) for v in variables])
