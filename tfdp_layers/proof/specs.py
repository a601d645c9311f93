"""Shapes and types of what a traced function takes."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["flat_specs"]


def flat_specs(specs: Any, each: int) -> Any:
    """The shapes and types of the rows of such batches, of any number."""
    if each == 1:
        return specs
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else tf.TensorSpec((None, *leaf.shape[2:]), leaf.dtype), specs
    )
