"""How often layers that bound themselves are used, and the refusal of uses that no bound covers."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

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
