"""Certificates: which object bounds each trainable weight, and by how much."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.layers.attention import ClippedMultiHeadAttention
from tfdp_layers.layers.base import BoundedLayer, CountedLayer, UpstreamBoundedLayer, inspect_uses
from tfdp_layers.layers.conv import ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D
from tfdp_layers.layers.dense import ClippedDense
from tfdp_layers.layers.dp_pca import DPPCA
from tfdp_layers.layers.einsum import ClippedEinsumDense, FaithfulEinsumDense
from tfdp_layers.layers.embedding import ClippedEmbedding
from tfdp_layers.layers.feedback_dense import FeedbackDense, FeedbackOutput
from tfdp_layers.layers.feedback_stack import FeedbackStack
from tfdp_layers.layers.normalization import ClippedGroupNormalization, ClippedLayerNormalization
from tfdp_layers.per_record.recording import Recorder, recording

Bound = Callable[[Any], "float | Sequence[SensitivityGroup]"]
_BOUNDS: dict[type, Bound] = {}
LARGEST_SUM = 1e30
_RECORDS = 1009
"""Records in the trace that counts uses: a size that no other axis is likely to have."""


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
        bounding: the optimizer's `tfdp_layers.clipping.Bounding`; None refuses layers that don't bound themselves.

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


@functools.cache
def functional_class() -> type:
    """Keras' class of functional models, which it does not export."""
    tensor = keras.Input(())
    return type(keras.Model(tensor, keras.layers.Identity()(tensor)))


def is_container(layer: Any) -> bool:
    """Whether the layer is a Sequential or functional model whose call only passes tensors from layer to layer."""
    base: Any = keras.Sequential if isinstance(layer, keras.Sequential) else functional_class()
    kind: Any = type(layer)
    return isinstance(layer, base) and kind.call is base.call


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


def uses_of_layers(model: keras.Model, bounding: Any = None) -> Counter[int]:
    """How often one call of the model uses each layer that bounds itself, by the layer's id: counted in a trace.

    Raises: ValueError for a use that the bound does not cover (see `inspect_uses`), for a layer without per-record
        formula, and for a weight used outside its layer.
    """
    tensors = keras.tree.flatten(inputs_of(model))
    rows = next((t.shape[0] for t in tensors if t.shape[0] is not None), _RECORDS)
    inputs = keras.tree.map_structure(lambda x: tf.TensorSpec((rows, *x.shape[1:]), x.dtype), inputs_of(model))
    bounded = [
        v for layer in model._flatten_layers() if isinstance(layer, CountedLayer) for v in layer.trainable_variables
    ]
    variables = bounded if bounding is None else model.trainable_variables
    uses: Counter[int] = Counter()

    def trace(x: Any) -> None:
        with inspect_uses(rows) as counted, tf.GradientTape() as tape, recorded(model, tape, bounding, rows):
            outputs = [t for t in keras.tree.flatten(model(x, training=True)) if t.dtype.is_floating]
        uses.update(counted)
        reached = tape.gradient(outputs, [v.value for v in variables])
        for variable, gradient in zip(variables, reached, strict=True):
            if gradient is not None:
                raise ValueError(
                    f"Weight {variable.path!r} is also used outside its layer, where nothing bounds a record's"
                    " influence on its gradient. Use it through its layer alone, or through tf.stop_gradient."
                )

    tf.function(trace, autograph=False).get_concrete_function(inputs)
    return uses


@contextlib.contextmanager
def recorded(model: Any, tape: tf.GradientTape, bounding: Any, rows: int | None = None) -> Iterator[Any]:
    """A `Recorder` of the layers that `bounding` bounds, active inside the block; an idle one without `bounding`."""
    recorder = Recorder(tape, rows)
    if bounding is None:
        yield recorder
    else:
        with recording(model, recorder, bounding.allow_generic):
            yield recorder


def inputs_of(model: keras.Model) -> Any:
    """The symbolic inputs of a built model, in the structure that its call takes."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def outputs_of(model: keras.Model) -> Any:
    """The symbolic outputs of a built model, in the structure that its call returns."""
    return model.outputs[0] if isinstance(model, keras.Sequential) else model.output


def refuse_overridden(model: keras.Model) -> None:
    """Raises ValueError for a model whose own code could use layers in a way that a trace does not show."""
    if not is_container(model):
        raise ValueError(
            f"{type(model).__name__} defines its own call(): how often a layer is used there, in loops for example,"
            f" can't be"
            " counted, so no bound holds. Write it as a functional model, tfdp.PrivateModel(inputs, outputs), with"
            " that code in"
            " a keras.layers.Layer without weights."
        )


def refuse_mixing(layer: Any) -> None:
    """Raises ValueError for a layer that lets one record reach another's gradient, or carries state from private
    data.
    """
    reason = mixing_reason(layer)
    if reason:
        raise ValueError(f"Layer {layer.name!r} is {type(layer).__name__}: {reason}")


def mixing_reason(layer: Any) -> str | None:
    """Why the layer breaks the independence of records, with the mend; None if it is not known to."""
    kl = keras.layers
    if isinstance(layer, kl.BatchNormalization) and layer.trainable:
        return (
            "it averages over the batch, so one record moves every other record's gradient and no bound holds."
            " Use keras.layers.GroupNormalization(groups=1, center=False, scale=False), or freeze it"
            " (layer.trainable = False)."
        )
    mixers = tuple(getattr(kl, name) for name in ("MixUp", "CutMix") if hasattr(kl, name))
    if mixers and isinstance(layer, mixers):
        return "it blends records with one another, so no bound on one record holds. Augment each record by itself."
    if getattr(layer, "stateful", False):
        return (
            "it carries state from one batch into the next, so a record acts beyond its own step. Set stateful=False."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        return (
            "it has an activity regularizer, a loss over the batch that no clip sees. Use kernel_regularizer (its"
            " gradient is"
            " added after the noise), or put the term into the per-record loss."
        )
    if isinstance(layer, DPPCA) and not layer.adapted:
        return "it was not adapted yet, and projects on nothing. Call its adapt(data) first; its cost joins the ledger."
    if is_adapted(layer):
        return (
            "its state was learned by adapt(), without noise; if that was private data, the model gives it away."
            " Give the state"
            " as constants known from public sources (mean=, variance=, bin_boundaries=, vocabulary=);"
            " tfdp.layers.DPPCA is a preprocessing layer that adapts privately."
        )
    return None


def is_adapted(layer: Any) -> bool:
    """Whether a preprocessing layer's state came from adapt() rather than from its arguments."""
    kl = keras.layers
    if isinstance(layer, kl.Normalization):
        return layer.input_mean is None
    if isinstance(layer, kl.Discretization):
        return bool(getattr(layer, "num_bins", None)) and layer.bin_boundaries is not None
    if isinstance(layer, kl.TextVectorization):
        layer = layer._lookup_layer
    if isinstance(layer, kl.StringLookup | kl.IntegerLookup) or hasattr(layer, "_has_input_vocabulary"):
        return not getattr(layer, "_has_input_vocabulary", False)
    return False


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
