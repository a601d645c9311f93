"""Per-record gradients of any layer, written out: the slow way, for layers without a formula."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution, Stored
from tfdp_layers.per_record.joining import grouped
from tfdp_layers.structure import SEEDS
from tfdp_layers.uses.counted import refuse_unrecorded


class PerRecordCall:
    """A call of a layer whose weights are constants in the forward pass, and vary per record in the gradient's.

    Args:
        layer: the layer; its gradients are taken through `layer(...)`, with Keras' casts.
        call: its own `call`, for the forward pass.
        variables: the trainable weights that it owns.
        args, kwargs: of the call; tensors in them have the records on axis 0.

    Records are taken one after the other. Vectorized, a step is faster (3.4 times with loops in the layer), takes up to
    half a minute to trace, is beyond the rules of the proof, and may crash: a layer's products become such of (batch,
    1, k, n) by (n, m), in which TensorFlow 2.21 with oneDNN writes beyond its memory.

    The call is repeated for each record as it was made: with the arguments that Keras hands on from layer to layer
    (training), and with the masks that tensors carry. Random numbers would be others, so calls that draw are refused.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        call: Callable[..., Any],
        variables: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.layer, self.call, self.variables = layer, call, variables
        leaves = keras.tree.flatten((args, kwargs))
        self.structure = (args, kwargs)
        self.is_rows = [tf.is_tensor(leaf) and len(leaf.shape) > 0 for leaf in leaves]
        self.leaves = leaves
        self.context = handed_on(layer)

    def __call__(self, refusal: str = "") -> Any:
        """The forward pass. Raises: ValueError with the refusal, if there is one, where it draws random numbers."""
        values = [tf.stop_gradient(tf.convert_to_tensor(v)) for v in self.variables]
        return self.with_values(values, self.leaves, refusal)

    def with_values(self, values: list[tf.Tensor], leaves: list[Any], refusal: str = "") -> Any:
        """The layer's own call with these values of its weights, and these tensors in its arguments."""
        outputs, scope = self._with(self.call, values, leaves, refusal)
        self.layer._losses.extend(scope.losses)
        for variable in self.layer.non_trainable_variables:  # such as where its random numbers stand
            changed = scope.get_current_value(variable)
            if changed is not None:
                variable.assign(changed)
        return outputs

    def _with(
        self, call: Callable[..., Any], values: list[tf.Tensor], leaves: list[Any], refusal: str = "", **options: Any
    ) -> Any:
        args, kwargs = keras.tree.pack_sequence_as(self.structure, leaves)
        mapping = list(zip(self.variables, values, strict=True))
        with _Values(self.layer, mapping, refusal) as scope:
            return call(*args, **(options | kwargs)), scope

    def contributions(self, places: Sequence[int], *upstream: tf.Tensor, each: int = 1) -> list[Contribution]:
        """The gradients of every record, for those at these of the outputs; of units of `each` rows, added up."""
        rows = [leaf for leaf, varies in zip(self.leaves, self.is_rows, strict=True) if varies]
        masks = {place: mask for place, row in enumerate(rows) if (mask := mask_of(row)) is not None}
        if each > 1:
            rows, upstream = [grouped(leaf, each) for leaf in rows], tuple(grouped(u, each) for u in upstream)
            masks = {place: grouped(mask, each) for place, mask in masks.items()}

        def batch(row: tf.Tensor) -> tf.Tensor:
            return row[tf.newaxis] if each == 1 else tf.identity(row)

        def one(row: tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]) -> list[tf.Tensor]:
            own, gradients = [batch(leaf) for leaf in row[0]], [batch(u) for u in row[2]]
            for place, mask in zip(masks, row[1], strict=True):
                own[place]._keras_mask = batch(mask)
            inputs = iter(own)
            leaves = [next(inputs) if varies else leaf for leaf, varies in zip(self.leaves, self.is_rows, strict=True)]
            values = [tf.identity(tf.convert_to_tensor(v)) for v in self.variables]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                flat = keras.tree.flatten(self._with(self.layer, values, leaves, **self.context)[0])
                outputs = [flat[place] for place in places]
            found = tape.gradient(outputs, values, output_gradients=gradients, unconnected_gradients="zero")
            return [dense(gradient, value) for gradient, value in zip(found, values, strict=True)]

        types = [tf.as_dtype(v.dtype) for v in self.variables]
        found = tf.map_fn(one, (rows, list(masks.values()), list(upstream)), fn_output_signature=types)
        return [Stored(v, g) for v, g in zip(self.variables, found, strict=True)]


class _Values(keras.StatelessScope):
    """Inside, a layer's weights have these values; and where it reads one, gradients are recorded.

    Args:
        refusal: an error's text for random numbers; "" where they may be drawn.
    """

    def __init__(self, layer: Any, mapping: list[Any], refusal: str) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._layer, self._own, self._refusal = layer, set(self.state_mapping), refusal

    def add_update(self, update: Any) -> None:
        if self._refusal and SEEDS in update[0].path:
            raise ValueError(self._refusal)
        super().add_update(update)

    def get_current_value(self, variable: Any) -> Any:
        if id(variable) in self._own:
            refuse_unrecorded(self._layer)
        return super().get_current_value(variable)


def no_draws(layer: Any, eager: bool) -> str:
    """Why a layer must draw no random numbers whose gradients are taken record by record, and what to do."""
    return (
        f"Layer {layer.name!r} draws random numbers in its call (dropout, say), and its gradients are taken record by"
        " record, by calling it once more for each: those calls would draw other numbers than the loss did. Put the"
        " random layer before or behind it, as a layer of the model."
        + " Or take them in a graph, which sees what a layer does without calling it again: fit does where the model is"
        " compiled with run_eagerly=False; a call of bounded_gradient_sums of your own, within a tf.function." * eager
    )


def handed_on(layer: Any) -> dict[str, Any]:
    """What Keras hands on from layer to layer, such as `training`, in the call of a layer that is being made."""
    context = layer._get_call_context()
    found = {name: getattr(context, name, None) for name in getattr(layer, "_call_context_args", ("training",))}
    return {name: value for name, value in found.items() if value is not None}


def mask_of(tensor: tf.Tensor) -> Any:
    """The mask that Keras hands on with a tensor; None without one."""
    return getattr(tensor, "_keras_mask", None)


def dense(gradient: Any, value: tf.Tensor) -> tf.Tensor:
    """The gradient of a table by rows as one of the table; what is not a row of it counts as nothing."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    count, indices = value.shape[0], gradient.indices
    there = tf.reshape((indices >= 0) & (indices < count), [-1] + [1] * (len(value.shape) - 1))
    kept = tf.where(there, gradient.values, tf.zeros((), gradient.values.dtype))
    return tf.math.unsorted_segment_sum(kept, indices % count, count)
