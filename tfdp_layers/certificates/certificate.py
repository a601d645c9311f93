"""Certificates: that each trainable weight is bounded by exactly one object, and by how much."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from tfdp_layers import layers
from tfdp_layers.certificates.lipschitz import LIPSCHITZ, Followed, lipschitz_bounds
from tfdp_layers.certificates.mixing import refuse_mixing
from tfdp_layers.certificates.ownership import refuse_overridden, refuse_overridden_steps, refuse_tied_behind_keras
from tfdp_layers.certificates.uses import uses_of_layers
from tfdp_layers.clipping.bounding import Bounding
from tfdp_layers.per_record.embeddings import tables_of
from tfdp_layers.sensitivity import (
    SensitivityGroup,
    checked,
    groups_of,
    has_bound,
    parts_of,
    refuse_inner_weights,
    refuse_replaced,
    stated_for,
)
from tfdp_layers.structure import is_container, trained_weights
from tfdp_layers.uses.counted import CountedLayer


def sensitivity_groups(
    model: keras.Model, bounding: Bounding | None = None, records: Any = None
) -> list[SensitivityGroup]:
    """The groups of `certified`."""
    return certified(model, bounding, records)[0]


def certified(
    model: keras.Model, bounding: Bounding | None = None, records: Any = None
) -> tuple[list[SensitivityGroup], Counter[int]]:
    """The groups of weights with their bounds, and how often each layer is used (see `uses_of_layers`).

    One group for each layer that bounds itself, and those of `bounding` for the others. Together they cover every
    trainable weight exactly once.

    Args:
        bounding: the optimizer's `Bounding` (`tfdp_layers.clipping`); None refuses layers that don't bound themselves.
        records: what records look like, where that is known; see `uses_of_layers`.

    Raises:
        ValueError: naming the layer, if a layer mixes records, holds state adapted to data, has no bound, or if a
            weight is covered not at all or twice.
    """
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} is not built: its weights are not known. Give it a keras.Input, or call it once."
        )
    refuse_overridden(model)
    refuse_overridden_steps(model)
    refuse_tied_behind_keras(model)
    for layer in model._flatten_layers(include_self=False):
        refuse_mixing(layer, model)
    uses = uses_of_layers(model, bounding, records)
    followed = lipschitz_bounds(model)
    refuse_hidden_calls(model, followed, uses)
    groups: list[SensitivityGroup] = []
    others: list[tuple[str, tuple[Any, ...]]] = []
    tables: list[tuple[str, Any]] = []
    taken: set[int] = set()
    for path, layer in leaf_layers(model):
        variables = tuple(trained_weights(layer))
        if not variables:
            continue
        stated = own_groups(path, layer, max(1, uses[id(layer)]), followed)
        if stated:
            groups += stated
        elif inner := [p for p in layer._flatten_layers(include_self=False) if isinstance(p, CountedLayer)]:
            raise ValueError(hidden_bound(path, layer, inner[0]))
        elif bounding is None or isinstance(layer, CountedLayer):
            raise ValueError(no_bound(path, layer))
        else:
            # Tied weights are counted with the first layer: all their uses are recorded, and merged.
            left = tuple(v for v in variables if id(v) not in taken)
            taken.update(map(id, left))
            others += [(path, left)] if left else []
            tables += [(name, table) for name, table in tables_of(path, layer) if any(table is v for v in left)]
    if bounding is not None:
        groups += [checked(group) for group in [*bounding.groups(others), *bounding.statistics_of_rows(tables)]]
    check_cover(model, groups)
    return groups, uses


def stated_bounds(model: keras.Model) -> tuple[tuple[str, float], ...]:
    """What the layers that bound themselves state at this moment, for one use each: cheap enough for every step."""
    followed = lipschitz_bounds(model)
    return tuple(
        (group.name, group.bound)
        for path, layer in leaf_layers(model)
        if layer.trainable_variables
        for group in own_groups(path, layer, 1, followed)
    )


def rested_on(model: keras.Model) -> Callable[[Any], Any]:
    """Of a layer: what its own bound is stated for, or that of a Lipschitz layer of the model; None of other layers."""
    followed = any(type(layer) in LIPSCHITZ for layer in model._flatten_layers(include_self=False))

    def stated(layer: Any) -> Any:
        known = type(layer).__module__.split(".")[0] in ("keras", "tfdp_layers")  # the rest passes no bound on
        between = followed and known and not is_container(layer) and not trained_weights(layer)
        return stated_for(layer) if between or isinstance(layer, CountedLayer) else None

    return stated


def own_groups(path: str, layer: Any, uses: int, followed: Mapping[int, Followed]) -> list[SensitivityGroup]:
    """The groups of a layer that bounds itself, or whose bound follows from its neighbours'; none for others."""
    if id(layer) in followed:
        refuse_replaced(path, layer)
        refuse_inner_weights(path, layer)
        return [checked(SensitivityGroup(path, tuple(layer.trainable_variables), followed[id(layer)].bound))]
    if not has_bound(layer):
        return []
    refuse_uncounted(path, layer)
    return list(groups_of(path, layer, uses))


