"""A group of weights with its bound, and the registry of bounds by exact type of layer, filled by the layers' files."""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.instances import replaced

if TYPE_CHECKING:
    import keras

Bound = Callable[[Any], "float | Sequence[SensitivityGroup]"]
Parts = Callable[[Any], Mapping[str, Any]]
_BOUNDS: dict[type, Bound] = {}
_PARTS: dict[type, Parts] = {}
LARGEST_SUM = 1e30


class Role(enum.Enum):
    """What a group is to a step, and who enforces its bound."""

    LAYER = "weights whose layer bounds each record in its own backward pass"
    OPTIMIZER = "weights whose records the optimizer's `Bounding` bounds"
    STATISTIC = "a bounded number of the records, released beside the gradients"
    UNPROTECTED = "gradients without bound or noise, as an algorithm was printed"


@dataclass(frozen=True)
class SensitivityGroup:
    """A group of weights with one bound.

    Attributes:
        name: the layer's name (its path in nested models).
        variables: the trainable Keras variables of the group; none for what is released beside the gradients.
        bound: L2 bound on what one record adds to the SUM of gradients of these variables, all of them together, in
            one step. Per-record loss per unit of weight; never divided by a batch size.
        role: see `Role`.
        shape: of what is released, where there are no variables.
        counts: the table whose rows a statistic counts, if it counts any.
    """

    name: str
    variables: tuple[Any, ...]
    bound: float
    role: Role = Role.LAYER
    shape: tuple[int, ...] = ()
    counts: Any = None

    def __repr__(self) -> str:
        """In one line: of the variables their paths, not the numbers that they hold."""
        held = ", ".join(getattr(one, "path", type(one).__name__) for one in self.variables) or f"shape {self.shape}"
        return f"SensitivityGroup(name={self.name!r}, bound={self.bound:g}, role={self.role.name}, variables: {held})"

    @property
    def self_bounded(self) -> bool:
        """Whether the layer's own backward pass enforces the bound, rather than the optimizer's clipping."""
        return self.role is Role.LAYER


def sensitivity_of(*layer_types: type) -> Callable[[Bound], Bound]:
    """Registers `bound(layer) -> float`, the L2 bound of ONE use of exactly these layer types, over all their weights.

    A bound may also return several `SensitivityGroup`s, named inside the layer, that share its trainable weights out:
    one number does for layers without trainable layers inside.

    Exactly these types: a subclass may bend the gradient, so it must be registered by itself. It extends a layer of
    `tfdp.layers` that bounds itself, whose call says where the bounded part begins and ends.

    The bound is on your word: for every record, whatever it holds, at all weights. `fit` tries it on made-up records
    before it releases anything (see `tfdp_layers.certificates.registered`), and statements say that it is not proved.

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


def bounded_in_parts(layer_type: type, parts: Parts) -> None:
    """Registers `parts(layer) -> {name: layer}` for layers of exactly this type.

    They own no weights but through these parts, which bound themselves: each part is a group of its own, and its uses
    are counted as such, whoever calls it.
    """
    _PARTS[layer_type] = parts


def has_bound(layer: "keras.layers.Layer") -> bool:
    """Whether a bound is registered for exactly this type of layer."""
    return type(layer) in _BOUNDS


def on_word(layer: "keras.layers.Layer") -> bool:
    """Whether the layer's bound is on somebody's word: its class, or the function of its bound, is not this library's.

    A subclass may take over the function of the layer that it extends, and compute something else.
    """
    kind = type(layer)
    known = (getattr(one, "__module__", None) or "" for one in (kind, _BOUNDS.get(kind)))
    return kind in _BOUNDS and any(name.split(".")[0] != "tfdp_layers" for name in known)


def parts_of(layer: "keras.layers.Layer") -> dict[str, Any]:
    """The layers that a bound is looked up for, by name: the layer itself, or its parts where they bound themselves."""
    if type(layer) not in _PARTS:
        return {layer.name: layer}
    return {f"{layer.name}/{name}": part for name, part in _PARTS[type(layer)](layer).items()}


def groups_of(path: str, layer: "keras.layers.Layer", uses: int) -> Iterator[SensitivityGroup]:
    """The groups of a layer with a registered bound.

    Raises: ValueError for a bound out of range, and for methods of its own, of which none was registered.
    """
    refuse_replaced(path, layer)
    stated = _BOUNDS[type(layer)](layer)
    if not isinstance(stated, Sequence):
        refuse_inner_weights(path, layer)
        stated = [SensitivityGroup("", tuple(layer.trainable_variables), stated)]
    for part in stated:
        name = f"{path}/{part.name}" if part.name else path
        # A shared layer's gradients add up over its uses, and so do their norms in the worst case.
        yield checked(SensitivityGroup(name, part.variables, part.bound * uses))


def stated_for(layer: Any) -> tuple[Any, ...]:
    """What the bound of a layer is stated for, or that of a neighbour: whatever computes otherwise is not bounded.

    Of a layer with a registered bound that number, else its plain attributes; its class, the type that it computes in,
    and methods put on it.
    """
    kind, methods = type(layer), [name for name in own_methods(layer) if name != "call"]  # a step puts that on it
    methods.append(getattr(layer, "compute_dtype", ""))
    if kind in _BOUNDS:
        stated = _BOUNDS[kind](layer)
        if isinstance(stated, Sequence):
            return kind, methods, [(part.name, part.bound) for part in stated]
        return kind, methods, stated
    activation = getattr(layer, "activation", None)
    return kind, methods, settings_of(layer), id(activation), type(activation), settings_of(activation)


def settings_of(thing: Any) -> dict[str, Any]:
    """The plain attributes of a layer or an activation, by value: numbers, texts, arrays, and what is made of them."""
    named = {name: frozen(value) for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}
    return {name: value for name, value in named.items() if value is not _NO_SETTING}


def frozen(value: Any, depth: int = 8) -> Any:
    """A setting by its value, lists as tuples, which a later change does not reach; a mark for what is none.

    Args:
        depth: how far into lists of lists it goes: one may hold itself.
    """
    if isinstance(value, int | float | complex | str | bytes | np.generic | None):
        return value
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Set):
        return frozenset(value)  # what it holds can be hashed, and keeps its value
    if not depth or not isinstance(value, Mapping | Sequence):
        return _NO_SETTING
    parts = value.items() if isinstance(value, Mapping) else value
    return tuple(frozen(one, depth - 1) for one in parts)


_NO_SETTING = object()
_OF_KERAS = {"build", "quantize"}
"""Methods that Keras itself puts on every layer."""


def own_methods(layer: Any) -> list[str]:
    """The methods that somebody put on a layer in the place of its class's."""
    return sorted({*replaced(layer)} - _OF_KERAS)


