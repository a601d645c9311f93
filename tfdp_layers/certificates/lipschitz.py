"""Norms through a model of Lipschitz layers: how large a record's tensors and their gradients can be."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from tfdp_layers.activations import known_slope
from tfdp_layers.layers.lipschitz import LipschitzConv2D, LipschitzDense
from tfdp_layers.layers.stretching import LARGEST_NORM, Stretch, of_activation, stretch
from tfdp_layers.sensitivity import own_methods
from tfdp_layers.structure import is_container, own_way, trained_weights


@dataclass
class Norm:
    """A bound on a norm, and the layer at which it was lost where it is infinite: as errors call it, and itself."""

    bound: float
    lost: str = ""
    layer: Any = None


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
class Call:
    """One call of a layer that a norm is followed through: the bounds hold where the step's is such a one.

    Attributes:
        shapes: of the tensors that it takes.
        inputs: of each of these, the numbers of those that it may be; none where no norm was followed to it.
        outputs: the numbers of what it gives.
    """

    shapes: tuple[tuple[int | None, ...], ...]
    inputs: tuple[frozenset[int], ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Norms:
    """What follows from the norms through a model.

    Attributes:
        bounds: of its trained Lipschitz layers, by their ids.
        calls: of each layer that a norm is followed through, by its id: all its calls in their order; None for those
            through which none is.
    """

    bounds: dict[int, Followed] = field(default_factory=dict)
    calls: dict[int, list[Call | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One call of a layer.

    Attributes:
        inputs, outputs: which tensors it takes and gives, by number.
        shapes: of the inputs.
        known: whether it takes nothing but these tensors and flags; a constant beside them may be of any norm. And
            whether it computes what its class does: a method that was put on it may be any function.
    """

    layer: Any
    inputs: list[int]
    outputs: list[int]
    shapes: list[tuple[int | None, ...]]
    known: bool

    @property
    def lipschitz(self) -> bool:
        """Whether the layer is a Lipschitz layer: of exactly these types, a subclass may do anything."""
        return self.known and type(self.layer) in LIPSCHITZ

    @property
    def stretch(self) -> Stretch | None:
        """What the layer does to norms: a Lipschitz layer's activation; else the layer, to the sum of its inputs'."""
        if self.lipschitz:
            return of_activation(self.layer.activation, self.layer.compute_output_shape(self.shapes[0]))
        # Coarser types round up by more than the slack of a stretch.
        exact = self.known and getattr(self.layer, "compute_dtype", None) == "float32"
        return stretch(self.layer, self.shapes) if exact else None


LARGE = f", with a norm of more than {LARGEST_NORM:.0g}, whose squares float32 does not hold,"
OF_UNKNOWN_SIZE = "which is not 0 at 0, and how many entries a record has is not known"
LIPSCHITZ = (LipschitzDense, LipschitzConv2D)
_JOINED = keras.layers.Concatenate(name="inputs_of_a_nested_model")
"""Stands for what the inputs of a model with several may be to it: any of the tensors that it is called on."""


def lipschitz_bounds(model: keras.Model) -> dict[int, Followed]:
    """What one record adds at most to the gradient of each trained Lipschitz layer of a model, by the layer's id: see
    `norms_of`."""
    return norms_of(model).bounds


def norms_of(model: keras.Model) -> Norms:
    """The bounds of the trained Lipschitz layers of a model, and the shapes that they hold for.

    Two passes over the model's graph, containers unfolded. Upward: a bound on the norm of each record's tensor, from
    the input clip that stands lowest. Downward: a bound on the norm of the gradient of a record's loss with respect to
    that tensor, from the upstream clip that stands highest; where several layers take a tensor, their gradients add up.
    What no rule is known for passes nothing on: both bounds are infinite behind it. The bounds of a layer's calls add
    up, too.

    Raises: ValueError for a trained Lipschitz layer without a finite bound, naming what lost it.
    """
    if not any(type(layer) in LIPSCHITZ for layer in model._flatten_layers(include_self=False)):
        return Norms()
    steps: list[Step] = []
    numbers = iter(range(1 << 62))
    inputs = [next(numbers) for _ in flat(model.inputs)]
    outputs = unfold(model, inputs, steps, numbers)
    reach = reaches(steps, inputs)
    for step in steps:
        if is_trained(step):
            refuse_unbounded_input(step.layer, clipped(reach[step.inputs[0]], step.layer, "input_clip"))
    pull = {number: Norm(math.inf, "the model's output") for number in outputs}
    bounds: dict[int, Followed] = {}
    for step in reversed(steps):
        above = added([pull.get(number, Norm(0.0)) for number in step.outputs])
        if above.bound > 0.0:  # else nothing uses what it puts out
            above = stretched(above, step.stretch, step.layer, back=True)
        below = above
        if step.lipschitz:
            above = clipped(above, step.layer, "upstream_clip")
            below = replace(above, bound=step.layer.pull(above.bound, step.shapes[0]))
            if is_trained(step):
                refuse_unbounded_upstream(step.layer, above)
                entering = clipped(reach[step.inputs[0]], step.layer, "input_clip")
                bound = step.layer.bound(entering.bound, above.bound, step.shapes[0])
                before = bounds.get(id(step.layer), Followed())
                bounds[id(step.layer)] = Followed(before.bound + bound, before.calls + 1)
        for number in step.inputs:
            pull[number] = added([pull.get(number, Norm(0.0)), below])
    return Norms(bounds, calls_of(steps, [rests_on(step, reach, pull) for step in steps]) if bounds else {})


