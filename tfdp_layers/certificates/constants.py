"""What is declared public: constants that `adapt` or the caller set, weights that Keras trained; no layer can tell."""

import hashlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np

from tfdp_layers.accounting.left import leave_anew, leave_elsewhere
from tfdp_layers.accounting.released import remember_held
from tfdp_layers.certificates.checkpoints import releases_brought, settle_restored
from tfdp_layers.certificates.ordinary import declare, optimizers_on, undeclared
from tfdp_layers.instances import refuse_class, refuse_other_kind
from tfdp_layers.structure import held_by, variables_held

Layer = TypeVar("Layer", bound=keras.layers.Layer)
_MARK, _LEFT = "_constants_declared_public", "_constants_left"
CONSTANTS = "Constants of the layers"
"""What begins the note about those that no training accepted."""


def public(layer: Layer) -> Layer:
    """Declares that constants of preprocessing layers, or the training of a model, were not of private data.

    For a vocabulary that was set from a public list, or normalization constants that came with pre-trained weights:
    `fit` refuses what could have been learned by `adapt`, and cannot see where it came from. For a model that Keras
    trained on public data, before `make_private(tfdp.public(model))`: it would warn of these steps. The word of the
    caller is an assumption of the guarantee, and holds for the constants, and the number of steps, as they are now:
    where they change later, `fit` refuses them, or warns as `make_private` does, again. It is not saved: whoever trains
    a loaded model gives it anew.

    Args:
        layer: a Normalization, Discretization, IntegerLookup, StringLookup or TextVectorization layer whose constants
            are set, a model with weights that took steps of an ordinary optimizer, or were restored from a public
            tf.train.Checkpoint, or a model with such inside, at any depth.

    Returns: the layer.
    Raises: ValueError where there is no such layer, or it is not built.
    """
    refuse_class(layer, "The layer")
    refuse_other_kind(
        layer, keras.layers.Layer, "What is declared public", "a layer with constants, or a model of such layers"
    )
    held = [one for one in layer._flatten_layers() if not has_given_constants(one)]
    trained = [one.optimizer for one in layer._flatten_layers() if undeclared_steps(one)]
    trained += optimizers_on(layer.weights)  # of models that share its layers, and of loops
    restored = [number for number, releases in releases_brought(layer.weights).items() if not releases]
    if not held and not trained and not restored:
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) holds no constants that adapt() could have learned, and"
            " took no steps of an ordinary optimizer: there is nothing to declare. tfdp.public lifts no other refusal."
        )
    digests = [digest(one) for one in held]  # raises before anything is declared
    for one, found in zip(held, digests, strict=True):
        vars(one)[_MARK] = found
    for one in trained:
        declare(one)
    settle_restored([*layer.weights, *layer._flatten_layers()], restored)
    declared = [*map(held_by, [*(weight for one in held for weight in one.weights), *trained_by(trained, layer)])]
    remember_held(declared)  # what was released into them before is paid for all the same
    leave_anew(declared)
    leave_elsewhere(declared)
    return layer


def trained_by(optimizers: Iterable[Any], layer: Any) -> Iterator[Any]:
    """The weights of the layers within one that optimizers trained something of, and what else these layers hold."""
    own = {id(held_by(weight)) for one in optimizers for weight in getattr(one, "_trainable_variables", ())}
    for part in layer._flatten_layers():
        if not part._layers and any(id(held_by(weight)) in own for weight in part.weights):
            yield from [*part.weights, *variables_held(part)]


def undeclared_steps(model: Any) -> int:
    """How many steps an ordinary optimizer took on a model; 0 if none, or `public` was told of these and none more."""
    if not isinstance(model, keras.Model) or hasattr(type(model), "ledger"):
        return 0
    return undeclared(getattr(model, "optimizer", None))


