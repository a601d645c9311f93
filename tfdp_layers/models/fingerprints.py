"""What variables held at one moment, and the learning rate: they are compared around hooks."""

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["Held", "Rate", "held_of"]

_NO_VALUES = {tf.resource, tf.variant}
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
        variables: these.
    """

    def __init__(self, tensors: Sequence[Any], in_memory: bool, variables: Sequence[Any] = ()) -> None:
        self._tensors, self._in_memory, self._variables = tensors, in_memory, variables

    def changed_from(self, other: "Held") -> list[Any]:
        """The variables that hold other bits than at that moment; of other variables than then, none."""
        if len(self._tensors) != len(other._tensors):
            return []
        each = zip(self._variables, self._tensors, other._tensors, strict=True)
        return [one for one, now, then in each if now is not then and not _equal_bytes(now, then)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return NotImplemented
        places = list(zip(self._places, other._places, strict=True))
        if not self._in_memory:
            return all(here and here == there for here, there in places) or _equal(self._tensors, other._tensors)
        both = zip(places, self._tensors, other._tensors, strict=True)
        return all((here and here == there) or _equal_bytes(a, b) for (here, there), a, b in both)

    @functools.cached_property
    def _places(self) -> list[int]:
        """Where the numbers lie; 0 where that is not known."""
        return list(map(_place if self._in_memory else _place_on_gpu, self._tensors))

    def followed(self, entered: "Held", left: "Held", those: Callable[[Any], bool]) -> "Held":
        """This moment, but for what those variables hold that changed between two later ones, and not before these."""
        each = zip(self._variables, self._tensors, entered._tensors, left._tensors, strict=True)
        return Held(
            [there if those(one) and _equal_bytes(then, here) else then for one, then, here, there in each],
            self._in_memory,
            self._variables,
        )

    __hash__ = None  # type: ignore[assignment]


def held_of(*groups: Iterable[Any]) -> Callable[[], tuple[Held, ...]]:
    """A function that says what groups of variables of TensorFlow hold as it is called, one `Held` for each.

    Of replicas, every copy.
    """
    copied = [[copy for one in each for copy in _copies(one)] for each in groups]
    every = [one for each in copied for one in each]
    ends = list(itertools.accumulate(map(len, copied)))

    def read() -> list[tf.Tensor]:
        return [_read(one) for one in every]

    traced = tf.function(read, autograph=False).get_concrete_function() if len(every) > _FEW else read
    in_memory = _in_memory(traced())  # no variable moves

    def look() -> tuple[Held, ...]:
        found = traced()
        each = zip(copied, ends, strict=True)
        return tuple(Held(found[end - len(of) : end], in_memory, of) for of, end in each)

    return look


class Rate:
    """Says, called with a private optimizer, what changes with its learning rate, a variable or a schedule."""

    def __init__(self) -> None:
        self._held: Any = None
        self._look: Callable[[], tuple[Held, ...]] | None = None

    def __call__(self, optimizer: Any) -> Any:
        rate = optimizer.inner_optimizer._learning_rate
        held = getattr(rate, "value", rate)  # a Keras variable's
        if held is not self._held:
            self._held, self._look = held, held_of([held]) if hasattr(held, "handle") else None
        return id(held) if self._look is None else self._look()[0]


def _copies(variable: Any) -> list[Any]:
    return [one for one in getattr(variable, "values", [variable]) if one.dtype not in _NO_VALUES]


def _read(variable: Any) -> tf.Tensor:
    # The operation alone: small networks wait for it.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _in_memory(tensors: Sequence[Any]) -> bool:
    return all("CPU" in one.backing_device for one in tensors)


def _place(tensor: Any) -> int:
    if tensor.dtype == tf.string:  # TensorFlow makes another list of texts for whoever asks
        return 0
    try:
        return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])
    except (ValueError, TypeError):  # of types that NumPy does not know
        return 0


def _place_on_gpu(tensor: Any) -> int:
    """The first field of what DLPack's capsule points to; nothing is copied, or waited for."""
    try:
        capsule = tf.experimental.dlpack.to_dlpack(tensor)
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError):  # of types that DLPack does not know
        return 0
    managed = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))
    return managed[0] or 0


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _equal_bytes(a: Any, b: Any) -> bool:
    if a.dtype == tf.string:
        return bool(np.array_equal(a.numpy(), b.numpy()))
    return bool(a.numpy().tobytes() == b.numpy().tobytes())


def _equal(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Compares where the numbers are, all in one call: on a GPU each operation by itself is waited for."""
    try:
        return bool(_equal_bits(list(these), list(those)))
    except (tf.errors.InvalidArgumentError, KeyError, TypeError, ValueError):  # of types without bits that are shown
        return all(map(_equal_bytes, these, those))


@tf.function(autograph=False, reduce_retracing=True)
def _equal_bits(these: list[Any], those: list[Any]) -> Any:
    return tf.reduce_all([tf.reduce_all(_bits(a) == _bits(b)) for a, b in zip(these, those, strict=True)])


def _bits(tensor: Any) -> Any:
    return tensor if tensor.dtype == tf.bool else tf.bitcast(tensor, _BITS[tensor.dtype.size])
