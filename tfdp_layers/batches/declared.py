"""Batches of a pipeline that the library does not draw: the caller declares how they are drawn."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.batches.base import LONGEST_IN_ANY_ORDER, Batches
from tfdp_layers.batches.beginning import Beginning, beginning_of
from tfdp_layers.batches.captured import warn_of_captured
from tfdp_layers.batches.cut import warn_of_cut
from tfdp_layers.batches.generators import generated
from tfdp_layers.batches.learned import note_layers
from tfdp_layers.batches.loaders import look_at_loader
from tfdp_layers.batches.mixing import warn_of_mixing
from tfdp_layers.batches.passes import refuse_moving_order, same_passes
from tfdp_layers.batches.records import checked_examples, checked_sampling
from tfdp_layers.batches.replayed import Drawn, Reading
from tfdp_layers.batches.slices import fill
from tfdp_layers.batches.steps import below, is_grain, kind
from tfdp_layers.batches.stores import ArrayStore, Field, refuse_no_numbers
from tfdp_layers.batches.watched import watched
from tfdp_layers.sampling import Sampling

_OF_PASSES = ("partition", "cyclic")
_NO_BATCHES = "The dataset has no batches, so nothing can be trained on. Give one with at least one batch."


class DeclaredBatches(Batches):
    """Batches of a pipeline that the caller declares to be drawn by `sampling`; made by `declare_sampling`.

    Attributes:
        pipeline: gives that pipeline, as long as the caller has it; None for lists of batches.
    """

    declared = True
    _beginning: Beginning | None = None

    def __init__(self, dataset: Any, sampling: Sampling, *, examples: int) -> None:
        if isinstance(dataset, Batches):
            raise ValueError(
                f"The dataset is {type(dataset).__name__}, which states its own sampling: a second statement could"
                " contradict it. Pass it to fit as it is."
            )
        self.sampling = checked_sampling(sampling)
        self.examples = checked_examples(self.sampling, examples)
        if self.sampling.kind in _OF_PASSES:
            self._check_epoch(dataset)
        elif isinstance(dataset, list | tuple):
            raise ValueError(
                f"A {type(dataset).__name__} of batches was drawn once and would be replayed every epoch, but"
                f" {self.sampling} draws every step afresh. Give a generator or a tf.data.Dataset that draws anew, or"
                " the arrays themselves to tfdp.PrivateBatches."
            )
        if isinstance(dataset, tf.data.Dataset) and dataset.cardinality() == 0:
            raise ValueError(_NO_BATCHES)
        drawn = self._look_at(dataset)
        self.pipeline = weakref.ref(dataset) if hasattr(dataset, "__weakref__") else None
        self._dataset = self._endless(dataset, drawn)
        self._watched = (_without_repeat(dataset), drawn) if drawn and isinstance(dataset, tf.data.Dataset) else None
        self._check_elements(self._dataset.element_spec)
        self._shapes: list[tf.TensorShape] | None = None

    def _look_at(self, dataset: Any) -> Drawn | None:
        """Warns of what is seen before training; returns what looks at the batches while they are read."""
        self._beginning = beginning_of(dataset, self.examples)
        if isinstance(dataset, tf.data.Dataset):
            warn_of_mixing(dataset)
            warn_of_captured(dataset, self.examples, draws=True)
            said = warn_of_cut(dataset, self.sampling, self.examples)
            note_layers(self, dataset)
        else:
            said = not isinstance(dataset, list | tuple) and look_at_loader(dataset, self.sampling, self.examples)
        of_no_draw = self.sampling.kind in _OF_PASSES or self.sampling.batch_size >= self.examples
        return None if said or of_no_draw else Drawn(self.sampling, self.examples)

    def _endless(self, dataset: Any, drawn: Drawn | None) -> tf.data.Dataset:
        """The batches over and over; where all passes must have one order, as long as they do."""
        finite = isinstance(dataset, tf.data.Dataset)
        if not self.sampling.fixed:
            passes = len(self) if self.sampling.kind in _OF_PASSES else None
            return dataset.repeat() if finite else _from_iterable(dataset, passes, drawn)
        if finite:
            refuse_moving_order(dataset)
            return same_passes(dataset.enumerate().repeat(), len(self))
        numbered = _from_iterable(dataset, len(self)).enumerate()
        return same_passes(numbered.map(lambda number, batch: (number % len(self), batch)), len(self))

    def _check_epoch(self, dataset: Any) -> None:
        if isinstance(dataset, tf.data.Dataset):
            batches = int(dataset.cardinality())
        else:
            restartable = hasattr(dataset, "__len__") and iter(dataset) is not dataset
            batches = len(dataset) if restartable else tf.data.UNKNOWN_CARDINALITY
        if batches != len(self):
            known = {-1: "is endless", -2: "has an unknown number of batches"}.get(batches, f"has {batches} batches")
            state = "state the number with tf.data.experimental.assert_cardinality"
            if is_grain(dataset):
                state = "give a grain.MapDataset with .batch, whose length is known, in place of a grain.IterDataset"
            elif not isinstance(dataset, tf.data.Dataset):
                state = "give an iterable that has a __len__, and starts again (a keras.utils.PyDataset, say)"
            raise ValueError(
                f"{type(self.sampling).__name__} needs every record in exactly one of ceil(examples / batch_size) ="
                f" {len(self)} batches an epoch, but the dataset {known}. Leave out .repeat(), keep the last batch"
                f" (drop_remainder=False), and {state}."
            )

    def _check_elements(self, spec: Any) -> None:
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise ValueError(f"Batches must be tuples (x, y) or (x, y, sample_weight). Received elements: {spec}.")
        # Poisson draws differ in size: a pipeline whose batches all have b rows does not draw so.
        constant = self.sampling.batch_size if self.sampling.kind in _OF_PASSES else None
        allowed = {None, constant, self.sampling.largest(self.examples)}
        for leaf in keras.tree.flatten(spec):
            if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None:
                raise ValueError(
                    f"Batches must be dense tensors of known rank, so that rows can be padded. Received: {leaf}."
                    " Make ragged ones dense (.to_tensor(shape=(None, N)), N known beforehand), sparse ones too, and"
                    " give unknown shapes by tf.ensure_shape, in dataset.map."
                )
            refuse_no_numbers([Field(tuple(leaf.shape[1:]), leaf.dtype)])
            if leaf.shape.rank == 0 or leaf.shape[0] not in allowed:
                raise ValueError(
                    f"The dataset's elements are not batches as {self.sampling} draws them, whose first axis is one of"
                    f" {sorted(allowed, key=str)}. Received: {leaf}. Single records need .batch(); batches that all"
                    " have one size are not Poisson draws: declare how they are drawn."
                )
        for leaf in keras.tree.flatten(spec[2]) if len(spec) == 3 else ():
            if leaf.shape.rank != 1 and tuple(leaf.shape)[1:] != (1,):
                raise ValueError(f"Sample weights must be one number a record, shape (rows,). Received: {leaf}.")

    @property
    def beginning(self) -> ArrayStore | None:
        return self._beginning.store if self._beginning is not None and self._beginning.whole else None

    def arrays(self) -> tuple[list[Any], list[Any]]:
        found = self.beginning
        return ([], []) if found is None else (found.inputs(), found.labels())

    def footprint(self) -> Footprint:
        itself = super().footprint()
        if self._beginning is None:
            return itself
        known = self._beginning.store.footprint()
        if self._beginning.whole:
            return replace(known, places=known.places | itself.places)
        return replace(itself, copies=known.sketch or known.copies)

    def state_shapes(self, shapes_of: Callable[[Any], Any]) -> None:
        """Lets a model state sizes of x that the pipeline leaves open: batches of other ones are then refused.

        Args:
            shapes_of: gives the shapes of x, in its structure, of its specs.
        """
        spec = self._dataset.element_spec[0]
        shapes, own = keras.tree.flatten(shapes_of(spec)), [one.shape for one in keras.tree.flatten(spec)]
        self._shapes = None if [*map(tuple, shapes)] == [*map(tuple, own)] else shapes

    def dataset(self, pad: bool | int = False, start: int = 0) -> tf.data.Dataset:
        """The declared batches, endlessly, with weights (ones if there were none); padded as `PrivateBatches` pads.

        Raises: tf.errors.InvalidArgumentError, while iterating, for a batch larger than the sampling allows, and for
            records of another size than the model states.
        """
        shapes = self._shapes

        @tf.autograph.experimental.do_not_convert
        def standard(*batch: Any) -> Any:
            return self._standard(self._disordered(_of_shapes(batch, shapes)), pad)

        batches = self._dataset if self._watched is None else watched(*self._watched)
        return batches.map(standard).prefetch(2)

    def _disordered(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch, in random order where it is large.

        The float32 sum over a long row of records can be off by more than one of them, in an order made for that.
        """
        if self.sampling.batch_size <= LONGEST_IN_ANY_ORDER:
            return batch
        order = tf.random.shuffle(tf.range(tf.shape(keras.tree.flatten(batch)[0])[0]))
        return tuple(keras.tree.map_structure(lambda leaf: disordered(leaf, order), batch))

    def _standard(self, batch: tuple[Any, ...], pad: bool | int) -> Any:
        drawn = tf.shape(keras.tree.flatten(batch)[0], out_type=tf.int64)[0]
        rows = tf.cast(self._padded(tf.maximum(drawn, self._fewest), pad), tf.int64)
        most = self.sampling.largest(self.examples) or rows
        says = f"A batch has more rows than {self.sampling} allows: declare the sampling that draws it."
        fits = tf.debugging.assert_less_equal(drawn, tf.cast(most, tf.int64), says)
        with tf.control_dependencies([fits]):  # or a shape check that says less may fail first
            batch, drawn = keras.tree.map_structure(tf.identity, (batch, drawn))
        x, y, weights = batch if len(batch) == 3 else (*batch, tf.ones([drawn]))
        weights = keras.tree.map_structure(column_of_weights, weights)
        return keras.tree.map_structure(lambda leaf: fill(leaf, rows, self._static_rows(pad)), (x, y, weights))


