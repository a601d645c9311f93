"""The private training step, and the `fit` that draws, accounts and enforces."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.base import Batches
from tfdp_layers.certificates.certificate import certified
from tfdp_layers.certificates.independence import examined, in_words, warn_of_measured
from tfdp_layers.certificates.interactions import specs
from tfdp_layers.models.accounts import remember_released
from tfdp_layers.models.bookkeeping import Bookkeeping
from tfdp_layers.models.building import build_for, settings_of
from tfdp_layers.models.calibrating import settle_noise
from tfdp_layers.models.counting import CountedStep
from tfdp_layers.models.crossing import crossings_of
from tfdp_layers.models.finite import FiniteWeights
from tfdp_layers.models.fit_arguments import (
    as_batches,
    bind,
    logged_names,
    logs_first,
    posing_names,
    refuse_uncounted_trials,
    refuse_unsound_fit,
    warn_of_lost_count,
)
from tfdp_layers.models.labels import check_label_shapes, check_labels
from tfdp_layers.models.lockstep import agree, fit_together
from tfdp_layers.models.planning import plan_of
from tfdp_layers.models.prospects import warn_of_hopeless
from tfdp_layers.models.replicas import Replicas, StepParts, refuse_unreplicated, refuse_unsound_strategy
from tfdp_layers.models.run import PrivacyState, Run, release_of
from tfdp_layers.models.sums import BoundedSums
from tfdp_layers.models.watching import Watch, is_private
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.per_record.registry import warn_of_generic
from tfdp_layers.proof import Report, steering
from tfdp_layers.proof.models import traced_sums
from tfdp_layers.sampling import Sampling
from tfdp_layers.sensitivity import SensitivityGroup


class PrivateTraining(BoundedSums, Bookkeeping):
    """Mixin for Keras models: `fit` draws records by a sampler, bounds each one's influence, adds noise, and keeps the
    ledger.

    Formal guarantee: the weights and the optimizer's state after every step are (epsilon, delta)-differentially
    private for the neighbouring relation of the sampler, with the epsilon of `privacy_statement(delta)`, under the
    assumptions it lists. Training metrics are computed from private data without noise and are not covered.
    """

    train_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._privacy = PrivacyState()
        if self.built:
            self._settle_accounts()

    # The step ---------------------------------------------------------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """One release: bounded sums, noise, update. `data` is what `Batches.dataset` yields."""
        if tf.distribute.has_strategy():
            raise RuntimeError(
                "train_step adds noise, and would do so on every replica. Under a strategy, train by model.fit."
            )
        parts = self._parts()
        parts.release(parts.sums(data))
        return parts.results()

    def _parts(self) -> StepParts:
        """What a step is made of; nothing that records write unnoised is read after the noise: see `Crossings`."""
        crossings = crossings_of(self)
        return StepParts(
            crossings.of_records()(self._local_sums),
            crossings.of_release()(self._release),
            crossings.of_records()(self.get_metrics_result),
            self.non_trainable_variables,
        )

    def reset_metrics(self) -> None:
        """As in Keras. Raises ValueError, inside of `fit`, where a metric writes more than itself."""
        if self._privacy.run is None or not tf.executing_eagerly():
            super().reset_metrics()
            return
        with crossings_of(self).of_records():
            super().reset_metrics()

    def _local_sums(self, data: Any) -> list[tf.Tensor]:
        """Sums over a drawn batch, or over a replica's slice of it; updates the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        size = self._privacy.require_run().batches.piece
        return self._piece(x, y, sample_weight) if size is None else self._piecewise(x, y, sample_weight, size)

    def _release(self, sums: list[tf.Tensor]) -> tf.Tensor:
        """Noise and update, from the sums over the whole draw; whether something was released."""
        run = self._privacy.require_run()
        return self.optimizer.release(
            sums, self.trainable_variables, run.groups, run.batches.sampling.batch_size, self._regularizer_gradients
        )

    # Keras' entry points ----------------------------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras. `jit_compile="auto"` means False: on CPUs XLA makes convolutions several times slower.

        Raises: ValueError unless the optimizer is one of `tfdp.optimizers`.
        """
        arguments = bind(super().compile, args, kwargs)
        optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
        if not isinstance(optimizer, PrivateOptimizer):
            raise ValueError(
                "A private model needs a private optimizer, which adds the noise. Received:"
                f" {type(optimizer).__name__}. Wrap it: tfdp.optimizers.ClippedOptimizer(your_optimizer), or"
                " NoisyOptimizer for layers of tfdp.layers alone."
            )
        if arguments.get("jit_compile", "auto") == "auto":
            arguments["jit_compile"] = False
        # Loss scaling decides on un-noised sums whether to step.
        super().compile(**(arguments | {"optimizer": optimizer, "auto_scale_loss": False}))
        self._privacy.compiled(arguments.get("loss"), arguments.get("loss_weights"))

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was; its noise and sampling draw fresh keys."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        *args: Any,
        sampling: Sampling | None = None,
        examples: int | None = None,
        physical_batch_size: int | None = None,
        unit_ids: Any = None,
        sampling_seed: int | None = None,
        accept_measured: bool = False,
        **kwargs: Any,
    ) -> Any:
        """`keras.Model.fit`, with its arguments, on privately drawn batches.

        Arrays are drawn by Poisson sampling of expected size `batch_size` (default 32), or by `sampling`. An epoch is
        ceil(examples / batch_size) steps. `validation_data` is treated as PUBLIC: it is evaluated without noise.

        Args:
            x, y: arrays or trees of arrays, or a `PrivateBatches`, or a dataset wrapped in `tfdp.declare_sampling`.
            sampling: a sampler from `tfdp.sampling`; then `batch_size` is its own.
            examples: the declared, public number of records; the length of the arrays if left out.
            unit_ids: (records,), which records belong to one person; then the guarantee is for all of them together,
                and batch size and `examples` count persons: see `tfdp.PrivateBatches`.
            physical_batch_size: splits a drawn batch into pieces of this many records inside one step.
            sampling_seed: for tests; voids the statement.
            accept_measured: where it cannot be proved that records do not mix, it is measured, with a warning; True
                accepts that without one. See `tfdp.check_independence`.

        Raises:
            ValueError: for data, callbacks or arguments that would break the guarantee, naming the fix.
        """
        arguments = bind(super().fit, args, kwargs)
        self._require_private()
        refuse_unsound_fit(arguments, logged_names(self))
        options = {
            "sampling": sampling,
            "examples": examples,
            "physical_batch_size": physical_batch_size,
            "unit_ids": unit_ids,
            "seed": sampling_seed,
        }
        batches = as_batches(arguments, options)
        check_labels(self, self._privacy.loss, arguments.get("y"))
        refuse_unsound_strategy(self, arguments)
        arguments["callbacks"] = logs_first(arguments.get("callbacks"), FiniteWeights(self))
        arguments["steps_per_epoch"] = arguments.get("steps_per_epoch") or len(batches)
        for name in ("y", "sample_weight", "class_weight", "batch_size"):
            arguments.pop(name, None)
        self._initial_epoch = None  # Keras keeps it from a fit that was resumed
        self._settle_accounts()
        refuse_uncounted_trials(arguments["callbacks"], self.ledger)
        warn_of_lost_count(arguments["callbacks"], self.ledger)
        self._privacy.accept_measured = accept_measured
        with self._privacy.account.running(), self._watching(arguments):
            return self._fit_on(batches, super().fit, arguments)

    @contextlib.contextmanager
    def _watching(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Inside, callbacks unknown to us are watched: see `Watch`."""
        validated, posing = arguments.get("validation_data") is not None, bool(posing_names(logged_names(self)))
        private = functools.partial(is_private, validated=validated, posing=posing)
        self._privacy.watch = Watch(self, arguments["callbacks"], private, self._privacy.steered)
        try:
            with self._privacy.watch.watching():
                yield
        finally:
            self._privacy.watch = None

    def _fit_on(self, batches: Batches, fit: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Keras' `fit` on drawn batches, inside of a `Run`."""
        state = self._privacy
        replicas = state.replicas_of(self._distribute_strategy)
        dataset = batches.dataset(pad=bool(self.jit_compile))
        try:
            self._begin(batches, dataset.element_spec, replicas, arguments)
            self._settle_accounts()  # weights may have been made just now
            arguments |= {"x": replicas.dataset(batches) if replicas else dataset, "shuffle": False}
            workers = self.optimizer.workers
            if workers is None:
                return fit(**arguments)
            history, ledger = fit_together(fit, arguments, workers, lambda: self.ledger)
            state.account.replace(ledger, by_fit=True)
            return history
        finally:
            if self.made_in_fit:
                remember_released(state.account, self.trainable_variables)
            state.run = None

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """As in Keras, without the mean over replicas, which fails where their parts of a batch differ in size.

        For the data of `fit` nothing is left to build, and a look at them would cost a draw.
        """
        run, strategy = self._privacy.run, self._distribute_strategy
        if strategy is None or (run is not None and run.replicas is not None and run.replicas.feeds(iterator)):
            return
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(lambda t: strategy.experimental_local_results(t)[0], next(batches))
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def _begin(
        self, batches: Batches, spec: tuple[Any, ...], replicas: Replicas | None, arguments: dict[str, Any]
    ) -> None:
        """Certifies the model, and opens what this `fit` will release in the ledger."""
        state = self._privacy
        self.optimizer.workers = None if replicas is None else replicas.workers
        self._prepare(spec, replicas)
        check_label_shapes(getattr(self, "outputs", None) or (), state.loss_of(self._names_of_outputs()), spec[1])
        groups, workers = self._certify(), self.optimizer.workers
        plan = plan_of(self, arguments, restores=workers is None or workers.chief)
        settle_noise(self.optimizer, self.ledger, batches, groups, plan, arguments)
        self.optimizer.noise_source.rekey()
        self.optimizer._lift_limit()
        run = state.run = Run(batches, groups, release_of(batches, groups, self.optimizer), replicas, plan)
        warn_of_hopeless(run.release, groups, plan.steps)
        report = self._check_trace(run, spec)
        run.release = replace(run.release, independence=in_words(report))
        run.token, run.settings = self._open(run), settings_of(self, groups)

    def _prepare(self, spec: tuple[Any, ...], replicas: Replicas | None) -> None:
        """Creates and checks all that is trained: its variables, what they cost so far, and where they live."""
        if self.optimizer.workers is None:
            self._refuse_unpaid_weights()
        # TF32, on by default on recent GPUs, rounds products after the clips, far coarser than their margin allows.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        with self.distribute_strategy.scope() if replicas else contextlib.nullcontext():
            build_for(self, spec)
        if replicas is not None:
            refuse_unreplicated(self)
            replicas.equalize([*self.variables, *self.optimizer.variables])
        if self.jit_compile and not self.optimizer.noise_source.compiles:
            raise ValueError(
                f"{type(self.optimizer.noise_source).__name__} draws outside of the compiled graph, which XLA cannot"
                " do. Compile the model with jit_compile=False, or use noise_source='default'."
            )

    def _certify(self) -> list[SensitivityGroup]:
        """The groups of weights and their bounds. Raises ValueError, naming the layer, where no bound holds."""
        groups, self._privacy.uses = certified(self, self._bounding)
        if self._bounding is not None:
            warn_of_generic(self)
        return groups

    def _check_trace(self, run: Run, spec: tuple[Any, ...]) -> Report:
        """Examines whether records mix, and compiles afresh, where something changed that a trace depends on."""
        state = self._privacy
        variables, pieces = tuple(map(id, self.trainable_variables)), run.batches.piece
        traced = (run.release, pieces, int(self.steps_per_execution), id(self.optimizer), variables, str(spec))
        if state.traced != traced:
            state.independence, state.sums, state.metrics, self.train_function = None, None, None, None
        if state.independence is None or self.run_eagerly:
            function = traced_sums(self, *specs(spec))
            # Eager metrics may be plain Python, and those of replicas are traced with their own variables.
            metrics = None if run.replicas or self.run_eagerly else steering.traced_metrics(self, function)
            written = [] if metrics is None else steering.written_by_metrics(self, metrics)
            steering.refuse_foreign_writes(self, written)
            if not run.replicas:
                state.read_after_noise = steering.refuse_steered(self, written)
            state.independence = examined(self, function, spec[0], spec[1], run.groups, written)
            state.written_by_sums = steering.keys_written(function)
            # Replicas trace the sums anew, each with variables of its own.
            state.sums, state.metrics = None if metrics is None else function, metrics
            if not (state.independence.proved or state.accept_measured):
                warn_of_measured(self, state.independence)
        state.traced = traced
        return state.independence

    def _open(self, run: Run) -> str | None:
        """Opens the release in the ledger, and returns its token: the chief's, where there are several workers."""
        batches, release = run.batches, run.release

        def opened() -> str:
            self._refuse_unpaid_weights()
            token = self.ledger.begin(release)
            # Takes the lock of the ledger's file now: what callbacks read from here on stays what was spent before.
            self.ledger.require(token)
            return token

        workers = self.optimizer.workers
        if workers is None:
            return opened()
        token, ledger = agree(batches, release, int(self.steps_per_execution), self.ledger, opened, workers)
        self._privacy.account.replace(ledger, by_fit=True)
        return token

    def make_train_function(self, force: bool = False) -> Any:
        """Keras' compiled step, or that of several replicas, counted in the ledger: see `CountedStep`."""
        if self.train_function is not None and not force:
            return self.train_function
        replicas, together = self._privacy.require_run().replicas, int(self.steps_per_execution)
        if replicas is None:
            step = self._make_function(self.train_step)
        else:
            step = replicas.step_function(self._parts(), together, bool(self.run_eagerly))
        self.train_function = CountedStep(
            step, together, self._privacy, self.optimizer, functools.partial(settings_of, self), self._stop_training
        )
        return self.train_function

    def _stop_training(self) -> None:
        self.stop_training = True

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: a batch that no sampler drew has no known cost.

        Raises: RuntimeError, always.
        """
        raise RuntimeError(
            "train_on_batch trains on a batch that no sampler drew, so its cost is unknown. Use fit, with"
            " tfdp.PrivateBatches or tfdp.declare_sampling for data of your own."
        )
