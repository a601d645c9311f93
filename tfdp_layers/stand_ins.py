"""Stand-ins in Keras' registry, so that Keras loads our models after a mere `import tfdp_layers`.

Keras makes custom classes from its registry only, and a class is registered when its module is imported. We import
ours on first use, since accounting needs no TensorFlow. So once Keras is imported, before or after `tfdp_layers`, the
registry gets a stand-in for each of our classes, which imports the class when a file names it. Nothing of ours is
imported before that, so `import keras` inside of our own modules meets no circle. A class that is imported takes its
stand-in's place.
"""

import importlib
from typing import Any, ClassVar

import wrapt

__all__ = ["REGISTERED", "StandIn", "import_registered", "stand_in", "stand_in_once_keras_is_imported"]

# Every class under @keras.saving.register_keras_serializable(package="tfdp_layers"), and a module to get it from.
_CLASSES = {
    "tfdp_layers": ("PrivateModel", "PrivateSequential"),
    "tfdp_layers.activations": ("TemperedSigmoid",),
    "tfdp_layers.layers": (
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
        "DPPCA",
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
    ),
    "tfdp_layers.layers.einsum": ("FaithfulEinsumDense",),
    "tfdp_layers.optimizers": ("AdaDPOptimizer", "ClippedOptimizer", "NoisyOptimizer", "TanhFilteredOptimizer"),
}
REGISTERED = {f"tfdp_layers>{name}": (module, name) for module, names in _CLASSES.items() for name in names}
"""Where to import each class from, by the name that Keras knows it under."""


class StandIn:
    """What Keras finds under a registered name until the class itself is imported: makes objects of that class."""

    place: ClassVar[tuple[str, str]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An object of the class."""
        return _imported(*cls.place)(*args, **kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any], **kwargs: Any) -> Any:
        """An object of the class, from what its `get_config` returned."""
        return _imported(*cls.place).from_config(config, **kwargs)


def stand_in_once_keras_is_imported() -> None:
    """Calls `stand_in` as soon as Keras is imported: now, if it is already."""
    wrapt.register_post_import_hook(lambda keras: stand_in(), "keras")


def stand_in() -> None:
    """Puts a stand-in under each of our names that nothing is registered under. Imports Keras, and nothing of ours."""
    from keras.saving import get_custom_objects

    registry = get_custom_objects()
    for registered, (module, name) in REGISTERED.items():
        if registered not in registry:
            registry[registered] = type(name, (StandIn,), {"__module__": module, "place": (module, name)})


def import_registered() -> None:
    """Imports, and so registers, every class of ours that a model file may name."""
    for place in REGISTERED.values():
        _imported(*place)


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
