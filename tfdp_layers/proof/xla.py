"""What XLA compiles, and which of its kernels give a record other numbers where other records stand beside it."""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf

__all__ = ["TURNED", "clusters", "is_compiled"]

TURNED = {"SelfAdjointEigV2": "compute_v", "Svd": "compute_uv"}
"""Operations whose vectors XLA finds by rounds over the matrices of all records together, and the attribute that asks
for the vectors. Those of equal values, which matrices of low rank have, are not determined: XLA turns them by more than
0.5 with one record more, and TensorFlow's own kernels, which take each matrix by itself, do not: see
`tests/proof/test_xla.py` (TensorFlow 2.21). QR, Cholesky, inverses and solvers moved by 0."""


def clusters() -> bool:
    """Whether TensorFlow lets XLA compile parts of steps that nobody asked it to compile."""
    told = re.search(r"tf_xla_auto_jit=(?!0|-1)", os.environ.get("TF_XLA_FLAGS", ""))
    return bool(told or tf.config.optimizer.get_jit())


def is_compiled(function: Any) -> bool:
    """Whether XLA compiles a `ConcreteFunction`, or may compile parts of it; of a graph alone that is not known."""
    asked = "_XlaMustCompile" in getattr(getattr(function, "function_def", None), "attr", ())
    return (asked and function.function_def.attr["_XlaMustCompile"].b) or clusters()
