"""What XLA compiles, and which of its kernels give a record other numbers where other records stand beside it."""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf

__all__ = ["TOGETHER", "clusters", "is_compiled"]

TOGETHER = frozenset({"SelfAdjointEigV2", "Svd"})
"""Operations of which XLA decides by the matrices of all records together how many rounds it goes: what one of them
needs all get. Vectors of equal values, which matrices of low rank have, turn by more than 0.5 with one record more, and
small eigenvalues beside large ones (channels of very different units) are found by more or fewer digits. TensorFlow's
own kernels take each matrix by itself: see `tests/proof/test_xla.py` (TensorFlow 2.21). What goes a number of rounds
that shapes alone decide is each record's own: QR, Cholesky, inverses and solvers moved by 0."""


def clusters() -> bool:
    """Whether TensorFlow lets XLA compile parts of steps that nobody asked it to compile."""
    told = re.search(r"tf_xla_auto_jit=(?!0|-1)", os.environ.get("TF_XLA_FLAGS", ""))
    return bool(told or tf.config.optimizer.get_jit())


def is_compiled(function: Any) -> bool:
    """Whether XLA compiles a `ConcreteFunction`, or may compile parts of it; of a graph alone that is not known."""
    asked = "_XlaMustCompile" in getattr(getattr(function, "function_def", None), "attr", ())
    return (asked and function.function_def.attr["_XlaMustCompile"].b) or clusters()
