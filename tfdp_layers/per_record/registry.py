"""Which formula says how a layer computes with its weights: by the layer's exact class, or by the class's name."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import keras
import tensorflow as tf

from tfdp_layers.caller import warn
from tfdp_layers.per_record.adopted import adopted
from tfdp_layers.structure import trained_weights
from tfdp_layers.uses.counted import CountedLayer

Formula = Callable[..., Any]
Kind = type | str
"""A class, or the module and name of one in a package that need not be here."""


@dataclass(frozen=True)
class Entry:
    """A registered formula.

    Attributes:
        formula: the function.
        parts: whether the formula calls the layer's parts, which then record for themselves.
        by_name: whether it is of a class in another package, known by its name: the formula is compared with the
            layer's own call before it is used (`tfdp_layers.per_record.agreement`).
        also_frozen: whether it is used where nothing of the layer is trained, too.
    """

    formula: Formula
    parts: bool = False
    by_name: bool = False
    also_frozen: bool = False

    def compute(self, layer: Any, record: Any, *args: Any, **kwargs: Any) -> Any:
        """What the formula gives for a call of the layer: without `training`, and what is None, where it takes none.

        Keras gives a layer what the signature of its `call` names, also of a class that it extends. Steps train, so a
        formula needs no `training`.

        Raises: ValueError for other arguments that the formula does not take: it would compute another function.
        """
        taken = inspect.signature(self.formula).parameters
        if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            return self.formula(layer, record, *args, **kwargs)
        left = [name for name in kwargs if name not in taken]
        unknown = [name for name in left if name != "training" and kwargs[name] is not None]
        if unknown:
            raise ValueError(
                f"The per-record formula of layer {layer.name!r} ({type(layer).__name__}) does not take {unknown},"
                " which its call is given. Let the formula take them, by these names, and use them as the call does."
            )
        return self.formula(layer, record, *args, **{name: kwargs[name] for name in kwargs if name in taken})


_FORMULAS: dict[Kind, Entry] = {}


def per_record_formulas(*kinds: Kind, parts: bool = False, also_frozen: bool = False) -> Callable[[Formula], Formula]:
    """Registers how exactly these layer types compute, in terms of a `Recorder`.

    The decorated function, `formula(layer, record, *args, **kwargs)`, is the layer's `call`, in which each trainable
    weight is used through `record` and in no other way: `record.product`, `record.offset`, `record.scale`,
    `record.lookup`, `record.einsum`. The per-record norms, sums and filters of all of them follow
    from that. Exactly these types: a subclass may compute otherwise, so it must be registered by itself. A formula that
    takes no `training` gets none; what else the layer's call is given (a mask) it must take, by that name.

    Steps compute by the formula, not by the layer's call. So a formula that is not the layer's trains another model
    than the one that predicts; the bound on what a record adds holds for it all the same.

    Args:
        kinds: the classes; or, of a package that need not be installed, "module.Class". The formula of such a name is
            compared with the layer's own call, on random inputs at random weights, before it is used.
        parts: whether layers within the layer, which the formula calls, record for themselves. Otherwise the formula
            is to use their weights as well.
        also_frozen: whether the formula stands in for the layer's call where nothing of the layer is trained, too: of
            one whose own call lays the records of a batch along one axis with others, or adds a loss over them.

    Example:
        @tfdp.per_record_formulas(MyDense)
        def my_dense(layer, record, inputs):
            return record.offset(layer.bias, record.product(layer.kernel, inputs))

    Raises: ValueError if a type has a formula already.
    """

    def register(formula: Formula) -> Formula:
        for kind in kinds:
            if kind in _FORMULAS:
                name = kind if isinstance(kind, str) else kind.__name__
                raise ValueError(f"{name} has a per-record formula already.")
            _FORMULAS[kind] = Entry(formula, parts, isinstance(kind, str), also_frozen)
        return formula

    return register


def entry_of(layer: Any) -> Entry | None:
    """What is registered for exactly the layer's type; None for nothing, and where the layer is quantized.

    A quantized layer computes by another function, with other weights: its own call shows what it does with them.
    """
    kind = type(layer)
    if method_of(layer) != "call":
        return None
    return _FORMULAS.get(kind) or _FORMULAS.get(f"{kind.__module__}.{kind.__qualname__}")


def method_of(layer: Any) -> str:
    """The name of the method by which Keras computes what a layer gives."""
    return "call" if getattr(layer, "quantization_mode", None) is None else "quantized_call"


def formula_of(layer: keras.layers.Layer) -> Formula:
    """The formula of the layer's type, or of the nearest that it extends: the caller says that it computes alike."""
    return next(_FORMULAS[kind].formula for kind in type(layer).__mro__ if kind in _FORMULAS)