def refuse_changed_constants(model: keras.Model) -> None:
    """Raises ValueError where constants changed after they were declared public: `adapt` in a callback does that.

    What was released does not hold them (its function keeps the constants of its trace), and the model would.
    """
    for layer in model._flatten_layers():
        declared = vars(layer).get(_MARK)
        if declared is not None and declared != digest(layer):
            raise ValueError(
                f"Layer {layer.name!r} ({type(layer).__name__}): its constants changed since tfdp.public declared them,"
                " and no statement covers the new ones. Where they are public too, declare them: tfdp.public(layer)."
            )


def leave_constants(model: keras.Model, of_weights: bool = False) -> None:
    """Says that a training of this model, or the file that it came from, accounted for the constants as they are.

    A training says so as it refuses others, before any hook runs: what one sets afterwards was accepted by nothing.

    Args:
        of_weights: those alone that are weights, which a file of weights brings.
    """
    for layer in _with_learned_constants(model):
        if not of_weights or isinstance(layer, keras.layers.Normalization):
            vars(layer)[_LEFT] = digest(layer)


def note_of_constants(model: keras.Model) -> list[str]:
    """What a statement says of layers in a model whose constants no training was asked about; nothing without any."""
    names = [
        repr(layer.name)
        for layer in _with_learned_constants(model)
        if not is_untouched(layer) and digest(layer) not in (vars(layer).get(_LEFT), vars(layer).get(_MARK))
    ]
    return (
        []
        if not names
        else [
            f"{CONSTANTS} {', '.join(names)} were learned by adapt(), without noise, or set later, and no"
            " training of this model accepted them: what they took from records is not in this statement. Where these"
            " are public, tfdp.public(layer) says so."
        ]
    )


def _with_learned_constants(model: keras.Model) -> Iterator[Any]:
    for layer in model._flatten_layers():
        for one in (layer, *named_by(layer)):
            if one.built and not has_given_constants(one):
                yield one


def has_given_constants(layer: keras.layers.Layer) -> bool:
    """Whether a layer holds no constants but those among its arguments, which whoever wrote the model gave.

    A vocabulary or a mean that was given, and set to something else later, is not what was given.
    """
    kl = keras.layers
    if isinstance(layer, kl.Normalization):
        return layer.input_mean is not None and has_given_numbers(layer)
    if isinstance(layer, kl.Discretization):
        return layer.bin_boundaries is None or has_given_boundaries(layer)
    if isinstance(layer, kl.TextVectorization):
        layer = layer._lookup_layer
    if isinstance(layer, kl.StringLookup | kl.IntegerLookup) or hasattr(layer, "_has_input_vocabulary"):
        return bool(getattr(layer, "_has_input_vocabulary", False)) and has_given_vocabulary(layer)
    return True


def has_given_numbers(layer: Any) -> bool:
    """Whether mean and variance, where they are set yet, are the arguments of these names."""
    if layer.mean is None:
        return True
    for now, given in ((layer.mean, layer.input_mean), (layer.variance, layer.input_variance)):
        now = np.asarray(now)
        # Aligned to the axes that are kept, of a shape that broadcasts to theirs: what is kept is repeated.
        given = np.asarray(given, now.dtype)
        if not np.array_equal(np.unique(now), np.unique(given)):
            return False
        squeezed = np.squeeze(now)
        if squeezed.shape == np.squeeze(given).shape and not np.array_equal(squeezed, np.squeeze(given)):
            return False
    return True


def is_untouched(layer: Any) -> bool:
    """Whether it is a normalization as Keras builds it, with mean 0 and variance 1: nobody adapted or loaded it."""
    if not isinstance(layer, keras.layers.Normalization) or layer.mean is None or layer.input_mean is not None:
        return False
    begun = ((layer.mean, 0), (layer.variance, 1), (layer.adapt_mean, 0), (layer.adapt_variance, 1), (layer.count, 0))
    return all(np.all(np.asarray(now) == first) for now, first in begun)


