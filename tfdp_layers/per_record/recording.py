"""Records, during one forward pass, what the gradients of ordinary layers' weights are made of."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.caller import as_it_is, in_this_thread
from tfdp_layers.per_record.adopted import NotOfRecordsError, adopted_by, are_of_records, parts_adopted
from tfdp_layers.per_record.agreement import agreeing
from tfdp_layers.per_record.broadcasting import broadcast_value, multiplied, summed_like
from tfdp_layers.per_record.contributions import Contribution, Lookups, Products, Stored, constant, positions
from tfdp_layers.per_record.einsum import einsum_contribution
from tfdp_layers.per_record.generic import PerRecordCall, no_draws
from tfdp_layers.per_record.joining import joined
from tfdp_layers.per_record.meetings import RecordsMeetError, UnknownUseError
from tfdp_layers.per_record.observed import observed, tried
from tfdp_layers.per_record.registry import entry_of, layers_to_record, method_of, no_formula, own_weights, slow_layers
from tfdp_layers.per_record.tables import Rows, merged
from tfdp_layers.rules.einsum import explicit
from tfdp_layers.structure import trained_weights
from tfdp_layers.uses.counted import one_row_each, refuse_call


@dataclass(frozen=True)
class Use:
    """One use of weights: where its upstream gradients are taken, and what those make of it.

    `contributions` takes them in order, and `each`, how many rows a unit has: see `joined`. `rows`: how many rows of
    the watched ones a record has; None where contributions tell them apart by the number of records.
    """

    layer: str
    variables: tuple[Any, ...]
    watched: tuple[tf.Tensor, ...]
    contributions: Callable[..., list[Contribution]]
    rows: int | None = 1


class Recorder:
    """Computes with the weights of ordinary layers as constants, and remembers each use.

    Args:
        tape: the gradient tape of the pass; it is made to watch the places where upstream gradients are needed.
        rows: for an inspection, the number of records; None otherwise.
        records: the number of records; None where lookups are of their own rows alone.
        activate: whether formulas end in the layer's activation.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        rows: int | None = None,
        records: int | tf.Tensor | None = None,
        activate: bool = True,
    ) -> None:
        self._tape, self._rows, self._records = tape, rows, rows if records is None else records
        self.activate = activate
        self._graph = tf.compat.v1.get_default_graph()
        self.layer = "?"
        self.uses: list[Use] = []
        self.idle, self.eager = False, tf.executing_eagerly()
        self._around: tuple[Any, ...] = ()

    # What formulas use: every result has the records on axis 0 --------------------------------------------------------

    def product(self, kernel: keras.Variable, inputs: tf.Tensor) -> Any:
        """inputs (batch, ..., n) times the kernel (n, m)."""
        if inputs.shape[-1] is None:  # after a reshape to (batch, positions, -1)
            inputs = tf.ensure_shape(inputs, [*inputs.shape[:-1], kernel.shape[0]])
        outputs = multiplied(inputs, constant(kernel, inputs.dtype))
        return self.note(kernel, outputs, lambda u: Products(kernel, positions(inputs), positions(u)))

    def offset(self, bias: keras.Variable, inputs: tf.Tensor, shape: Sequence[int] | None = None) -> Any:
        """inputs (batch, ...) plus the bias, which broadcasts against one record (reshaped to `shape` first)."""
        value = broadcast_value(bias, inputs, shape)
        return self.note(bias, inputs + value, lambda u: Stored(bias, summed_like(u, value.shape, bias.shape)))

    def scale(self, scale: keras.Variable, inputs: tf.Tensor, shape: Sequence[int] | None = None) -> Any:
        """inputs (batch, ...) times the scale, which broadcasts against one record (reshaped to `shape` first)."""
        value = broadcast_value(scale, inputs, shape)

        def contribution(u: tf.Tensor) -> Contribution:
            products = tf.cast(u, tf.float32) * tf.cast(inputs, tf.float32)
            return Stored(scale, summed_like(products, value.shape, scale.shape))

        return self.note(scale, inputs * value, contribution)

    def product_transposed(self, kernel: keras.Variable, inputs: tf.Tensor) -> Any:
        """inputs (batch, ..., m) times the transposed kernel (n, m): (batch, ..., n)."""
        outputs = multiplied(inputs, constant(kernel, inputs.dtype), transpose_b=True)
        return self.note(kernel, outputs, lambda u: Products(kernel, positions(u), positions(inputs)))

    def rows(self, table: keras.Variable, like: tf.Tensor, length: Any, start: int = 0) -> Any:
        """Rows start ... start + length - 1 of the table for each record of `like` (batch, ...): (batch, length, m)."""
        value = constant(table, like.dtype)[start : start + length]
        outputs = tf.broadcast_to(value, tf.concat([tf.shape(like)[:1], tf.shape(value)], 0))
        outputs = tf.ensure_shape(outputs, [like.shape[0], *value.shape])
        return self.note(table, outputs, lambda u: Rows(table, u, start))

    def lookup(self, table: keras.Variable, ids: tf.Tensor, dtype: str | tf.DType) -> Any:
        """Rows `ids` (batch, ...) of the table: (batch, ..., units). `ids` (1, ...) are those of every record.

        Of a table that a layer around has adopted: what is looked up, which that layer's call shows the way of.
        """
        if any(adopted_by(layer, table) for layer in self._around):
            return tf.gather(tf.cast(tf.convert_to_tensor(table), dtype), ids)
        given, ids = ids, self.of_each_record(ids)
        noted = table.trainable and not self.idle
        if noted and self._rows is not None and not are_of_records(ids, self._rows):
            raise NotOfRecordsError(self._other_rows(ids))

        def contribution(u: tf.Tensor) -> Contribution:
            flat = positions(u)
            if given is not ids and given.shape[0] == 1 and table.shape[0] <= (flat.shape[1] or 0):
                hot = tf.one_hot(tf.reshape(given, [-1]), table.shape[0], axis=0, dtype=tf.float32)
                return Stored(table, tf.matmul(hot, tf.cast(flat, tf.float32)))
            return Lookups(table, tf.reshape(ids, tf.shape(flat)[:2]), flat)

        return self.note(table, tf.gather(constant(table, dtype), ids), contribution)

    def of_each_record(self, ids: tf.Tensor) -> tf.Tensor:
        """Ids (1, ...), positions for example, repeated for each record, so that its gradient can be told apart."""
        if self._records is None or len(ids.shape) < 2 or ids.shape[0] not in (1, None):
            return ids
        repeated = tf.broadcast_to(ids, tf.concat([[self._records], tf.shape(ids)[1:]], 0))
        return tf.ensure_shape(repeated, [None, *ids.shape[1:]])

    def einsum(self, equation: str, kernel: keras.Variable, inputs: tf.Tensor) -> Any:
        """`tf.einsum(equation, inputs, kernel)`; the first label of inputs and result is the batch."""
        equation = explicit(equation, len(inputs.shape))
        outputs = tf.einsum(equation, inputs, constant(kernel, inputs.dtype))
        return self.note(kernel, outputs, lambda u: einsum_contribution(equation, kernel, inputs, u))

    def looping_layer(self, layer: keras.layers.Layer, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A layer that loops over steps, with all its weights and those of its parts: record by record."""
        return self.whole(PerRecordCall(layer, call, tuple(trained_weights(layer)), args, kwargs))

    def observed_layer(
        self, layer: keras.layers.Layer, call: Callable[..., Any], allow_generic: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """A layer without a formula, by what its own call shows; else, where that is allowed, record by record.

        Raises: ValueError, naming the layer, where it is not.
        """
        every = PerRecordCall(layer, call, tuple(own_weights(layer)), args, kwargs)
        if self.idle:
            return every()
        outer, self._around = self._around, (*self._around, layer)
        try:
            if not self.eager:
                return observed(every, self)
            tried(every, self)
            return self.whole(every)
        except UnknownUseError as error:
            if not allow_generic:
                said, parts = no_formula(layer, str(error), isinstance(error, RecordsMeetError)), parts_adopted(layer)
                raise NotOfRecordsError(said, parts[0]) if parts else ValueError(said) from error
            slow_layers.add(layer)
            return self.whole(every)
        finally:
            self._around = outer

    def weight(self, variable: keras.Variable) -> Any:
        """The variable's value, which no gradient reaches but those at what it meets."""
        value = tf.identity(constant(variable, variable.dtype))
        self._tape.watch(value)
        return value

    def note_meeting(
        self,
        variables: Sequence[Any],
        result: tf.Tensor,
        each: int,
        parts: Callable[..., list[Contribution]],
        fixed: bool = True,
    ) -> None:
        """Remembers where records meet what was computed from variables; the result has `each` rows a record.

        Args:
            fixed: whether it has that many whatever the records' lengths are; above one row parts tell them apart else.
        """
        self.require_rows(result, each)
        self.uses.append(Use(self.layer, tuple(variables), (result,), parts, each if fixed or each == 1 else None))

    def whole(self, every: PerRecordCall) -> Any:
        """A call whose weights' gradients are taken record by record."""
        if self.idle:
            return every()
        outputs = every(no_draws(every.layer, self.eager))
        flat = keras.tree.flatten(outputs)
        places = [place for place, t in enumerate(flat) if tf.is_tensor(t)]
        watched = tuple(self.watch(flat[place]) for place in places)

        def contributions(*upstream: tf.Tensor, each: int) -> list[Contribution]:
            return every.contributions(places, *upstream, each=each)

        self.uses.append(Use(self.layer, every.variables, watched, contributions))
        rest = iter(watched)
        return keras.tree.pack_sequence_as(outputs, [next(rest) if tf.is_tensor(t) else t for t in flat])

    def note_at(
        self, variable: keras.Variable, watched: Sequence[Any], contribution: Callable[..., Contribution]
    ) -> None:
        """Remembers a use of one variable whose upstream gradients are those of watched tensors."""
        if self.idle:
            return

        def contributions(*u: tf.Tensor, each: int) -> list[Contribution]:
            return [joined(contribution(*u), each)]

        self.uses.append(Use(self.layer, (variable,), tuple(watched), contributions))

    def note(
        self, variable: keras.Variable, outputs: tf.Tensor, contribution: Callable[[tf.Tensor], Contribution]
    ) -> Any:
        """Remembers a use of one variable, unless it is frozen; returns the outputs, watched."""
        if not variable.trainable or self.idle:
            return outputs
        outputs = self.watch(outputs)
        self.note_at(variable, [outputs], contribution)
        return outputs

    @property
    def records(self) -> Any:
        """The number of records; None where they are those of axis 0."""
        return self._records

    # What the step uses -----------------------------------------------------------------------------------------------

    def watch(self, outputs: tf.Tensor) -> Any:
        """The outputs, at which the tape takes a gradient. Raises ValueError where that is not one of each record."""
        if self.idle:
            return outputs
        self.require_rows(outputs)
        outputs = tf.identity(outputs)
        self._tape.watch(outputs)
        return outputs

    def require_rows(self, outputs: tf.Tensor, each: int = 1) -> None:
        """Raises ValueError where outputs have not `each` rows for each record, or stand in another function."""
        known = outputs.shape[0] is not None or each == 1  # several rows a record: as many as its positions
        if self._rows is not None and known and outputs.shape[0] != self._rows * each:
            raise ValueError(self._other_rows(outputs))
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                f"Layer {self.layer!r} is called inside a loop, a branch or another function, where its per-record"
                " gradients can't be taken. Call it directly, once for each use (TimeDistributed needs a fixed number"
                " of steps)."
            )

    def _other_rows(self, rows: tf.Tensor) -> str:
        found = (rows.shape[0] if rows.shape.rank else 1) or "an unknown number of"
        return (
            f"Layer {self.layer!r} computes {found} rows for {self._rows} records (before fit, as many as are made up"
            " for this check): their gradients can't be told apart by record. Keep axis 0 the batch; positions go into"
            " the middle axes, (batch, positions, features). A recurrent layer over several series of each record:"
            " keras.layers.TimeDistributed(layer), of (batch, series, steps, features)."
        )

    @contextlib.contextmanager
    def aside(self, records: int) -> Iterator[None]:
        """Inside the block, which is no part of the pass, formulas compute on so many records, and nothing is noted."""
        held = self.idle, self._records
        self.idle, self._records = True, records
        try:
            with self._tape.stop_recording():
                yield
        finally:
            self.idle, self._records = held

    @property
    def watched(self) -> list[tf.Tensor]:
        """Where the upstream gradients are taken, in the order that `contributions` expects them."""
        return [tensor for use in self.uses for tensor in use.watched]

    @property
    def variables(self) -> list[Any]:
        """The variables used, each once, in the order of first use."""
        return list({id(v): v for use in self.uses for v in use.variables}.values())

    def contributions(self, upstream: Sequence[tf.Tensor], each: int = 1) -> dict[int, Contribution]:
        """What each record adds to each variable's gradient, by the variable's id; uses of one variable merged.

        Args:
            each: rows of each record or unit, joined into one contribution: see `joined`.
        """
        rest = iter(upstream)
        found: dict[int, list[Contribution]] = {}
        for use in self.uses:
            for contribution in use.contributions(*[self.rows_of(use, next(rest)) for _ in use.watched], each=each):
                found.setdefault(id(contribution.variable), []).append(contribution)
        return {key: merged(uses) for key, uses in found.items()}

    def rows_of(self, use: Use, upstream: tf.Tensor) -> Any:
        """Upstream gradients of as many rows as a use has, of the records of this very pass: see `one_row_each`."""
        if self._records is None or use.rows is None:
            return upstream
        return one_row_each(upstream, self._records, use.rows)