def layers_to_record(model: keras.Model) -> Iterator[Any]:
    """The outermost layers that own trained weights, or have a formula for those that their parts own, and those of
    their parts that record for themselves."""
    seen: set[int] = set()

    def walk(layer: keras.layers.Layer) -> Iterator[Any]:
        if id(layer) in seen or isinstance(layer, CountedLayer):
            return
        seen.add(id(layer))
        if layer is not model and is_recorded(layer):
            yield layer
        for part in parts_to_record(layer):
            yield from walk(part)

    return walk(model)


def is_recorded(layer: keras.layers.Layer) -> bool:
    """Whether the layer itself computes through the recorder."""
    entry = entry_of(layer)
    if entry is not None and entry.also_frozen:
        return True
    return bool(trained_weights(layer) if entry is not None and not entry.parts else own_weights(layer))


def parts_to_record(layer: Any) -> list[Any]:
    """The layers within a layer that record for themselves: of a formula of all weights the activation alone."""
    entry = entry_of(layer)
    if entry is None or entry.parts or not is_recorded(layer):
        return list(layer._layers)
    activation = getattr(layer, "activation", None)
    return [activation] if isinstance(activation, keras.layers.Layer) else []


def own_weights(layer: keras.layers.Layer) -> list[Any]:
    """The trained weights that the layer itself owns, not a layer within it; and the tables that it adopted.

    What Keras trains goes by each weight's own flag: a part that was unfrozen in a frozen layer is trained.

    Raises: ValueError for one whose gradient is its next value, as of layers that are quantized to float8.
    """
    within = {id(v) for v in [*unshared(layer), *adopted(layer)]}
    found = [v for v in trained_weights(layer) if id(v) in within]
    overwritten = [v.name for v in found if getattr(v, "overwrite_with_gradient", False)]
    if overwritten:
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) has weights {overwritten} whose gradient is no gradient but"
            " their next value, as Keras does it for float8: with noise in it they would be of no use. Leave the layer"
            " in float32, or freeze it (layer.trainable = False), and quantize a plain copy of the trained model:"
            " model.to_keras()."
        )
    return found


def unshared(layer: Any) -> list[Any]:
    """The variables that the layer itself owns, frozen ones too, not a layer within it."""
    within = {id(v) for part in layer._layers for v in part.variables}
    return [v for v in layer.variables if id(v) not in within]


slow_layers: WeakSet[Any] = WeakSet()
"""Layers whose gradients are written out for each record."""


def no_formula(layer: keras.layers.Layer, why: str, meet: bool = False) -> str:
    """The message for a layer whose per-record gradients are not known, and why its call does not show them.

    Args:
        meet: whether records seem to meet in its call: then no formula is the fix.
    """
    if meet:
        return (
            f"Records may meet in layer {layer.name!r} ({type(layer).__name__}): {why}. So it is where a call"
            " normalises, compares or adds up over axis 0, which is that of the batch: one record moves the"
            " contributions of others then, and no bound holds. Keep every operation inside of a record, over axis=-1"
            " say. If no records meet there, register its formula, @tfdp.per_record_formulas(TheLayer), allow the slow"
            " way, one gradient for each record (allow_generic=True on the optimizer), or freeze the layer"
            " (layer.trainable = False)."
        )
    return (
        f"Layer {layer.name!r} ({type(layer).__name__}) owns trainable weights, and no formula gives their per-record"
        f" gradients, nor does its call show them: {why}. Register one, @tfdp.per_record_formulas(TheLayer); or allow"
        " the slow way, one gradient for each record (allow_generic=True on the optimizer); or freeze it"
        " (layer.trainable = False)."
    )


def warn_of_generic(model: keras.Model) -> None:
    """Warns of each layer that takes the slow way."""
    for layer in layers_to_record(model):
        if layer in slow_layers:
            weights = sum(int(tf.size(v.value)) for v in own_weights(layer))
            warn(
                f"Layer {layer.name!r} ({type(layer).__name__}) has no per-record formula: a gradient of its"
                f" {weights:,} weights is written out for every record of a batch. Register a formula,"
                " @tfdp.per_record_formulas, to save that.",
            )