def refuse_replaced(path: str, layer: Any) -> None:
    """Raises ValueError where a method was put on the layer itself, or on one inside of it.

    A bound is registered for what the class computes: another function's gradient may be of any size.
    """
    for one in layer._flatten_layers():
        for name in own_methods(one):
            raise ValueError(
                f"Layer {path!r} ({type(layer).__name__}) has a {name}() that was put on the object {one.name!r}: the"
                " bound is stated for what the class computes. Take it off; or write a layer class, and register its"
                " bound: tfdp.sensitivity_of (docs/extending.md)."
            )


def refuse_inner_weights(path: str, layer: Any) -> None:
    """Raises ValueError where a layer with one number for a bound holds layers that train weights of their own.

    The number is stated for the layer's own weights: an activation or a wrapped layer is not bounded with them.
    """
    for inner in layer._flatten_layers(include_self=False):
        if inner.trainable_variables:
            raise ValueError(
                f"Layer {path!r} ({type(layer).__name__}) holds layer {inner.name!r} ({type(inner).__name__}), which"
                " trains weights of its own: the bound is stated for the outer layer's weights alone. Put the inner"
                " layer after it in the model, freeze it (trainable = False), or register a bound for the outer layer"
                " that returns a SensitivityGroup for the weights of each."
            )


def checked(group: SensitivityGroup) -> SensitivityGroup:
    """The group. Raises ValueError for a bound out of range."""
    if not 0 < group.bound <= LARGEST_SUM:
        raise ValueError(
            f"The bound of layer {group.name!r} must be above 0 and at most {LARGEST_SUM:g}, or sums over a batch"
            f" overflow float32. Received: {group.bound:g}. Use smaller clips."
        )
    return group


def places_of_counts(variables: Sequence[Any], groups: Sequence[SensitivityGroup]) -> dict[int, int]:
    """Among the sums of a release: the place of each table that is counted, to that of its counts."""
    place = {id(v): i for i, v in enumerate(variables)}
    statistics = enumerate((group for group in groups if not group.variables), start=len(variables))
    return {place[id(group.counts)]: i for i, group in statistics if group.counts is not None}
