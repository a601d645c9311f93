"""Local training of a party with any Keras model, between flat vectors of weights."""

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.calls import Call, calls_of_fit
from tfdp_layers.federated.files import paths_of
from tfdp_layers.federated.local_state import LocalState, keys_of, refuse_replicas
from tfdp_layers.federated.together import Identity
from tfdp_layers.federated.turns import turns_over

if TYPE_CHECKING:
    import keras

    from tfdp_layers.accounting import Ledger

__all__ = ["CompiledEpochs", "KerasTraining", "accuracy", "flat_weights", "set_flat_weights"]


def flat_weights(model: "keras.Model") -> np.ndarray:
    """The trainable weights of a built Keras model as one float32 vector, (size,), in the model's order.

    Waits for a party's turn that another thread has on this model.
    """
    if not model.trainable_variables:
        raise ValueError(f"Model {model.name!r} has no trainable weights. Build it first: give it a keras.Input.")
    with turns_over(keys_of(model.trainable_variables)):
        return np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables]).astype(np.float32)


def set_flat_weights(model: "keras.Model", weights: np.ndarray) -> None:
    """Writes what `flat_weights` read, and waits as that does. Raises ValueError for another number of weights."""
    variables = model.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]
    if weights.shape != (sum(sizes),):
        raise ValueError(f"Model {model.name!r} has {sum(sizes)} trainable weights. Received: shape {weights.shape}.")
    with turns_over(keys_of(variables)):
        for variable, part in zip(variables, np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
            variable.assign(part.reshape(variable.shape))


def _parts_given(*given: Any) -> list[Any]:
    """All that a party gives, part by part."""
    import keras

    return list(keras.tree.flatten(given))


class KerasTraining:
    """`Train` of a party: some epochs of `model.fit` on the party's records.

    With a `PrivateModel` and one of this library's optimizers the training is private for each record as well, counted
    by the model's own ledger; then give each party a model of its own.

    Args:
        model: built and compiled. Parties of one process may share it: the weights are set anew at every turn, and
            each party has an optimizer's state and moving averages of its own.
        x, y: the party's records and labels.
        options: further arguments of `model.fit`: batch_size, epochs, callbacks, ...

    Raises: ValueError for a private optimizer whose noise multiplier is "calibrate", and as `LocalState`: for parts of
        a model that another party trains, for files that it reads or writes, and for a model on several devices. A
        pickle or a deep copy: TypeError.
    """

    def __init__(self, model: "keras.Model", x: np.ndarray, y: np.ndarray, **options: Any) -> None:
        multiplier = getattr(getattr(model, "optimizer", None), "multiplier", None)
        if getattr(multiplier, "calibrates", False):
            raise ValueError(
                "Each turn of a party is a fit of its own, and with noise_multiplier='calibrate' the first would plan"
                " to use the whole budget. Give the optimizer a number, found for all turns together:"
                " tfdp.accounting.calibrate_noise_multiplier(epsilon, delta, sampling, examples, steps=turns * epochs *"
                " steps_per_epoch)."
            )
        self._model, self._x, self._y = model, x, y
        self._options = {"batch_size": 32, "verbose": 0, **options}
        if isinstance(options.get("callbacks"), list):
            self._options["callbacks"] = tuple(options["callbacks"])
        beside = [options.get(name) for name in ("sample_weight", "validation_data")]
        held = functools.partial(paths_of, self._options.get("callbacks"))
        self._own = LocalState(model, _parts_given(x, y, *beside), lambda: calls_of_fit(x, y, self._options), held)

    @property
    def model(self) -> "keras.Model":
        """What it trains. It stays, as all that was looked at: for other models or data make another training."""
        return self._model

    @property
    def x(self) -> Any:
        """The party's records."""
        return self._x

    @property
    def y(self) -> Any:
        """Their labels."""
        return self._y

    @property
    def options(self) -> Mapping[str, Any]:
        """Further arguments of `fit`, to read."""
        return types.MappingProxyType(self._options)

    @property
    def ledger(self) -> "Ledger | None":
        """What a turn charges: the ledger of a `PrivateModel`; None of an ordinary model."""
        return getattr(self.model, "ledger", None)

    def belong_to(self, party: Identity) -> None:
        """Says whose training it is. Raises: as `LocalState`."""
        self._own.belong_to(party)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Trains from `weights`, float32 (size,); returns the new ones. Variables that are not trained stay local.

        Waits for turns of other threads on any of the model's variables. Raises: as `turns.one_turn`.
        """
        with self._own.turn():
            set_flat_weights(self.model, weights)
            options = {**self._options}
            if isinstance(options.get("callbacks"), tuple):
                options["callbacks"] = list(options["callbacks"])
            self.model.fit(self.x, self.y, **options)
            return flat_weights(self.model)

    def __copy__(self) -> "KerasTraining":
        return KerasTraining(self.model, self.x, self.y, **self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"The KerasTraining of model {self.model.name!r}, or a Party with it, cannot be pickled or deep-copied: the"
            " model would take along what the party left in it that trained last (momentum, moving averages), and that"
            " would go into this party's uploads. Make the model, its training and the Party anew in the other process,"
            " or for the copy, from the party's records and public weights."
        )


def accuracy(model: "keras.Model", weights: np.ndarray, x: np.ndarray, y: np.ndarray, batch_size: int = 1000) -> float:
    """Fraction of the records that a model of logits, (n, classes), with these weights classifies right.

    What is not trained, the averages of BatchNormalization say, is that of the party that trained the model last.
    Waits for a party's turn that another thread has on this model.
    """
    with turns_over(keys_of(model.variables)):
        set_flat_weights(model, weights)
        guesses: Sequence[np.ndarray] = [
            np.argmax(np.asarray(model.predict_on_batch(x[start : start + batch_size])), axis=1)
            for start in range(0, len(x), batch_size)
        ]
    return float(np.mean(np.concatenate(guesses) == y))


class CompiledEpochs:
    """`Train`s of many parties that share a model in one process: an epoch of shuffled batches is one compiled call.

    Ten times faster than `fit` on small data. Each party has an optimizer's state and moving averages of its own. Not
    for a `PrivateModel`, whose steps count only inside `fit`: use `KerasTraining`.

    Args:
        model: built and compiled.
        batch_size: the last batch of an epoch may be short.
        epochs: in a turn.

    Raises: ValueError for a `PrivateModel`; `on`, as `LocalState`.
    """

    def __init__(self, model: "keras.Model", batch_size: int, epochs: int = 1) -> None:
        import tensorflow as tf

        if hasattr(model, "ledger"):
            raise ValueError(
                f"Model {model.name!r} is private: its steps count only inside of fit. Use"
                " KerasTraining(model, x, y, batch_size=..., epochs=...)."
            )
        refuse_replicas(model)
        self._model, self._epochs = model, epochs
        # What anybody's training draws is not in it: of NumPy's state at this moment, which is left as it is.
        state = np.random.RandomState()
        state.set_state(np.random.get_state())
        self._seeds = np.random.SeedSequence(state.randint(2**32, size=4, dtype=np.uint32).tolist())

        @tf.function(reduce_retracing=True)
        def epoch(x: tf.Tensor, y: tf.Tensor, seed: tf.Tensor) -> None:
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(x)[0]), seed)
            for start in tf.range(0, tf.shape(x)[0], batch_size):
                rows = order[start : start + batch_size]
                model.train_step((tf.gather(x, rows), tf.gather(y, rows)))

        self._epoch, self._constant = epoch, tf.constant

    @property
    def model(self) -> "keras.Model":
        """What the parties train. It stays: for another one make others."""
        return self._model

    @property
    def epochs(self) -> int:
        """In a turn."""
        return self._epochs

    def on(self, x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the `Train` of a party with these records, which it shuffles by seeds of its own."""
        records, labels = self._constant(x), self._constant(y)
        own = LocalState(self.model, _parts_given(x, y), lambda: [_call_on(records, labels)])
        seeds = np.random.default_rng(self._seeds.spawn(1)[0])

        def train(weights: np.ndarray) -> np.ndarray:
            with own.turn():
                set_flat_weights(self.model, weights)
                for _ in range(self.epochs):
                    seed = self._constant(seeds.integers(2**31, size=2), "int32")
                    self._epoch(records, labels, seed)
                return flat_weights(self.model)

        return train


def _call_on(*given: Any) -> Call:
    """The call of a step on some rows of these tensors."""
    import tensorflow as tf

    return Call("train_step", tuple(tf.TensorSpec((None, *one.shape[1:]), one.dtype) for one in given))
