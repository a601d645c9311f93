"""How often layers that bound themselves are used, and the refusal of uses that no bound covers."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tfdp_layers.structure import KerasMixin
from tfdp_layers.uses.border import Border

_uses = threading.local()


@contextlib.contextmanager
def count_uses(records: Any = None) -> Iterator[Counter[int]]:
    """Counts, by id of the layer, how often each bounded layer is called inside the block (a trace counts as one
    call).

    Args:
        records: of a step, how many records it has: inside the block a layer's rows are held to it, and its calls to
            the graph of the step. An inspection traces the same Python once more, which may take another way there.
    """
    outer = getattr(_uses, "counter", None), getattr(_uses, "step", None)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    _uses.counter, _uses.step = Counter(), None if records is None else (records, graph)
    try:
        yield _uses.counter
    finally:
        _uses.counter, _uses.step = outer


def one_row_each(rows: tf.Tensor, records: Any, each: int = 1) -> Any:
    """The rows as they are, of which a record has `each`: others are refused by a proof, and fail in a step.

    Whatever bounds rows one by one bounds records only then. No assertion, which XLA leaves out; and no reshape, which
    TensorFlow drops where one size is unknown.
    """
    count = records if each == 1 else records * each
    if tf.executing_eagerly() and int(count) != rows.shape[0]:
        raise ValueError(not_one_each(f"{rows.shape[0]} rows for {int(records)} records"))
    rest = rows.shape[1:].as_list()
    with tf.name_scope(ROWS_SCOPE):
        sizes = tf.stack([count, *rest]) if None not in rest else tf.concat([[count], tf.shape(rows)[1:]], 0)
        return tf.ensure_shape(tf.broadcast_to(rows, sizes), [None, *rest])


ROWS_SCOPE = "one_row_for_each_record"
"""In the names of the operations of `one_row_each`."""


def not_one_each(what: str) -> str:
    """The message where a step's layers get other rows than one for each record."""
    return (
        f"A layer with trained weights gets {what} in the step: each row is bounded, so a record in several rows would"
        " add several times the bound. Was a layer's call to go by sizes that are known (x.shape[0], x.shape[1]) or by"
        " how often it is called? Let it do the same each time: axis 0 is the batch, positions go into middle axes."
    )


@contextlib.contextmanager
def within_their_layers(
    model: Any,
    tape: tf.GradientTape,
    variables: Sequence[Any],
    stated_for: Callable[[Any], Any],
    held_to: Callable[[Any, Any, Any], Any] = lambda layer, call, given: call(*given[0], **given[1]),
) -> Iterator[list[tf.Tensor]]:
    """Inside, layers that bound themselves compute with copies of these weights, which nothing else gets.

    So the gradients of the copies hold what the layers bound, and no use of a weight outside of its layer, its own
    activation among them: an inspection sees such uses where it goes the way that the step goes. And each use is held
    to what the bound was stated for: other layers and losses are Python, which may change a layer and change it back.

    Args:
        stated_for: of a layer: what its bound rests on, or that of another; None where no bound does.
        held_to: of such a layer, its call and (args, kwargs): what it gives, held to what the bound was stated for.

    Gives: the copies, watched by the tape, in the order of the variables.
    """
    copies = [tf.identity(v.value) for v in variables]
    tape.watch(copies)
    mapping = list(zip(variables, copies, strict=True))
    stated = [(layer, stated_for(layer)) for layer in model._flatten_layers(include_self=False)] if mapping else []
    held = [(layer, now, layer.__dict__.get("call")) for layer, now in stated if now is not None]
    border = None if tf.executing_eagerly() or not copies else Border(copies)
    try:
        for layer, now, _ in held:
            call = functools.partial(_with_copies, layer, layer.call, mapping, border)
            call = call if isinstance(layer, CountedLayer) else layer.call
            layer.__dict__["call"] = functools.partial(_as_stated, layer, call, stated_for, now, held_to)
        yield copies
        if border is not None:
            border.check()
    finally:
        for layer, _, call in held:
            if call is None:
                del layer.__dict__["call"]
            else:
                layer.__dict__["call"] = call


