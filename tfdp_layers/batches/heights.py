"""How many rows a batch is filled up to."""

from typing import Any

import tensorflow as tf

__all__ = ["PANEL", "filled", "in_pieces"]

PANEL = 24
"""Rows that fill the blocks of TensorFlow's kernels.

A kernel multiplies blocks of 4, 6, 8, 12, 16 or 24 rows, by its library and the processor's instructions; what is left
goes through other code, which rounds otherwise. Then how many records are drawn changes the last bits of all that lie
in a last block. In whole panels each row was computed alike, but for products so large that their size decides how they
are computed (of 784 x 1024 numbers and more, from 97 rows on). Source: `benchmarks/blank_records.py`, whose results
docs/guarantee.md has.
"""


def filled(rows: Any, multiple: int) -> Any:
    """The least multiple that is no less than `rows` (int or integer tensor)."""
    return -(-rows // multiple) * multiple


def in_pieces(rows: Any, panel: int, piece: int | None) -> Any:
    """The rows of a batch that is computed in pieces: whole ones, and a last one of whole panels, or whole itself."""
    if piece is None:
        return filled(rows, panel)
    last = rows % piece
    smallest = tf.minimum if tf.is_tensor(rows) else min
    return rows - last + smallest(filled(last, panel), piece)
