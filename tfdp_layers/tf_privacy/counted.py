"""A model of tensorflow-privacy whose `fit` is counted in a ledger."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import record

from tfdp_layers.accounting import Budget, GroupNoise, Ledger, Release, Statement
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.accounting.repeats import warn_of_repeated
from tfdp_layers.accounting.sightings import keep, sight, warn_of_others
from tfdp_layers.callbacks.steering import flatten_callbacks, is_unknown, logs_first
from tfdp_layers.callbacks.turns import OwnStep, Turns
from tfdp_layers.tf_privacy.fitting import (
    Data,
    data_of,
    fit_of_keras,
    private_in,
    refuse_other_ledgers,
    refuse_unsound_fit,
    warn_of_validation,
)
from tfdp_layers.tf_privacy.forward import refuse_leaks, refuse_shared_weights
from tfdp_layers.tf_privacy.guard import OwnTrainStep
from tfdp_layers.tf_privacy.mechanism import Mechanism, mechanism_of
from tfdp_layers.tf_privacy.outside import UNCOUNTED, Outside
from tfdp_layers.tf_privacy.run import CountedStep, Run, has_global_seed

__all__ = ["Counted", "with_ledger"]

_INDEPENDENCE = (
    "not examined by this library: tensorflow-privacy clips and sums, and that its sum keeps to the stated bound is its"
    " own claim, which it makes for finite gradients alone"
)


class Counted:
    """Mixin for Keras 2 models that tensorflow-privacy trains; `with_ledger` puts it before a model's own class.

    `tfdp.callbacks.PrivacyBudget` and `PrivacyTensorBoard` work in its `fit`, as in that of a `tfdp.PrivateModel`.
    """

    _tfdp_ledger: Ledger
    _tfdp_run: Run | None
    _tfdp_traced: Mechanism | None
    _tfdp_outside: Outside
    train_step: Any = OwnTrainStep(lambda model: model._require_making())
    train_function: Any = OwnStep(lambda model, step: _is_foreign(model, step))
    _tfdp_step: Any
    _tfdp_making: bool
    private_in_logs: Callable[[str], bool]
    trainable_weights: list[Any]
    stop_training: bool

    @property
    def ledger(self) -> Ledger:
        """What was released into the model's weights since `with_ledger`, and all else that it holds."""
        return self._tfdp_ledger

    @property
    def current_release(self) -> Release | None:
        """What each step of the running `fit` releases; None outside of one."""
        return None if self._tfdp_run is None else self._tfdp_run.release

    @property
    def made_in_fit(self) -> int:
        """Steps that the running `fit` made; 0 outside of one."""
        return 0 if self._tfdp_run is None else self._tfdp_run.made

    @property
    def planned_in_fit(self) -> int | None:
        """Steps that the running `fit` makes in all, if nothing ends it before; None outside of one."""
        return None if self._tfdp_run is None else self._tfdp_run.planned

    @property
    def held_in_segment(self) -> int:
        """Releases that the ledger held of the passes that the running `fit` makes: none, each `fit` begins anew."""
        return 0

    @property
    def outspent_in_fit(self) -> bool:
        """Whether the budget of the running `fit` refuses steps that it had planned: others took them from it."""
        return self._tfdp_run is not None and self._tfdp_run.outspent

    def keep_fit_to(self, budget: Budget, *, nominal: bool = False) -> None:
        """Until the running `fit` ends, its ledger reserves nothing that exceeds a budget: see `Ledger.keep_to`."""
        self.ledger.keep_to(self._require_run().token, budget, nominal=nominal)

    def limit_releases(self, steps: int) -> None:
        """Lets the running `fit` make so many further steps; one more raises BudgetExhausted before it is made."""
        run = self._require_run()
        run.limit = run.made + steps

    def releases_left(self) -> int | None:
        """Steps that the limit still allows; None without one."""
        run = self._require_run()
        return None if run.limit is None else max(0, run.limit - run.made)

    def privacy_statement(self, delta: float | None = None) -> Statement:
        """What was released, at which epsilon, under which assumptions.

        It is void where the optimizer made steps that no `fit` counted, and a note says so where something else changed
        the weights.
        Raises: ValueError without a delta in (0, 1), or where a weight was trained with another ledger, too.
        """
        refuse_other_ledgers(self)
        found = self._tfdp_outside.remarks(self, self._counted_so_far())
        void = [one for one in found if one == UNCOUNTED]
        statement = Statement.from_ledger(
            self.ledger, check_delta(delta), remarks=[one for one in found if one not in void]
        )
        return dataclasses.replace(statement, void=(*statement.void, *void))

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, on arrays or `PoissonBatches`; every step is in the ledger before it is made.

        Arrays are trained on in ordinary epochs, as Keras shuffles them, and accounted as `tfdp.sampling.Partition`:
        zero-out, one Gaussian mechanism for each epoch started. `PoissonBatches` are accounted as Poisson sampling.
        Noise, clip and batch size are read from the optimizer, the model and the data. A step that raises counts whole.

        Raises: ValueError for data, arguments, callbacks, a model or an optimizer whose cost is not known, or one that
            made steps that nothing counted, naming the fix; RuntimeError where the noise, the clip or the number of
            microbatches is changed meanwhile; BudgetExhausted where the data set's budget, or that of a
            `PrivacyBudget`, affords no step.
        """
        fit = fit_of_keras(self, super().fit)  # type: ignore[misc]
        arguments = dict(inspect.signature(fit).bind(*args, **kwargs).arguments)
        if self._tfdp_run is not None:
            raise RuntimeError("fit is running already on this model. Wait for it to end.")
        refuse_unsound_fit(self, arguments)
        refuse_other_ledgers(self)
        self._tfdp_outside.begins(self, any(map(is_unknown, flatten_callbacks(arguments.get("callbacks")))))
        mechanism, data = mechanism_of(self), data_of(arguments)
        self._refuse_traced_otherwise(mechanism)
        data.refuse_microbatches(mechanism)
        refuse_leaks(self, data.x, data.rows)
        if getattr(self, "_enable_fast_peg_computation", False):
            refuse_shared_weights(self)
        if data.padded and not mechanism.own_clipping and getattr(self, "losses", None):
            raise ValueError(
                "The optimizer clips each row's loss with the model's regularizers in it, so that an empty row of a"
                " Poisson draw would add something, and one record moves the sum by up to twice the bound. Leave"
                " regularizers out, or train a DPModel, which adds them after the noise."
            )
        warn_of_validation(arguments)
        release = _release_of(mechanism, data)
        planned = data.steps * max(0, int(arguments.get("epochs", 1)) - int(arguments.get("initial_epoch", 0)))
        check_ledger(self.ledger)
        token = self.ledger.begin(release)
        self.ledger.require(token)
        for weight in self.trainable_weights:
            weight._tfdp_ledger = self.ledger
        self._tfdp_run = Run(mechanism, release, token, planned)
        self._tfdp_traced, self.private_in_logs = mechanism, private_in(self, arguments)
        own = Turns(lambda: self._tfdp_run), self._tfdp_outside.epochs(self)
        arguments["callbacks"] = logs_first(arguments.get("callbacks"), *own)
        try:
            self._sight(token, data.footprint(), release.unit)
            return fit(**(arguments | data.arguments()))
        finally:
            self._end(token)

    def _sight(self, token: str, records: Footprint, unit: str) -> None:
        """Notes what a `fit` is charged for; warns of copies, and where other ledgers were charged for some of it."""
        warn_of_repeated(records, unit)
        warn_of_others(self.ledger, sight(self.ledger, token, records))

    def _end(self, token: str) -> None:
        """Ends a counted `fit`, also where it is interrupted meanwhile: the next one begins a segment of its own."""
        try:
            self._tfdp_outside.ends(self, self.made_in_fit)
        finally:
            self._tfdp_run = None
            keep(token)
            self.ledger.end(token)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras."""
        self._tfdp_outside.keep(self, self._counted_so_far())
        super().compile(*args, **kwargs)  # type: ignore[misc]
        self._tfdp_outside.see(self, self.made_in_fit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras."""
        making = getattr(self._tfdp_run, "making", False)
        if not making and record.could_possibly_record():  # a model around it, or a loop, may train it
            self._tfdp_outside.trained = True
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def get_weights(self) -> Any:
        """As in Keras."""
        found = super().get_weights()  # type: ignore[misc]
        if self._tfdp_run is not None:
            self._tfdp_outside.handed_out(found)
        return found

    def set_weights(self, weights: Any) -> None:
        """As in Keras. After a counted `fit`, weights that none released bring a note into statements."""
        begins = self._tfdp_run is None and not self._tfdp_outside.fitted
        if begins:
            self._tfdp_outside.keep(self)
        super().set_weights(weights)  # type: ignore[misc]
        if begins:
            self._tfdp_outside.loaded(self)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras. What the file's weights cost is not known: that they are public, or in this ledger, is yours."""
        self._tfdp_outside.keep(self, self._counted_so_far())
        found = super().load_weights(*args, **kwargs)  # type: ignore[misc]
        self._tfdp_outside.see(self, self.made_in_fit)  # a file may hold the optimizer's state
        self._tfdp_outside.loaded(self)
        return found

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras. The ledger learns what moved the weights without it."""
        self._tfdp_outside.keep(self, self._counted_so_far())
        return super().save(*args, **kwargs)  # type: ignore[misc]

    def make_train_function(self, force: bool = False) -> Callable[[Any], Any]:
        """Keras' compiled step, counted. Outside of this class's `fit` it raises RuntimeError and does nothing."""
        held = self.train_function  # RuntimeError for another than ours
        if held is not None and not force:
            return held
        self._tfdp_making = True
        try:
            step = self._tfdp_step = CountedStep(super().make_train_function(True), self)  # type: ignore[misc]
            self.train_function = step
        finally:
            self._tfdp_making = False
        return step

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        """As in Keras. Raises ValueError or InvalidArgumentError unless the loss has one entry, or row, a record."""
        loss = super().compute_loss(x, y, y_pred, sample_weight)  # type: ignore[misc]
        run = self._tfdp_run
        if run is None or run.mechanism.own_clipping:
            return loss
        if loss.shape.rank == 0:
            raise ValueError(
                "The loss is one number for the whole batch, so that no record's gradient can be clipped. Give one a"
                " record: tf.keras.losses.CategoricalCrossentropy(reduction=tf.keras.losses.Reduction.NONE)."
            )
        records = tf.shape(tf.nest.flatten(x)[0])[0]
        alone = tf.debugging.assert_equal(tf.shape(loss)[0], records, "The loss needs one entry, or row, a record.")
        with tf.control_dependencies([alone] if alone is not None else []):
            return tf.identity(loss)

    def _refuse_traced_otherwise(self, mechanism: Mechanism) -> None:
        """Raises ValueError where the compiled step may still hold other numbers than those that are read now."""
        traced = self._tfdp_traced
        if traced is not None and traced.owner is mechanism.owner and traced != mechanism:
            raise ValueError(
                f"The step was compiled with {traced}, and now {mechanism} is there: it would go on with the numbers of"
                " before. Make a new optimizer, or a new DPModel with these weights, and compile it."
            )

    def _counted_so_far(self) -> int | None:
        return None if self._tfdp_run is None else self._tfdp_run.made

    def _require_making(self) -> None:
        if self._tfdp_run is None or not self._tfdp_run.making:
            raise RuntimeError(
                "train_step is for the step that fit makes and counts: elsewhere it is unknown how its records were"
                " drawn, and the ledger would lack it. Call fit."
            )

    def _require_run(self) -> Run:
        if self._tfdp_run is None:
            raise RuntimeError("A step is made inside of fit only: there it is counted. Call fit, not train_on_batch.")
        return self._tfdp_run


def with_ledger(model: Any, ledger: Ledger | None = None) -> Any:
    """Counts in a ledger whatever `fit` of a tensorflow-privacy model releases from here on; returns that model.

    The model is the same object, and trains as before. `tfdp.callbacks.PrivacyBudget` and `PrivacyTensorBoard` work in
    its `fit`; it has `ledger` and `privacy_statement(delta)`. What it is saved as does not change, and holds no ledger:
    keep it in a file of its own.

    Steps that anything but its `fit` makes are not counted: `train_step` is refused, those of a loop make the statement
    void, and a note says where something else changed the weights (see `Outside`).

    Args:
        model: a DPModel or DPSequential, or a Keras 2 model that is (to be) compiled with a DPKeras... optimizer.
        ledger: where it counts, such as `tfdp.accounting.Ledger("ledger.json")`; a new one in memory if left out.

    Guarantee: that of tensorflow-privacy's clipping, accounted as the data were drawn: see `fit`. Not examined is
    whether its sum keeps to the bound; a gradient that is NaN or infinite is not bounded by it.

    Raises:
        ImportError: Keras 3 is here: tensorflow-privacy does not run on it, and `tfdp.make_private` takes its models.
        ValueError: no Keras model, one that keeps a ledger already, or one that made steps that no ledger counted.

    Example:
        model = tfdp.tf_privacy.with_ledger(DPSequential(l2_norm_clip=1.0, noise_multiplier=1.1, layers=layers))
        model.compile("sgd", loss)
        model.fit(x, y, batch_size=250, epochs=15, callbacks=[tfdp.callbacks.PrivacyBudget(3.0, 1e-5)])
    """
    if not keras.__version__.startswith("2."):
        raise ImportError(
            f"Keras {keras.__version__} is here, on which tensorflow-privacy does not run: tfdp.make_private(model)"
            " trains its models. For tensorflow-privacy's own: pip install '.[tensorflow-privacy]', in an"
            " environment of its own with Python 3.10 or 3.11."
        )
    if not isinstance(model, keras.Model) or isinstance(model, Counted):
        raise ValueError(f"with_ledger takes a Keras model, once. Received: {type(model).__name__}.")
    ledger = Ledger() if ledger is None else ledger
    check_ledger(ledger)
    traced = getattr(model.train_step, "experimental_get_tracing_count", None)
    iterations = getattr(getattr(model, "optimizer", None), "iterations", 0)
    if model.train_function is not None or int(iterations) or (traced is not None and traced()):
        raise ValueError(
            "The model was trained before it had a ledger: what those steps released is counted nowhere, and its"
            " compiled step may hold other numbers than now. Call with_ledger before the first fit."
        )
    own = type(model)
    named = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    # Named as its own class, so that files of it load as that.
    object.__setattr__(model, "__class__", type(own.__name__, (Counted, own), named))
    model._tfdp_ledger = ledger
    model._tfdp_run = model._tfdp_traced = model._tfdp_step = None
    model._tfdp_making = False
    model._tfdp_outside = Outside(model, ledger)
    return model


def _is_foreign(model: Any, step: Any) -> bool:
    """Whether a training of the model runs, and this is not the step that was made for it."""
    runs = getattr(model, "_tfdp_run", None) is not None and not model._tfdp_making
    return runs and step is not model._tfdp_step


def _release_of(mechanism: Mechanism, data: Data) -> Release:
    return Release(
        (GroupNoise("all weights", mechanism.bound, mechanism.stddev),),
        data.sampling,
        data.examples,
        seeded=has_global_seed() or data.seeded,
        generator="tensorflow",
        independence=_INDEPENDENCE,
    )