def _as_stated(
    layer: Any, call: Any, stated_for: Callable[[Any], Any], before: Any, held_to: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls a layer. Raises ValueError where it is not what it was when the step began."""
    if stated_for(layer) != before:
        raise ValueError(
            f"Layer {layer.name!r} was changed within the step, by code of a layer or loss: its bound, a method or"
            " what it does is not that for which the bound was stated. Set clips and the like before fit; what"
            " changes from step to step goes into variables."
        )
    return held_to(layer, call, (args, kwargs))


class _Copies(keras.StatelessScope):
    """Inside, one layer computes with copies of weights. What else it assigns is assigned when it has ended.

    Attributes:
        layer: whose use it is.
        ended: whether the bounded part has.
        aside: while other code than this library's runs, which gets the weights themselves.
    """

    def __init__(self, layer: Any, mapping: Any, border: Border | None) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self.layer, self.aside, self._border = layer, False, border
        self.ended, self._copied = False, set(self.state_mapping)
        self._assigned: dict[int, Any] = {}
        self._start = 0 if border is None else border.made()

    def add_update(self, update: tuple[Any, Any]) -> None:
        super().add_update(update)
        self._assigned[id(update[0])] = update[0]

    def get_current_value(self, variable: Any) -> Any:
        return None if self.aside and id(variable) in self._copied else super().get_current_value(variable)

    def end(self, outputs: Any) -> None:
        """From here on the weights are what they are outside."""
        if self._border is not None:
            self._border.crossed(outputs)
        if self.ended:
            return
        self.ended = True
        self.__exit__()
        if self._border is not None:
            self._border.used(self._start)
        for loss in self.losses:  # inside, Keras would drop what is refused where the model's losses are looked at
            self.layer.add_loss(loss)
        for variable in self._assigned.values():  # such as where its random numbers stand
            variable.assign(self.get_current_value(variable))


@contextlib.contextmanager
def weights_themselves() -> Iterator[None]:
    """Around code of the caller's within a bounded layer, an activation say: it gets no copies of weights."""
    copies = getattr(_uses, "copies", None)
    if copies is None:
        yield
        return
    held, copies.aside = copies.aside, True
    try:
        yield
    finally:
        copies.aside = held


def _with_copies(layer: Any, call: Any, mapping: list[Any], border: Any, *args: Any, **kwargs: Any) -> Any:
    outer, _uses.copies = getattr(_uses, "copies", None), _Copies(layer, mapping, border)
    try:
        with _uses.copies as copies:
            outputs = call(*args, **kwargs)
            if not copies.ended:  # a layer of the caller's own, all of which is within its bound
                copies.end(outputs)
        return outputs
    finally:
        _uses.copies = outer


@contextlib.contextmanager
def inspect_uses(rows: int) -> Iterator[Counter[int]]:
    """Counts uses as `count_uses`, in the trace of `rows` records, and checks what the bounds assume of a use.

    Inside the block the layers' weights are cut off from the gradient: one that still has one is used elsewhere too.

    Raises: ValueError from a layer that is called in a loop or branch, or whose rows are not the records.
    """
    _uses.inspection = (rows, tf.compat.v1.get_default_graph())
    try:
        with count_uses() as uses:
            yield uses
    finally:
        _uses.inspection = None


def refuse_sparse(layer: Any, given: Any) -> None:
    """Raises ValueError for sparse and ragged tensors, which have no rows of one size."""
    found = next((one for one in keras.tree.flatten(given) if isinstance(one, tf.SparseTensor | tf.RaggedTensor)), None)
    if found is not None:
        kind = "sparse" if isinstance(found, tf.SparseTensor) else "ragged"
        sparse = "sparse=False in the layer that makes it, or tf.sparse.to_dense"
        fix = sparse if kind == "sparse" else "x.to_tensor(shape=(None, N)), N a length that is known beforehand"
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) gets a {kind} tensor, and what a record adds is known of"
            f" dense ones. Make it dense: {fix}."
        )


def refuse_unrecorded(layer: Any) -> None:
    """Raises ValueError where a graph is traced whose gradient is taken otherwise, and goes to arguments alone."""
    if not tf.executing_eagerly() and pywrap_tfe.TFE_Py_TapeSetIsStopped():
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) computes with its weights inside of keras.remat or"
            " tf.recompute_grad, where no record's gradient of them can be taken: they would get noise alone. Call it"
            " directly; where memory is short, give fit physical_batch_size, of fewer records at a time."
        )


def refuse_call(layer: Any, given: Any) -> None:
    """Raises ValueError for a call of an ordinary layer of which no gradients of single records follow."""
    refuse_sparse(layer, given)
    refuse_unrecorded(layer)


