"""What the clipped layers share: a bounded input on the way forward, a bounded upstream gradient on the way back."""

import abc
import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.rules.rows import Rule, bound_upstream, check_bound, scale_rows, select_rows
from tfdp_layers.structure import KerasMixin

_uses = threading.local()


@contextlib.contextmanager
def count_uses() -> Iterator[Counter[int]]:
    """Counts, by id of the layer, how often each bounded layer is called inside the block (a trace counts as one
    call).
    """
    outer = getattr(_uses, "counter", None)
    _uses.counter = Counter()
    try:
        yield _uses.counter
    finally:
        _uses.counter = outer


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


class CountedLayer(KerasMixin):
    """Mixin for every layer that bounds records itself: it counts the layer's uses, and refuses those that no bound
    covers.

    A subclass calls `begin_use` and `end_use` around its computation.
    """

    def begin_use(self, inputs: tf.Tensor) -> tf.Tensor:
        """Counts a call, and returns its inputs as float32."""
        self.refuse_unbounded()
        counter = getattr(_uses, "counter", None)
        if counter is not None:
            counter[id(self)] += 1
        return tf.cast(tf.convert_to_tensor(inputs), tf.float32)

    def end_use(self, inputs: tf.Tensor | Sequence[tf.Tensor], outputs: tf.Tensor) -> tf.Tensor:
        """The outputs; while uses are inspected they depend on the inputs, no longer on the weights.

        Args:
            inputs: all that the layer sends a gradient to: what reaches a weight through none of them is not seen.
        """
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

    def refuse_unsound_use(self, inputs: tf.Tensor, rows: int, graph: tf.Graph) -> None:
        """Raises ValueError if the rows of a call are not the records, or a trace does not show how many calls are."""
        if inputs.shape[0] != rows:
            raise ValueError(
                f"Layer {self.name!r} is called on {inputs.shape[0] or 'an unknown number of'} rows for {rows} records:"
                " it clips each row, so a record in several rows would add several times its bound. Keep axis 0 the"
                " batch, with a known size: positions go into the middle axes, (batch, positions, features)."
            )
        if tf.compat.v1.get_default_graph() is not graph:
            raise ValueError(
                f"Layer {self.name!r} is called inside a loop, a branch or another function, where the number of its"
                " uses can't be counted. Call it directly, once for each use."
            )

    def refuse_unbounded(self) -> None:
        """Raises ValueError if the layer was put in a mode that its bound does not cover."""
        if self.compute_dtype != "float32":
            raise ValueError(
                f"Layer {self.name!r} computes in {self.compute_dtype}: rounding after the clip would exceed its bound."
                " Give the layer dtype='float32'."
            )
        if getattr(self, "lora_enabled", False) or getattr(self, "quantization_mode", None):
            raise ValueError(
                f"Layer {self.name!r} has LoRA enabled or is quantized: its trainable weights are not the ones its"
                " bound is stated for. Use the plain layer."
            )


