"""Which inputs of a model hold ids: numbers of rows that embeddings look up."""

from typing import Any, NamedTuple

import keras

from tfdp_layers.structure import functional_class, is_container


class Lookup(NamedTuple):
    """An embedding that looks the numbers of an input up.

    Attributes:
        layer: its name.
        rows: of its table.
        direct: whether the ids are the input's own numbers, and not a part or a function of them.
    """

    layer: str
    rows: int
    direct: bool


def lookups(model: keras.Model) -> list[list[Lookup]]:
    """For each input of a built Sequential or functional model, in flat order, what looks its numbers up.

    Ids are followed through operations without weights, such as a slice or a cast, and into models within the model. A
    layer that holds an embedding, and is none, is not looked into.
    """
    graph: Any = model._functional if isinstance(model, keras.Sequential) else model
    found: list[list[Lookup]] = [[] for _ in graph.inputs]
    origins = {id(tensor): {(number, True)} for number, tensor in enumerate(graph.inputs)}
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.is_input:
                continue
            layer, taken = node.operation, [origins.get(id(tensor), set()) for tensor in node.input_tensors]
            if isinstance(layer, keras.layers.Embedding):
                inner = [] if node.arguments.kwargs.get("reverse") else [[Lookup(layer.name, layer.input_dim, True)]]
            elif isinstance(layer, keras.layers.Layer) and is_container(layer):
                inner = lookups(layer)
            else:
                inner = []
                if not getattr(layer, "weights", ()):
                    onward = {(number, False) for one in taken for number, _ in one}
                    origins |= {id(tensor): onward for tensor in node.outputs}
            for one, ahead in zip(taken, inner, strict=False):
                for number, direct in one:
                    # Several inputs of an inner model may be given in another order than it names them.
                    found[number] += [
                        step._replace(direct=direct and step.direct and len(taken) == 1) for step in ahead
                    ]
    return found


def hold_ids(model: keras.Model, leaves: int) -> list[bool]:
    """Which of so many inputs an embedding looks up, as far as `lookups` can follow them: none of another model's."""
    known = model.built and isinstance(model, keras.Sequential | functional_class())
    found = lookups(model) if known else []
    return [any(one) for one in found] if len(found) == leaves else [False] * leaves
