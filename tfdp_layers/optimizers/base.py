"""What every private optimizer shares: the noise, the count of releases, and the limit on them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.certificates.ordinary import loading_own, stepping_privately
from tfdp_layers.noise import (
    Allocation,
    Correlated,
    NoiseMemory,
    NoiseSource,
    SparsityPreserving,
    add_noise,
    add_noise_to_selected,
    allocated_stddevs,
    as_correlated,
    as_noise_source,
    check_allocation,
    mapped,
    numbers_of,
)
from tfdp_layers.optimizers.gradients import gradients_of
from tfdp_layers.optimizers.inner import Wrapper, inner_optimizer, refuse_options, refuse_wrapped
from tfdp_layers.optimizers.learning_rate import LearningRate
from tfdp_layers.optimizers.noise_multiplier import CALIBRATE, NoiseMultiplier
from tfdp_layers.optimizers.release_limit import UNLIMITED, ReleaseLimit
from tfdp_layers.proof.outside import refuse_outside
from tfdp_layers.proof.replicas import refuse_unlike_updates
from tfdp_layers.proof.steering import made_here
from tfdp_layers.sensitivity import SensitivityGroup, places_of_counts


class PrivateOptimizer(Wrapper, keras.optimizers.Optimizer):
    """Wraps a Keras optimizer: it sees gradients only after bounding, noise, and division by the expected batch size.

    Everything the wrapped optimizer does with them (moments, schedules, weight decay, EMA, clipping) is
    post-processing of what was released, and costs nothing.

    Args:
        optimizer: any Keras optimizer, a name or a config. "adam", "adamw" and "nadam" have a learning rate that `fit`
            finds from its steps and the number of weights (`learning_rate.adam_rate`; 0.005 before, and elsewhere),
            unless you set one; other names have the rates of Keras. Not MultiOptimizer, which has several inside.
        noise_multiplier: z, the noise's standard deviation over a record's bound, all groups of weights joined. 0 adds
            no noise: epsilon is infinite, for tests and comparisons. "calibrate": each `fit` finds the smallest with
            which all its steps keep to its `PrivacyBudget`, beside all that the ledger holds, and prints it.
        noise: None: independent noise in every step. `tfdp.noise.Correlated()`: for epochs, where `fit` draws by
            `tfdp.sampling.Cyclic` (or, dearer, `Partition`): each step takes back a part of the last one's noise.
        noise_allocation: how precision is shared between groups of weights at the same cost: "uniform", "dimension"
            (more for larger groups), or a dict of shares by the groups' names; see `tfdp.noise.allocated_stddevs`.
        noise_source: "default" (see `NoiseSource`), "secure" (a cryptographic generator and a defence against
            floating-point attacks, slower: see `tfdp.noise.SecureNoise`), or a `NoiseSource`, for tests
            `tfdp.noise.SeededNoise(seed)`.
        name: as in Keras.

    Raises:
        ValueError: for a noise multiplier that is negative, not finite, or no number; for a wrapped optimizer that
            scales losses or accumulates gradients by itself, or is private already.
        TypeError: for an argument of the wrapped optimizer, such as learning_rate, or an unknown one.
    """

    _FIXED: tuple[str, ...] = ("memory",)

    def __init__(
        self,
        optimizer: str | keras.optimizers.Optimizer,
        noise_multiplier: float | str = CALIBRATE,
        *,
        noise: Correlated | None = None,
        noise_allocation: Allocation = "uniform",
        noise_source: str | NoiseSource = "default",
        name: str | None = None,
        **others: Any,
    ) -> None:
        inner = inner_optimizer(optimizer)
        refuse_options(others, type(self).__name__, inner)
        refuse_wrapped(inner)
        multiplier, correlated = NoiseMultiplier(noise_multiplier), as_correlated(noise)
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner
        self._rate = LearningRate(optimizer)
        check_allocation(noise_allocation)
        self.multiplier = multiplier
        self.noise = correlated
        self.correlation = correlated  # with the decay that the running fit found
        self.memory = NoiseMemory()
        self.noise_allocation = noise_allocation
        self.noise_source = as_noise_source(noise_source)
        self._limit = ReleaseLimit()
        self.workers: Any = None  # the `Workers` of a running fit: the chief's noise is that of all
        self._observer: Callable[[list[tf.Tensor]], None] | None = None

    @property
    def noise_multiplier(self) -> float | str:
        """The number in use; "calibrate" where that was given, and no `fit` found one yet."""
        return self.multiplier.shown

    @noise_multiplier.setter
    def noise_multiplier(self, value: float | str) -> None:
        self.multiplier = NoiseMultiplier(value)

    # What it counts and may still do ----------------------------------------------------------------------------------

    @property
    def releases(self) -> Any:
        """The number of noisy updates released so far: a variable that is saved with the optimizer."""
        return self._iterations

    def limit_releases(self, more: int) -> None:
        """Allows at most `more` further releases in the running `fit`. Past them a compiled step changes nothing.

        A limit only comes down: a callback can end what another one allowed, never allow more. Each `fit` starts
        without one.

        Raises: ValueError unless it is an integer of at least 0.
        """
        self._limit.lower(more)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, a training has this optimizer, its limit and its noise to itself. Raises RuntimeError in another."""
        if not self._limit.used.acquire(blocking=False):
            raise RuntimeError(
                "This optimizer is that of a training that runs, which counts its releases and keeps to its budget by"
                " it. Compile each model with an optimizer of its own."
            )
        try:
            with stepping_privately(self):
                yield
        finally:
            self._limit.used.release()

    def _lift_limit(self) -> None:
        """Takes the limit of an earlier `fit` away."""
        self._limit.unlimited = True
        self._limit.variable.assign(UNLIMITED)

    def releases_left(self) -> int:
        """How many further releases the limit allows: a number out of reach where there is none."""
        return self._limit.left()

    def kept_in_memory(self) -> list[Any]:
        """What a release reads and writes beside the optimizer's state: its limit, and the generator of its noise."""
        generator = getattr(self.noise_source, "_generator", None)
        state = getattr(generator, "state", None)
        return [self._limit.variable, self._limit.reserved, *([] if state is None else [state])]

    def _reserve(self, releases: int) -> None:
        """Allows as many releases as the ledger just counted; `fit` calls it around each compiled step."""
        self._limit.reserve(int(releases))

    def _stepping(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the running step may release what is reserved; nothing else may."""
        return self._limit.stepping()

    def _reserved(self) -> int:
        """Of the releases that the ledger counted for the running call, how many were not made yet."""
        return self._limit.unused()

    def observe(self, observer: Callable[[list[tf.Tensor]], None] | None) -> None:
        """Calls a function, inside each step, with what it released: the means of `after_noise`, then statistics.

        It is called after the noise and before anything moves; steps that were compiled before do not call it. For
        audits (`tfdp.audit`). None removes it.
        """
        self._observer = observer

    def stddevs(self, groups: Sequence[SensitivityGroup]) -> list[float]:
        """The standard deviation of the noise on each group's sum. Raises ValueError before "calibrate" found it."""
        return allocated_stddevs(groups, self.multiplier.number, self.noise_allocation)

    # The one place where something is released ------------------------------------------------------------------------

    @property
    def bounding(self) -> Any:
        """The `tfdp_layers.clipping.norm_clips.Bounding` for layers that don't bound themselves; None refuses them."""
        return None

    @property
    def selection(self) -> SparsityPreserving | None:
        """Which rows of large tables a step moves; None for all."""
        return None

    @property
    def nominal_noise_multiplier(self) -> float | None:
        """What the publication accounts with where the printed algorithm is used and does not keep to it, else None."""
        return None

    def in_units(self, means: list[Any], variables: Sequence[Any], groups: Sequence[SensitivityGroup]) -> list[Any]:
        """Means of bounded sums in units of the gradient, by the state that the sums were made with: linear in them.

        Whatever `bounding.sums` measures in units of its own comes back through here, released or public.

        Args:
            means: aligned with `variables`; of a table whose rows are selected, `tf.IndexedSlices` (`noise.mapped`).
        """
        return means

    def after_noise(
        self,
        means: list[Any],
        statistics: Sequence[tf.Tensor],
        variables: Sequence[Any],
        groups: Sequence[SensitivityGroup],
    ) -> list[Any]:
        """The released gradients, `in_units`, from the released means (noisy sums over the expected batch size).

        What the optimizer learns from them moves its state here, behind everything that was made with the old one.

        Args:
            means: as of `in_units`.
            statistics: released means of the groups without variables.
        """
        return self.in_units(means, variables, groups)

    def release(
        self,
        sums: Sequence[tf.Tensor],
        variables: Sequence[Any],
        groups: Sequence[SensitivityGroup],
        batch_size: int,
        weight_terms: Callable[[], Sequence[tf.Tensor | None]] | None = None,
        public_sums: Callable[[], Sequence[tf.Tensor]] | None = None,
    ) -> tf.Tensor:
        """Adds noise to the bounded sums, divides by the expected batch size, and lets the wrapped optimizer step.

        Past the limit nothing is released and nothing changes: by selection, since assertions vanish under XLA.

        Args:
            sums: summed gradients, aligned with `variables`, then one of its shape for each group without variables;
                each record's part bounded as `groups` state. Those in float64 are rounded after the noise.
            variables: the trainable variables, each in exactly one group.
            groups: bounds from which the noise is scaled.
            batch_size: the EXPECTED batch size, public; never the drawn one.
            weight_terms: gradients of terms that depend on the weights alone (regularizers), added after the noise.
            public_sums: bounded sums of public rows, aligned with `variables`: divided and brought back `in_units` as
                those of records are, without noise; what is observed, and what the optimizer learns, is without them.

        Returns: a scalar boolean tensor, whether something was released.
        Raises: RuntimeError outside of the step of a training that runs.
        """
        if not self.built:
            self.build(list(variables))
        noises = list(zip(groups, self.stddevs(groups), strict=True))
        scale = {id(v): stddev for group, stddev in noises for v in group.variables}
        stddevs = [scale[id(v)] for v in variables] + [stddev for group, stddev in noises if not group.variables]
        stddevs = self.noise_source.widened(stddevs, self.multiplier.number, sum(s.shape.num_elements() for s in sums))
        counted = places_of_counts(variables, groups)

        def step() -> tf.Tensor:
            def add() -> list[Any]:
                if self.selection is not None:
                    return add_noise_to_selected(self.noise_source, sums, stddevs, counted, self.selection.threshold)
                options = {} if self.correlation is None else {"correlation": (self.memory, self.correlation)}
                return add_noise(self.noise_source, sums, stddevs, **options)

            noisy = self.workers.noisy(add, sums) if self.workers else add()
            means = [mapped(lambda total: tf.cast(total, tf.float32) / batch_size, total) for total in noisy]
            if self._observer is not None:
                self._observer([tf.convert_to_tensor(mean) for mean in means])
            gradients = gradients_of(self, means, variables, groups, batch_size, weight_terms, public_sums)
            with made_here() as operations, tf.control_dependencies(numbers_of(gradients)):
                self.inner_optimizer.apply(gradients, list(variables))
            refuse_outside(operations, f"The update of the wrapped optimizer {self.inner_optimizer.name!r}")
            refuse_unlike_updates(operations, self._distribution_strategy.num_replicas_in_sync)
            self._iterations.assign_add(1)
            self._limit.variable.assign_sub(1)
            self._limit.reserved.assign_sub(1)
            return tf.constant(True)

        with self._limit.releasing():
            return tf.cond((self._limit.variable > 0) & (self._limit.reserved > 0), step, lambda: tf.constant(False))

    def apply(self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Refuses: gradients that come this way were neither bounded nor counted.

        Raises: RuntimeError, always.
        """
        raise RuntimeError(
            f"{type(self).__name__} steps only inside a tfdp.PrivateModel or tfdp.PrivateSequential: the gradients"
            " given to it here were not bounded, and no privacy would be left. Use tfdp.make_private(model) and compile"
            " that; a loop of your own steps by run.step(batch) (docs/loops.md)."
        )

    # What Keras asks of an optimizer, passed on to the wrapped one ----------------------------------------------------

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if not self.inner_optimizer.built:
            with tf.init_scope():
                self.inner_optimizer.build(variables)
        super().build(variables)

    def load_own_variables(self, store: Any) -> None:
        """As in Keras, which leaves all as it was where the file has another number of them."""
        with loading_own(self):
            super().load_own_variables(store)

    @property
    def variables(self) -> list[Any]:
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | keras.optimizers.schedules.LearningRateSchedule) -> None:
        self._rate.by_name = False
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    def scale_loss(self, loss: tf.Tensor) -> Any:
        return loss

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Without the noise source's state: a restored optimizer draws fresh keys from the operating system.

        "calibrate" stays that: the number that a `fit` found is in the ledger, which is saved with the weights.
        """
        # Named, so that a restored model never falls back to a generator that promises less.
        secure = {"noise_source": "secure"} if self.noise_source.generator == "secure" else {}
        correlated = {} if self.noise is None else {"noise": {"decay": self.noise.decay}}
        return (
            secure
            | correlated
            | {
                "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
                **({"found_rate": self._rate.found} if self._rate.by_name else {}),
                "noise_multiplier": self.multiplier.given,
                "noise_allocation": self.noise_allocation,
                "name": self.name,
            }
        )

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> "PrivateOptimizer":
        inner = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        made = cls(**({name: value for name, value in config.items() if name != "found_rate"} | {"optimizer": inner}))
        if "found_rate" in config:
            made._rate = LearningRate("adam", config["found_rate"])
        return made
