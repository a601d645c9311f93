"""Norms through a model of Lipschitz layers: how large a record's tensors and their gradients can be."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdp_layers.layers.lipschitz_base import LipschitzLayer
from tfdp_layers.layers.stretching import Stretch, of_activation, stretch
from tfdp_layers.structure import is_container


@dataclass
class Norm:
    """A bound on a norm, and the layer at which it was lost where it is infinite."""

    bound: float
    lost: str = ""


@dataclass(frozen=True)
class Followed:
    """What follows for a Lipschitz layer from its neighbours.

    Attributes:
        bound: L2 bound on what one record adds to the summed gradient of its weights, over all its calls.
        calls: how many of them the model's graph shows.
    """

    bound: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class Step:
    """One call of a layer: which tensors it takes and gives, by number, and the shape of the first that it takes."""

    layer: Any
    inputs: list[int]
    outputs: list[int]
    shape: tuple[int | None, ...]


def lipschitz_bounds(model: keras.Model) -> dict[int, Followed]:
    """What one record adds at most to the gradient of each trained Lipschitz layer of a model, by the layer's id.

    Two passes over the model's graph, containers unfolded. Upward: a bound on the norm of each record's tensor, from
    the input clip that stands lowest. Downward: a bound on the norm of the gradient of a record's loss with respect to
    that tensor, from the upstream clip that stands highest; where several layers take a tensor, their gradients add up.
    What no rule is known for passes nothing on: both bounds are infinite behind it. The bounds of a layer's calls add
    up, too.

    Raises: ValueError for a trained Lipschitz layer without a finite bound, naming what lost it.
    """
    if not any(isinstance(layer, LipschitzLayer) for layer in model._flatten_layers(include_self=False)):
        return {}
    steps: list[Step] = []
    numbers = iter(range(1 << 62))
    inputs = [next(numbers) for _ in flat(model.inputs)]
    outputs = unfold(model, inputs, steps, numbers)
    reach = reaches(steps, inputs)
    for step in steps:
        if is_trained(step.layer):
            refuse_unbounded_input(step.layer, clipped(reach[step.inputs[0]], step.layer.input_clip))
    pull = {number: Norm(math.inf, "the model's output") for number in outputs}
    bounds: dict[int, Followed] = {}
    for step in reversed(steps):
        above = added([pull.get(number, Norm(0.0)) for number in step.outputs])
        if isinstance(step.layer, LipschitzLayer):
            below, above = passed_down(step, above)
            if is_trained(step.layer):
                refuse_unbounded_upstream(step.layer, above)
                entering = clipped(reach[step.inputs[0]], step.layer.input_clip)
                bound = step.layer.bound(entering.bound, above.bound, step.shape)
                before = bounds.get(id(step.layer), Followed())
                bounds[id(step.layer)] = Followed(before.bound + bound, before.calls + 1)
        else:
            below = stretched_back(step, above)
        for number in step.inputs:
            pull[number] = added([pull.get(number, Norm(0.0)), below])
    return bounds


def unfold(container: Any, inputs: Sequence[int], steps: list[Step], numbers: Iterator[int]) -> list[int]:
    """Appends the calls inside a Sequential or functional model, in their order; the numbers of its outputs."""
    graph = container._functional if isinstance(container, keras.Sequential) else container
    known = {id(tensor): number for tensor, number in zip(flat(graph.inputs), inputs, strict=True)}
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.is_input or any(id(tensor) not in known for tensor in node.input_tensors):
                continue
            taken = [known[id(tensor)] for tensor in node.input_tensors]
            if isinstance(node.operation, keras.layers.Layer) and is_container(node.operation):
                given = unfold(node.operation, taken, steps, numbers)
            else:
                given = [next(numbers) for _ in node.outputs]
                shape = tuple(node.input_tensors[0].shape) if node.input_tensors else ()
                steps.append(Step(node.operation, taken, given, shape))
            known |= {id(tensor): number for tensor, number in zip(node.outputs, given, strict=True)}
    return [known[id(tensor)] for tensor in flat(graph.outputs)]


def flat(tensors: Any) -> list[Any]:
    """The tensors of a structure."""
    return list(keras.tree.flatten(tensors))


def reaches(steps: Sequence[Step], inputs: Sequence[int]) -> dict[int, Norm]:
    """A bound on the norm of each record's tensor, by the tensor's number."""
    reach = {number: Norm(math.inf, "the model's input") for number in inputs}
    for step in steps:
        entering = [reach[number] for number in step.inputs]
        if isinstance(step.layer, LipschitzLayer):
            below = clipped(entering[0], step.layer.input_clip)
            above = Norm(step.layer.reach(below.bound, step.shape), below.lost or f"the bias of {named(step.layer)}")
            slope = of_activation(step.layer.activation, step.layer.compute_output_shape(step.shape))
            found = stretched(above, slope, step.layer)
        elif type(step.layer) in (keras.layers.Add, keras.layers.Concatenate):
            found = added(entering)
        else:
            known = stretch(step.layer, step.shape) if len(step.inputs) == len(step.outputs) == 1 else None
            found = stretched(added(entering), known, step.layer)
        reach |= dict.fromkeys(step.outputs, found)
    return reach


def stretched(norm: Norm, known: Stretch | None, layer: Any) -> Norm:
    """The norm behind a layer of which this is known."""
    if known is None:
        return Norm(math.inf, named(layer))
    return Norm(norm.bound * known.slope + known.offset, norm.lost)


def stretched_back(step: Step, above: Norm) -> Norm:
    """A bound on the gradient below a layer without weights."""
    if above.bound == 0.0:  # nothing uses what it puts out
        return above
    if type(step.layer) in (keras.layers.Add, keras.layers.Concatenate):
        return above
    known = stretch(step.layer, step.shape) if len(step.inputs) == len(step.outputs) == 1 else None
    return stretched(above, None if known is None else Stretch(known.slope), step.layer)


def passed_down(step: Step, above: Norm) -> tuple[Norm, Norm]:
    """Bounds on the gradient below a Lipschitz layer, and at its linear output."""
    layer = step.layer
    slope = of_activation(layer.activation, layer.compute_output_shape(step.shape))
    if above.bound > 0.0:
        above = stretched(above, None if slope is None else Stretch(slope.slope), layer)
    above = clipped(above, layer.upstream_clip)
    return Norm(layer.pull(above.bound, step.shape), above.lost), above


def clipped(norm: Norm, clip: float | None) -> Norm:
    """The norm behind a clip, where there is one."""
    return norm if clip is None or norm.bound <= clip else Norm(clip)


def added(norms: Sequence[Norm]) -> Norm:
    """The norm of a sum, at most."""
    lost = next((norm.lost for norm in norms if norm.bound == math.inf), "")
    return Norm(sum(norm.bound for norm in norms), lost)


def named(layer: Any) -> str:
    return f"layer {layer.name!r} ({type(layer).__name__})"


def is_trained(layer: Any) -> bool:
    """Whether it is a Lipschitz layer with weights that are trained."""
    return isinstance(layer, LipschitzLayer) and any(v.trainable for v in layer.variables)


def refuse_unbounded_input(layer: Any, reach: Norm) -> None:
    """Raises ValueError where nothing bounds the layer's input."""
    if reach.bound == math.inf:
        raise ValueError(
            f"Lipschitz {named(layer)}: nothing bounds the norm of its input, since {reach.lost} below puts out records"
            " of any norm, as far as is known. Give this layer, or the first Lipschitz layer, `input_clip`; a bias"
            " below needs `bias_clip`."
        )


def refuse_unbounded_upstream(layer: Any, pull: Norm) -> None:
    """Raises ValueError where nothing bounds the layer's upstream gradient."""
    if pull.bound == math.inf:
        raise ValueError(
            f"Lipschitz {named(layer)}: nothing bounds the norm of its upstream gradient, since {pull.lost} above"
            " passes down gradients of any norm, as far as is known. Give this layer, or the last Lipschitz layer,"
            " `upstream_clip`; between them use tfdp.layers.GroupSort, Flatten, ReLU, MaxPooling2D and other layers"
            " that docs/methods.md lists."
        )