def rests_on(step: Step, reach: Mapping[int, Norm], pull: Mapping[int, Norm]) -> bool:
    """Whether a norm is known behind a call because one is known before it, in either direction."""
    if step.layer is _JOINED or not (step.lipschitz or step.stretch is not None):
        return False
    numbers = [*(reach[number] for number in step.outputs), *(pull[number] for number in step.inputs)]
    return any(norm.bound < math.inf for norm in numbers)


def calls_of(steps: Sequence[Step], resting: Sequence[bool]) -> dict[int, list[Call | None]]:
    """The calls of each layer that a norm rests on in one of them, in their order, by the layer's id."""
    found: dict[int, list[Call | None]] = {}
    made: dict[int, frozenset[int]] = {}
    for step, rests in zip(steps, resting, strict=True):
        taken = [made.get(number, frozenset()) for number in step.inputs]
        if step.layer is _JOINED:  # any of these, where all of them are known
            made |= dict.fromkeys(step.outputs, frozenset().union(*taken) if all(taken) else frozenset())
            continue
        call = Call(tuple(step.shapes), tuple(taken), tuple(step.outputs)) if rests else None
        found.setdefault(id(step.layer), []).append(call)
        made |= {number: frozenset({number}) for number in step.outputs if rests}
    return {layer: calls for layer, calls in found.items() if any(calls)}


def unfold(container: Any, inputs: Sequence[int], steps: list[Step], numbers: Iterator[int]) -> list[int]:
    """Appends the calls inside a Sequential or functional model, in their order; the numbers of its outputs."""
    graph = container._functional if isinstance(container, keras.Sequential) else container
    known = {id(tensor): number for tensor, number in zip(flat(graph.inputs), inputs, strict=True)}
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.is_input or any(id(tensor) not in known for tensor in node.input_tensors):
                continue
            taken = [known[id(tensor)] for tensor in node.input_tensors]
            shapes = [tuple(tensor.shape) for tensor in node.input_tensors]
            if is_graph(node.operation):
                entering = taken
                if len(taken) > 1:  # in whatever order they were given
                    entering = [next(numbers) for _ in taken]
                    steps.append(Step(_JOINED, taken, entering, shapes, True))
                given = unfold(node.operation, entering, steps, numbers)
            else:
                given = [next(numbers) for _ in node.outputs]
                steps.append(Step(node.operation, taken, given, shapes, is_known(node)))
            known |= {id(tensor): number for tensor, number in zip(node.outputs, given, strict=True)}
    return [known[id(tensor)] for tensor in flat(graph.outputs)]


def is_graph(layer: Any) -> bool:
    """Whether a call of it is what its graph says.

    Raises: ValueError for a model with a way of its own around Lipschitz layers.
    """
    if not (isinstance(layer, keras.layers.Layer) and is_container(layer)):
        return False
    own = own_way(layer)
    inside = layer._flatten_layers(include_self=False) if own else ()
    for one in inside:
        if type(one) in LIPSCHITZ and trained_weights(one):
            raise ValueError(
                f"Lipschitz layer {one.name!r} stands in {named(layer)}: what surrounds it there is not known, and its"
                f" bound follows from what surrounds it. Take that {own[0]}() off, and put what it does into a layer of"
                " the model, a keras.layers.Layer without weights."
            )
    return not own


def is_known(node: Any) -> bool:
    """Whether a call has no arguments but Keras tensors, flags, and None, and its layer no methods of its own."""
    arguments = flat((node.arguments.args, node.arguments.kwargs))
    alone = all(isinstance(one, keras.KerasTensor | bool | None) for one in arguments)
    return alone and not own_methods(node.operation)


def flat(tensors: Any) -> list[Any]:
    """The tensors of a structure."""
    return list(keras.tree.flatten(tensors))


