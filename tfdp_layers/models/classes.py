"""Keras' own classes in model files: those that layers, models and what they are made of are saved as."""

import sys
from typing import Any

import keras
from keras.src.api_export import get_symbol_from_name

__all__ = ["CODE", "class_of_keras"]

CODE = frozenset({"Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer", "__lambda__"})
"""They hold code, or load it: byte code of Python, pickles of torch, graphs of TensorFlow and JAX."""


def class_of_keras(module: Any, name: Any) -> type | None:
    """The class of the installed Keras that a model file names so, or None.

    Guarantee: Keras itself defines it, and makes its objects from numbers, strings and other entries of the file, each
    of which is looked at by itself: it has a `from_config`, is none of `CODE`, and no operation but for layers (those
    are asked of `operation`). So layers, models, policies, quantizers and their configurations, generators of seeds and
    all else that Keras' `save` writes are loaded, whatever module they are in; a test goes over all that the installed
    Keras has, and sees that none loads code. No module is imported.
    """
    if not isinstance(module, str) or not isinstance(name, str) or module.split(".")[0] != "keras":
        return None
    found = get_symbol_from_name(f"{module}.{name}")
    if found is None and module in sys.modules:
        found = vars(sys.modules[module]).get(name)
    if not isinstance(found, type) or not hasattr(found, "from_config"):
        return None
    own = found.__module__.split(".")[0] == "keras" and found.__name__ not in CODE
    return found if own and (issubclass(found, keras.layers.Layer) or not issubclass(found, keras.Operation)) else None
