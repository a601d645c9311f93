"""Real numbers cast to integers of few bits: what is beyond the type becomes another one by its place in the batch.

TensorFlow's kernel for CPUs casts in vectors of 32 entries, and what is left over one by one. In vectors what is beyond
the type becomes its nearest number, 300.0 the byte 255; alone it goes around, to 44. What is no number (NaN) becomes
-128 or 0 in 8 bits with a sign. Of a batch, whether a record stands in a vector depends on how many there are.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.proof.reals import reals_of
from tfdp_layers.proof.settling import limits
from tfdp_layers.proof.values import MixedError, UnknownError

__all__ = ["BEYOND", "narrows", "require_within"]

BEYOND = "a real number beyond the type becomes another integer by its place in the batch"
_SAME_EVERYWHERE = (tf.int32, tf.int64, tf.uint64)
"""To which the kernels cast every number alike, wherever it stands: tests/proof/test_narrowing.py."""
_NAN_IS_ZERO = (tf.uint8, tf.uint16)


def narrows(before: tf.DType, after: tf.DType) -> bool:
    """Whether a cast between these types may give one number in a vector and another one alone."""
    whole = before.is_integer or before.is_bool
    return bool(after.is_integer and not whole and after not in _SAME_EVERYWHERE)


def require_within(node: Any) -> None:
    """Raises unless a cast gives every number that may come the same wherever it stands.

    Raises:
        MixedError: numbers beyond the type are not excluded.
        UnknownError: numbers are, and what is no number is not.
    """
    tensor, after = node.operation.inputs[0], node.dtype()
    if not narrows(tensor.dtype, after):
        return
    found, (least, most) = reals_of(node.prover.frames, node.frame, tensor), limits(after)
    if not least - 1 < found.low <= found.high < most + 1:
        raise MixedError(
            f"{BEYOND} (cast to {after.name}); clip it first, keras.ops.clip(x, {least}, {most}), or cast to 'int32'"
        )
    if found.nan and after not in _NAN_IS_ZERO:
        raise UnknownError(
            f"what is no number (NaN) becomes another integer by its place in the batch (cast to {after.name}); give"
            " numbers, keras.ops.nan_to_num(x), or cast to 'int32'"
        )
