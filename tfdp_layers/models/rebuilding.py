"""What a private model is made of again, from its configuration: Keras' own loses ties, flags of weights, and LoRA."""

import copy
from collections.abc import Iterator
from typing import Any

import keras

from tfdp_layers.caller import warn
from tfdp_layers.structure import functional_class, inputs_of, is_container, outputs_of

__all__ = [
    "described",
    "layers_of",
    "made_like",
    "makes_itself",
    "rebuilt",
    "refuse_lost_ties",
    "restore_trained",
    "written_twice",
]

_MADE_OF, _TRAINED = "made_of", "trained"


def described(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Keras' configuration of a private model, and what it leaves out: see `rebuilt`.

    Layers inside of others, as a block of a published model has them, are made again from the outer one's
    configuration alone, which tells neither of their LoRA nor of what is frozen in them.
    """
    if not model.built or "layers" not in config:
        return config
    layers = layers_of(model)
    config[_TRAINED] = {
        "layers": [[type(one).__name__, one._trainable] for one in layers],
        "weights": [bool(one.trainable) for one in model.weights],
        "lora": [
            [place, one.lora_rank, one.lora_alpha]
            for place, one in enumerate(layers)
            if getattr(one, "lora_enabled", False)
        ],
    }
    origin = model._privacy.origin
    if origin is not None and written_twice(model):
        kept = {name: config[name] for name in ("name", "trainable", _TRAINED)}
        return {**kept, _MADE_OF: _config_of(origin)}
    return config


def rebuilt(kind: Any, config: dict[str, Any], by_keras: Any) -> Any:
    """A private model from what `described` gave; from an older configuration, as Keras makes it.

    Args:
        kind: its class.
        by_keras: makes it from Keras' own part of the configuration.
    """
    config = dict(config)
    made_of, trained = config.pop(_MADE_OF, None), config.pop(_TRAINED, None)
    if made_of is None:
        model = by_keras(config)
    else:
        origin = keras.saving.deserialize_keras_object(copy.deepcopy(made_of))
        model = kind(inputs_of(origin), outputs_of(origin), **config)
        model._privacy.origin = origin
    if trained is not None:
        model._privacy.trained = trained
        restore_trained(model)
    return model


def layers_of(model: Any) -> list[Any]:
    """All layers, in an order that a copy has, too; without inputs, which a task shares with its backbone."""
    return [one for one in model._flatten_layers() if not isinstance(one, keras.layers.InputLayer)]


def restore_trained(model: Any) -> None:
    """Gives the layers of a model that was rebuilt their LoRA factors, and all weights their flags, once it is built.

    Warns where it has other layers than the model that was saved.
    """
    trained = model._privacy.trained
    if trained is None or not model.built:
        return
    model._privacy.trained = None
    layers = layers_of(model)
    same = [type(one).__name__ for one in layers] == [name for name, _ in trained["layers"]]
    for place, rank, alpha in trained["lora"] if same else ():
        if not layers[place].lora_enabled:
            layers[place].enable_lora(rank, lora_alpha=alpha)
    weights = model.weights
    if not same or len(weights) != len(trained["weights"]):
        warn(
            f"Model {model.name!r}, made from its file, has other layers or weights than when it was saved: which of"
            " them train, and what has LoRA, was not taken over. Look at model.trainable_variables, and set"
            " layer.trainable (or enable_lora) before you compile it to train on."
        )
        return
    for one, (_, flag) in zip(layers, trained["layers"], strict=True):
        one._trainable = bool(flag)  # the property would set those of all layers inside, too
    for weight, flag in zip(weights, trained["weights"], strict=True):
        if weight.trainable != flag:
            weight.trainable = flag


def made_like(model: Any) -> Any:
    """A model of the class and configuration that a private one with a lost tie was made of; None where there is none.

    It has no weights of the private one yet.
    """
    origin = model._privacy.origin if hasattr(model, "_privacy") else None
    if origin is None or not written_twice(model):
        return None
    return keras.saving.deserialize_keras_object(_config_of(origin))


def _config_of(origin: Any) -> dict[str, Any]:
    """What a model's own class makes it from, without what it does to data before its layers see them."""
    found = copy.deepcopy(keras.saving.serialize_keras_object(origin))
    own = {name: None if name == "preprocessor" else value for name, value in found["config"].items()}
    return {**{name: found[name] for name in ("module", "class_name", "registered_name")}, "config": own}


def makes_itself(model: Any) -> bool:
    """Whether a model of a class of its own is made again by that class, whose configuration lists no layers."""
    return type(model).__module__.partition(".")[0] not in ("keras", "tfdp_layers") and not _lists_layers(model)


def _lists_layers(model: Any) -> bool:
    """Whether a configuration lists the layers of a model, each with its own: an object in two places becomes two."""
    if not is_container(model):
        return False
    if type(model) in (keras.Sequential, keras.Model, functional_class()):
        return True
    try:
        return "layers" in model.get_config()
    except Exception:  # of a class without one
        return False


def written_twice(model: Any) -> dict[str, list[str]]:
    """Layers with weights that a configuration of the model would hold twice, each with where it is.

    A layer within a nested model that is also called outside, say, as the table of a language model that gives the
    logits. What one layer of its own class holds, that class makes again, ties and all.
    """
    places: dict[int, tuple[Any, list[str]]] = {}
    for path, unit in _units(model, ""):
        for layer in unit._flatten_layers():
            if layer._trainable_variables or layer._non_trainable_variables:
                places.setdefault(id(layer), (layer, []))[1].append(path)
    return {layer.name: found for layer, found in places.values() if len(found) > 1}


def _units(model: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """What configurations of a model, and of those nested in it, list by itself, wherever they do."""
    for layer in model.layers:
        if _lists_layers(layer):
            yield from _units(layer, f"{prefix}{layer.name}/")
        else:
            yield prefix + layer.name, layer


def refuse_lost_ties(model: Any) -> None:
    """Raises ValueError where a file of the whole model could not be loaded, before it is written."""
    if not model.built or makes_itself(model):
        return
    found = written_twice(model)
    if not found or (model._privacy.origin is not None and _comes_back(model)):
        return
    name, where = next(iter(found.items()))
    raise ValueError(
        f"Layer {name!r} is in {' and in '.join(map(repr, where))}: a file of the whole model would hold it as two"
        " layers, and could not be loaded. Nothing was written. Save the weights, with the ledger:"
        " model.save_weights('model.weights.h5'), for callbacks save_weights_only=True; to load them, make the model"
        " anew by the same code, and model.load_weights(path). A model of a class that makes itself from its own"
        " get_config(), as KerasHub's tasks do, is also saved whole, if tfdp.make_private(task) made it private."
    )


def _comes_back(model: Any) -> bool:
    """Whether the configuration makes a model of the same weights: tried once for each set of them."""
    state, shapes = model._privacy, [tuple(weight.shape) for weight in model.weights]
    if state.comes_back != shapes:
        try:
            made = type(model).from_config(model.get_config())
        except Exception:  # whatever the code of that class raises
            return False
        if [tuple(weight.shape) for weight in made.weights] != shapes:
            return False
        state.comes_back = shapes
    return True
