"""Keras models whose `fit` is private."""

import os
from typing import Any, NoReturn

import keras

from tfdp_layers.accounting.left import leave_made
from tfdp_layers.certificates.checkpoints import copy_restores
from tfdp_layers.instances import refuse_class
from tfdp_layers.models.accounts import join_accounts
from tfdp_layers.models.conversion import clipped_twin, plain_model
from tfdp_layers.models.earlier import begin_from, warn_of_earlier, warn_of_ordinary
from tfdp_layers.models.elsewhere import unexpected
from tfdp_layers.models.preprocessor import warn_of_preprocessor
from tfdp_layers.models.rebuilding import makes_itself
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.models.unpaid import note_checkpoints
from tfdp_layers.structure import functional_class, held_by, inputs_of, outputs_of

_WAYS = "A loss of your own goes to compile (one value a record), steps of your own are a loop (docs/loops.md)"
_PROGRAMS = (
    "How variational autoencoders, distillation and other programs with steps of their own train: docs/models.md,"
    ' "Programs as people have them".'
)


@keras.saving.register_keras_serializable(package="tfdp_layers")
class PrivateModel(PrivateTraining, keras.Model):
    """A functional model trained privately: `tfdp.PrivateModel(inputs, outputs)`.

    Everything else is `keras.Model`: compile with an optimizer of `tfdp.optimizers`, then `fit`, `evaluate`,
    `predict`, `save`. See `PrivateTraining` for the guarantee.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_model(self, args)
        if not args and "inputs" not in kwargs:
            raise ValueError(
                f"{type(self).__name__} needs inputs and outputs: a private model is a functional one, since the uses"
                " of a layer can't be counted in a call() of your own. Write x = keras.Input(shape) and"
                " tfdp.PrivateModel(x, layers(x)); or tfdp.make_private(keras_model)."
            )
        super().__init__(*args, **kwargs)

    def to_keras(self) -> keras.Model:
        """An ordinary Keras model with copies of the weights, which needs nothing of this library to load and
        predict.
        """
        self._privacy.decided("took the weights")
        return plain_model(self)


@keras.saving.register_keras_serializable(package="tfdp_layers")
class PrivateSequential(PrivateTraining, keras.Sequential):
    """`keras.Sequential` trained privately:

    `tfdp.PrivateSequential([...])`. See `PrivateTraining` for the guarantee.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_model(self, args)
        super().__init__(*args, **kwargs)

    def to_keras(self) -> keras.Model:
        """An ordinary Keras model with copies of the weights, which needs nothing of this library to load and
        predict.
        """
        self._privacy.decided("took the weights")
        return plain_model(self)


def refuse_model(made: keras.Model, args: tuple[Any, ...]) -> None:
    """Raises ValueError where a model is given alone, in the place of what a model is made of."""
    if len(args) == 1 and isinstance(args[0], keras.Model):
        raise ValueError(
            f"{type(made).__name__} is made of inputs and outputs, or of a list of layers, and"
            f" {type(args[0]).__name__} is a model already. Write tfdp.make_private(model)."
        )


def refuse_no_model(model: Any) -> None:
    """Raises ValueError unless it is a built Sequential or functional model."""
    kinds: Any = (keras.Sequential, functional_class())
    refuse_class(model, "The model")
    if isinstance(model, keras.layers.Layer) and not isinstance(model, keras.Model):
        raise ValueError(
            f"make_private takes a model, and {type(model).__name__} is a layer. Put it into one:"
            " keras.Sequential([keras.Input(shape), layer])."
        )
    if not isinstance(model, keras.Model):
        made = "keras.models.load_model(path)" if isinstance(model, str | os.PathLike) else "keras.Sequential(layers)"
        raise ValueError(f"make_private takes a Keras model. Received: {type(model).__name__}. Make one: {made}.")
    if not isinstance(model, kinds):
        raise ValueError(refusal_of_subclass(model))
    if not model.built or model.inputs is None:
        raise ValueError(f"Model {model.name!r} is not built: give it a keras.Input as its first layer.")
    own = own_code(model)
    if own is not None:
        raise ValueError(
            f"{type(model).__name__} has a {own}() of its own, and make_private takes the graph of its layers alone:"
            f" that would be left out. {_WAYS}, a call() of your own is a functional model. {_PROGRAMS} Where the graph"
            " is what you want to train: tfdp.make_private(keras.Model(model.inputs, model.outputs))."
        )


