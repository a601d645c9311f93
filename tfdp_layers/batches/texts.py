"""Records that hold strings: what counts as text, rows without any, and how they go to TensorFlow."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["bytes_of", "is_text", "no_rows", "text_tensors"]


def is_text(array: np.ndarray) -> bool:
    """Whether all entries are strings, of which TensorFlow makes one string each; bytes are taken as they are."""
    if array.dtype.kind in "US":
        return True
    return array.dtype.kind == "O" and array.size > 0 and all(isinstance(one, str | bytes) for one in array.flat)


def no_rows(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What padding holds: zeros, and empty strings."""
    return np.full(shape, b"", dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def bytes_of(array: np.ndarray) -> bytes:
    """What the array holds, for digests: of objects the strings, not where they lie."""
    if array.dtype.kind != "O":
        return array.tobytes()
    entries = [one.encode() if isinstance(one, str) else bytes(one) for one in array.flat]
    return b"".join(len(one).to_bytes(8, "little") + one for one in entries)


def text_tensors(structure: Any) -> Any:
    """The structure with tensors in the place of NumPy's arrays of strings, which Keras' `predict` does not take."""

    def convert(leaf: Any) -> Any:
        return tf.constant(leaf) if isinstance(leaf, np.ndarray) and is_text(leaf) else leaf

    return keras.tree.map_structure(convert, structure)