def refuse_uncounted(path: str, layer: Any) -> None:
    """Raises ValueError for a registered layer with weights that no layer of the library's kind holds.

    Steps take the gradients of copies that a `CountedLayer` computes with, between the marks of its call.
    """
    counted = [one for one in layer._flatten_layers() if isinstance(one, CountedLayer)]
    held = {id(v) for one in counted for v in one.trainable_variables}
    if any(id(v) not in held for v in layer.trainable_variables):
        raise ValueError(
            f"Layer {path!r} ({type(layer).__name__}) has a registered bound, and cannot be used with it: where its"
            f" bounded part begins and ends is not marked, as calls of layers in tfdp.layers do it. Compile with"
            " tfdp.optimizers.ClippedOptimizer, which clips each record's gradient, and register no bound; or"
            f" {_EXTEND}; or freeze it (layer.trainable = False)."
        )


def refuse_hidden_calls(model: keras.Model, followed: Mapping[int, Followed], uses: Counter[int]) -> None:
    """Raises ValueError for a Lipschitz layer that is called where the model's graph does not show its neighbours."""
    for layer in model._flatten_layers(include_self=False):
        if id(layer) in followed and uses[id(layer)] != followed[id(layer)].calls:
            raise ValueError(
                f"Layer {layer.name!r} ({type(layer).__name__}) is called {uses[id(layer)]} times, of which the model's"
                f" graph shows {followed[id(layer)].calls}: what surrounds the others, in a Lambda or a layer of your"
                " own, is not known, and its bound follows from what surrounds it. Call it on Keras tensors, as a layer"
                " of the model."
            )


def check_cover(model: keras.Model, groups: list[SensitivityGroup]) -> None:
    """Raises ValueError unless each trainable weight of the model is in exactly one group."""
    covered = Counter(id(variable) for group in groups for variable in group.variables)
    for variable in model.trainable_variables:
        if covered[id(variable)] != 1:
            raise ValueError(
                f"Weight {variable.path!r} is covered by {covered[id(variable)]} bounds: it must be exactly one, or its"
                " noise is not scaled to a record's influence. Weights owned by the model itself, or shared between"
                " layers of different types, have none; put them into a layer with a registered bound, or freeze them"
                " (trainable = False)."
            )
    if len(covered) != len(model.trainable_variables):
        raise ValueError(
            f"Model {model.name!r} has layers whose weights it does not train: their layers must be part of it."
        )


def leaf_layers(model: keras.Model, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, layer) for each distinct layer inside nested Sequential and functional models, and for the parts
    that bound themselves."""
    seen: set[int] = set()

    def walk(container: keras.Model, prefix: str) -> Iterator[tuple[str, Any]]:
        for layer in container.layers:
            if is_container(layer):
                yield from walk(layer, f"{prefix}{layer.name}/")
                continue
            for name, part in parts_of(layer).items():
                if id(part) not in seen:
                    seen.add(id(part))
                    yield prefix + name, part

    return walk(model, path)


def hidden_bound(path: str, layer: keras.layers.Layer, inner: keras.layers.Layer) -> str:
    """The message for a layer that bounds itself, within one whose call decides what becomes of it."""
    ordinary = next((base.__name__ for base in type(inner).__mro__ if base.__module__.startswith("keras.")), "Layer")
    return (
        f"Layer {path!r} ({type(layer).__name__}) holds {inner.name!r} ({type(inner).__name__}): the bound of a layer"
        " that bounds itself is stated where it is a layer of the model, in Sequential and functional models and those"
        f" within. Call it there; or take an ordinary layer (keras.layers.{ordinary}) inside of {type(layer).__name__},"
        " and compile with tfdp.optimizers.ClippedOptimizer, which clips each record's gradient of both."
    )


_EXTEND = (
    "extend a layer that bounds itself (tfdp.layers.ClippedDense, say), and register that class,"
    " @tfdp.sensitivity_of(TheLayer)"
)


def no_bound(path: str, layer: keras.layers.Layer) -> str:
    """The message for a trainable layer without a registered bound."""
    name, twin = type(layer).__name__, f"Clipped{type(layer).__name__}"
    fix = "Compile with tfdp.optimizers.ClippedOptimizer, which clips each record's gradient. "
    if isinstance(layer, CountedLayer):  # no optimizer clips it
        fix = (
            f"Register one, @tfdp.sensitivity_of({name}), if its backward pass bounds each record, whatever that holds:"
            " it is then on your word, which fit tries on made-up records. Otherwise use the layer that it extends"
        )
    elif hasattr(layers, twin):
        fix += f"Use tfdp.layers.{twin} in its place, or tfdp.make_private(model, bounding='backprop_clipping')"
    else:
        fix += f"Or {_EXTEND}"
    return (
        f"Layer {path!r} ({name}) has trainable weights and no bound on what one record adds to their gradient, so no"
        f" noise can protect it. {fix}; or freeze it (layer.trainable = False)."
    )
