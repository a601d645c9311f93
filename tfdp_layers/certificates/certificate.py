"""Certificates: which object bounds each trainable weight, and by how much."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdp_layers.certificates.mixing import refuse_mixing
from tfdp_layers.certificates.uses import refuse_overridden, uses_of_layers
from tfdp_layers.layers.attention import ClippedMultiHeadAttention
from tfdp_layers.layers.base import BoundedLayer, CountedLayer, UpstreamBoundedLayer
from tfdp_layers.layers.conv import ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D
from tfdp_layers.layers.dense import ClippedDense
from tfdp_layers.layers.einsum import ClippedEinsumDense, FaithfulEinsumDense
from tfdp_layers.layers.embedding import ClippedEmbedding
from tfdp_layers.layers.feedback_dense import FeedbackDense, FeedbackOutput
from tfdp_layers.layers.feedback_stack import FeedbackStack
from tfdp_layers.layers.normalization import ClippedGroupNormalization, ClippedLayerNormalization
from tfdp_layers.structure import is_container

Bound = Callable[[Any], "float | Sequence[SensitivityGroup]"]
_BOUNDS: dict[type, Bound] = {}
LARGEST_SUM = 1e30


@dataclass(frozen=True)
class SensitivityGroup:
    """A group of weights with one bound.

    Attributes:
        name: the layer's name (its path in nested models).
        variables: the trainable Keras variables of the group.
        bound: L2 bound on what one record adds to the SUM of gradients of these variables, all of them together, in
            one step. Per-record loss per unit of weight; never divided by a batch size. A group without variables is a
            statistic that the optimizer's clipping releases beside the gradients.
        self_bounded: whether the layer's own backward pass enforces the bound, rather than the optimizer's clipping.
        shape: of the statistic, where there are no variables.
    """

    name: str
    variables: tuple[Any, ...]
    bound: float
    self_bounded: bool = True
    shape: tuple[int, ...] = ()


def sensitivity_of(*layer_types: type) -> Callable[[Bound], Bound]:
    """Registers `bound(layer) -> float`, the L2 bound of ONE use of exactly these layer types, over all their weights.

    A bound may also return several `SensitivityGroup`s, named inside the layer, that share its trainable weights out.

    Exactly these types: a subclass may bend the gradient, so it must be registered by itself.

    Raises: ValueError if a type has a bound already.
    """

    def register(bound: Bound) -> Bound:
        for layer_type in layer_types:
            if layer_type in _BOUNDS:
                raise ValueError(
                    f"{layer_type.__name__} has a registered bound already: two could contradict each other."
                )
            _BOUNDS[layer_type] = bound
        return bound

    return register


@sensitivity_of(
    ClippedDense,
    ClippedConv1D,
    ClippedConv2D,
    ClippedConv3D,
    ClippedDepthwiseConv2D,
    ClippedEinsumDense,
    FaithfulEinsumDense,
)
def clipped_input_times_clipped_upstream(layer: BoundedLayer) -> float:
    """upstream_clip * sqrt(input_clip^2 + 1): see the layers' docstrings."""
    return layer.sensitivity()


@sensitivity_of(FeedbackDense, FeedbackOutput)
def clipped_input_times_clipped_delta(layer: FeedbackDense | FeedbackOutput) -> float:
    """delta_clip * sqrt(activation_clip^2 + 1): see `feedback_affine`."""
    return layer.sensitivity()


@sensitivity_of(FeedbackStack)
def each_layer_of_the_stack(layer: FeedbackStack) -> list[SensitivityGroup]:
    """delta_clip * sqrt(activation_clip^2 + 1) for each layer: see `feedback_affine`."""
    return [SensitivityGroup(*group) for group in layer.weight_groups()]


@sensitivity_of(ClippedEmbedding, ClippedLayerNormalization, ClippedGroupNormalization)
def clipped_gradient(layer: UpstreamBoundedLayer) -> float:
    """upstream_clip: see the layers' docstrings."""
    return layer.sensitivity()


_PARTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    ClippedMultiHeadAttention: ClippedMultiHeadAttention.projections,
}
"""Layers of exactly these types own no weights but through parts that bound themselves: each part is a group of its
own, and its uses are counted as such, whoever calls it."""


def sensitivity_groups(model: keras.Model, bounding: Any = None) -> list[SensitivityGroup]:
    """The groups of `certified`."""
    return certified(model, bounding)[0]


