"""A copy of a model in which no BatchNormalization layer lets records meet."""

from collections.abc import Iterator
from typing import Any

import keras

from tfdp_layers.accounting.account import Account, account_of, open_account
from tfdp_layers.accounting.left import leave_made
from tfdp_layers.certificates.checkpoints import copy_restores
from tfdp_layers.instances import refuse_class, refuse_other_kind
from tfdp_layers.models.conversion import same_layer
from tfdp_layers.models.model import PrivateModel, PrivateSequential
from tfdp_layers.models.substitutes import called_as, kind_of, refusal_of, substitute
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.models.unpaid import refuse_unpaid_copies
from tfdp_layers.structure import held_by, inputs_of, is_container, outputs_of


def replace_batch_normalization(model: keras.Model, by: Any = "group") -> keras.Model:
    """A copy of a model in which no record meets another in a BatchNormalization layer.

    Every trainable BatchNormalization is replaced, at any depth of nested Sequential and functional models; frozen ones
    (`layer.trainable = False`) stay. All other layers are copied with their weights and flags, and a layer or model
    that is used several times stays one; Lambda layers, and preprocessing layers with constants, are shared. The model
    that is given stays as it is. What takes a layer's place has its name, axis, epsilon, regularizers and constraints;
    its gamma and beta start from the layer's, where their shapes agree.

    Only "frozen" predicts what the model predicts. The others compute something else until they are trained: moving
    averages mean nothing to a normalization of single records.

    Formal guarantee: with "group", "layer" and "frozen" the output of what takes a layer's place depends, for a record,
    on that record alone. `fit` certifies the copy as it does any model.

    Args:
        model: a Sequential or functional model, built; a private one, too.
        by: what takes the place of a layer.
            "group" or keras.layers.GroupNormalization normalizes each record over groups of channels. The number of
            groups is the largest divisor of the channels that is at most 32, the default of Wu & He 2018
            (arXiv:1803.08494), and leaves each group 16 numbers of a record, of its channels at all positions (sizes
            that are unknown count as large); 1 if there is none. (Opacus' ModuleValidator.fix makes 32 groups of 32
            units of a Dense layer: of one number each, less its own mean nothing is left but beta.)
            "layer" or keras.layers.LayerNormalization normalizes each record over its channels, at each position.
            "frozen" keeps the layer, no longer trainable: it normalizes by its moving averages, which like all weights
            that `fit` finds count as public.
            A function takes the layer and returns a new Keras layer.

    Returns: a model of the same inputs and outputs, not compiled: a Sequential one of a Sequential model, else a
        functional one; private where the model is. Copies of weights that a private training made are charged to its
        ledger.
    Raises:
        ValueError: `by` is none of these; the model is not built, or defines its own call(); weights came without what
            they cost; a BatchNormalization is inside of a layer that is no such model (TimeDistributed, layers of your
            own), is of a subclass, takes a mask that would be lost, or normalizes a single number; a layer can't be
            copied. The error names the layers, and the fix.
    """
    kind = kind_of(by)
    refuse_out_of_reach(model, kind)
    refuse_unpaid_copies(model)
    charged = [one for one in model._flatten_layers() if isinstance(one, PrivateTraining)]
    for one in charged:
        one._settle_accounts()
        one._refuse_unpaid_weights()
        one._privacy.decided("took the weights")
    copies = Copies(kind)
    copy = copies.of_model(model, private=isinstance(model, PrivateTraining))
    copies.take_over()
    for one in charged:
        if one.ledger.entries:
            copies.charge(one.weights, one._privacy.account)
    if isinstance(copy, PrivateTraining) and isinstance(model, PrivateTraining):
        copy._privacy.account.join([model._privacy.account])
        copy._settle_accounts()
    return copy


