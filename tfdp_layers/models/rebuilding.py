"""What a private model is made of again, from its configuration: Keras' own loses ties, flags of weights, and LoRA."""

import copy
import math
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any

import keras
import numpy as np
from keras.src.saving.serialization_lib import ObjectSharingScope, SafeModeScope

from tfdp_layers.caller import warn
from tfdp_layers.models.accounts import layers_with_lora
from tfdp_layers.models.file_limits import ModelFileError
from tfdp_layers.structure import functional_class, inputs_of, is_container, outputs_of

__all__ = [
    "begin_lora_anew",
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
    layers = _with_weights(model)
    config[_TRAINED] = {
        "layers": [[type(one).__name__, bool(one._trainable)] for one in layers],
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

    Raises: ModelFileError for flags or LoRA that `described` never gives; then nothing is made.
    """
    config = dict(config)
    made_of, trained = config.pop(_MADE_OF, None), config.pop(_TRAINED, None)
    if not _is_well_formed(trained):
        raise _damaged(kind.__name__)
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


def _with_weights(model: Any) -> list[Any]:
    """Those of `layers_of` with flags that matter: of others, as Dropout, Keras may make two where there was one."""
    return [one for one in layers_of(model) if one.weights]


def _is_well_formed(trained: Any) -> bool:
    """Whether this is what `described` gives, of whichever model; older configurations have None."""
    if trained is None:
        return True
    try:
        layers, weights, lora = (trained[name] for name in ("layers", "weights", "lora"))
        return (
            all(isinstance(name, str) and isinstance(flag, bool) for name, flag in layers)
            and all(isinstance(flag, bool) for flag in weights)
            and all(
                _is_whole(place) and 0 <= place < len(layers) and _is_whole(rank) and rank >= 1 and _is_number(alpha)
                for place, rank, alpha in lora
            )
        )
    except (KeyError, TypeError, ValueError, OverflowError):  # of another form
        return False


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _damaged(name: str) -> ModelFileError:
    return ModelFileError(
        f"What the configuration of {name!r} says of frozen weights and LoRA is nothing that model.save writes: it is"
        " damaged, or was changed. Nothing was loaded. Restore the file from a backup."
    )


def restore_trained(model: Any) -> None:
    """Gives the layers of a model that was rebuilt their LoRA factors, and all weights their flags, once it is built.

    Warns where it has other layers than the model that was saved. Raises ModelFileError for LoRA of a layer that
    takes none; then nothing is changed.
    """
    trained = model._privacy.trained
    if trained is None or not model.built:
        return
    model._privacy.trained = None
    names = [name for name, _ in trained["layers"]]
    layers = _with_weights(model)
    if [type(one).__name__ for one in layers] != names:
        layers = layers_of(model)  # as older files list them
    same = [type(one).__name__ for one in layers] == names
    if same and not all(hasattr(layers[place], "lora_enabled") for place, _, _ in trained["lora"]):
        raise _damaged(model.name)
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


def begin_lora_anew(model: Any) -> list[Any]:
    """Gives LoRA factors that are all zero, both of a pair, a beginning that trains: the first one as Keras makes it.

    Keras adds them to the kernel as it writes a file, and reads zeros for both: then both gradients are zero, whatever
    the records are. Times the zeros of the second one the outputs stay as they are; what is drawn is public.

    Returns: the weights that have new numbers.
    """
    begun = []
    for layer in layers_with_lora(model):
        for name in ("kernel", "embeddings"):
            first, second = (getattr(layer, f"lora_{name}_{factor}", None) for factor in "ab")
            if first is None or second is None or np.any(first.numpy()) or np.any(second.numpy()):
                continue
            first.assign(keras.initializers.HeUniform()(first.shape, first.dtype))
            begun.append(first)
    return begun


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
    twice = _listed_twice(model)
    return {layer.name: found for layer, found in twice if layer._trainable_variables or layer._non_trainable_variables}


def _listed_twice(model: Any) -> list[tuple[Any, list[str]]]:
    """Layers, with weights or without, that are in two places of those that a configuration lists by themselves."""
    places: dict[int, tuple[Any, list[str]]] = {}
    for path, unit in _units(model, ""):
        for layer in unit._flatten_layers():
            if not isinstance(layer, keras.layers.InputLayer):
                places.setdefault(id(layer), (layer, []))[1].append(path)
    return [(layer, found) for layer, found in places.values() if len(found) > 1]


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
    twice, tied = _listed_twice(model), written_twice(model)
    if not twice or ((not tied or model._privacy.origin is not None) and _comes_back(model, bool(tied))):
        return
    name, where = next(iter(tied.items()), (twice[0][0].name, twice[0][1]))
    raise ValueError(
        f"Layer {name!r} is in {' and in '.join(map(repr, where))}: a file of the whole model would hold it as two"
        " layers, and could not be loaded. Nothing was written. Save the weights, with the ledger:"
        " model.save_weights('model.weights.h5'), for callbacks save_weights_only=True; to load them, make the model"
        " anew by the same code, and model.load_weights(path). A model of a class that makes itself from its own"
        " get_config(), as KerasHub's tasks do, is also saved whole, if tfdp.make_private(task) made it private."
    )


def _comes_back(model: Any, tied: bool) -> bool:
    """Whether the configuration makes a model of the same weights, as from a file: tried once for each set of them.

    Args:
        tied: whether weights are in two places. Without, classes and functions may be missing here: who loads the file
            gives them.
    """
    state, shapes = model._privacy, [tuple(weight.shape) for weight in model.weights]
    if state.comes_back != shapes:
        try:
            with ObjectSharingScope():
                config = model.get_config()
            with ObjectSharingScope(), SafeModeScope(False):  # the code is this model's own
                made = type(model).from_config(config)
            same = [tuple(weight.shape) for weight in made.weights] == shapes
        except TypeError:  # Keras': of names that it doesn't find
            same = not tied
        except Exception:  # whatever the code of that class raises
            return False
        if not same:
            return False
        state.comes_back = shapes
    return True
