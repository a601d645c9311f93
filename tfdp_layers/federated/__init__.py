"""Distributed selective SGD: parties that do not share their data train one model. Importing it loads no TensorFlow."""

from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector, Update

__all__ = ["LargestValues", "RandomAboveThreshold", "SparseVector", "Update"]