@contextlib.contextmanager
def recording(model: keras.Model, recorder: Recorder, allow_generic: bool = False) -> Iterator[Recorder]:
    """Inside the block, ordinary layers with trainable weights compute through the recorder.

    Raises: ValueError, naming the layer, from the call of one without a formula whose own call does not show how its
        weights enter, unless `allow_generic`.
    """
    changed = []
    try:
        for layer in layers_to_record(model):
            method, entry = method_of(layer), entry_of(layer)
            original = getattr(layer, method)
            if entry is not None:
                function = functools.partial(entry.compute, layer, recorder)
                function = agreeing(function, layer, recorder, original) if entry.by_name else function
                function = functools.partial(of_dense, layer, function)
            else:
                function = functools.partial(recorder.observed_layer, layer, original, allow_generic)
            changed.append((vars(layer), method, vars(layer).get(method)))
            # Beside the class's method, past Keras' tracking of attributes.
            vars(layer)[method] = in_this_thread(functools.partial(named, recorder, layer, function), original)
        yield recorder
    finally:
        for held, method, call in changed:
            held.pop(method)
            held |= {} if call is None else {method: call}


def of_dense(layer: Any, formula: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a formula. Raises ValueError where none can tell records apart: see `refuse_call`."""
    refuse_call(layer, (args, kwargs))
    return formula(*args, **kwargs)


def named(recorder: Recorder, layer: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a formula; errors that arise in it name its layer."""
    outer, recorder.layer = recorder.layer, layer.path or layer.name
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        vars(error).setdefault("part", layer)
        as_it_is(error)
        raise
    finally:
        recorder.layer = outer
