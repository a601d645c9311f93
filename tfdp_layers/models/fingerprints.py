"""What variables held at one moment, and the learning rate: they are compared around hooks."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["Held", "held_of", "rate_of"]

_NO_NUMBERS = {tf.string, tf.resource, tf.variant}
_FEW = 16  # variables that are read as fast one by one as by a traced function
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


class Held:
    """What variables held at one moment: equal to what they hold at another one if no bit of them differs.

    Nothing is copied, nor read number by number: TensorFlow writes into no tensor that anybody has, so a variable that
    was written to since lies elsewhere in memory. Only then, and on GPUs, are the bits compared. It is asked for around
    every hook: a variable takes a few microseconds, however large it is.

    Nobody should keep one while steps are made: each would have to move what it writes to.

    Args:
        tensors: what was read of variables.
        in_memory: whether all lie in the computer's own memory, not on a GPU.
    """

    def __init__(self, tensors: Sequence[Any], in_memory: bool) -> None:
        self._tensors, self._in_memory = tensors, in_memory

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return NotImplemented
        if not self._in_memory:
            return all(map(_equal_bits, self._tensors, other._tensors))
        both = zip(self._places, other._places, self._tensors, other._tensors, strict=True)
        return all((here and here == there) or _equal_bytes(a, b) for here, there, a, b in both)

    @functools.cached_property
    def _places(self) -> list[int]:
        """Where the numbers lie; 0 where that is not known."""
        return [_place(one) for one in self._tensors]

    __hash__ = None  # type: ignore[assignment]


def held_of(variables: Iterable[Any], beside: Iterable[Any] = ()) -> Callable[[], tuple[Held, Held]]:
    """A function that says what variables of TensorFlow, and others beside them, hold as it is called.

    Of replicas, every copy.
    """
    first, others = ([copy for one in each for copy in _copies(one)] for each in (variables, beside))
    both, count = [*first, *others], len(first)

    def read() -> list[tf.Tensor]:
        return [_read(one) for one in both]

    traced = tf.function(read, autograph=False).get_concrete_function() if len(both) > _FEW else read
    in_memory = _in_memory(traced())  # no variable moves

    def look() -> tuple[Held, Held]:
        found = traced()
        return Held(found[:count], in_memory), Held(found[count:], in_memory)

    return look


def rate_of(optimizer: Any) -> Any:
    """A value that changes with the learning rate of a private optimizer, a variable or a schedule."""
    rate = optimizer.inner_optimizer._learning_rate
    held = getattr(rate, "value", rate)  # a Keras variable's
    return held_of([held])()[0] if hasattr(held, "handle") else id(rate)


def _copies(variable: Any) -> list[Any]:
    return [one for one in getattr(variable, "values", [variable]) if one.dtype not in _NO_NUMBERS]


def _read(variable: Any) -> tf.Tensor:
    # The operation alone: small networks wait for it.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _in_memory(tensors: Sequence[Any]) -> bool:
    return all("CPU" in one.backing_device for one in tensors)


def _place(tensor: Any) -> int:
    try:
        return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])
    except (ValueError, TypeError):  # of types that NumPy does not know
        return 0


def _equal_bytes(a: Any, b: Any) -> bool:
    return bool(a.numpy().tobytes() == b.numpy().tobytes())


def _equal_bits(a: Any, b: Any) -> bool:
    """Compares where the numbers are."""
    try:
        kind = _BITS[a.dtype.size]
        return bool(tf.reduce_all(tf.equal(tf.bitcast(a, kind), tf.bitcast(b, kind))))
    except tf.errors.InvalidArgumentError:  # of types that TensorFlow shows no bits of
        return _equal_bytes(a, b)