class BoundedLayer(CountedLayer):
    """Mixin for a Keras layer whose weight gradient is bounded per record inside its own backward pass.

    Formal guarantee: for every record, whatever it holds and whatever the weights are, the gradient of that record's
    loss with respect to all trainable weights of the layer has L2 norm at most `sensitivity()` for each time the layer
    is used. A record whose input is not finite, or overflows, counts as one of zeros (its kernel gradient is zero, its
    bias gradient bounded as ever); an upstream gradient that is not finite counts as zero.

    Args (keyword only, beside those of the Keras layer):
        input_clip: bound on each record's input, in units of the input.
        upstream_clip: bound on each record's upstream gradient, in units of per-record loss per unit of linear output.
            The loss is the record's own: it is never divided by the batch size.

    Raises:
        ValueError: if a clip is not a positive finite number; if the layer computes in another type than float32, has
            LoRA enabled or is quantized.
    """

    def __init__(self, *args: Any, input_clip: float, upstream_clip: float, **kwargs: Any) -> None:
        check_bound(input_clip=input_clip, upstream_clip=upstream_clip)
        super().__init__(*args, **kwargs)
        self.input_clip = float(input_clip)
        self.upstream_clip = float(upstream_clip)

    @property
    @abc.abstractmethod
    def input_rule(self) -> Rule:
        """Bounds each record's input on the way forward."""

    @property
    @abc.abstractmethod
    def upstream_rule(self) -> Rule:
        """Bounds each record's upstream gradient on the way back."""

    @abc.abstractmethod
    def affine(self, inputs: tf.Tensor) -> Any:
        """The layer without its activation."""

    def affine_of_clipped(self, inputs: tf.Tensor) -> Any:
        """`affine` of the inputs as `input_rule` bounds them."""
        return self.affine(self.input_rule(inputs))

    def sensitivity(self) -> float:
        """L2 bound on what one use of the layer adds, per record, to the summed gradient of its kernel and bias."""
        return self.upstream_clip * math.hypot(self.input_clip, float(bool(self.use_bias)))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        inputs = self.begin_use(inputs)
        outputs = self.end_use(inputs, bound_upstream(self.affine_of_clipped(inputs), self.upstream_rule))
        # Outside the bound: an activation may be anything that keeps records apart.
        return outputs if self.activation is None else self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"input_clip": self.input_clip, "upstream_clip": self.upstream_clip}


class UpstreamBoundedLayer(CountedLayer):
    """Mixin for a Keras layer whose weight gradient is bounded by a clip on the way back alone: the forward pass is
    that of Keras.

    Formal guarantee: as `BoundedLayer`; the bound is `upstream_clip` for each time the layer is used.

    Args (keyword only, beside those of the Keras layer):
        upstream_clip: bound on what each record adds to the gradient of all trainable weights of the layer, in units
            of per-record loss per unit of weight. The loss is the record's own: never divided by the batch size.

    Raises:
        ValueError: if the clip is not a positive finite number; if the layer computes in another type than float32,
            has LoRA enabled or is quantized.
    """

    def __init__(self, *args: Any, upstream_clip: float, **kwargs: Any) -> None:
        check_bound(upstream_clip=upstream_clip)
        super().__init__(*args, **kwargs)
        self.upstream_clip = float(upstream_clip)

    def sensitivity(self) -> float:
        """L2 bound on what one use of the layer adds, per record, to the summed gradient of its weights."""
        return self.upstream_clip

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"upstream_clip": self.upstream_clip}


class AffineLayer(BoundedLayer):
    """A bounded layer whose output, before the activation, is linear in its input, apart from a bias."""

    @abc.abstractmethod
    def linear(self, inputs: tf.Tensor) -> Any:
        """The layer without bias and activation."""

    @abc.abstractmethod
    def add_bias(self, outputs: tf.Tensor) -> Any:
        """The outputs with the bias, if there is one."""

    def affine(self, inputs: tf.Tensor) -> Any:
        return self.add_bias(self.linear(inputs))

    def affine_of_clipped(self, inputs: tf.Tensor) -> Any:
        """`affine` of the clipped inputs, each record's scale s put where there are fewer numbers to multiply.

        linear(s x) = s linear(x), and the gradient of the kernel, linear in x and in the upstream gradient v, is the
        same of (s x, v) as of (x, s v). Rounding errs alike: s is off as before, and each number that s multiplies is
        rounded once, relative to its size, whichever factor it is of; `SMALLEST_SCALE` keeps it from the denormals.
        The products that are summed have the same sizes as before, at most those of the clipped factors, so no record
        is rounded away by, or overflows into, another's.
        """
        scales = tf.stop_gradient(self.input_rule.scales(inputs))
        entries, results = (size(shape[1:]) for shape in (inputs.shape, self.compute_output_shape(inputs.shape)))
        if entries is None or results is None or 2 * results > entries:
            return self.affine(scale_rows(inputs, scales))
        return self.add_bias(scale_rows(self.linear(select_rows(inputs, scales)), scales))


def size(shape: Iterable[int | None]) -> int | None:
    """The number of entries, None if a dimension is not known."""
    sizes = tuple(shape)
    known = [n for n in sizes if n is not None]
    return None if len(known) < len(sizes) else math.prod(known)