class Copies:
    """Copies of layers, one for each layer, and what they are copies of.

    Args:
        kind: what takes the place of trainable BatchNormalization layers; see `kind_of`.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._copies: dict[int, Any] = {}
        self._pairs: list[tuple[Any, Any]] = []
        self._weights: dict[int, Any] = {}

    def of_model(self, model: Any, private: bool = False) -> Any:
        """A copy of a Sequential or functional model, with copies of its layers."""
        if isinstance(model, keras.Sequential):
            tensor = inputs_of(model)
            first = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)
            base: Any = PrivateSequential if private else keras.Sequential
            copy = base([first, *map(self.of, model.layers)], name=model.name)
        else:
            plain = keras.Model(inputs_of(model), outputs_of(model), name=model.name)
            copy = keras.models.clone_model(plain, clone_function=self._call_of)
            if private:
                copy = PrivateModel(inputs_of(copy), outputs_of(copy), name=model.name)
        self._pairs.append((model, copy))
        return copy

    def of(self, layer: Any) -> Any:
        """The layer's copy. Raises ValueError for one that Keras can't copy."""
        if id(layer) not in self._copies:
            self._copies[id(layer)] = self._made(layer)
        return self._copies[id(layer)]

    def _call_of(self, layer: Any) -> Any:
        """What Keras calls in the layer's place, as it repeats the calls of layers that it wrote down."""
        return called_as(self.of(layer)) if _meets(layer) else self.of(layer)

    def _made(self, layer: Any) -> Any:
        if isinstance(layer, keras.layers.Layer) and is_container(layer):
            return self.of_model(layer)
        if _meets(layer):
            made = substitute(layer, self._kind)
            if any(made is other for other in self._copies.values()):
                raise ValueError(f"`by` returned the layer {made.name!r} twice: it must return a new one each time.")
        else:
            made = _copy_of(layer)
        self._pairs.append((layer, made))
        return made

    def take_over(self) -> None:
        """Gives the copies the weights and flags of what they are copies of, and says who pays for them."""
        for layer, made in self._pairs:
            if not isinstance(layer, keras.layers.Layer) or layer is made:
                continue
            if not _meets(layer):
                for source, target in _parts(layer, made):
                    target._trainable = source._trainable  # the property would set those of all layers inside, too
            if not is_container(layer):
                for source, target in _same_weights(layer, made):
                    self._copy(source, target, flag=not _meets(layer))

    def _copy(self, source: Any, target: Any, flag: bool) -> None:
        target.assign(source)
        copy_restores([source], [target])
        leave_made([held_by(source)], [held_by(target)])
        if flag:
            target.trainable = source.trainable
        self._weights[id(source)] = target
        account = account_of(held_by(source))
        if account is not None and account.ledger.entries:  # a copy owes what was spent before it was made
            open_account(held_by(target), account)

    def charge(self, weights: Any, account: Account) -> None:
        """Lets the copies of these weights say that the account pays for them."""
        for weight in weights:
            if id(weight) in self._weights:
                open_account(held_by(self._weights[id(weight)]), account)


def refuse_out_of_reach(model: keras.Model, kind: Any) -> None:
    """Raises ValueError, naming each, for layers that can't be replaced, and for a model that no one can look into."""
    refuse_class(model, "The model")
    refuse_other_kind(model, keras.Model, "The model", "a Keras model")
    if not is_container(model):
        raise ValueError(
            f"replace_batch_normalization takes Sequential and functional models; {type(model).__name__} defines its"
            " own call(), in which a layer can't be replaced from outside. Write it as a functional model, or use"
            " keras.layers.GroupNormalization in its code."
        )
    if not model.built or model.inputs is None:
        raise ValueError(f"Model {model.name!r} is not built: give it a keras.Input as its first layer.")
    refused = {id(layer): f"{name}: {why}" for layer, name, why in _refusals(model, "", kind)}
    if refused:
        raise ValueError(
            "BatchNormalization can't be replaced everywhere in this model:\n- " + "\n- ".join(refused.values())
        )


def _refusals(model: Any, path: str, kind: Any) -> Iterator[tuple[Any, str, str]]:
    """The layers that can't be replaced: each layer, its name with those of the models around it, why and the fix."""
    for layer in model.layers:
        name = f"{path}{layer.name}"
        if is_container(layer):
            yield from _refusals(layer, f"{name}/", kind)
        elif _meets(layer):
            why = refusal_of(layer, kind)
            if why:
                yield layer, repr(name), why
        else:
            for inner in filter(_meets, layer._flatten_layers(include_self=False)):
                what = type(layer).__name__
                yield (
                    inner,
                    repr(f"{name}/{inner.name}"),
                    f"it is inside of {layer.name!r}, a {what}, which is no Sequential or functional model. Build the"
                    f" {what} without it (around a model: around tfdp.replace_batch_normalization of that model), or"
                    " freeze it there (its trainable = False).",
                )


def _meets(layer: Any) -> bool:
    """Whether records meet in the layer itself."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _copy_of(layer: Any) -> Any:
    try:
        return same_layer(layer)
    except Exception as error:  # whatever the code of a layer raises
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) can't be copied from its get_config():"
            f" {type(error).__name__}: {error} Give it a get_config() from which its from_config() makes it again."
        ) from error


def _parts(layer: Any, made: Any) -> list[tuple[Any, Any]]:
    """The layer and its copy; where it is not a model of ours and has layers inside, those and theirs."""
    inside = [one._flatten_layers(include_self=False) for one in (layer, made)]
    if is_container(layer) or [type(one) for one in inside[0]] != [type(one) for one in inside[1]]:
        return [(layer, made)]
    return [(layer, made), *zip(*inside, strict=True)]


def _same_weights(layer: Any, made: Any) -> list[tuple[Any, Any]]:
    """Weights of the layer and of its copy that mean the same. Raises ValueError where a copy has other weights."""
    same = [tuple(w.shape) for w in layer.weights] == [tuple(w.shape) for w in made.weights]
    if type(layer) is type(made) and same:
        return list(zip(layer.weights, made.weights, strict=True))
    if not _meets(layer):
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) can't be copied: a layer made from its get_config() has"
            " other weights. Give it a get_config() from which its from_config() makes it again."
        )
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    pairs = [(getattr(layer, name, None), getattr(made, name, None)) for name in names]
    return [(a, b) for a, b in pairs if a is not None and b is not None and tuple(a.shape) == tuple(b.shape)]
