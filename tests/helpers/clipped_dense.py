"""A clipped dense layer, and the clips that it has where a test names no others."""

from typing import Any

from tfdp_layers.layers import ClippedDense

CLIPS = {"input_clip": 2.0, "upstream_clip": 0.5}


def dense(units: int = 3, **options: Any) -> ClippedDense:
    return ClippedDense(units, **(CLIPS | options))
