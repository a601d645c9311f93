"""Keras layers that bound each record's influence in their own backward pass."""

from tfdp_layers.calls import explain
from tfdp_layers.layers.attention import ClippedMultiHeadAttention
from tfdp_layers.layers.base import BoundedLayer
from tfdp_layers.layers.conv import ClippedConv1D, ClippedConv2D, ClippedConv3D, ClippedDepthwiseConv2D
from tfdp_layers.layers.dense import ClippedDense
from tfdp_layers.layers.direct_feedback import DirectFeedback
from tfdp_layers.layers.dp_centering import DPCentering
from tfdp_layers.layers.dp_pca import DPPCA
from tfdp_layers.layers.dp_whitening import DPWhitening
from tfdp_layers.layers.einsum import ClippedEinsumDense
from tfdp_layers.layers.embedding import ClippedEmbedding
from tfdp_layers.layers.feedback_dense import FeedbackDense, FeedbackOutput
from tfdp_layers.layers.feedback_stack import FeedbackStack
from tfdp_layers.layers.gradient_filter import GradientFilter
from tfdp_layers.layers.lipschitz import GroupSort, LipschitzConv2D, LipschitzDense
from tfdp_layers.layers.normalization import ClippedGroupNormalization, ClippedLayerNormalization
from tfdp_layers.layers.orthogonal import Orthogonal
from tfdp_layers.layers.private_normalization import PrivateNormalization
from tfdp_layers.layers.random_filters import RandomFilters2D
from tfdp_layers.layers.scattering import Scattering2D

__all__ = [
    "DPPCA",
    "BoundedLayer",
    "ClippedConv1D",
    "ClippedConv2D",
    "ClippedConv3D",
    "ClippedDense",
    "ClippedDepthwiseConv2D",
    "ClippedEinsumDense",
    "ClippedEmbedding",
    "ClippedGroupNormalization",
    "ClippedLayerNormalization",
    "ClippedMultiHeadAttention",
    "DPCentering",
    "DPWhitening",
    "DirectFeedback",
    "FeedbackDense",
    "FeedbackOutput",
    "FeedbackStack",
    "GradientFilter",
    "GroupSort",
    "LipschitzConv2D",
    "LipschitzDense",
    "Orthogonal",
    "PrivateNormalization",
    "RandomFilters2D",
    "Scattering2D",
]

explain(globals(), __all__)
