"""What a private training does before its first step and after its last: certify, settle the noise, open the ledger."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.digests import unchanged
from tfdp_layers.accounting.following import entry_before
from tfdp_layers.accounting.logs import posing_names
from tfdp_layers.accounting.released import known_values
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.texts import text_tensors
from tfdp_layers.callbacks.own_fit import keras_fit
from tfdp_layers.callbacks.steering import logs_first, refuse_unknown_direction
from tfdp_layers.callbacks.turns import Epochs, HookLooks, Turns
from tfdp_layers.certificates.arithmetic import require_float32
from tfdp_layers.certificates.certificate import certified
from tfdp_layers.certificates.constants import leave_constants
from tfdp_layers.certificates.independence import examined, in_words, warn_of_measured
from tfdp_layers.certificates.interactions import specs
from tfdp_layers.certificates.registered import notes_of_words
from tfdp_layers.models.accounts import join_accounts, join_copies, released_by, remember_handed_out, remember_released
from tfdp_layers.models.blank import panels, warn_of_blank
from tfdp_layers.models.building import build_for, hidden_seeds, kept_by_pieces, seeds_beside, seeds_of, settings_of
from tfdp_layers.models.calibrating import settle_noise
from tfdp_layers.models.common_draws import refuse_common_draws
from tfdp_layers.models.compiled import refuse_uncompiled
from tfdp_layers.models.counting import noted_end, refuse_changed
from tfdp_layers.models.crossing import forget_metrics
from tfdp_layers.models.earlier import warn_of_unseen
from tfdp_layers.models.finite import FiniteWeights
from tfdp_layers.models.fit_arguments import (
    OPTIONS,
    arrays_of,
    as_batches,
    bind,
    labels_of,
    logged_names,
    refuse_late_names,
    refuse_unsound_fit,
    unwrap,
    warn_of_lost_count,
)
from tfdp_layers.models.held_records import warn_of_held_records
from tfdp_layers.models.ids import check_ids
from tfdp_layers.models.inputs import check_inputs
from tfdp_layers.models.kept import warn_of_earlier_best
from tfdp_layers.models.labels import check_label_shapes, check_labels, public_classes, warn_of_logits
from tfdp_layers.models.lockstep import agree
from tfdp_layers.models.other_ledgers import sight_records
from tfdp_layers.models.owned_metrics import trained_here
from tfdp_layers.models.planning import plan_of
from tfdp_layers.models.prospects import warn_of_equal_views, warn_of_hopeless, warn_of_lost_weights
from tfdp_layers.models.replicas import Replicas, refuse_unreplicated, refuse_unsound_strategy
from tfdp_layers.models.run import Run, release_of
from tfdp_layers.models.statistics import warn_of_statistics
from tfdp_layers.models.streams import begin_stream, settle_correlation, stream_after
from tfdp_layers.models.sums import BoundedSums, refuse_own_bounds
from tfdp_layers.models.texts import check_texts
from tfdp_layers.models.trials import refuse_uncounted_trials
from tfdp_layers.models.unfrozen import refuse_unfrozen
from tfdp_layers.models.validation import check_validation
from tfdp_layers.models.watching import Watch
from tfdp_layers.models.weight_files import WeightFiles
from tfdp_layers.noise.cores import on_gpus
from tfdp_layers.optimizers.inner import refuse_wrapped
from tfdp_layers.per_record.registry import warn_of_generic
from tfdp_layers.proof import Report, steering
from tfdp_layers.proof.metrics import examined_metrics, try_on_nothing
from tfdp_layers.proof.models import constants_read, traced_sums, variables_read
from tfdp_layers.proof.programs import program_of, settings_after_noise
from tfdp_layers.proof.specs import flat_specs
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import held_by, outputs_of


class Opening(BoundedSums, WeightFiles):
    """Mixin for Keras models: all that stands around the steps of a training, whoever writes its loop.

    `fit` and `private_run` both go through `_training`, so what one refuses, charges or certifies, the other does.
    """

    train_function: Any

    @contextlib.contextmanager
    def _training(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], refuse: Callable[[Any], None] | None = None
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Inside, private steps may be made, on the batches of the dataset that it gives.

        Args:
            args, kwargs: of `fit`, this library's options among them.
            refuse: called with the compiled model, before anything else; raises what else is wrong.

        Gives: the drawn batches, for Keras, and the arguments of Keras' `fit` by name, without the data.
        Afterwards, also where it raised, metrics that layers keep start anew: whoever exports such a layer writes them.
        Raises: ValueError for data, callbacks or arguments that would break the guarantee, naming the fix.
        """
        own = {name: kwargs.pop(name, None) for name in (*OPTIONS, "sampling_seed")}
        accept_measured = bool(kwargs.pop("accept_measured", False))
        batches, arguments = self._accepted(bind(keras_fit(self), args, kwargs), own, refuse)
        state = self._privacy
        state.accept_measured = accept_measured
        with state.account.running(self._used_by_steps()) as uses, self.optimizer.in_use(), self._watching(arguments):
            replicas = state.replicas_of(self._distribute_strategy)
            compiled = bool(self.jit_compile)  # once: batches are padded, and steps made, by this very answer
            pad = compiled or on_gpus() or panels(self)  # there each new size has its fastest kernels searched for
            dataset = batches.dataset(pad)
            try:
                self._begin(batches, dataset.element_spec, compiled, replicas, arguments)
                uses(self._used_by_steps())  # weights may have been made just now
                self._settle_accounts()
                assert state.watch is not None
                state.watch.opened()
                if state.watch.looks or refuse is not None:  # a loop of the caller's own
                    state.require_run().began_with = known_values(map(held_by, self.trainable_variables))
                if replicas:
                    dataset = replicas.dataset(batches, pad)
                elif state.require_run().start:
                    dataset = batches.dataset(pad, state.require_run().start)
                with noted_end(state, functools.partial(settings_of, self)):
                    yield dataset, arguments
            finally:
                try:
                    state.stream = stream_after(state.run, self.optimizer, self._privacy.ledger)
                    if self.made_in_fit:
                        with unchanged():
                            remember_released(state.account, released_by(self))
                            self._leave(but=state.foreign, beside=released_by(self))
                finally:
                    state.end_run()
                    forget_metrics(self)

    def _accepted(
        self, arguments: dict[str, Any], own: dict[str, Any], refuse: Callable[[Any], None] | None
    ) -> tuple[Batches, dict[str, Any]]:
        """The batches to draw, and the arguments that are left for Keras' loop. Raises: as `fit`."""
        self._require_private()
        if refuse is not None:
            refuse(self)
        unwrap(arguments, self)
        refuse_unsound_fit(arguments, logged_names(self), self)
        if isinstance(validation := arguments.get("validation_data"), tuple | list) and validation:
            arguments["validation_data"] = (text_tensors(validation[0]), *validation[1:])
        batches = as_batches(arguments, own | {"seed": own["sampling_seed"]}, self)
        check_labels(self, self._privacy.loss, functools.partial(labels_of, batches))
        check_ids(self, arrays_of(batches))
        refuse_unsound_strategy(self, arguments)
        turns = Turns(lambda: self._privacy.run, self._privacy.remark)
        watching: list[Any] = []
        if self._runs_code_of_others(arguments):
            watching.append(Epochs(lambda: self._privacy.watch))
        if watching or arguments.get("callbacks"):
            watching.insert(0, HookLooks(lambda: self._privacy.watch))
        arguments["callbacks"] = logs_first(arguments.get("callbacks"), *watching, FiniteWeights(), turns)
        arguments["steps_per_epoch"] = arguments.get("steps_per_epoch") or len(batches)
        for name in ("x", "y", "sample_weight", "class_weight", "batch_size"):
            arguments.pop(name, None)
        self._initial_epoch = None  # Keras keeps it from a fit that was resumed
        with unchanged():
            self._note_change()
            self._settle_accounts()
        refuse_uncounted_trials(arguments["callbacks"], self._privacy.ledger)
        warn_of_lost_count(arguments["callbacks"], self._privacy.ledger)
        warn_of_earlier_best(arguments["callbacks"])
        return batches, arguments

    def _runs_code_of_others(self, arguments: dict[str, Any]) -> bool:
        """Whether anything but a hook may run code of the caller between the last step of an epoch and its end."""
        return arguments.get("validation_data") is not None or type(self).__module__.split(".")[0] != "tfdp_layers"

    @contextlib.contextmanager
    def _watching(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Inside, callbacks unknown to us are watched: see `Watch`; the metrics are this thread's."""
        self._privacy.validated = arguments.get("validation_data") is not None
        self._privacy.posing = bool(posing_names(logged_names(self)))
        tell = (self._privacy.steered, self._privacy.remark, self._join_brought, lambda: remember_handed_out(self))
        watch = self._privacy.watch = Watch(self, arguments["callbacks"], self.private_in_logs, *tell)
        try:
            with trained_here(self), watch.watching():
                yield
        finally:
            self._privacy.watch = None

    def _begin(
        self,
        batches: Batches,
        spec: tuple[Any, ...],
        compiled: bool,
        replicas: Replicas | None,
        arguments: dict[str, Any],
    ) -> None:
        """Certifies the model, and opens what this `fit` will release in the ledger."""
        state = self._privacy
        self.optimizer.workers = None if replicas is None else replicas.workers
        rows = flat_specs(spec, batches.rows_each)
        check_texts(self, rows[0])
        state.records = rows[0]
        self._prepare(rows, replicas)
        refuse_late_names(logged_names(self), state.posing)
        self._check_records(rows, batches, arguments)
        groups, workers = self._certify(), self.optimizer.workers
        if batches.rows_each > 1:
            refuse_own_bounds(groups)
        plan = plan_of(self, arguments, restores=workers is None or workers.chief)
        settle_correlation(self.optimizer, batches, plan.steps, state.stream)
        settle_noise(self.optimizer, self._privacy.ledger, batches, groups, plan, arguments)
        self.optimizer.noise_source.rekey()
        self.optimizer._lift_limit()
        state.largest_weight = batches.largest_weight(public_classes(outputs_of(self), self.compiled_losses))
        run = state.run = Run(
            batches, groups, release_of(batches, groups, self.optimizer, state.ledger), replicas, plan, compiled
        )
        run.settings = settings_of(self, groups, compiled)  # before code of layers, losses and metrics runs
        warn_of_hopeless(run.release, groups, plan.steps)
        warn_of_lost_weights(self, batches)
        warn_of_equal_views(self, batches)
        report = self._check_trace(run, spec)
        warn_of_unseen(self)
        run.release = replace(run.release, independence=in_words(report))
        refuse_unknown_direction(arguments.get("callbacks"), self)
        refuse_changed(run, functools.partial(settings_of, self))
        run.token = self._open(run, arguments.get("callbacks"))
        for note in (*notes_of_words(self), *filter(None, [batches.begin()])):
            state.remark(note)

    def _check_records(self, spec: tuple[Any, ...], batches: Batches, arguments: dict[str, Any]) -> None:
        """Raises ValueError for records, of these specs, or validation data that model and loss cannot take."""
        if self.jit_compile:
            refuse_uncompiled(self, batches)
        warn_of_blank(self, batches)
        loss = self._privacy.loss_of(self._names_of_outputs())
        check_label_shapes(outputs_of(self), loss, spec[1])
        check_inputs(self, spec[0])
        warn_of_logits(outputs_of(self), loss, spec[1])
        validation, steps = arguments.get("validation_data"), arguments.get("validation_steps")
        if validation is not None:
            check_validation(self, validation, loss, compiled=self._privacy.loss, steps=steps)

    def _prepare(self, spec: tuple[Any, ...], replicas: Replicas | None) -> None:
        """Creates and checks all that is trained: its variables, what they cost so far, and where they live."""
        refuse_wrapped(self.optimizer.inner_optimizer)  # it may have been changed since
        if self.optimizer.workers is None:
            self._refuse_unpaid_weights()
        require_float32(bool(self.jit_compile))
        with replicas.building() if replicas else contextlib.nullcontext():
            build_for(self, spec)
        refuse_unfrozen(self)
        if replicas is not None:
            refuse_unreplicated(self)
            replicas.equalize([*self.variables, *self.optimizer.variables])

    def _certify(self) -> list[SensitivityGroup]:
        """The groups of weights and their bounds.

        Raises: ValueError, naming the layer, where no bound holds; and where the model has no loss of single records.
        """
        groups, self._privacy.uses = certified(self, self._bounding, self._privacy.records)
        leave_constants(self)
        self._refuse_batch_losses()
        self._privacy.loss_of(self._names_of_outputs()).require()
        if not groups:
            raise ValueError(
                f"Model {self.name!r} has no weights to train: all its layers are frozen (trainable=False), or have"
                " none. Leave one trainable, a last Dense say, and compile again."
            )
        if self._bounding is not None:
            warn_of_generic(self)
        return groups

    def _check_trace(self, run: Run, spec: tuple[Any, ...]) -> Report:
        """Examines whether records mix, and compiles afresh, where something changed that a trace depends on."""
        state = self._privacy
        variables, pieces = tuple(map(id, [*self.trainable_variables, *seeds_of(self)])), run.batches.piece
        parts = (self.optimizer, self.optimizer.inner_optimizer, self.optimizer.noise_source)
        given = (str(spec), state.largest_weight, bool(self.run_eagerly))
        traced = (run.settings, run.release, pieces, parts, variables, given)
        if state.traced != traced:
            state.independence, state.sums, state.metrics, self.train_function = None, None, None, None
        if state.independence is None or self.run_eagerly:
            self.train_function = None  # each step holds the stand-ins that it draws from
            state.hidden = None if run.release.seeded else hidden_seeds(self, run.replicas)
            with state.hidden.in_place() if state.hidden else contextlib.nullcontext():
                self._trace(run, spec)
        state.traced = traced
        assert state.independence is not None
        refuse_common_draws(self, state.independence, run)
        return state.independence

    def _trace(self, run: Run, spec: tuple[Any, ...]) -> None:
        """Traces what steps call, and examines it."""
        state = self._privacy
        each = run.batches.rows_each
        x, y, weights = specs(spec)
        function = traced_sums(self, x, y, weights, each)
        state.read_by_sums = list(variables_read(function))
        state.graph = function.graph
        join_accounts(state.account, state.read_by_sums, ())
        join_copies(state.account, constants_read(function))
        state.seeds = seeds_beside(self, function, run.replicas)
        state.program = program_of(function) if self.optimizer.workers else None
        # Those of replicas are traced in their steps, with their own variables: they come after the sums.
        metrics, written = (None, []) if run.replicas else examined_metrics(self, function, each)
        state.read_after_noise, constants = steering.refuse_steered(self, written)
        if metrics is not None:
            try_on_nothing(metrics)
        join_accounts(state.account, state.read_after_noise, ())  # of constraints and learning rates
        join_copies(state.account, constants)
        rows = flat_specs(spec, each)
        state.independence = examined(self, function, rows[0], rows[1], run.groups, written)
        state.written_by_sums = steering.keys_written(function)
        state.kept_by_pieces = kept_by_pieces(self, function, run)
        calls = function if run.replicas is None else run.replicas.each_calls(function, self.variables, state.hidden)
        state.sums, state.metrics = None if self.run_eagerly else calls, metrics
        if not (state.independence.proved or state.accept_measured):
            warn_of_measured(self, state.independence)

    def _open(self, run: Run, callbacks: Any) -> str | None:
        """Opens the release in the ledger, and returns its token: the chief's, where there are several workers."""
        batches, release = run.batches, run.release

        def opened() -> str:
            self._refuse_unpaid_weights()
            check_ledger(self._privacy.ledger)
            ledger = self._privacy.ledger
            token = begin_stream(run, self.optimizer, ledger, self._privacy.stream) or ledger.begin(release)
            # Takes the lock of the ledger's file now: what callbacks read from here on stays what was spent before.
            ledger.require(token)
            run.entry = entry_before(ledger, token)
            try:
                warn_of_statistics(self, *batches.arrays(), batches.share)
                warn_of_held_records(self, self._privacy.graph, *run.batches.arrays())
                sight_records(run, token, ledger, callbacks)
            except BaseException:  # its warning, made an error
                ledger.end(token)
                raise
            return token

        workers = self.optimizer.workers
        if workers is None:
            return opened()
        optimizer = self.optimizer.inner_optimizer
        program = [self._privacy.program, settings_after_noise(optimizer, self.trainable_variables)]
        together, mine = int(self.steps_per_execution), self._privacy.ledger
        token, ledger, run.following = agree(batches, release, together, mine, opened, workers, program)
        self._privacy.account.replace(ledger, by_fit=True, named=not workers.chief)
        return token