def _of_shapes(batch: tuple[Any, ...], shapes: list[tf.TensorShape] | None) -> tuple[Any, ...]:
    """The batch, its x of these shapes."""
    if shapes is None:
        return batch
    leaves = [tf.ensure_shape(*each) for each in zip(keras.tree.flatten(batch[0]), shapes, strict=True)]
    return (keras.tree.pack_sequence_as(batch[0], leaves), *batch[1:])


def column_of_weights(leaf: tf.Tensor) -> tf.Tensor:
    """float32 (rows,), of weights (rows,) or (rows, 1), as Keras takes them."""
    return tf.cast(leaf if leaf.shape.rank == 1 else leaf[:, 0], tf.float32)


def disordered(leaf: tf.Tensor, order: tf.Tensor) -> Any:
    """The rows in this order, of the static shape that they had."""
    return tf.ensure_shape(tf.gather(leaf, order), leaf.shape)


def declare_sampling(dataset: Any, sampling: Sampling, *, examples: int) -> DeclaredBatches:
    """Lets a pipeline in, on the caller's word that `sampling` draws each batch of it afresh from `examples` records.

    Shapes: `dataset` is a tf.data.Dataset, or another iterable, of batches (x, y) or (x, y, sample_weight), each
    (rows, ...), structures of them allowed; weights (rows,). A finite one is repeated.
    Units: records; `examples` is a public declared constant.
    Guarantee: the caller's. Nothing here can check it, and the privacy statement says that it was declared; where
    `.batch` is seen to cut batches other than the declared ones, a warning says so, and so it does where whatever gives
    batches gives the same ones again, or such of one size where sizes are drawn: that is seen as training reads them
    (`batches/replayed.py`, of a tf.data.Dataset by `watched.py`). Nothing calls `on_epoch_end` of a
    `keras.utils.PyDataset`. Shuffling is not Poisson sampling: declare `dataset.shuffle(examples).batch(b)` as
    `Partition(b)`, and with reshuffle_each_iteration=False as `Cyclic(b)`, whose passes are compared as far as can be.
    Raises: ValueError if the elements are not batches, or, for `Partition` and `Cyclic`, are not known to be
    ceil(examples / b) an epoch; where a zip of Grain puts records of one source beside others of it; for `Cyclic` also
    where the order is seen to change, or to depend on the records.
    Source: Chua et al. 2024, arXiv:2403.17673 (shuffled batches accounted as Poisson).
    """
    return DeclaredBatches(dataset, sampling, examples=examples)


