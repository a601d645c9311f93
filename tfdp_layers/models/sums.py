"""The bounded sums of a private model: what a step would release before its noise.

A record or unit may come as several rows (`Batches.rows_each`): several of its records, several random views of one.
The model sees rows; each row's loss gets its share of the mean over its unit's rows (`batches/rows.py`), and what the
rows of a unit add to a gradient is joined into one contribution (`per_record/joining.py`) before anything bounds it.
So a unit adds clip(gradient of the mean of its rows' losses). Data sets that differ in one unit differ in that unit's
rows, which enter its own contribution and no other: whoever draws units as they are accounted, and bounds each
contribution by S, releases sums that one unit moves by at most S, however many rows it has.
Source: De et al. 2022, arXiv:2204.13650, section 3.2 (views); McMahan et al. 2018, arXiv:1710.06963 (units).
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.rows import flat, shares
from tfdp_layers.certificates.certificate import rested_on, sensitivity_groups
from tfdp_layers.certificates.shapes import held_shapes
from tfdp_layers.certificates.uses import recorded
from tfdp_layers.clipping.bounding import SCOPE
from tfdp_layers.layers.base import count_uses
from tfdp_layers.models.crossing import updating
from tfdp_layers.models.evaluation import Evaluation
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.per_record.slopes import operations_now, warn_of_slopes
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.uses.counted import within_their_layers


class BoundedSums(Evaluation):
    """Mixin for Keras models: sums of gradients to which each record adds a bounded part."""

    def sensitivities(self) -> list[SensitivityGroup]:
        """The groups of weights, each with the L2 bound on what one record adds to its summed gradient.

        Raises: ValueError, naming the layer, where no bound holds.
        """
        return sensitivity_groups(self, self._bounding, self._privacy.records)

    def bounded_gradient_sums(self, x: Any, y: Any, sample_weight: Any = None, rows_each: int = 1) -> list[tf.Tensor]:
        """What a step on exactly these records would release before noise and division: NOT private.

        Args:
            x, y, sample_weight: a batch, as `fit` takes them; first axis (batch,).
            rows_each: rows of each record or unit; above 1 the first axes are (batch, rows_each), as `PrivateBatches`
                draws them with `records_per_unit` or `views`.

        Returns: one float32 tensor for each of `trainable_variables`, in their order.
        """
        self._require_private()
        x, y = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
        if sample_weight is not None:
            sample_weight = keras.tree.map_structure(tf.convert_to_tensor, sample_weight)
        return self._sums_and_losses(x, y, sample_weight, rows_each)[0][: len(self.trainable_variables)]

    def _groups(self) -> list[SensitivityGroup]:
        """The certified groups: those of the running `fit`, or else of the model as it is."""
        key = [id(self.optimizer), *map(id, self.trainable_variables)]
        return self._privacy.groups_of(key, self.sensitivities)

    @property
    def _bounding(self) -> Any:
        """What bounds the layers that don't bound themselves."""
        optimizer = getattr(self, "optimizer", None)
        return optimizer.bounding if isinstance(optimizer, PrivateOptimizer) else None

    def per_record_losses(self, x: Any, y: Any, sample_weight: Any = None) -> tf.Tensor:
        """Each record's own loss in training mode, (batch,): NOT private."""
        return self._privacy.loss_of(self._names_of_outputs())(y, self(x, training=True), sample_weight)

    def _sums_and_losses(
        self, x: Any, y: Any, sample_weight: Any, each: int = 1
    ) -> tuple[list[tf.Tensor], tf.Tensor, Any]:
        """Bounded sums (of gradients, then of statistics), losses (batch,), and predictions of all rows.

        Args:
            each: rows of each record or unit; above 1 the data are (batch, each, ...), and a loss is the rows' mean.
        """
        bounding, held = self._bounding, sample_weight
        if each > 1:
            refuse_own_bounds(self._groups())
            sample_weight = shares(sample_weight, keras.tree.flatten(x)[0], each)
            x, y = flat((x, y), each)
        others = [] if bounding is None else [g for g in self._groups() if not g.self_bounded]
        elsewhere = {id(v) for group in others for v in group.variables}
        own = [v for v in self.trainable_variables if id(v) not in elsewhere]
        records, start = tf.shape(keras.tree.flatten(x)[0])[0], operations_now()
        with (
            tf.GradientTape(watch_accessed_variables=False) as tape,
            count_uses(records) as uses,
            within_their_layers(self, tape, own, rested_on(self), held_shapes(self)) as copies,
            recorded(self, tape, bounding, records=records) as record,
        ):
            y_pred = self(x, training=True)
            losses = self._privacy.loss_of(self._names_of_outputs())(y, y_pred, sample_weight)
            total = tf.reduce_sum(losses)
        warn_of_slopes(start)
        self._privacy.refuse_other_uses(uses)
        self._refuse_batch_losses()
        sources = copies + record.watched
        gradients = tape.gradient(total, sources, unconnected_gradients="zero")
        sums = {id(v): tf.convert_to_tensor(g) for v, g in zip(own, gradients, strict=False)}
        statistics: list[tf.Tensor] = []
        if others:
            parts = record.contributions(gradients[len(own) :], each)
            losses = losses if each == 1 else tf.reduce_sum(tf.reshape(losses, (-1, each)), axis=1)
            # Constants that are too small for a type become zeros there, whatever np.seterr says of the user's numbers.
            with tf.name_scope(SCOPE), np.errstate(all="ignore"):
                largest = self._privacy.largest_weight if bounding.weighs else None
                found = bounding.sums(others, parts, counts(held, losses, largest))
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
                f"add_loss in {culprits or 'the model'} adds a loss over the batch, whose gradient no clip bounds. Make"
                " each record's term an output of its own, (batch, 1): outputs={'y': ..., 'term': term} and"
                " loss={'y': ..., 'term': lambda y, p: p[:, 0]}, with zeros as its labels. For a term of the weights"
                " use a weight regularizer (added after the noise)."
            )

    def _piece(self, x: Any, y: Any, sample_weight: Any) -> list[tf.Tensor]:
        """Sums over one piece of a drawn batch; updates the metrics."""
        each = self._privacy.require_run().batches.rows_each
        function = self._privacy.sums or functools.partial(self._sums_and_losses, each=each)
        sums, losses, y_pred = function(x, y, sample_weight)
        count = tf.reduce_sum(present(sample_weight, losses))
        self._loss_tracker.update_state(tf.math.divide_no_nan(tf.reduce_sum(losses), count), sample_weight=count)
        x, y, sample_weight = flat((x, y, sample_weight), each)
        metrics = self._privacy.metrics or self._update_metrics
        with updating(self):
            metrics(x, y, y_pred, sample_weight, present(sample_weight, losses))
        return sums

    def _piecewise(self, x: Any, y: Any, sample_weight: Any, size: int) -> list[tf.Tensor]:
        """Sums over a drawn batch in pieces of `size` records or units, so that memory does not grow with the batch.

        Pieces are added in float64: so rounding does not grow with the batch either, but for that of each piece.

        Each piece finds what layers write (counters, power iterations) as the draw found it, and there is one piece at
        least: what is left is what one call of the network writes. Otherwise variables without noise would tell how
        many pieces the drawn records filled, and records of one draw would meet different networks.
        """
        data, kept = (x, y, sample_weight), self._privacy.kept_by_pieces
        before = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind) for handle, kind in kept]
        rows = tf.shape(keras.tree.flatten(x)[0])[0]
        static = keras.tree.flatten(x)[0].shape[0]
        # XLA needs pieces of one size, and its batches are padded to it (`Batches.dataset`): it forgets the length of a
        # shorter last piece where a function is called with it, and would sum rows twice.
        whole = self._privacy.require_run().compiled or (static is not None and static % size == 0)

        def body(start: tf.Tensor, totals: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            for (handle, _), value in zip(kept, before, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            length = size if whole else tf.minimum(size, rows - start)
            piece = keras.tree.map_structure(
                lambda t: tf.slice(t, [start] + [0] * (len(t.shape) - 1), [length, *t.shape[1:]]), data
            )
            sums = self._piece(*piece)
            return start + size, [a + tf.cast(b, a.dtype) for a, b in zip(totals, sums, strict=True)]

        zeros = [tf.zeros(v.shape, tf.float64) for v in self.trainable_variables]
        zeros += [
            tf.zeros(group.shape, tf.float64) for group in self._privacy.require_run().groups if not group.variables
        ]

        def goes_on(start: tf.Tensor, _: Any) -> tf.Tensor:
            return (start < rows) | (start == 0)

        return tf.while_loop(goes_on, body, [tf.constant(0), zeros], parallel_iterations=1)[1]

    def _regularizer_gradients(self) -> list[tf.Tensor | None]:
        """Gradients of weight regularizers: functions of the weights alone, so they are added after the noise."""
        variables = self.trainable_variables
        if all(v.regularizer is None for v in variables):
            return [None] * len(variables)
        with tf.GradientTape() as tape:
            penalty = tf.add_n([v.regularizer(v) for v in variables if v.regularizer is not None])
        return tape.gradient(penalty, [v.value for v in variables])

    def _public_sums(self, public: Any) -> list[tf.Tensor]:
        """The bounded sums of public rows, one for each trainable variable, in the units of those of records.

        Bounded as records are, so that both weigh alike where the optimizer divides and scales both alike. They are
        functions of the weights, the optimizer's state and public numbers: no record moves them but by what was
        released before. Statistics are of records alone.

        Args:
            public: (x, y) or (x, y, sample_weight), rows that are no records.
        """
        return self._sums_and_losses(*keras.utils.unpack_x_y_sample_weight(public))[0][: len(self.trainable_variables)]

    def _require_private(self) -> None:
        if not isinstance(getattr(self, "optimizer", None), PrivateOptimizer):
            raise ValueError(
                "Compile the model first, after make_private if that is where it comes from, with an optimizer of this"
                " library: model.compile(tfdp.optimizers.ClippedOptimizer('adam'), loss=...)."
            )


def refuse_own_bounds(groups: Sequence[SensitivityGroup]) -> None:
    """Raises ValueError where a layer bounds each row by itself: several rows of one unit would add several bounds."""
    for group in groups:
        if group.self_bounded:
            raise ValueError(
                f"Layer {group.name!r} bounds each row by itself, so several rows of one record or unit would add"
                " several times its bound. Leave records_per_unit and views at 1; or use an ordinary Keras layer, with"
                " tfdp.optimizers.ClippedOptimizer, which bounds the rows of one together."
            )


def present(sample_weight: Any, losses: tf.Tensor) -> tf.Tensor:
    """Which rows are records rather than padding: 1.0 where any weight is not zero, (batch,)."""
    if sample_weight is None:
        return tf.ones_like(losses)
    flags = [tf.cast(w != 0, tf.float32) for w in keras.tree.flatten(sample_weight)]
    return tf.reduce_max([tf.reduce_max(f, axis=list(range(1, len(f.shape)))) for f in flags], axis=0)


def counts(sample_weight: Any, losses: tf.Tensor, largest: float | None) -> tf.Tensor:
    """What each row counts for: `present`, or where the largest weight is public, weight / largest: (batch,) in [0, 1].

    Of several rows the heaviest counts. Whatever the weights hold, none counts for more than one record: what is no
    number counts as the largest.
    """
    there = present(sample_weight, losses)
    if sample_weight is None or largest is None:
        return there
    (weights,) = keras.tree.flatten(sample_weight)
    relative = tf.cast(weights, tf.float32) / largest
    relative = tf.where(relative < 1.0, tf.maximum(relative, 0.0), tf.ones_like(relative))
    return there * tf.reduce_max(relative, axis=list(range(1, len(relative.shape))))
