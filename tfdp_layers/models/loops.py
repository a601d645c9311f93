"""Loops of the caller's own: draws that are handed out one at a time, and stepped as `fit` steps."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.logs import validation_name
from tfdp_layers.caller import warn
from tfdp_layers.models.accounts import join_accounts
from tfdp_layers.models.feeding import begin_feeding, end_feeding
from tfdp_layers.models.fit_arguments import shares_records
from tfdp_layers.models.owned_metrics import stepped_here
from tfdp_layers.models.public_rows import HELD, PrivateRows, checked_public
from tfdp_layers.proof.specs import flat_specs


class DrawnBatch:
    """One draw of a `PrivateLoop`: what `step` takes, and steps on.

    The draw itself is kept here, out of the caller's reach: `step` uses it whatever is done with copies of it.
    """

    def __init__(self, loop: "PrivateLoop", data: Any) -> None:
        self._loop, self._data = loop, data
        self._copies: list[Any] = []

    def __iter__(self, *_: Any) -> Iterator[Any]:
        raise TypeError(
            "A draw is stepped as a whole, and gives its records to nobody: for batch in run: run.step(batch). Copies"
            " to look at, which are not private: x, y, sample_weight = batch.records()."
        )

    __getitem__ = __iter__

    def records(self) -> Any:
        """Copies, as NumPy arrays, of the drawn (x, y, sample_weight): NOT private, nor is how many there are.

        Rows of weight 0 may be padding, up to a number of rows that suits the step.

        Whoever reads them reads private records. The guarantee covers what the steps release, and nothing that is
        computed from these copies, nor the loop's decisions by them, of which the privacy statement then says so.
        """
        self._loop._note("records")
        copied = keras.tree.map_structure(lambda t: None if t is None else np.array(t, copy=True), self._data)
        self._copies.append(copied)
        return copied


class PrivateLoop:
    """A running `model.private_run(...)`: iterate over its draws, and step once on each.

        for batch in run:
            logs = run.step(batch)

    Formal guarantee: that of `fit`: the weights and the optimizer's state after every step are private at the epsilon
    of `model.privacy_statement(delta)`, whatever the loop does with them, for they are released. Whatever else the loop
    computes from released values and its own random numbers costs nothing: a generator that is trained against a
    private critic, say. Not covered, as in `fit`: the logs that `step` returns, and `batch.records()`. A loop that
    reads them and then ends early, changes the learning rate, takes the weights or gives public rows is reported, in
    the statement, too.

    Attributes:
        batch_size: the expected number of records in a draw: public, unlike the drawn number.
        epoch: how many epochs have ended, those of an earlier training that is resumed included.
    """

    def __init__(self, model: Any, dataset: tf.data.Dataset, arguments: dict[str, Any]) -> None:
        run = model._privacy.require_run()
        self._model, self._arguments, self._watch = model, arguments, model._privacy.watch
        self._run, run.looped = run, True
        self._dataset, self._draws = dataset, iter(dataset)  # in debug mode functions live as long as it does
        self._lock = threading.RLock()
        self._batch: DrawnBatch | None = None
        self._step = self._steps = 0  # steps of the current epoch, and of all
        self._begun = self._ended = False
        self._logs: dict[str, Any] = {}
        self._epoch_logs: dict[str, Any] | None = None
        self._records: PrivateRows | None = None
        self.batch_size = int(run.batches.sampling.batch_size)
        self.epoch, self._planned = int(run.plan.first_epoch), int(run.plan.steps)

    @property
    def planned(self) -> int:
        """Steps that it makes if nothing ends it before."""
        return self._planned

    @property
    def made(self) -> int:
        """Releases made so far."""
        return int(self._model.made_in_fit)

    # The loop's side --------------------------------------------------------------------------------------------------

    def __iter__(self) -> "PrivateLoop":
        if self._steps and not self._ended and self._is_over():
            warn(
                f"All {self._steps} steps of this run are made: one `for batch in run` goes through all epochs, and"
                " run.epoch says how many have ended. Another one steps no more. Leave the outer loop out."
            )
        return self

    def _is_over(self) -> bool:
        return bool(self._model.stop_training or self._steps >= self.planned)

    def __next__(self) -> DrawnBatch:
        """The next draw. Raises RuntimeError where the last one was not stepped, or the run has ended."""
        with self._lock, self._ours():
            self._refuse_ended()
            if self._batch is not None:
                raise RuntimeError(
                    "The last draw was not stepped: whether a step is made would depend on what was drawn, and its cost"
                    " is then unknown. Step on every draw: run.step(batch); or leave the loop."
                )
            if self._is_over():
                raise StopIteration
            with self._ending():
                if not self._begun:
                    self._begun, self._step = True, 0
                    self._model.reset_metrics()
                    self._callbacks.on_epoch_begin(self.epoch)
                self._batch = DrawnBatch(self, self._drawn())
            return self._batch

    def step(self, batch: DrawnBatch, public: Any = None) -> dict[str, Any]:
        """One release: bounded sums over the draw, noise, update.

        Args:
            batch: what the loop was given last, the very object, once.
            public: (x, y) or (x, y, sample_weight), arrays or tensors (rows, ...) as the model takes them: rows that
                are no records, computed from what was released and from public numbers alone, such as samples of a
                generator. Their gradients are bounded as those of records are, summed, divided by the same batch size,
                and added after the noise: they cost nothing, and a record's bound stays what it is. Metrics do not
                count them. How many there are must not depend on the draw: take `batch_size` of them. Those that a loop
                gives after it read logs, or records, are reported: what it read may be in them.

        Returns: Keras' logs of the step, loss and metrics: NOT private.
        Raises:
            RuntimeError: the run has ended; the batch is not the one drawn last, or was stepped before.
            ValueError: public rows of another structure or shape, or that are the private records, a view or copies
                of some (copies of records that lie in arrays in memory).
        """
        with self._lock, self._ours():
            self._refuse_ended()
            if batch is not self._batch or batch is None:
                raise RuntimeError(
                    "step takes the batch that the loop was given last, the object itself, and once: a release on"
                    " another one, or a second one on the same draw, has no known cost."
                    f" Received: {type(batch).__name__}. Write: for batch in run: run.step(batch)."
                )
            data = batch._data
            if public is not None:
                self._refuse_records(batch, public)
                each = self._run.batches.rows_each
                given = checked_public(public, flat_specs(data, each))
                self._private_rows().refuse(given[0])
                self._watch.decided_by(self, "gave public rows")  # their number, or what they are, may tell of it
                data = (data, given)
            with self._ending():
                self._batch = None  # before the step: one that breaks off may have released
                self._callbacks_and_step(data)
            return self._watch.logs(self, dict(self._logs))

    def feeds(self, model: keras.Model) -> None:
        """Says that a model's weights are computed from what this run releases: a generator's from a critic, say.

        It then has the run's ledger: made private and trained further, it adds to what was spent here. And this model,
        called on what that one makes of drawn numbers, in a `tf.function`, say, is not asked about records. Steps of an
        ordinary optimizer on its weights before bring a warning, and a note in statements: they may tell of records.

        Raises:
            ValueError: a model without weights yet, which could not say who pays for them.
            RuntimeError: another run that goes on feeds it, and has another ledger; or this one ended.
        """
        if not model.built or not model.weights:
            raise ValueError(f"Model {model.name!r} has no weights yet, to say what they cost. Call it once before.")
        with self._lock:
            self._refuse_ended()
            join_accounts(self._model._privacy.account, model.weights, model.weights)
            begin_feeding(self._model, self._run, model)

    # This library's side ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Inside, the loop may step. Callbacks begin before and end after; where it raises, no more of them run."""
        model, arguments = self._model, self._arguments
        callbacks, verbose = arguments["callbacks"], arguments.get("verbose", "auto")
        params = {"epochs": arguments.get("epochs", 1), "steps": arguments["steps_per_epoch"], "verbose": verbose}
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, add_progbar=verbose != 0, model=model, **params
        )
        self._callbacks = callbacks
        model.stop_training = False
        model.make_train_function()
        callbacks.on_train_begin()
        self._watch.enter(self)
        try:
            yield
            with self._lock, stepped_here(model):  # another thread may step still
                self._finish()
        except BaseException:
            with self._lock:
                self._watch.decided_by(self, "ended by an exception")
            raise
        finally:
            with self._lock:
                self._ended, self._draws, self._batch = True, None, None
                end_feeding(self._run)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Inside, whatever is raised ends the run: a draw is left out, and what follows has another cost."""
        try:
            yield
        except BaseException:
            self._ended = True
            raise

    def _drawn(self) -> Any:
        """The next draw. Raises what reading its records does, of which statements then say so."""
        try:
            return next(self._draws)
        except Exception as error:
            self._model._privacy.broken_off(self._run, error)
            raise

    def _finish(self) -> None:
        """As Keras ends a `fit`."""
        self._watch.leave()
        if self._steps < self.planned and not self._model.stop_training:
            self._watch.decided_by(self, "left before its last step")
        self._end_epoch()
        self._model.optimizer.finalize_variable_values(self._model.trainable_variables)
        self._callbacks.on_train_end(logs=self._epoch_logs)
        self._ended = True

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """Inside, this library runs, and not the body of the loop."""
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A run draws and steps in Python, where each step is counted: inside of a tf.function the same draw"
                " would be stepped again and again. Call it outside; the step itself is compiled."
            )
        if self._ended:
            yield
            return
        with stepped_here(self._model):
            self._watch.leave()
            try:
                yield
            finally:
                self._watch.enter(self, self._is_over())

    def _callbacks_and_step(self, data: Any) -> None:
        model = self._model
        self._callbacks.on_train_batch_begin(self._step)
        self._run.offered = draws = iter([data])
        try:
            self._logs = dict(model.train_function(draws))
        finally:
            self._run.offered = None
        self._callbacks.on_train_batch_end(self._step, self._logs)
        self._step, self._steps = self._step + 1, self._steps + 1
        if model.stop_training or self._step >= self._arguments["steps_per_epoch"]:
            self._end_epoch()

    def _end_epoch(self) -> None:
        """As Keras ends one: with the metrics of its steps, and of public validation data."""
        if not self._begun or not self._step:
            return
        self._begun, model, arguments = False, self._model, self._arguments
        logs = dict(self._logs)
        validation = arguments.get("validation_data")
        if validation is not None and model._should_eval(self.epoch, arguments.get("validation_freq", 1)):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(validation)
            found = model.evaluate(
                x, y, arguments.get("validation_batch_size"), 0, sample_weight, arguments.get("validation_steps"),
                self._callbacks, return_dict=True,
            )  # fmt: skip
            logs |= {validation_name(name): value for name, value in found.items()}
        self._callbacks.on_epoch_end(self.epoch, logs)
        self._epoch_logs = logs
        self.epoch += 1

    def _refuse_records(self, batch: DrawnBatch, public: Any) -> None:
        batches = self._model._privacy.require_run().batches
        if any(shares_records(copy, public) for copy in batch._copies) or shares_records(batches, public):
            raise ValueError(f"`public` holds private records: {HELD}")

    def _private_rows(self) -> PrivateRows:
        """What records look like, found at the first public rows."""
        if self._records is None:
            self._records = PrivateRows(self._run.batches.arrays()[0])
        return self._records

    def _note(self, name: str) -> None:
        if not self._ended:
            self._watch.note(self, name)

    def _refuse_ended(self) -> None:
        if self._ended:
            raise RuntimeError(
                "This run has ended, with its `with` block or by an error in a draw or a step. Start another:"
                " model.private_run(...)."
            )


class LoopBlock(contextlib.AbstractContextManager[PrivateLoop]):
    """What `private_run` gives: entered by `with`, it is the loop."""

    def __init__(self, block: contextlib.AbstractContextManager[PrivateLoop]) -> None:
        self._block, self._entered = block, False

    def __enter__(self) -> PrivateLoop:
        if self._entered:
            raise RuntimeError("This private_run was entered before, and is one run. Call model.private_run once more.")
        self._entered = True
        return self._block.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._block.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"private_run has no {name!r} yet. {_ENTER}")

    def __iter__(self) -> Any:
        raise TypeError(f"private_run is no loop yet. {_ENTER}")


_ENTER = "Enter it: with model.private_run(...) as run: for batch in run: run.step(batch)."


def refuse_unlooped(model: Any) -> None:
    """Raises ValueError for a model that does not step once a call on one device."""
    if model._distribute_strategy is not None:
        raise ValueError(
            "private_run steps on one device, and this model was made under a strategy. Use fit, or make the model"
            " outside of the strategy's scope."
        )
    if int(model.steps_per_execution) != 1:
        raise ValueError(
            f"private_run steps on one draw at a time, and the model was compiled with steps_per_execution="
            f"{int(model.steps_per_execution)}. Compile it without, or use fit."
        )