def reaches(steps: Sequence[Step], inputs: Sequence[int]) -> dict[int, Norm]:
    """A bound on the norm of each record's tensor, by the tensor's number."""
    reach = {number: Norm(math.inf, "the model's input") for number in inputs}
    for step in steps:
        found = added([reach[number] for number in step.inputs])
        if step.lipschitz:
            found = clipped(found, step.layer, "input_clip")
            found = replace(found, bound=step.layer.reach(found.bound, step.shapes[0]))
            if not found.lost:
                found = replace(found, lost=f"the bias of {named(step.layer)}", layer=step.layer)
        reach |= dict.fromkeys(step.outputs, stretched(found, step.stretch, step.layer))
    return reach


def stretched(norm: Norm, known: Stretch | None, layer: Any, back: bool = False) -> Norm:
    """The norm behind a layer of which this is known, or below it, on the way back."""
    if known is None:
        return Norm(math.inf, named(layer), layer)
    if norm.bound == math.inf:
        return norm
    if not back and known.offset == math.inf:
        return Norm(math.inf, named(layer, OF_UNKNOWN_SIZE), layer)
    bound = norm.bound * known.slope * (1.0 if back else known.steeper) + (0.0 if back else known.offset)
    if max(norm.bound, bound) > LARGEST_NORM:
        return Norm(math.inf, f"{named(layer)}{LARGE}", layer)
    return Norm(bound, norm.lost, norm.layer)


def clipped(norm: Norm, layer: Any, name: str) -> Norm:
    """The norm behind a clip of a Lipschitz layer, where there is one: one of more than `LARGEST_NORM` bounds none."""
    clip = getattr(layer, name)
    if clip is None or norm.bound <= min(clip, LARGEST_NORM):
        return norm
    return (
        Norm(clip) if clip <= LARGEST_NORM else Norm(math.inf, f"{named(layer)}, by its {name}={clip:g}{LARGE}", layer)
    )


def added(norms: Sequence[Norm]) -> Norm:
    """The norm of a sum, at most."""
    lost = next((norm for norm in norms if norm.bound == math.inf), Norm(0.0))
    return Norm(sum(norm.bound for norm in norms), lost.lost, lost.layer)


def named(layer: Any, of_known_slope: str = "") -> str:
    """A layer as errors call it; with its activation, where it is lost for that one, of a known slope for this."""
    activation = getattr(layer, "activation", None) if type(layer) in (*LIPSCHITZ, keras.layers.Activation) else None
    why = ""
    if activation is not None and (of_known_slope or known_slope(activation) is None):
        name = getattr(activation, "__name__", type(activation).__name__)
        reason = of_known_slope or "whose slope is not known, or stated and enforced by nothing"
        why = f" by its activation {name!r}, {reason},"
    own = own_way(layer) if isinstance(layer, keras.layers.Layer) and is_container(layer) else []
    if own:
        why = f", with a {own[0]}() of its own beside its graph,"
    return f"layer {layer.name!r} ({type(layer).__name__}){why}"


def is_trained(step: Step) -> bool:
    """Whether it is the call of a Lipschitz layer with weights that are trained."""
    return step.lipschitz and any(v.trainable for v in step.layer.variables)


def lost_at(norm: Norm, layer: Any, verb: str, elsewhere: str) -> str:
    """What lost a norm that a layer needs, and what it does to it: it may be the layer itself."""
    return f"{norm.lost} {verb}" if norm.layer is layer else f"{norm.lost} {elsewhere} {verb}"


def refuse_unbounded_input(layer: Any, reach: Norm) -> None:
    """Raises ValueError where nothing bounds the layer's input."""
    if reach.bound == math.inf:
        raise ValueError(
            f"Lipschitz layer {layer.name!r} ({type(layer).__name__}): nothing bounds the norm of its input, since"
            f" {lost_at(reach, layer, 'puts out', 'below')} records of any norm, as far as is known. Give this"
            " layer, or the first Lipschitz layer, `input_clip`; a bias below needs `bias_clip`."
        )


def refuse_unbounded_upstream(layer: Any, pull: Norm) -> None:
    """Raises ValueError where nothing bounds the layer's upstream gradient."""
    if pull.bound == math.inf:
        raise ValueError(
            f"Lipschitz layer {layer.name!r} ({type(layer).__name__}): nothing bounds the norm of its upstream"
            f" gradient, since {lost_at(pull, layer, 'passes down', 'above')} gradients of any norm, as far as is"
            " known. Give this layer, or the last Lipschitz layer, `upstream_clip`; between them use"
            " tfdp.layers.GroupSort, Flatten, ReLU, MaxPooling2D and other layers that docs/lipschitz.md lists."
        )
