"""Keras layers that bound each record's influence in their own backward pass."""

from tfdp_layers.layers.base import BoundedLayer
from tfdp_layers.layers.conv import ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D
from tfdp_layers.layers.dense import ClippedDense
from tfdp_layers.layers.feedback_dense import FeedbackDense, FeedbackOutput
from tfdp_layers.layers.feedback_stack import FeedbackStack

__all__ = [
    "BoundedLayer",
    "ClippedConv1D",
    "ClippedConv2D",
    "ClippedConv3D",
    "ClippedDense",
    "ClippedDepthwiseConv2D",
    "FeedbackDense",
    "FeedbackOutput",
    "FeedbackStack",
]
