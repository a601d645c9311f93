"""Local training of a party with any Keras model, between flat vectors of weights."""

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.calls import Call, calls_of_fit
from tfdp_layers.federated.data_state import DataState
from tfdp_layers.federated.files import Files, paths_of
from tfdp_layers.federated.given import Given
from tfdp_layers.federated.shared_parts import note_training
from tfdp_layers.federated.step_state import Kept, StepState, compiled_as, key_of, state_of_step
from tfdp_layers.federated.together import Identity
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

    A `PrivateModel` is one party's alone: only what pipelines of its data read and write is taken along.

    Args:
        model: built and compiled; parties of one process may share an ordinary one.
        parts: all that the party gives, part by part.
        calls: with what a turn calls the model's steps.
        held: by callbacks, what may name a file: see `Files`.

    Raises: as `note_training` and `Files`; ValueError for a model on several devices.
    """

    def __init__(
        self,
        model: "keras.Model",
        parts: Sequence[Any],
        calls: Callable[[], Iterable[Call]],
        held: Mapping[str, bool] | None = None,
    ) -> None:
        _refuse_replicas(model)
        optimizer, given, private = model.optimizer, Given(parts), hasattr(model, "ledger")
        if not private and not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._model, self._compiled = model, None if private else compiled_as(model)
        self._state: StepState | None
        with turns_over(_keys(_listed(model))):
            self._state, unknown = (None, None) if private else state_of_step(model, calls)
            data = DataState(parts)
            self.files = Files(model.name, given, data.cached, held or {})
            note_training(model, given, self._state, data, unknown)
        own = _keys(_listed(model)) if private else set()
        # Of all, since which of them are trained may change.
        self._variables = [] if private else _listed(model)
        self._variables += [one for one in data.variables if one.key not in own]
        self._values: list[np.ndarray] = []
        self._complete()

    def _complete(self) -> None:
        """With what steps were seen to keep since: a function that met calls of several parties is traced anew."""
        known = _keys(self._variables) if self._state is not None else set()
        self._variables += [one for one in self._state.variables if one.key not in known] if self._state else []
        more = self._variables[len(self._values) :]
        if more:
            with turns_over(_keys(more)):
                self._values += [_first_value(one) for one in more]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around a turn of the party: what it left is there, and is taken along at the end."""
        self._complete()
        with one_turn(_keys([*self._model.variables, *self._variables])):
            self._refuse_changed()
            self.files.used()
            for variable, value in zip(self._variables, self._values, strict=True):
                variable.assign(value)
            try:
                yield
            finally:
                self._values = [one.numpy() for one in self._variables]

    def _refuse_changed(self) -> None:
        now = () if self._compiled is None else compiled_as(self._model)
        if any(one is not other for one, other in zip(now, self._compiled or (), strict=True)):
            raise ValueError(
                f"Model {self._model.name!r} was compiled again, or its functions now run eagerly, or no longer, or it"
                " trains by other functions: what its steps keep by that would go from one party to the next. Set it"
                " up first, then make the training of each party."
            )


def _listed(model: "keras.Model") -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def _refuse_replicas(model: "keras.Model") -> None:
    """Raises ValueError for a model that trains on several devices."""
    spread = any(len(getattr(getattr(one, "value", None), "values", ())) > 1 for one in model.variables)
    if spread or model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Model {model.name!r} was made or is used under {type(model.distribute_strategy).__name__}, with copies of"
            " its variables on several devices, and a party's turn sets and reads one. Make it, and its party, outside"
            " of strategy.scope()."
        )


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

    Raises: ValueError for a private optimizer whose noise multiplier is "calibrate", and as `LocalState`: for parts of
        a model that another party trains, for files that it reads or writes, and for a model on several devices.
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
        held = paths_of(options.get("callbacks"))
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
        """Says whose training it is. Raises: as `Files`."""
        self._own.files.belong_to(party)

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

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(KerasTraining, **self._options), (self.model, self.x, self.y)


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
        _refuse_replicas(model)
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
