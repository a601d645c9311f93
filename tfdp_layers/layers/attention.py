"""Multi-head attention with a bounded backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfdp_layers.layers.einsum import FaithfulEinsumDense
from tfdp_layers.layers.gradient_clip import AUTOMATIC, GradientClip, chosen_clip
from tfdp_layers.rules.rows import check_bound
from tfdp_layers.sensitivity import bounded_in_parts
from tfdp_layers.structure import KerasMixin

Clip = float | str | Mapping[str, float | str]


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedMultiHeadAttention(KerasMixin, keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with a bounded gradient: its arguments, and `gradient_clip`, or two clips.

    Forward: that of Keras, masks, cross attention and dropout included. Each of the projections of query, key, value
    and output (and gate) is a `FaithfulEinsumDense`, which bounds its own weights; between them nothing is clipped.

    Args (keyword only, beside those of Keras): `gradient_clip`, or the two others, or none of them, which is
        gradient_clip="automatic".
        gradient_clip: bound on each record's gradient of a projection's kernel and bias, or "automatic" (see
            `GradientClip`): one for all, or a dict as below.
        input_clip: bound on each record's input of a projection, over all positions: one number, or a dict with one
            for each of "query", "key", "value", "output" (with `use_gate` also "gate").
        upstream_clip: the same for the upstream gradient of a projection's linear output.

    Shapes: as in Keras: query (batch, T, features), value and key (batch, S, features) -> (batch, T, features).
    Guarantee: one record moves the summed gradient of each projection's kernel and bias by at most its
        gradient_clip (1 if "automatic"), or
        upstream_clip * sqrt(input_clip^2 + 1), without bias upstream_clip * input_clip, each time the layer is used,
        whether or not query, key and value are one tensor. Every projection is a group of weights with its own bound.
    Raises: ValueError for a clip that is not a positive finite number or lacks a projection, for attention over the
        batch axis; see `BoundedLayer`.
    Source: Stevens et al. 2022, arXiv:2202.05089, section 4, applied to each projection.
    """

    def __init__(
        self,
        *args: Any,
        input_clip: Clip | None = None,
        upstream_clip: Clip | None = None,
        gradient_clip: Clip | None = None,
        **kwargs: Any,
    ) -> None:
        factors = {"input_clip": input_clip, "upstream_clip": upstream_clip}
        every = {"gradient_clip": gradient_clip} | factors
        if isinstance(gradient_clip, Mapping):
            chosen_clip(AUTOMATIC, factors)
        else:
            every["gradient_clip"] = chosen_clip(gradient_clip, factors)
        super().__init__(*args, **kwargs)
        for name, clip in every.items():
            setattr(self, name, None if clip is None else as_clip(name, clip, self.projection_names()))

    @property
    def clips(self) -> dict[str, Any]:
        """The clips that are given, by the names of their arguments."""
        every = {name: getattr(self, name) for name in ("gradient_clip", "input_clip", "upstream_clip")}
        return {name: clip for name, clip in every.items() if clip is not None}

    def projection_names(self) -> list[str]:
        """The projections, in the order in which Keras makes them."""
        gate = ["gate"] if getattr(self, "_use_gate", False) else []
        return ["query", "key", *gate, "value", "output"]

    def projections(self) -> dict[str, Any]:
        """The layers that project, by name. The layer must be built."""
        return {name: getattr(self, f"_{name}_dense") for name in self.projection_names()}

    def build(
        self,
        query_shape: Sequence[int | None],
        value_shape: Sequence[int | None],
        key_shape: Sequence[int | None] | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        if 0 in self._attention_axes:
            raise ValueError(
                f"Layer {self.name!r} attends over axis 0, the batch: one record would move every other record's"
                f" gradient. Received: attention_axes={self._attention_axes}. Use axes of the record."
            )
        for name, projection in self.projections().items():
            bound_in_place(projection, {kind: clip_of(clip, name) for kind, clip in self.clips.items()})

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {name: plain(clip) for name, clip in self.clips.items()}


def bound_in_place(layer: Any, clips: dict[str, Any]) -> None:
    """Turns a built EinsumDense, as Keras' attention makes it, into a `FaithfulEinsumDense` with its weights.

    Raises: ValueError if Keras made another layer: its bound would not be known.
    """
    if type(layer) is not keras.layers.EinsumDense:
        raise ValueError(
            f"Layer {layer.name!r} is {type(layer).__name__}, and this library bounds attention made of EinsumDense."
            " Use a release of Keras that it was tested with."
        )
    # Its attributes, weights and place among the parts of the attention stay; only what a call does changes.
    object.__setattr__(layer, "__class__", FaithfulEinsumDense)
    layer.set_clips(*[clips.get(name) for name in ("gradient_clip", "input_clip", "upstream_clip")])
    layer.refuse_equation()


def plain(clip: Clip) -> Clip:
    """The clip without Keras' tracking of dicts."""
    return dict(clip) if isinstance(clip, Mapping) else clip


def clip_of(clip: Clip, name: str) -> float | str:
    return clip[name] if isinstance(clip, Mapping) else clip


def as_clip(argument: str, clip: Clip, names: list[str]) -> Clip:
    """The clip as floats. Raises ValueError if it is out of range or does not name each projection."""
    if not isinstance(clip, Mapping):
        return checked(argument, clip)
    if set(clip) != set(names):
        raise ValueError(
            f"`{argument}` must be a number, or a dict with one for each projection: {names}. Received:"
            f" {argument}={dict(clip)!r}."
        )
    return {name: checked(f"{argument}[{name!r}]", value) for name, value in clip.items()}


def checked(argument: str, clip: float | str) -> float | str:
    """One clip as a float, or "automatic". Raises ValueError if it is out of range."""
    if isinstance(clip, str) and argument.startswith("gradient_clip"):
        return str(GradientClip(clip).clip)
    check_bound(**{argument: clip})  # type: ignore[arg-type]
    return float(clip)


bounded_in_parts(ClippedMultiHeadAttention, ClippedMultiHeadAttention.projections)