def has_given_boundaries(layer: Any) -> bool:
    """Whether the boundaries are the argument of that name, which Keras keeps as the layer was made."""
    given = layer._auto_config.serialize().get("bin_boundaries") if hasattr(layer, "_auto_config") else None
    return given is not None and np.array_equal(np.asarray(given, float), np.asarray(layer.bin_boundaries, float))


def has_given_vocabulary(layer: Any) -> bool:
    """Whether the vocabulary is the argument of that name: of a file that holds one, it is taken to be."""
    given = getattr(layer, "input_vocabulary", None)
    if given is None or isinstance(given, str):
        return given is not None
    tokens = [str(token) for token in np.ravel(np.asarray(given)).tolist()]
    now = [str(token) for token in layer.get_vocabulary(include_special_tokens=False)]
    return now == tokens or [str(token) for token in layer.get_vocabulary()] == tokens


def refusal_of_constants(layer: keras.layers.Layer) -> str | None:
    """Why the constants may not be used, with the fix; None where they were given, declared public or never set."""
    for hidden in named_by(layer):
        reason = refusal_of_constants(hidden)
        if reason is not None:
            return f"its function uses {hidden.name!r} ({type(hidden).__name__}): {reason}"
    declared = vars(layer).get(_MARK)
    if has_given_constants(layer) or (declared is not None and declared == digest(layer)):
        return None
    if declared is not None:
        return "its constants changed since tfdp.public declared them. Where the new ones are public too, declare them."
    if is_untouched(layer):
        return None
    base = " (of a base of keras.applications, which loads it with its weights: tfdp.public(base))"
    return (
        "its state was learned by adapt(), without noise, loaded, or set later; if that was private data, the model"
        " gives it away. Give the state as constants known from public sources (mean=, variance=, bin_boundaries=,"
        " vocabulary=), no numbers or words of these records, or declare that it is public: tfdp.public(layer), after"
        f" it was set{base if isinstance(layer, keras.layers.Normalization) else ''}; or learn it with noise:"
        f" {_learned_with_noise(layer)} (docs/data.md)."
    )


def named_by(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """The layers, and those inside, that the function of a Lambda names, of which Keras does not know."""
    function = layer.function if isinstance(layer, keras.layers.Lambda) else None
    if not inspect.isfunction(function):
        return
    names = inspect.getclosurevars(function)
    for value in (*names.nonlocals.values(), *names.globals.values()):
        if isinstance(value, keras.layers.Layer):
            yield from value._flatten_layers()


def _learned_with_noise(layer: keras.layers.Layer) -> str:
    """What takes the place of `adapt`, for a budget."""
    if isinstance(layer, keras.layers.Normalization):
        return "tfdp.layers.PrivateNormalization"
    if isinstance(layer, keras.layers.Discretization):
        return "tfdp.preprocessing.quantiles"
    return "tfdp.preprocessing.vocabulary"


def digest(layer: Any) -> str:
    """A digest of the constants as they are now. Raises ValueError for a layer that has none yet."""
    if not layer.built and isinstance(layer, keras.layers.Normalization):
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) is not built, so its constants are not set. Call it once,"
            " or set them, then declare them public."
        )
    found = hashlib.sha256()
    for part in parts(layer):
        found.update(repr(part).encode() if not isinstance(part, np.ndarray) else part.tobytes())
        found.update(b"|")
    return found.hexdigest()


def parts(layer: Any) -> Iterator[Any]:
    """The constants of a layer that `has_given_constants` knows."""
    kl = keras.layers
    if isinstance(layer, kl.TextVectorization):
        layer = layer._lookup_layer
    if isinstance(layer, kl.Normalization):
        yield from (np.asarray(layer.mean), np.asarray(layer.variance), *map(np.asarray, layer.variables))
    elif isinstance(layer, kl.Discretization):
        yield [float(edge) for edge in layer.bin_boundaries]
    else:
        yield [str(token) for token in layer.get_vocabulary()]
        if getattr(layer, "idf_weights", None) is not None:
            yield np.asarray(layer.idf_weights)
