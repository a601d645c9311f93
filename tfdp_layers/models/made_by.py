"""Layers with learned constants that made the records of a training, before any model got them."""

from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.learned import layers_of
from tfdp_layers.caller import warn
from tfdp_layers.certificates.constants import refusal_of_constants

__all__ = ["warn_of_makers"]


def warn_of_makers(batches: Batches) -> None:
    """Warns where functions of a pipeline use layers that a model would be refused with: adapted, and not declared.

    Nothing is said of constants that were given as arguments, nor of those that `tfdp.public` declares. Not noticed:
    see `layers_of`.
    """
    found = [(around, why) for around, layer in layers_of(batches) if (why := refusal_of_constants(layer)) is not None]
    if not found:
        return
    names = list(dict.fromkeys(f"{layer.name!r} ({type(layer).__name__})" for layer, _ in found))
    warn(
        f"Functions on the way of these records use layer {' and '.join(names)}: {found[0][1]} No epsilon covers"
        " what one record did to all others there."
    )