class CountedLayer(KerasMixin):
    """Mixin for every layer that bounds records itself: it counts the layer's uses, and refuses those that no bound
    covers.

    A subclass calls `begin_use` and `end_use` around its computation.

    Attributes:
        mixed: whether its bound holds under a policy that computes in 16 bits with weights of float32.
    """

    mixed = False

    @property
    def autocast(self) -> bool:
        """False under such a policy: weights reach its computation in float32 there too, which rounds where it may."""
        return bool(self.variable_dtype == self.compute_dtype)

    @autocast.setter
    def autocast(self, _: bool) -> None:
        pass

    def begin_use(self, inputs: tf.Tensor) -> tf.Tensor:
        """Counts a call, and returns its inputs as float32."""
        self.refuse_unbounded()
        refuse_sparse(self, inputs)
        counter = getattr(_uses, "counter", None)
        if counter is not None:
            refuse_unrecorded(self)
            counter[id(self)] += 1
        return tf.cast(tf.convert_to_tensor(inputs), tf.float32)

    def end_use(self, inputs: tf.Tensor | Sequence[tf.Tensor], outputs: tf.Tensor) -> tf.Tensor:
        """The outputs, in the layer's type. The bounded part ends: no gradient flows from what follows to the weights
        themselves.

        While uses are inspected the outputs depend on the inputs, no longer on the weights.

        Args:
            inputs: all that the layer sends a gradient to: what reaches a weight through none of them is not seen.
        """
        copies = getattr(_uses, "copies", None)
        if copies is not None and copies.layer is self:  # what follows, an activation say, is outside of the bound
            copies.end(outputs)
        step = getattr(_uses, "step", None)
        if step is not None:
            self.refuse_other_graph(step[1])
            outputs = one_row_each(outputs, step[0])
        outputs = tf.cast(outputs, self.compute_dtype)
        if getattr(_uses, "inspection", None) is None:
            return outputs
        outputs = tf.stop_gradient(outputs)
        for one in inputs if isinstance(inputs, list | tuple) else [inputs]:
            self.refuse_unsound_use(one, *_uses.inspection)
            outputs += 0.0 * tf.cast(tf.reduce_sum(one), outputs.dtype)
        return outputs

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        """What Keras calls in place of `call` under a quantized dtype policy: it would go around the clips.

        Raises: ValueError, always.
        """
        self.refuse_unbounded()

    def quantize(self, mode: Any = None, type_check: bool = True, **kwargs: Any) -> None:
        """Raises NotImplementedError, which Keras' `model.quantize` turns into a warning: the layer stays as it is.

        With type_check=False as in Keras, of what the layer is made of; its next use is then refused.
        """
        if not type_check:
            return super().quantize(mode, type_check=False, **kwargs)  # type: ignore[no-any-return]
        raise NotImplementedError(
            f"Layer {self.name!r} ({type(self).__name__}) is not quantized: its bound is stated for weights of float32."
            " Quantize a plain copy of the model, once it is trained: model.to_keras(), then quantize."
        )

    def refuse_unsound_use(self, inputs: tf.Tensor, rows: int, graph: tf.Graph) -> None:
        """Raises ValueError if the rows of a call are not the records, or a trace does not show how many calls are."""
        if inputs.shape[0] != rows:
            raise ValueError(
                f"Layer {self.name!r} is called on {inputs.shape[0] or 'an unknown number of'} rows for {rows} records:"
                " it clips each row, so a record in several rows would add several times its bound. Keep axis 0 the"
                " batch, with a known size: positions go into the middle axes, (batch, positions, features)."
            )
        self.refuse_other_graph(graph)

    def refuse_other_graph(self, graph: tf.Graph | None) -> None:
        """Raises ValueError in another graph than that of the step; None is an eager step, which has none."""
        if graph is not None and tf.compat.v1.get_default_graph() is not graph:
            raise ValueError(
                f"Layer {self.name!r} is called inside a loop, a branch or another function, where the number of its"
                " uses can't be counted. Call it directly, once for each use."
            )

    def refuse_unbounded(self) -> None:
        """Raises ValueError if the layer was put in a mode that its bound does not cover."""
        types = ("float32", "bfloat16", "float16") if self.mixed else ("float32",)
        if self.variable_dtype != "float32" or self.compute_dtype not in types:
            allowed = "'float32' or 'mixed_bfloat16'" if self.mixed else "'float32'"
            raise ValueError(
                f"Layer {self.name!r} computes in {self.compute_dtype}, its weights are {self.variable_dtype}: rounding"
                f" after the clip would exceed its bound. Give the layer dtype={allowed}."
            )
        if getattr(self, "lora_enabled", False) or getattr(self, "quantization_mode", None):
            raise ValueError(
                f"Layer {self.name!r} has LoRA enabled or is quantized: its trainable weights are not the ones its"
                " bound is stated for. Use the plain layer."
            )