def _without_repeat(dataset: Any) -> Any:
    """What a pipeline repeats at its end: that gives the same batches over and over, and its passes are seen."""
    while kind(dataset) == "Repeat":
        dataset = below(dataset)[0]
    return dataset


def _from_iterable(batches: Any, passes: int | None = None, drawn: Drawn | None = None) -> tf.data.Dataset:
    """Its batches over and over; where `passes` says how many a pass has, as long as each has so many."""
    if not isinstance(batches, Iterable):
        raise ValueError(f"The dataset must be a tf.data.Dataset or an iterable of batches. Received: {type(batches)}.")
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise ValueError(_NO_BATCHES)
    if iterator is batches:  # it cannot be started again, so what was looked at goes back in front
        batches = itertools.chain([first], iterator)
    del iterator  # a generator that nobody goes on with ends here

    def spec(leaf: Any) -> tf.TensorSpec:
        array = np.asarray(leaf)
        return tf.TensorSpec((None, *array.shape[1:]) if array.ndim else (), array.dtype)

    signature = keras.tree.map_structure(spec, keras.tree.lists_to_tuples(first))
    return generated(_Endless(batches, passes, drawn), iter, signature)


class _Endless:
    """The batches of an iterable over and over, as NumPy arrays; `drawn` says what is seen of them as they are read."""

    def __init__(self, batches: Iterable[Any], passes: int | None = None, drawn: Drawn | None = None) -> None:
        self._batches, self._passes, self._drawn = batches, passes, drawn
        self._lock = threading.Lock()  # two datasets may share one generator

    def __iter__(self) -> Iterator[Any]:
        reading = None if self._drawn is None else Reading(self._drawn)
        while True:
            fetched, iterator = 0, iter(self._batches)
            while True:
                with self._lock:
                    batch = next(iterator, None)
                if batch is None:
                    break
                fetched += 1
                made = keras.tree.map_structure(np.asarray, keras.tree.lists_to_tuples(batch))
                if reading is not None:
                    reading.read(made)
                yield made
                if fetched == self._passes:
                    break
            if self._passes and (fetched != self._passes or next(iterator, None) is not None):
                raise ValueError(
                    f"A pass over the declared batches has not the {self._passes} batches that its length says: a"
                    " record would be in one epoch twice. Let __iter__ give as many as __len__ counts."
                )
            if reading is not None:
                reading.ended()
            if not fetched:
                raise ValueError("The declared dataset ran out of batches. Give an endless or a repeatable iterable.")
