"""What a model keeps from step to step of a party: each party takes its own along."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp_layers.federated.calls import Call
from tfdp_layers.federated.data_state import DataState
from tfdp_layers.federated.files import Files
from tfdp_layers.federated.given import Given
from tfdp_layers.federated.shared_parts import note_training
from tfdp_layers.federated.step_state import Kept, StepState, compiled_as, key_of, state_of_step
from tfdp_layers.federated.together import Identity
from tfdp_layers.federated.turns import one_turn, turns_over

if TYPE_CHECKING:
    import keras

__all__ = ["LocalState", "keys_of", "refuse_replicas"]


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
        held: by callbacks, what may name a file, at this moment: see `Files`.

    Raises: as `note_training` and `Files`; ValueError for a model on several devices.
    """

    def __init__(
        self,
        model: "keras.Model",
        parts: Sequence[Any],
        calls: Callable[[], Iterable[Call]],
        held: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        refuse_replicas(model)
        optimizer, given, private = model.optimizer, Given(parts), hasattr(model, "ledger")
        if not private and not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._model, self._compiled = model, None if private else compiled_as(model)
        self._state: StepState | None
        with turns_over(keys_of(_listed(model))):
            self._state, unknown = (None, None) if private else state_of_step(model, calls)
            data = DataState(parts)
            self._held = held
            self._files = Files(self, model.name, given, {**dict.fromkeys(data.cached, True), **held()})
            self._given, self._note = given, functools.partial(note_training, model, given, self._state, data, unknown)
            self._open = self._note(final=False)
        own = keys_of(_listed(model)) if private else set()
        # Of all, since which of them are trained may change.
        self._variables = [] if private else _listed(model)
        self._variables += [one for one in data.variables if one.key not in own]
        self._values: list[np.ndarray] = []
        self._complete()

    def _complete(self) -> None:
        """With what steps were seen to keep since: a function that met calls of several parties is traced anew."""
        known = keys_of(self._variables) if self._state is not None else set()
        self._variables += [one for one in self._state.variables if one.key not in known] if self._state else []
        more = self._variables[len(self._values) :]
        if more:
            with turns_over(keys_of(more)):
                self._values += [_first_value(one) for one in more]

    def belong_to(self, party: Identity) -> None:
        """Says whose it is. Raises: as `LocalState`, where parts or files are another party's."""
        self._given.party = self._given.party or party
        self._files.settle()
        self._settle()

    def _settle(self) -> None:
        self._open = self._open and self._note(final=True)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around a turn of the party: what it left is there, and is taken along at the end."""
        self._settle()
        self._complete()
        with one_turn(keys_of([*self._model.variables, *self._variables])):
            self._refuse_changed()
            self._files.used(self._held())
            for variable, value in zip(self._variables, self._values, strict=True):
                variable.assign(value)
            try:
                yield
            finally:
                self._values = [one.numpy() for one in self._variables]
                self._files.look(self._held())
            self._files.used({})  # by a name that came with the turn

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


def refuse_replicas(model: "keras.Model") -> None:
    """Raises ValueError for a model that trains on several devices."""
    spread = any(len(getattr(getattr(one, "value", None), "values", ())) > 1 for one in model.variables)
    if spread or model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Model {model.name!r} was made or is used under {type(model.distribute_strategy).__name__}, with copies of"
            " its variables on several devices, and a party's turn sets and reads one. Make it, and its party, outside"
            " of strategy.scope()."
        )


def keys_of(variables: Iterable[Any]) -> set[Any]:
    """What tells these variables from others."""
    return set(map(key_of, variables))


def _first_value(variable: Any) -> np.ndarray:
    """What a variable held when a party was made that trains it, the first of all."""
    key = key_of(variable)
    if key not in _before:
        held = variable.handle if isinstance(variable, Kept) else variable
        _before[key] = weakref.ref(held, lambda _: _before.pop(key, None)), variable.numpy()
    return _before[key][1]
