"""The private training step, and the `fit` that draws, accounts and enforces."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.accounting.following import follow
from tfdp_layers.callbacks.own_fit import own_fit
from tfdp_layers.callbacks.turns import OwnStep
from tfdp_layers.instances import Elsewhere, refuse_class
from tfdp_layers.models.building import seeds_of, settings_of, update_of
from tfdp_layers.models.counting import CountedStep, is_foreign, refuse_anew, refuse_changed
from tfdp_layers.models.crossing import asking, crossings_of, resetting, results_of
from tfdp_layers.models.earlier import begin_from, warn_of_earlier
from tfdp_layers.models.fit_arguments import bind
from tfdp_layers.models.lockstep import fit_together, fitting
from tfdp_layers.models.looking import Looking
from tfdp_layers.models.loops import LoopBlock, PrivateLoop, refuse_unlooped
from tfdp_layers.models.opening import Opening
from tfdp_layers.models.owned_metrics import refuse_elsewhere
from tfdp_layers.models.predicting import Predicting
from tfdp_layers.models.replicas import StepParts
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.restored import Deferred, Restored
from tfdp_layers.per_record.losses import refuse_weights_of_metrics
from tfdp_layers.proof.replicas import follows_chief
from tfdp_layers.sampling import Sampling


class PrivateTraining(Predicting, Looking, Opening):
    """Mixin for Keras models: `fit` draws records by a sampler, bounds each one's influence, adds noise, and keeps the
    ledger.

    Formal guarantee: the weights and the optimizer's state after every step are (epsilon, delta)-differentially
    private for the neighbouring relation of the sampler, with the epsilon of `privacy_statement(delta)`, under the
    assumptions it lists. Training metrics are computed from private data without noise and are not covered.
    """

    epsilon, get_epsilon, spent = Elsewhere.several(
        3,
        "What was spent is tfdp.accounting.epsilon(model.ledger, delta=1e-5), with all that it means in"
        " model.privacy_statement(delta=1e-5).",
    )
    statement = Elsewhere("It is model.privacy_statement(delta=1e-5).")
    train_function: Any = OwnStep(lambda model, step: is_foreign(getattr(model, "_privacy", None), step))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._privacy = PrivacyState()
        if follows_chief(self._distribute_strategy):
            follow(self._privacy.ledger)
        self._privacy.account.watch(Deferred(self))
        if self.built:
            self._settle_accounts()

    # The step ---------------------------------------------------------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """One release: bounded sums, noise, update.

        Args:
            data: what `Batches.dataset` yields, or a pair of that and public rows: see `PrivateLoop.step`.
        """
        if tf.distribute.has_strategy():
            raise RuntimeError(
                "train_step adds noise, and would do so on every replica. Under a strategy, train by model.fit."
            )
        drawn, public = data if len(data) == 2 else (data, None)
        parts, hidden = self._parts(public), self._privacy.hidden
        filled: Any = hidden.filled(hidden.fresh()[0]) if hidden else contextlib.nullcontext()
        with hidden.in_place() if hidden else contextlib.nullcontext(), filled:
            totals = parts.sums(drawn)
        if hidden:
            hidden.count()
        parts.release(totals)
        return parts.results()

    def _parts(self, public: Any = None) -> StepParts:
        """What a step is made of; nothing that records write unnoised is read after the noise: see `Crossings`."""
        crossings = crossings_of(self)
        return StepParts(
            crossings.of_records()(self._local_sums),
            crossings.of_release()(functools.partial(self._release, public=public)),
            crossings.of_records()(functools.partial(results_of, self)),
            self.non_trainable_variables,
        )

    def reset_metrics(self) -> None:
        """As in Keras. Raises ValueError, inside of `fit`, where a metric writes more than itself, or keeps numbers."""
        refuse_elsewhere(self, "reset_metrics")
        with resetting(self):
            super().reset_metrics()

    def get_metrics_result(self) -> dict[str, Any]:
        """As in Keras. Raises ValueError, inside of `fit`, where a metric's result changes more than the metric."""
        refuse_elsewhere(self, "get_metrics_result")
        with asking(self):
            return dict(super().get_metrics_result())

    def _local_sums(self, data: Any) -> list[tf.Tensor]:
        """Sums over a drawn batch, or over a replica's slice of it; updates the metrics."""
        run = self._privacy.require_run()
        refuse_changed(run, functools.partial(settings_of, self))
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        size = run.batches.piece
        return self._piece(x, y, sample_weight) if size is None else self._piecewise(x, y, sample_weight, size)

    def _release(self, sums: list[tf.Tensor], public: Any = None) -> tf.Tensor:
        """Noise and update, from the sums over the whole draw; whether something was released."""
        run = self._privacy.require_run()
        refuse_changed(run, functools.partial(settings_of, self))
        size = run.batches.sampling.batch_size
        beside: Any = {} if public is None else {"public_sums": functools.partial(self._public_sums, public)}
        return self.optimizer.release(
            sums, self.trainable_variables, run.groups, size, self._regularizer_gradients, **beside
        )

    # Keras' entry points ----------------------------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras. `jit_compile="auto"` means False: on CPUs XLA makes convolutions several times slower.

        Raises:
            ValueError: unless the optimizer is one of `tfdp.optimizers`.
            RuntimeError: while `fit` or a `private_run` of the model runs.
        """
        if self._privacy.run is not None:
            raise RuntimeError(
                "compile was called while fit runs: its loss, metrics and optimizer are those that were certified. Call"
                " it between two calls of fit."
            )
        arguments = bind(super().compile, args, kwargs)
        for name in ("optimizer", "loss"):
            for one in keras.tree.flatten(arguments.get(name)):
                refuse_class(one, f"`{name}`")
        refuse_weights_of_metrics(arguments.get("loss_weights"))
        optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
        if not isinstance(optimizer, PrivateOptimizer):
            raise ValueError(
                "A private model needs a private optimizer, which adds the noise. Received:"
                f" {type(optimizer).__name__}. Wrap it: tfdp.optimizers.ClippedOptimizer(your_optimizer), or"
                " NoisyOptimizer for layers of tfdp.layers alone."
            )
        if arguments.get("jit_compile", "auto") == "auto":
            arguments["jit_compile"] = False
        begin_from(self, warn_of_earlier(self._flatten_layers(include_self=False)))
        # Loss scaling decides on un-noised sums whether to step.
        super().compile(**(arguments | {"optimizer": optimizer, "auto_scale_loss": False}))
        self._privacy.account.watch(Restored(self, optimizer))
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
        records_per_unit: int | None = None,
        views: int | None = None,
        owners: Any = None,
        records_per_owner: int | None = None,
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
            records_per_unit: with `unit_ids`, up to so many records of each drawn person enter a step together: the
                gradient of the mean of their losses is bounded as one contribution. 1 if left out.
            views: each drawn record enters a step so often, for random layers of the model (`RandomFlip`, say) to
                change each time: bounded alike. 1 if left out.
            owners: (records,), (records, most) or a list of lists: the people that each record belongs to, where it may
                be several. Records are drawn as without, and the guarantee is for what all records of one person hold:
                see `tfdp.PrivateBatches`.
            records_per_owner: with `owners`, how many records one of them owns at most, which is checked; 1 if left
                out. See `tfdp.preprocessing.limit_owners`.
            physical_batch_size: splits a drawn batch into pieces of this many rows inside one step.
            sampling_seed: for tests; voids the statement.
            accept_measured: where it cannot be proved that records do not mix, it is measured, with a warning; True
                accepts that without one. See `tfdp.check_independence`.

        Raises:
            ValueError: for data, callbacks or arguments that would break the guarantee, naming the fix.
            What a step, or the drawing of its records, raises, as it is. Statements then have a note: that it failed,
            and after how many steps, may depend on what a record holds.
        """
        own = {"sampling": sampling, "examples": examples, "physical_batch_size": physical_batch_size}
        own |= {"unit_ids": unit_ids, "records_per_unit": records_per_unit, "views": views}
        own |= {"owners": owners, "records_per_owner": records_per_owner}
        own |= {"sampling_seed": sampling_seed, "accept_measured": accept_measured}
        run = own_fit(self)
        with fitting(self), self._training(args, kwargs | own) as (dataset, arguments):
            arguments |= {"x": dataset, "shuffle": False}
            workers = self.optimizer.workers
            if workers is None:
                return run(**arguments)
            books = self._privacy.require_run().books(self._privacy.account)
            history, ledger = fit_together(run, arguments, workers, books, self._privacy.read_by_sums)
            self._privacy.account.replace(ledger, by_fit=True, named=not workers.chief)
            return history

    def private_run(self, *args: Any, **kwargs: Any) -> LoopBlock:
        """A training whose loop is the caller's own; what `fit` refuses, charges and stops, this does by the same code.

            with model.private_run(x, y, batch_size=256, epochs=10, callbacks=[budget]) as run:
                for batch in run:
                    run.step(batch)

        Args, and what is raised: as `fit`; and ValueError for a model that steps on several devices, or several times
        a call. Inside, `fit` and a second `private_run` of this model raise RuntimeError.

        Gives: a `PrivateLoop`, which says what the guarantee covers. Callbacks, epochs and validation are those of
        `fit`. The block may be left early; an exception inside ends the run, and what was stepped stays counted. Of one
        out of a step or a draw, statements have a note, as of `fit`.
        """
        return LoopBlock(self._private_run(args, kwargs))

    @contextlib.contextmanager
    def _private_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[PrivateLoop]:
        with self._training(args, kwargs, refuse_unlooped) as (dataset, arguments):
            loop = PrivateLoop(self, dataset, arguments)
            with loop.open():
                yield loop

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

    def make_train_function(self, force: bool = False) -> Any:
        """Keras' compiled step, or that of several replicas, counted in the ledger: see `CountedStep`.

        Raises: RuntimeError where it would be made again in the middle of a training: see `refuse_anew`.
        """
        numbers, begun = functools.partial(update_of, self.optimizer), self._privacy.run
        if begun is not None and begun.numbers is None:  # before hooks of callbacks
            begun.numbers = numbers()
        if self.train_function is not None and not force:
            if begun is not None:
                begun.stepping = True
            return self.train_function
        refuse_anew(self._privacy)
        run, settings = self._privacy.require_run(), functools.partial(settings_of, self)
        refuse_changed(run, settings)  # a callback may have set jit_compile, by which Keras makes the step
        replicas, together = run.replicas, int(self.steps_per_execution)
        if replicas is None:
            step = self._make_function(self.train_step)
        else:
            step = replicas.step_function(self._parts(), together, bool(self.run_eagerly), self._privacy.hidden)
        hidden = self._privacy.hidden
        own = [] if hidden is None else [id(one) for one in hidden.own]
        seeds = [one for one in [*seeds_of(self), *self._privacy.seeds] if id(one) not in own]
        eager = bool(self.run_eagerly)
        given = self._privacy, self.optimizer, settings, self._stop_training, seeds, hidden, numbers, eager
        made = CountedStep(step, together, *given)
        self._privacy.step = self.train_function = made
        run.stepping = True
        return made

    @tf.__internal__.tracking.no_automatic_dependency_tracking
    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        """As in Keras, which takes the step away while it makes a SavedModel: not from another thread's training."""
        if save_type == "savedmodel":
            self._privacy.account.refuse_other_thread()
        return super()._trackable_children(save_type, **kwargs)

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
