"""Local training of a party with any Keras model, between flat vectors of weights."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.data_state import DataState
from tfdp_layers.federated.shared_parts import note_private, note_training
from tfdp_layers.federated.step_state import Kept, compiled_as, key_of, state_of_step
from tfdp_layers.federated.turns import one_turn, turns_over

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
    with turns_over(_keys(model.trainable_variables)):
        return np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables]).astype(np.float32)


def set_flat_weights(model: "keras.Model", weights: np.ndarray) -> None:
    """Writes what `flat_weights` read, and waits as that does. Raises ValueError for another number of weights."""
    variables = model.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]
    if weights.shape != (sum(sizes),):
        raise ValueError(f"Model {model.name!r} has {sum(sizes)} trainable weights. Received: shape {weights.shape}.")
    with turns_over(_keys(variables)):
        for variable, part in zip(variables, np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
            variable.assign(part.reshape(variable.shape))


_before: dict[Any, tuple["weakref.ref[Any]", np.ndarray]] = {}
"""What variables held before the first party trained them, in whichever model, as long as they live."""


class LocalState:
    """What a model keeps from step to step, of one party: of its records, too. Its weights are set anew each turn.

    Moments and momentum of the optimizer, its loss scale, averages of the weights, statistics of BatchNormalization,
    states of recurrent layers: whatever a turn leaves there must not go into the next party's upload. So each party
    takes its own along, and begins with what was there before the first of them: of all that Keras lists, and of all
    that the traced step and pipelines of its data read or write, in other models, too. Parties take their turns one
    after the other, in whichever threads (`turns.one_turn`).

    Args:
        model: built and compiled; parties of one process may share it.
        x, y, batch_size: what a turn of the party trains on.
        beside: what else it reads: sample weights, validation data.
        validates: whether it also evaluates the model.

    Raises: as `note_training`.
    """

    def __init__(
        self,
        model: "keras.Model",
        x: Any,
        y: Any,
        batch_size: int | None,
        beside: Sequence[Any] = (),
        validates: bool = False,
    ) -> None:
        optimizer, given = model.optimizer, _parts_given(x, y, *beside)
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._model, self._compiled = model, compiled_as(model)
        with turns_over(_keys([*model.variables, *optimizer.variables])):
            state = state_of_step(model, x, y, batch_size, validates)
            data = DataState(given)
            note_training(model, given, state, data)
        # Of all, since which of them are trained may change.
        self._variables = [*model.variables, *optimizer.variables, *state.variables, *data.variables]
        with turns_over(_keys(self._variables)):
            self._values = [_first_value(one) for one in self._variables]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around a turn of the party: what it left is there, and is taken along at the end."""
        with one_turn(_keys(self._variables)):
            if any(one is not other for one, other in zip(compiled_as(self._model), self._compiled, strict=True)):
                raise ValueError(
                    f"Model {self._model.name!r} was compiled again, or its functions now run eagerly, or no longer:"
                    " what its steps keep by that would go from one party to the next. Set it up first, then make the"
                    " training of each party."
                )
            for variable, value in zip(self._variables, self._values, strict=True):
                variable.assign(value)
            try:
                yield
            finally:
                self._values = [one.numpy() for one in self._variables]


def _parts_given(*given: Any) -> list[Any]:
    """All that a party gives, part by part."""
    import keras

    return list(keras.tree.flatten(given))


def _keys(variables: Iterable[Any]) -> set[Any]:
    return set(map(key_of, variables))


def _first_value(variable: Any) -> np.ndarray:
    """What a variable held when a party was made that trains it, the first of all."""
    key = key_of(variable)
    if key not in _before:
        held = variable.handle if isinstance(variable, Kept) else variable
        _before[key] = weakref.ref(held, lambda _: _before.pop(key, None)), variable.numpy()
    return _before[key][1]


class KerasTraining:
    """`Train` of a party: some epochs of `model.fit` on the party's records.

    With a `PrivateModel` and one of this library's optimizers the training is private for each record as well, counted
    by the model's own ledger; then give each party a model of its own.

    Args:
        model: built and compiled. Parties of one process may share it: the weights are set anew at every turn, and
            each party has an optimizer's state and moving averages of its own.
        x, y: the party's records and labels.
        options: further arguments of `model.fit`: batch_size, epochs, callbacks, ...

    Raises: ValueError for a private optimizer whose noise multiplier is "calibrate", and as `note_private` and
        `note_training`: for parts of a model that another party trains.
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
        self.model, self.x, self.y = model, x, y
        self.options = {"batch_size": 32, "verbose": 0, **options}
        self._own: LocalState | None = None
        beside = [options.get(name) for name in ("sample_weight", "validation_data")]
        if hasattr(model, "ledger"):
            note_private(model, _parts_given(x, y, *beside))
        else:
            validates = bool({"validation_data", "validation_split"} & self.options.keys())
            self._own = LocalState(model, x, y, self.options["batch_size"], beside, validates)

    @property
    def ledger(self) -> "Ledger | None":
        """What a turn charges: the ledger of a `PrivateModel`; None of an ordinary model."""
        return getattr(self.model, "ledger", None)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Trains from `weights`, float32 (size,); returns the new ones. Variables that are not trained stay local.

        Waits for turns of other threads on any of the model's variables. Raises: as `turns.one_turn`.
        """
        with one_turn(_keys(self.model.variables)) if self._own is None else self._own.turn():
            set_flat_weights(self.model, weights)
            self.model.fit(self.x, self.y, **self.options)
            return flat_weights(self.model)


def accuracy(model: "keras.Model", weights: np.ndarray, x: np.ndarray, y: np.ndarray, batch_size: int = 1000) -> float:
    """Fraction of the records that a model of logits, (n, classes), with these weights classifies right.

    What is not trained, the averages of BatchNormalization say, is that of the party that trained the model last.
    Waits for a party's turn that another thread has on this model.
    """
    with turns_over(_keys(model.variables)):
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
        self.model, self.epochs, self._batch_size = model, epochs, batch_size

        @tf.function(reduce_retracing=True)
        def epoch(x: tf.Tensor, y: tf.Tensor) -> None:
            order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
            for start in tf.range(0, tf.shape(x)[0], batch_size):
                rows = order[start : start + batch_size]
                model.train_step((tf.gather(x, rows), tf.gather(y, rows)))

        self._epoch, self._constant = epoch, tf.constant

    def on(self, x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the `Train` of a party with these records."""
        records, labels = self._constant(x), self._constant(y)
        own = LocalState(self.model, x, y, self._batch_size)

        def train(weights: np.ndarray) -> np.ndarray:
            with own.turn():
                set_flat_weights(self.model, weights)
                for _ in range(self.epochs):
                    self._epoch(records, labels)
                return flat_weights(self.model)

        return train