def refusal_of_subclass(model: keras.Model) -> str:
    """What to say of a model that is no graph of layers, and trains as a layer of one."""
    own = next((name for name in ("train_step", "compute_loss") if is_own(model, name)), None)
    left_out = f" Its {own}() is left out then. {_WAYS}. {_PROGRAMS}"
    return (
        f"make_private takes Sequential and functional models; {type(model).__name__} defines its own call(). Make it a"
        " layer of a functional model, which trains the very same weights: x = keras.Input(shape), then"
        f" tfdp.make_private(keras.Model(x, model(x))).{left_out if own else ''}"
    )


def is_own(model: keras.Model, name: str) -> bool:
    """Whether neither Keras nor this library wrote a method of a model."""
    owner = next(kind for kind in type(model).__mro__ if name in vars(kind))
    return owner.__module__.partition(".")[0] not in ("keras", "tfdp_layers") or name in vars(model)


def own_code(model: keras.Model) -> str | None:
    """The first of the methods that decide what a training computes which neither Keras nor this library wrote."""
    return next((name for name in ("call", "train_step", "compute_loss") if is_own(model, name)), None)


def make_private(
    model: keras.Model,
    bounding: str | None = None,
    *,
    gradient_clip: float | str | None = None,
    input_clip: float | None = None,
    upstream_clip: float | None = None,
    bound: str | None = None,
    **others: NoReturn,
) -> PrivateModel:
    """Turns an ordinary Keras model into a private one.

    Args:
        model: a Sequential or functional model, built.
        bounding: None shares the model's layers and weights as they are. "backprop_clipping" swaps every trainable
            layer that has a clipped twin in `tfdp.layers` (Dense, EinsumDense, Conv1D/2D/3D, DepthwiseConv2D,
            Embedding, LayerNormalization, GroupNormalization, MultiHeadAttention) for it; the twins start from copies
            of the weights.
        gradient_clip, input_clip, upstream_clip, bound: for the twins that take them; see `tfdp.layers`. None of them:
            gradient_clip="automatic".

    Returns: a `PrivateModel`, not compiled. Warns of a model that took steps of an ordinary optimizer: where these were
    on private records, what the weights tell of them is in no statement. Warns of one with a `preprocessor`, as
    KerasHub's tasks have: it is left out.
    Raises:
        ValueError: the model is not built, is not Sequential or functional, has a `call`, `train_step` or
            `compute_loss` of its own, which no copy of its layers has; or `bounding` is unknown.
        TypeError: an argument that goes to `compile` or `fit`.
    """
    for name in others:
        raise unexpected("make_private", name, ("bounding", "gradient_clip", "input_clip", "upstream_clip", "bound"))
    if bounding not in (None, "backprop_clipping"):
        raise ValueError(f"`bounding` must be None or 'backprop_clipping'. Received: bounding={bounding!r}.")
    refuse_no_model(model)
    earlier = warn_of_earlier([model])
    warn_of_preprocessor(model)
    origin = model
    if bounding == "backprop_clipping":
        earlier |= warn_of_ordinary(model.name, model.weights)  # of the copies nobody could tell later
        clips = {"gradient_clip": gradient_clip, "input_clip": input_clip, "upstream_clip": upstream_clip}
        source, model = (
            model,
            keras.models.clone_model(model, clone_function=lambda layer: clipped_twin(layer, clips, bound)),
        )
        model.set_weights(source.get_weights())
        copy_restores(source.weights, model.weights)
        leave_made(map(held_by, source.weights), map(held_by, model.weights))
    private = PrivateModel(inputs_of(model), outputs_of(model), name=model.name)
    # What its weights, or those that they are copies of, cost already: weights that were paid for have one ledger.
    join_accounts(private._privacy.account, origin.weights, ())
    note_checkpoints(private, origin.weights)
    if isinstance(origin, PrivateTraining):
        private._privacy.account.join([origin._privacy.account])
        earlier |= origin._privacy.earlier
        private._privacy.left_beside = origin._privacy.left_beside
    begin_from(private, earlier)
    private._privacy.origin = origin_of(origin) if bounding is None else None
    return private


def origin_of(model: keras.Model) -> Any:
    """A model that its own class makes again from its configuration, as KerasHub's tasks; None of others."""
    if isinstance(model, PrivateTraining):
        return model._privacy.origin
    return model if makes_itself(model) else None