def certified(model: keras.Model, bounding: Any = None) -> tuple[list[SensitivityGroup], Counter[int]]:
    """The groups of weights with their bounds, and how often each layer is used (see `uses_of_layers`).

    One group for each layer that bounds itself, and those of `bounding` for the others. Together they cover every
    trainable weight exactly once.

    Args:
        bounding: the optimizer's `Bounding` (`tfdp_layers.clipping`); None refuses layers that don't bound themselves.

    Raises:
        ValueError: naming the layer, if a layer mixes records, holds state adapted to data, has no bound, or if a
            weight is covered not at all or twice.
    """
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} is not built: its weights are not known. Give it a keras.Input, or call it once."
        )
    refuse_overridden(model)
    for layer in model._flatten_layers(include_self=False):
        refuse_mixing(layer)
    uses = uses_of_layers(model, bounding)
    groups: list[SensitivityGroup] = []
    others = []
    for path, layer in leaf_layers(model):
        variables = tuple(layer.trainable_variables)
        if not variables:
            continue
        if type(layer) in _BOUNDS:
            groups += groups_of(path, layer, max(1, uses[id(layer)]))
        elif bounding is None or any(isinstance(part, CountedLayer) for part in layer._flatten_layers()):
            raise ValueError(no_bound(path, layer))
        else:
            others.append((path, variables))
    if bounding is not None:
        groups += [checked(group) for group in bounding.groups(others)]
    check_cover(model, groups)
    return groups, uses


def groups_of(path: str, layer: Any, uses: int) -> Iterator[SensitivityGroup]:
    """The groups of a layer with a registered bound. Raises ValueError for a bound out of range."""
    stated = _BOUNDS[type(layer)](layer)
    parts = stated if isinstance(stated, Sequence) else [SensitivityGroup("", tuple(layer.trainable_variables), stated)]
    for part in parts:
        name = f"{path}/{part.name}" if part.name else path
        # A shared layer's gradients add up over its uses, and so do their norms in the worst case.
        yield checked(SensitivityGroup(name, part.variables, part.bound * uses))


def checked(group: SensitivityGroup) -> SensitivityGroup:
    """The group. Raises ValueError for a bound out of range."""
    if not 0 < group.bound <= LARGEST_SUM:
        raise ValueError(
            f"The bound of layer {group.name!r} must be above 0 and at most {LARGEST_SUM:g}, or sums over a batch"
            f" overflow float32. Received: {group.bound:g}. Use smaller clips."
        )
    return group


def check_cover(model: keras.Model, groups: list[SensitivityGroup]) -> None:
    """Raises ValueError unless each trainable weight of the model is in exactly one group."""
    covered = Counter(id(variable) for group in groups for variable in group.variables)
    for variable in model.trainable_variables:
        if covered[id(variable)] != 1:
            raise ValueError(
                f"Weight {variable.path!r} is covered by {covered[id(variable)]} bounds: it must be exactly one, or"
                f" its noise is"
                " not scaled to a record's influence. Weights owned by the model itself, or shared between layers of"
                " different types, have none; put them into a layer with a registered bound, or freeze them"
                " (trainable = False)."
            )
    if len(covered) != len(model.trainable_variables):
        raise ValueError(
            f"Model {model.name!r} has layers whose weights it does not train: their layers must be part of it."
        )


def parts_of(layer: Any) -> dict[str, Any]:
    """The layers that a bound is looked up for, by name: the layer itself, or its parts where they bound themselves."""
    if type(layer) not in _PARTS:
        return {layer.name: layer}
    return {f"{layer.name}/{name}": part for name, part in _PARTS[type(layer)](layer).items()}


def leaf_layers(model: keras.Model, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, layer) for each distinct layer inside nested Sequential and functional models, and for the parts
    that bound themselves."""
    seen: set[int] = set()

    def walk(container: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for layer in container.layers:
            if is_container(layer):
                yield from walk(layer, f"{prefix}{layer.name}/")
                continue
            for name, part in parts_of(layer).items():
                if id(part) not in seen:
                    seen.add(id(part))
                    yield prefix + name, part

    return walk(model, path)


def no_bound(path: str, layer: Any) -> str:
    """The message for a trainable layer without a registered bound."""
    twins = {bounded.__name__.removeprefix("Clipped"): bounded.__name__ for bounded in [*_BOUNDS, *_PARTS]}
    twin = twins.get(type(layer).__name__)
    mend = (
        f"Use tfdp.layers.{twin} in its place, or tfdp.make_private(model, bounding='backprop_clipping')"
        if twin
        else "Register one, @tfdp.sensitivity_of(TheLayer), if its backward pass bounds each record"
    )
    return (
        f"Layer {path!r} ({type(layer).__name__}) has trainable weights and no bound on what one record adds to"
        " their gradient, so no noise can protect it. Compile with tfdp.optimizers.ClippedOptimizer, which clips each"
        f" record's gradient. {mend}; or freeze it (layer.trainable = False)."
    )
