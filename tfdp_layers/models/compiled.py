"""What XLA cannot compile of a step, refused before anything is traced."""

from typing import Any

from tfdp_layers.batches.base import Batches

__all__ = ["refuse_uncompiled"]


def refuse_uncompiled(model: Any, batches: Batches) -> None:
    """Raises ValueError where the model is compiled by XLA, and its noise source or its pieces cannot be."""
    optimizer = model.optimizer
    if not optimizer.noise_source.compiles:
        raise ValueError(
            f"{type(optimizer.noise_source).__name__} draws outside of the compiled graph, which XLA cannot"
            " do. Compile the model with jit_compile=False, or use noise_source='default'."
        )
    if batches.piece == 1 and batches.rows_each == 1 and optimizer.bounding is not None and optimizer.bounding.chunked:
        raise ValueError(
            f"{type(optimizer).__name__} cannot be compiled by XLA where each record is a piece of its own: XLA ends"
            " the step in an InternalError. Compile the model with jit_compile=False, or give fit"
            " physical_batch_size=2 or more."
        )
