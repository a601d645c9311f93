"""Training on several devices or processes (`tf.distribute`): one draw, one sum, one noise, one ledger.

Why a step on R replicas costs what it costs on one device
----------------------------------------------------------
Let B be the drawn set of records, and c_i(w) what record i adds to the sum at weights w: c_i depends on that record and
on w alone (`check_independence` measures it), and its norm is at most S (`sensitivities`).

- Sum. The batch is drawn once, and cut into disjoint slices B_1, ..., B_R that together are B. Replica r computes
  s_r = sum of c_i(w) over B_r, at the same w as all others, and the all-reduce gives s_1 + ... + s_R = sum of c_i(w)
  over B: the sum of one device, but for the order in which float32 numbers are added. A record more or less may move
  other records into other slices, and changes none of their c_i: the sum moves by one c_i, of norm at most S. (A record
  replaced: by at most 2 S, as on one device.) Were a record in k slices, it would move the sum by k S: so every slice
  carries a checksum of its draw and its number, and a step whose replicas hold slices of two draws, or one slice twice,
  releases nothing and raises.
  The slices are disjoint by index, so an index must be one record, and a record no more indices than on one worker:
  what each worker reads is compared with what the others read there, before the release (`batches/agreement.py`).
- Weights. That all are at the same w is asserted: each replica makes checksums of all that its sums read, before it
  computes them, but for seeds; they are compared with those of all others, and where they differ nothing is released.
  An update runs once for each copy, and what it draws, or what Python makes of it, may differ.
- Noise. It is drawn ONCE, after the all-reduce, outside of all replicas, and added to the one sum; then every replica
  makes the same update. Its standard deviation is the stated one whatever R is. (R replicas that each added noise of
  that size would release a sum with sqrt(R) times as much.) With several processes the chief draws it, and sends the
  NOISY sum to the others: no key of noise leaves the chief, and no two workers can hold two noises of one sum.
- Divisor. The expected size of the whole batch, as on one device.
- Random layers. Rows of one batch get independent masks of dropout on one device, so it does not matter which row a
  record lies in. Every replica starts from the same seed, and row 5 of one replica would share its mask with row 5 of
  another: a record more or less would change which records share one. So seeds are made different on each replica.
  That is for random numbers drawn row by row. Of one number for all rows (a sign, `noise_shape=(1, n)`) each replica
  would draw another, and c_i would depend on the slice of the record: it is refused (`models/common_draws.py`).
- Variables that layers write. Each replica writes a copy of its own, equal on all before a step. One that they share
  would hold on one replica what another wrote: it is refused (`proof/replicas.py`).
- State. Optimizers move from released values alone, computed outside of the replicas.

So a step is the mechanism of one device, and is accounted as that. What is sent between replicas before the noise is as
private as the records: networks and machines that carry it must be trusted as the records' own are.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.agreement import Agreement
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.slices import Share
from tfdp_layers.models.checksums import checksums, integers
from tfdp_layers.models.same_records import agreed, placed, told_by_all
from tfdp_layers.models.workers import Workers, comparable
from tfdp_layers.noise.masks import HiddenSeeds
from tfdp_layers.proof.models import seeds_read
from tfdp_layers.proof.proving import handle_of
from tfdp_layers.proof.replicas import OnReplicas, replica_number, replica_numbers
from tfdp_layers.structure import SEEDS, held_by

__all__ = ["Replicas", "StepParts", "refuse_unreplicated", "refuse_unsound_strategy"]

_STRATEGIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)
_SEED_STEP = 0x9E3779B1  # odd: its multiples by the replicas' numbers differ modulo 2^32


@dataclass(frozen=True)
class StepParts:
    """What a training step is made of.

    Attributes:
        sums: data to the bounded sums over it; updates the metrics.
        release: sums to whether something was released: noise and update.
        results: the metrics.
        state: the model's variables that it does not train.
    """

    sums: Callable[[Any], list[tf.Tensor]]
    release: Callable[[list[tf.Tensor]], tf.Tensor]
    results: Callable[[], dict[str, Any]]
    state: Sequence[Any]


class Replicas:
    """The replicas that train one model together.

    Args:
        strategy: the model's `tf.distribute` strategy.

    Raises: ValueError for a strategy of another kind than the two that are known to be sound (and one device).

    Attributes: `strategy`; `share`, which slices of a draw this process computes; `workers`, the processes, or None
    where there is one.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        if not isinstance(strategy, _STRATEGIES):
            raise ValueError(
                f"The model was made under {type(strategy).__name__}, of which it is not known that every record is"
                " summed once and the noise added once. Use tf.distribute.MirroredStrategy, or"
                " MultiWorkerMirroredStrategy."
            )
        self.strategy = strategy
        numbers = self._numbers = replica_numbers(strategy)
        self.share = Share(min(numbers), len(numbers), strategy.num_replicas_in_sync)
        several = len(numbers) < strategy.num_replicas_in_sync
        self._dataset: weakref.ref[Any] | None = None
        self._batches: Callable[[], Any] = lambda: None
        self._held: list[Any] = []
        self._unequal: Callable[[], tf.Tensor] | None = None
        self._calls: OnReplicas | None = None
        self._seeds: list[Any] = []
        self._alike: Any = True
        self.workers = Workers(strategy, chief=self.share.first == 0) if several else None

    def dataset(self, batches: Batches, pad: bool | int) -> Any:
        """The slices of every draw, padded as `batches` pads a batch, distributed to the replicas."""
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)

        def slices(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return batches.slices(self.share, pad).apply(endless)

        self._batches = weakref.ref(batches)
        dataset = self.strategy.distribute_datasets_from_function(slices)
        self._dataset = weakref.ref(dataset)  # it keeps the records, which are to be freed after `fit`
        return dataset

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Inside, variables may be made: all workers make each one together, and wait for one that does not."""
        if self.workers is not None:
            self.workers.ready()
        with self.strategy.scope():
            yield

    def equalize(self, variables: Sequence[Any]) -> None:
        """Gives every copy of the Keras variables the first one's values, which other copies of this process may lack.

        A step that raised may have moved some of them. All hold released values alone.
        """
        with self.strategy.scope():
            for variable in variables:
                first, *others = self.strategy.experimental_local_results(variable.value)
                if others:
                    variable.assign(first)
        self._held = list(variables)
        held = [v.value for v in variables if comparable(v.value)]
        copies = [copy for copy in map(self.strategy.experimental_local_results, held) if len(copy) > 1]

        def unequal() -> tf.Tensor:
            found = [tf.reduce_any(integers(first) != integers(other)) for first, *others in copies for other in others]
            return tf.reduce_any(found) if found else tf.constant(False)

        self._unequal = tf.function(unequal, autograph=False)

    def level(self) -> None:
        """As `equalize`, of the variables that it got last, where their copies differ: code of the caller wrote one.

        Also of what else the sums read and write, whoever holds it.
        """
        if self._calls is not None:
            self._calls.level()
        if self._unequal is not None and bool(self._unequal()):
            self.equalize(self._held)

    def feeds(self, iterator: Any) -> bool:
        """Whether Keras' iterator is over the last `dataset`."""
        dataset = None if self._dataset is None else self._dataset()
        return dataset is not None and getattr(iterator, "_distributed_dataset", None) is dataset

    def each_calls(self, traced: Any, variables: Sequence[Any], hidden: HiddenSeeds | None) -> OnReplicas:
        """The sums that were traced and proved, for replicas to call.

        Args:
            traced: of `traced_sums`.
            variables: of the model, which it may read and write.
        """
        held = [*map(held_by, variables), *(() if hidden is None else hidden.held)]
        self._calls, self._seeds = OnReplicas(traced, held, self._numbers), list(map(handle_of, seeds_read(traced)))
        return self._calls

    def step_function(
        self, parts: StepParts, together: int, eager: bool, hidden: HiddenSeeds | None = None
    ) -> Callable[[Any], dict[str, Any]]:
        """The compiled training step, a function of the distributed iterator, to be called outside of any scope.

        `together` steps a call, each one release. A step whose slices do not fit together, or whose replicas hold
        unequal copies, changes nothing, and leaves its reservation unused, which the caller turns into an error.
        """
        seeds = [v for v in parts.state if SEEDS in v.path]

        def steps(iterator: Any) -> tuple[dict[str, Any], tf.Tensor]:
            def one(number: tf.Tensor, alike: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                totals, fits, equal = self._totals(parts.sums, next(iterator), seeds, hidden)
                tf.cond(fits & equal, lambda: parts.release(totals), lambda: tf.constant(False))
                return number + 1, alike & equal

            begun = tf.constant(0), tf.constant(True)
            if together == 1:
                _, alike = one(*begun)
            else:
                _, alike = tf.while_loop(lambda number, _: number < together, one, begun, parallel_iterations=1)
            return parts.results(), alike

        compiled = steps if eager else tf.function(steps, reduce_retracing=True, autograph=False)

        def step(iterator: Any) -> dict[str, Any]:
            logs, self._alike = compiled(iterator)  # which is not asked, and waited for, before a step failed
            return logs

        return step

    def unreleased(self) -> Exception:
        """Why the last call released less than it could."""
        agreement = self._agreement()
        if agreement is not None and (refusal := agreement.refusal()) is not None:
            return refusal
        if bool(self._alike):
            return RuntimeError(
                "The replicas held slices of different draws, or one slice twice: that step released nothing. Call fit"
                " again; if it happens again, report it."
            )
        return RuntimeError(
            "The replicas hold different numbers in their copies of the weights, or of other variables that a step"
            " reads: what a record adds would depend on its replica, and so on all other records. That step released"
            " nothing. The wrapped optimizer's update_step runs once for each copy: leave out of it what differs each"
            " time (random numbers of tf.random or of Python, a count of calls); keras.random with a seed of a"
            " keras.random.SeedGenerator that the optimizer holds draws the same for all. Unlike devices round"
            " otherwise: take devices of one kind. On several workers variables that are not the model's must hold the"
            " same on each, and steps_per_execution=1 gives all the chief's weights before each step."
        )

    def _totals(
        self,
        sums_of: Callable[[Any], list[tf.Tensor]],
        data: Any,
        seeds: Sequence[Any],
        hidden: HiddenSeeds | None,
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """The bounded sums over all slices; whether these are one draw's, each once; whether they are at one state.

        That is all that the sums read, but for seeds, as every replica held it before it computed its part.
        """
        numbers = None if hidden is None else hidden.fresh()

        def local(data: Any) -> Sequence[Any]:
            batch, stamp = data
            held = checksums([] if self._calls is None else self._calls.read(but=self._seeds))
            with apart(seeds) if hidden is None else hidden.filled(tf.gather(numbers, replica_number())):
                sums = sums_of(batch)
            misplaced = tf.cast(stamp[1] != tf.cast(replica_number(), tf.int64), tf.int64)
            alike = [stamp[0], *tf.unstack(held)]
            checks = tf.stack([misplaced, *alike, *(one**2 for one in alike)])
            context = tf.distribute.get_replica_context()
            checks = tf.concat([checks, placed(stamp[2:], self.share.of)], 0)
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, one) for one in (sums, checks)]

        # The same on every replica: taken from the first here.
        with contextlib.nullcontext() if hidden is None else hidden.in_place():
            found = self.strategy.run(local, args=(data,))
        totals, checks = keras.tree.map_structure(self._first, found)
        if hidden is not None:
            hidden.count()
        # R sum t^2 = (sum t)^2 for R checksums t that are all equal, and for no others.
        equal = self.share.of * checks[4:7] == checks[1:4] ** 2
        told = told_by_all(checks[7:], data[1], self.share.of, self.strategy)
        fits = equal[0] & (checks[0] == 0) & agreed(told, self._agreement, self.workers)
        return list(totals), fits, tf.reduce_all(equal[1:])

    def _agreement(self) -> Agreement | None:
        return getattr(self._batches(), "agreement", None)

    def _first(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)[0]


@contextlib.contextmanager
def apart(seeds: Sequence[Any]) -> Iterator[None]:
    """Inside a step, on one replica, it draws otherwise than others: at every step, since what runs between two of them
    makes them equal."""
    for seed in seeds:
        first, draws = tf.unstack(tf.cast(tf.convert_to_tensor(seed.value), tf.int64))
        own = (first + tf.cast(replica_number(), tf.int64) * _SEED_STEP) % 2**32
        seed.assign(tf.cast(tf.stack([own, draws]), seed.dtype))
    yield


def refuse_unsound_strategy(model: keras.Model, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for a strategy under which a step would not be what is accounted, or could not run: with these
    arguments of `fit`, or with `fit` called inside of its scope.
    """
    if tf.distribute.has_strategy():
        raise ValueError(
            "fit was called inside of `with strategy.scope():`, where every replica would add noise of its own. Make"
            " and compile the model there, and call fit after it, outside."
        )
    strategy = model._distribute_strategy
    if strategy is None:
        return
    optimizer = model.optimizer
    if optimizer.selection is not None:
        raise ValueError(
            f"sparsity_preserving is for one device, and the model was made under {type(strategy).__name__}. Make it"
            " outside of the strategy, or leave sparsity_preserving out."
        )
    for one in (optimizer, optimizer.inner_optimizer):
        if one._distribution_strategy is not strategy:
            raise ValueError(
                f"{type(one).__name__} was made outside of the model's strategy: its state would not be kept on every"
                " replica. Make the optimizer, and compile, inside of `with strategy.scope():`."
            )
    if model.jit_compile:
        raise ValueError(
            "jit_compile=True compiles for one device, and the model has replicas on several. Compile the model with"
            " jit_compile=False."
        )
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    if model.run_eagerly:
        raise ValueError("run_eagerly=True and several workers wait for each other forever. Use run_eagerly=False.")
    if arguments.get("validation_data") is not None:
        raise ValueError(
            "validation_data: Keras 3 cannot evaluate on several workers. Evaluate on the chief, on one device:"
            " plain = model.to_keras(), then plain.compile(...) and plain.evaluate(x, y), after fit or in a callback."
        )


def refuse_unreplicated(model: keras.Model) -> None:
    """Raises ValueError for trainable weights that the model's strategy does not hold: an update of them fails."""
    made = model._distribute_strategy.extended.variable_created_in_scope
    outside = [v.path for v in model.trainable_variables if not made(v.value)]
    if outside:
        raise ValueError(
            f"{outside} were made outside of the model's strategy, which keeps no copy of them on every replica. Make"
            " the layers inside of `with strategy.scope():`, and do not call or build the model outside of it before"
            " fit."
        )
