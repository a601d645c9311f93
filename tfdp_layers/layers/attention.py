"""Multi-head attention with a bounded backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfdp_layers.layers.einsum import FaithfulEinsumDense
from tfdp_layers.rules.rows import check_bound
from tfdp_layers.sensitivity import bounded_in_parts
from tfdp_layers.structure import KerasMixin

Clip = float | Mapping[str, float]


@keras.saving.register_keras_serializable(package="tfdp_layers")
class ClippedMultiHeadAttention(KerasMixin, keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with backpropagation clipping: its arguments, and two clips.

    Forward: that of Keras, masks, cross attention and dropout included. Each of the projections of query, key, value
    and output (and gate) is a `FaithfulEinsumDense`, which bounds its own weights; between them nothing is clipped.

    Args (keyword only, beside those of Keras):
        input_clip: bound on each record's input of a projection, over all positions: one number, or a dict with one
            for each of "query", "key", "value", "output" (with `use_gate` also "gate").
        upstream_clip: the same for the upstream gradient of a projection's linear output.

    Shapes: as in Keras: query (batch, T, features), value and key (batch, S, features) -> (batch, T, features).
    Guarantee: one record moves the summed gradient of each projection's kernel and bias by at most its
        upstream_clip * sqrt(input_clip^2 + 1), without bias upstream_clip * input_clip, each time the layer is used,
        whether or not query, key and value are one tensor. Every projection is a group of weights with its own bound.
    Raises: ValueError for a clip that is not a positive finite number or lacks a projection, for attention over the
        batch axis; see `BoundedLayer`.
    Source: Stevens et al. 2022, arXiv:2202.05089, section 4, applied to each projection.
    """

    def __init__(self, *args: Any, input_clip: Clip, upstream_clip: Clip, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.input_clip = as_clip("input_clip", input_clip, self.projection_names())
        self.upstream_clip = as_clip("upstream_clip", upstream_clip, self.projection_names())

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
            bound_in_place(projection, clip_of(self.input_clip, name), clip_of(self.upstream_clip, name))

    def get_config(self) -> dict[str, Any]:
        ours = {"input_clip": plain(self.input_clip), "upstream_clip": plain(self.upstream_clip)}
        return super().get_config() | ours


def bound_in_place(layer: keras.layers.Layer, input_clip: float, upstream_clip: float) -> None:
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
    layer.input_clip, layer.upstream_clip = float(input_clip), float(upstream_clip)
    layer.refuse_equation()


def plain(clip: Clip) -> Clip:
    """The clip without Keras' tracking of dicts."""
    return dict(clip) if isinstance(clip, Mapping) else clip


def clip_of(clip: Clip, name: str) -> float:
    return clip[name] if isinstance(clip, Mapping) else clip


def as_clip(argument: str, clip: Clip, names: list[str]) -> Clip:
    """The clip as floats. Raises ValueError if it is out of range or does not name each projection."""
    if not isinstance(clip, Mapping):
        check_bound(**{argument: clip})
        return float(clip)
    if set(clip) != set(names):
        raise ValueError(
            f"`{argument}` must be a number, or a dict with one for each projection: {names}. Received:"
            f" {argument}={dict(clip)!r}."
        )
    check_bound(**{f"{argument}[{name!r}]": value for name, value in clip.items()})
    return {name: float(value) for name, value in clip.items()}


bounded_in_parts(ClippedMultiHeadAttention, ClippedMultiHeadAttention.projections)
