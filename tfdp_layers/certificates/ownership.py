"""Who owns what is trained: the step is this library's, and each weight belongs to one layer."""

from typing import Any

import keras

from tfdp_layers.structure import LIBRARIES, held_by, is_container, own_way
from tfdp_layers.uses.counted import CountedLayer

_SHARE_A_LAYER = "Use one layer in both places: shared layers are counted by their uses."
_OURS = (
    *("fit", "make_train_function", "train_function", "train_step", "compute_loss", "train_on_batch", "__call__"),
    "get_compile_config",
)
_KEPT = "train_function"
"""What every Keras model keeps on itself; a private one looks past it."""

_OPTIMIZERS = ("release", "apply", "apply_gradients", "stddevs")


def refuse_overridden(model: keras.Model) -> None:
    """Raises ValueError for a model whose own code could use layers in a way that a trace does not show."""
    if not is_container(model):
        raise ValueError(
            f"{type(model).__name__} defines its own call(): how often a layer is used there, in loops for example,"
            " can't be counted, so no bound holds. Write it as a functional model, tfdp.PrivateModel(inputs, outputs),"
            " with that code in a keras.layers.Layer without weights."
        )
    for name in own_way(model):
        raise ValueError(
            f"Model {model.name!r} ({type(model).__name__}) has a {name}() of its own, in its class or put on the"
            " object: its layers are then called as that says, and bounds are stated for the graph of the model. Take"
            " it off, and put what it does into a layer of the model, a keras.layers.Layer without weights."
        )


def refuse_overridden_steps(model: keras.Model) -> None:
    """Raises ValueError where a subclass or an instance replaces what bounds, counts or releases.

    A certificate is about the step of this library: what runs in its place, or around it, may look at records (MixUp
    before `super().train_step`), and a loss computed elsewhere would never be seen.
    """
    for thing, names in ((model, _OURS), (getattr(model, "optimizer", None), _OPTIMIZERS)):
        for name in names:
            owner = next((kind for kind in type(thing).__mro__ if name in vars(kind)), None)
            foreign = owner is not None and owner.__module__.split(".")[0] not in LIBRARIES
            own = (
                name in vars(thing) if thing is not None and name != _KEPT else False
            )  # where Keras' own loop keeps one
            if foreign or own:
                raise ValueError(
                    f"{type(thing).__name__} overrides {name}(), which the privacy of a step rests on: what it does"
                    " with records is not bounded, and a loss computed there is never used. Leave it as it is: augment"
                    " each record by a layer or in the data, and give the loss to compile."
                )


def refuse_tied_behind_keras(model: keras.Model) -> None:
    """Raises ValueError for weights that a layer holds without owning them, or that two variables share.

    Keras then counts them once, or not at all, and a record moves them once for each layer that uses them.
    """
    owners: dict[int, Any] = {}
    for variable in model.trainable_variables:
        other = owners.setdefault(id(held_by(variable)), variable)
        if other is not variable:
            raise ValueError(
                f"Weights {other.path!r} and {variable.path!r} share their numbers: a record moves these once for each"
                f" layer that uses them, and the bounds count one. {_SHARE_A_LAYER}"
            )
    for layer in model._flatten_layers(include_self=False):
        if not isinstance(layer, CountedLayer):
            continue
        own = {id(held_by(v)) for v in layer.variables}
        for name, value in vars(layer).items():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, keras.Variable) and id(held_by(one)) in owners and id(held_by(one)) not in own:
                    raise ValueError(
                        f"Layer {layer.name!r} uses weight {one.path!r} of another layer (as its {name}): a record"
                        f" moves it once for each layer that uses it, and the bounds count one. {_SHARE_A_LAYER}"
                    )
