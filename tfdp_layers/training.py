"""The private training step, and the `fit` that draws, accounts and enforces."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import GroupNoise, Ledger, Release, Statement, UnitRelease
from tfdp_layers.batches import Batches
from tfdp_layers.fitting import as_batches, check_labels, logs_first, refuse_unsound_fit
from tfdp_layers.independence import check_independence
from tfdp_layers.layers.base import count_uses
from tfdp_layers.layers.dp_pca import merge_adaptations
from tfdp_layers.mixin import KerasMixin
from tfdp_layers.model_file import stored_ledger, whole_file
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.per_record.recording import warn_of_generic
from tfdp_layers.run import PrivacyState, Run
from tfdp_layers.sensitivity import SensitivityGroup, certified, recorded, sensitivity_groups


class PrivateTraining(KerasMixin):
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

    # What one record may do -------------------------------------------------------------------------------------------

    def sensitivities(self) -> list[SensitivityGroup]:
        """The groups of weights, each with the L2 bound on what one record adds to its summed gradient.

        Raises: ValueError, naming the layer, where no bound holds.
        """
        return sensitivity_groups(self, self._bounding)

    def bounded_gradient_sums(self, x: Any, y: Any, sample_weight: Any = None) -> list[tf.Tensor]:
        """What a step on exactly these records would release before noise and division: NOT private.

        Args:
            x, y, sample_weight: a batch, as `fit` takes them; first axis (batch,).

        Returns: one float32 tensor for each of `trainable_variables`, in their order.
        """
        self._require_private()
        x, y = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
        if sample_weight is not None:
            sample_weight = keras.tree.map_structure(tf.convert_to_tensor, sample_weight)
        return self._sums_and_losses(x, y, sample_weight)[0][: len(self.trainable_variables)]

    @property
    def _bounding(self) -> Any:
        """What bounds the layers that don't bound themselves."""
        optimizer = getattr(self, "optimizer", None)
        return optimizer.bounding if isinstance(optimizer, PrivateOptimizer) else None

    @property
    def compiled_losses(self) -> list[Any]:
        """The compiled loss of each output, None where an output has none."""
        return self._privacy.loss_of(self).losses

    def per_record_losses(self, x: Any, y: Any, sample_weight: Any = None) -> tf.Tensor:
        """Each record's own loss in training mode, (batch,): NOT private."""
        return self._privacy.loss_of(self)(y, self(x, training=True), sample_weight)

    def _sums_and_losses(self, x: Any, y: Any, sample_weight: Any) -> tuple[list[tf.Tensor], tf.Tensor, Any]:
        """Bounded sums (of gradients, then of statistics), per-record losses (batch,), and predictions."""
        bounding = self._bounding
        others = [] if bounding is None else [g for g in self._privacy.groups_of(self) if not g.self_bounded]
        elsewhere = {id(v) for group in others for v in group.variables}
        own = [v for v in self.trainable_variables if id(v) not in elsewhere]
        with (
            tf.GradientTape(watch_accessed_variables=False) as tape,
            count_uses() as uses,
            recorded(self, tape, bounding) as record,
        ):
            tape.watch([v.value for v in own])
            y_pred = self(x, training=True)
            losses = self._privacy.loss_of(self)(y, y_pred, sample_weight)
            total = tf.reduce_sum(losses)
        self._privacy.refuse_other_uses(uses)
        self._refuse_batch_losses()
        sources = [v.value for v in own] + record.watched
        gradients = tape.gradient(total, sources, unconnected_gradients="zero")
        sums = {id(v): tf.convert_to_tensor(g) for v, g in zip(own, gradients, strict=False)}
        statistics: list[tf.Tensor] = []
        if others:
            found = bounding.sums(others, record.contributions(gradients[len(own) :]), present(sample_weight, losses))
            variables = [v for group in others for v in group.variables]
            sums |= {id(v): g for v, g in zip(variables, found, strict=False)}
            statistics = found[len(variables) :]
        aligned = [tf.ensure_shape(sums[id(v)], v.shape) for v in self.trainable_variables]
        return aligned + statistics, losses, y_pred

    def _refuse_batch_losses(self) -> None:
        """Raises ValueError if a layer added a loss over the batch; weight regularizers are fine."""
        regularized = sum(v.regularizer is not None for v in self.trainable_variables)
        if len(self.losses) > regularized:
            culprits = [layer.name for layer in self._flatten_layers(include_self=True) if layer._losses]
            raise ValueError(
                f"add_loss in {culprits or 'the model'} adds a loss over the batch, whose gradient no clip bounds."
                f" Put the term"
                " into the per-record loss given to compile, or use a weight regularizer (added after the noise)."
            )

    # The step ---------------------------------------------------------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """One release: bounded sums, noise, update. `data` is what `Batches.dataset` yields."""
        run = self._privacy.require_run()
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if run.batches.physical_batch_size is None:
            sums = self._piece(x, y, sample_weight)
        else:
            sums = self._piecewise(x, y, sample_weight, run.batches.physical_batch_size)
        self.optimizer.release(
            sums, self.trainable_variables, run.groups, run.batches.sampling.batch_size, self._regularizer_gradients
        )
        return self.get_metrics_result()

    def _piece(self, x: Any, y: Any, sample_weight: Any) -> list[tf.Tensor]:
        """Sums over one piece of a drawn batch; updates the metrics."""
        sums, losses, y_pred = self._sums_and_losses(x, y, sample_weight)
        rows_present = present(sample_weight, losses)
        rows = tf.reduce_sum(rows_present)
        self._loss_tracker.update_state(tf.math.divide_no_nan(tf.reduce_sum(losses), rows), sample_weight=rows)
        self._update_metrics(x, y, y_pred, sample_weight, rows_present)
        return sums

    def _piecewise(self, x: Any, y: Any, sample_weight: Any, size: int) -> list[tf.Tensor]:
        """Sums over a drawn batch in pieces of `size` records, so that memory does not grow with the batch."""
        data = (x, y, sample_weight)
        rows = tf.shape(keras.tree.flatten(x)[0])[0]
        static = keras.tree.flatten(x)[0].shape[0]
        whole = static is not None and static % size == 0  # XLA needs pieces of one size; its batches are padded to it

        def body(start: tf.Tensor, totals: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            length = size if whole else tf.minimum(size, rows - start)
            piece = keras.tree.map_structure(
                lambda t: tf.slice(t, [start] + [0] * (len(t.shape) - 1), [length, *t.shape[1:]]), data
            )
            sums = self._piece(*piece)
            return start + size, [a + b for a, b in zip(totals, sums, strict=True)]

        zeros = [tf.zeros(v.shape, tf.float32) for v in self.trainable_variables]
        zeros += [tf.zeros(group.shape) for group in self._privacy.require_run().groups if not group.variables]
        return tf.while_loop(lambda start, _: start < rows, body, [tf.constant(0), zeros], parallel_iterations=1)[1]

    def _update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, present: tf.Tensor) -> None:
        """Updates compiled metrics with the records of a draw; rows of padding (weight zero) do not count."""
        compiled = self._compile_metrics
        if compiled is None:
            return
        if not compiled.built:
            compiled.build(y, y_pred)
        weights = compiled._flatten_y(sample_weight)
        leaves = list(zip(compiled._flatten_y(y), compiled._flatten_y(y_pred), strict=True))
        weights = weights * len(leaves) if len(weights) == 1 else weights
        for (y_true, prediction), weight, plain, weighted in zip(
            leaves, weights, compiled._flat_metrics, compiled._flat_weighted_metrics, strict=True
        ):
            if plain:
                plain.update_state(y_true, prediction, present)
            if weighted:
                weighted.update_state(y_true, prediction, weight)

    def _regularizer_gradients(self) -> list[tf.Tensor | None]:
        """Gradients of weight regularizers: functions of the weights alone, so they are added after the noise."""
        variables = self.trainable_variables
        if all(v.regularizer is None for v in variables):
            return [None] * len(variables)
        with tf.GradientTape() as tape:
            penalty = tf.add_n([v.regularizer(v) for v in variables if v.regularizer is not None])
        return tape.gradient(penalty, [v.value for v in variables])

    # Keras' entry points ----------------------------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras. `jit_compile="auto"` means False: on CPUs XLA makes convolutions several times slower.

        Raises: ValueError unless the optimizer is one of `tfdp.optimizers`.
        """
        arguments = bind(super().compile, args, kwargs)
        optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
        if not isinstance(optimizer, PrivateOptimizer):
            raise ValueError(
                f"A private model needs a private optimizer, which adds the noise. Received:"
                f" {type(optimizer).__name__}. Wrap it:"
                " tfdp.optimizers.NoisyOptimizer(your_optimizer, noise_multiplier=1.0)."
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
        sampling: Any = None,
        examples: int | None = None,
        physical_batch_size: int | None = None,
        unit_ids: Any = None,
        sampling_seed: int | None = None,
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

        Raises:
            ValueError: for data, callbacks or arguments that would break the guarantee, naming the mend.
        """
        arguments = bind(super().fit, args, kwargs)
        self._require_private()
        refuse_unsound_fit(arguments)
        options = {
            "sampling": sampling,
            "examples": examples,
            "physical_batch_size": physical_batch_size,
            "unit_ids": unit_ids,
            "seed": sampling_seed,
        }
        batches = as_batches(arguments, options)
        check_labels(self, self._privacy.loss, arguments.get("y"))
        dataset = batches.dataset(pad=bool(self.jit_compile))
        self._begin(batches, dataset.element_spec)
        arguments |= {"x": dataset, "shuffle": False}
        arguments["callbacks"] = logs_first(arguments.get("callbacks"))
        arguments["steps_per_epoch"] = arguments.get("steps_per_epoch") or len(batches)
        for name in ("y", "sample_weight", "class_weight", "batch_size"):
            arguments.pop(name, None)
        try:
            return super().fit(**arguments)
        finally:
            self._privacy.run = None

    def _begin(self, batches: Batches, spec: Any) -> None:
        """Certifies the model and opens a segment of the ledger for what this `fit` will release."""
        state = self._privacy
        self._refuse_unpaid_weights()
        # TF32, on by default on recent GPUs, rounds products after the clips, far coarser than their margin allows.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"The model was made under a strategy with {replicas} replicas: each would draw batches and add noise"
                " of its own, which is not what the ledger accounts. Make and train it on one device for now."
            )
        if not self.built:
            self.build(keras.tree.map_structure(lambda t: (None, *t.shape[1:]), spec[0]))
        groups, state.uses = certified(self, self._bounding)
        if self._bounding is not None:
            warn_of_generic(self)
        optimizer = self.optimizer
        if self.jit_compile and not optimizer.noise_source.compiles:
            raise ValueError(
                f"{type(optimizer.noise_source).__name__} draws outside of the compiled graph, which XLA cannot do."
                " Compile the model with jit_compile=False, or use noise_source='default'."
            )
        if not optimizer.built:
            optimizer.build(self.trainable_variables)
        optimizer.noise_source.rekey()
        optimizer.limit_releases(None)
        noises = tuple(GroupNoise(g.name, g.bound, s) for g, s in zip(groups, optimizer.stddevs(groups), strict=True))
        seeded = batches.seeded or optimizer.noise_source.seeded
        kind = UnitRelease if batches.per_unit else Release
        release = kind(
            noises,
            batches.sampling,
            batches.examples,
            seeded=seeded,
            declared=batches.declared,
            nominal_noise_multiplier=optimizer.nominal_noise_multiplier,
            generator=optimizer.noise_source.generator,
        )
        if state.traced != (release, batches.physical_batch_size):
            state.independent = False
        if not state.independent:
            check_independence(self, *spec[:2])
            state.independent = True
        if state.traced != (release, batches.physical_batch_size):
            self.train_function = None
        state.traced = (release, batches.physical_batch_size)
        token = self.ledger.begin(release)
        # Takes the lock of the ledger's file now: what callbacks read from here on stays what was spent before.
        state.ledger.require(token)
        state.run = Run(batches, groups, release, token, self._settings(groups))

    def _settings(self, groups: list[SensitivityGroup]) -> Any:
        """What a trace of the step, or an eager step, would take from the optimizer and the layers."""
        clips = ("input_clip", "upstream_clip", "error_clip", "activation_clip", "delta_clip")
        names = (*clips, "bound", "use_bias", "trainable", "activation", "alignment", "backpropagate")
        layers = [tuple(getattr(layer, name, None) for name in names) for layer in self._flatten_layers()]
        optimizer = self.optimizer
        return id(optimizer), id(optimizer.noise_source), tuple(optimizer.stddevs(groups)), layers

    def make_train_function(self, force: bool = False) -> Any:
        """Keras' compiled step, reserved in the ledger before it runs and settled after:

        a crash over-counts, never under.
        """
        if self.train_function is not None and not force:
            return self.train_function
        step = self._make_function(self.train_step)

        def accounted(iterator: Any) -> Any:
            run = self._privacy.require_run()
            if self._settings(run.groups) != run.settings:
                raise RuntimeError(
                    "The noise, a clip, or a layer's trainable flag was changed while fit runs: its certificate and the"
                    " ledger state the earlier ones. Change it between two calls of fit."
                )
            ledger, optimizer = self.ledger, self.optimizer
            # Past its limit the optimizer releases nothing, so no more than that is at stake.
            count = self._afforded(min(int(self.steps_per_execution), optimizer.releases_left()))
            ledger.reserve(run.token, count)
            optimizer.reserve(count)
            try:
                return step(iterator)
            finally:
                unused = optimizer.reserved()
                if unused:
                    optimizer.reserve(0)
                made = count - unused
                ledger.settle(run.token, made)
                run.made[0] += made

        self.train_function = accounted
        return accounted

    def _afforded(self, count: int) -> int:
        """How many of `count` updates the data set's budget affords; ends `fit` where they are the last."""
        more = self.ledger.affordable(self._privacy.require_run().token, count + 1)
        if more <= count and count:
            warnings.warn(
                f"The budget of the data set {self.ledger.dataset!r} affords {more} more updates: fit ends after them.",
                UserWarning,
                stacklevel=2,
            )
            self.stop_training = True
        return min(count, more)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: a batch that no sampler drew has no known cost.

        Raises: RuntimeError, always.
        """
        raise RuntimeError(
            "train_on_batch trains on a batch that no sampler drew, so its cost is unknown. Use fit, with"
            " tfdp.PrivateBatches or tfdp.declare_sampling for data of your own."
        )

    # The record of what was released ----------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What was released so far. Assign a `Ledger(path)` to keep it in a file; what was spent moves over.

        To charge all that is trained on a data set to one ledger, assign each model the same one:
        `Ledger(path, dataset="name", budget=(epsilon, delta))`; past the budget `fit` ends or refuses to start.
        What layers released by themselves (`tfdp.layers.DPPCA`) is taken over at every look.
        """
        merge_adaptations(self, self._privacy.ledger)
        return self._privacy.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        if self._privacy.run is not None:
            raise RuntimeError("The ledger can't be exchanged while fit runs: assign it before fit.")
        ledger.merge(self.ledger)
        self._privacy.ledger = ledger

    @property
    def current_release(self) -> Release | None:
        """What each update of the running `fit` releases; None outside of one."""
        return None if self._privacy.run is None else self._privacy.run.release

    def privacy_statement(self, delta: float) -> Statement:
        """What was released, at which epsilon, under which assumptions. Print it, or `.to_json()`."""
        self._refuse_unpaid_weights()
        return Statement.from_ledger(self.ledger, delta)

    def audit(self, x: Any, y: Any, canaries: Any = 500, **options: Any) -> Any:
        """Trains on records and canaries, attacks the training, and says which epsilon the attack refutes.

        The canaries spoil the model: audit a twin of the one that you use. Arguments, result, and what is raised: see
        `tfdp.audit.audit_training`.
        """
        from tfdp_layers.audit.one_run import audit_training  # imports this package's batches and layers

        self._require_private()
        return audit_training(self, x, y, canaries, **options)

    @property
    def made_in_fit(self) -> int:
        """Updates that the running `fit` made; 0 outside of one."""
        return 0 if self._privacy.run is None else self._privacy.run.made[0]

    def _refuse_unpaid_weights(self) -> None:
        """Raises ValueError where the optimizer was restored without the ledger (tf.train.Checkpoint does that)."""
        if self._privacy.unpaid:
            raise ValueError(
                "Weights were loaded into this model, and the ledger saved with them was not: it is damaged, or belongs"
                " to another data set (the error from loading says which). Load weights with a whole ledger."
            )
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, PrivateOptimizer) and int(optimizer.releases.numpy()) > self.ledger.updates:
            raise ValueError(
                f"The optimizer counts {int(optimizer.releases.numpy())} releases and the ledger"
                f" {self.ledger.updates}:"
                " weights were restored without what they cost. Restore with load_weights or load_model, or merge the"
                " ledger of the earlier run: model.ledger.merge(...)."
            )

    def save(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was."""
        with whole_file(filepath, overwrite) as path:
            super().save(path, overwrite, *args, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was."""
        with whole_file(filepath, overwrite) as path:
            super().save_weights(path, overwrite, *args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        store["privacy_ledger"] = np.frombuffer(self.ledger.to_json().encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Loads weights; what they cost is merged into the ledger, which never rewinds."""
        kept = {name: store[name] for name in store.keys()}  # noqa: SIM118 (an h5 group is no dict)
        stored = kept.pop("privacy_ledger", None)
        # Keras loads the weights of layers after a failure here too (and only warns, with skip_mismatch).
        self._privacy.unpaid = True
        if stored is not None:
            self.ledger.merge(stored_ledger(stored))
        self._privacy.unpaid = False
        super().load_own_variables(kept)

    def _require_private(self) -> None:
        if not isinstance(getattr(self, "optimizer", None), PrivateOptimizer):
            raise ValueError(
                "Compile the model first: model.compile(optimizer=tfdp.optimizers.NoisyOptimizer(...), loss=...)."
            )


def present(sample_weight: Any, losses: tf.Tensor) -> tf.Tensor:
    """Which rows are records rather than padding: 1.0 where any weight is not zero, (batch,)."""
    if sample_weight is None:
        return tf.ones_like(losses)
    flags = [tf.cast(w != 0, tf.float32) for w in keras.tree.flatten(sample_weight)]
    return tf.reduce_max([tf.reduce_max(f, axis=list(range(1, len(f.shape)))) for f in flags], axis=0)


def bind(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a Keras method by name, without copying its signature."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
