"""How a Keras model is put together: containers that only pass tensors on, its inputs and outputs, and our mixins."""

import functools
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

import keras
import tensorflow as tf

from tfdp_layers.instances import replaced


def refuse_old_versions() -> None:
    """Raises ImportError where Keras 3.10 on TensorFlow 2.16, or later ones, is not what runs: training needs both.

    Keras before 3.8 makes its steps in other ways, and LoRA's scale came with a later one.
    """
    versions = [tuple(int(n) for n in one.__version__.split(".")[:2]) for one in (keras, tf)]
    backend = keras.backend.backend()
    if versions[0] >= (3, 10) and versions[1] >= (2, 16) and backend == "tensorflow":
        return
    raise ImportError(
        f"Keras {keras.__version__} on {backend} (TensorFlow {tf.__version__}) is here, and training, layers and"
        " optimizers of tfdp_layers need Keras 3.10 on TensorFlow 2.16, or later ones: pip install -U"
        " 'tensorflow>=2.16' 'keras>=3.10', and leave KERAS_BACKEND at 'tensorflow'. What works as it is:"
        " tfdp_layers.accounting, tfdp_layers.sampling, tfdp_layers.callbacks, tfdp_layers.tf_privacy"
        " (tensorflow-privacy's own models, on Keras 2), and the commands tfdp epsilon and tfdp calibrate."
    )


refuse_old_versions()

SEEDS = "seed_generator"
"""In the path of every variable from which Keras makes random numbers."""

if TYPE_CHECKING:
    KerasMixin = Any
else:

    class KerasMixin:
        """Says that the class is to be mixed with a Keras layer or model, whose attributes it uses.

        It derives from nothing at run time, and for type checkers from the Keras class to come.
        """


@functools.cache
def functional_class() -> type:
    """Keras' class of functional models, which it does not export."""
    tensor = keras.Input(())
    return type(keras.Model(tensor, keras.layers.Identity()(tensor)))


def held_by(variable: keras.Variable) -> Any:
    """The object that holds a Keras variable's numbers: layers tied behind Keras' back share it."""
    held = getattr(variable, "_value", None)
    return variable if held is None else held


def variables_held(layer: keras.layers.Layer) -> list[Any]:
    """The variables of Keras or TensorFlow that a layer itself has as attributes, also in lists, dicts and modules.

    And in objects of the caller's own classes. Keras lists those that it made; files of `export` hold all of them. Left
    out are those of layers inside, of metrics and of optimizers, and what functions name.
    """
    found, seen, left = list[Any](), set[int](), list(vars(layer).values())
    while left:
        one = left.pop()
        if isinstance(one, _PLAIN) or id(one) in seen or isinstance(one, _PARTS):
            continue
        seen.add(id(one))
        if isinstance(one, tf.Variable | keras.Variable):
            found.append(one)
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set):
            left.extend(one)  # Keras wraps tuples, and a list plus such a one is an error
        elif isinstance(one, tf.__internal__.tracking.AutoTrackable) or _is_inside(one):
            left += vars(one).values()
    return found


_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_PARTS = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)


def _is_inside(one: Any) -> bool:
    """Whether it is an object of a caller's own class, and not around the layer: then it has other parts, or a model.

    What derives from a class of Keras or TensorFlow (a regularizer, a loss) is a part by itself.
    """
    held, kind = getattr(one, "__dict__", None), cast(Hashable, type(one))
    return type(held) is dict and _is_of_callers(kind) and not any(isinstance(v, _PARTS) for v in held.values())


@functools.lru_cache(1024)
def _is_of_callers(kind: Any) -> bool:
    tops = [str(base.__module__).partition(".")[0] for base in kind.__mro__]
    return tops[0] not in sys.stdlib_module_names and not {"keras", "tensorflow", "tfdp_layers"}.intersection(tops)


def trained_weights(layer: keras.layers.Layer) -> list[Any]:
    """The weights inside a layer that a model around it trains.

    Keras goes by each variable's own flag: a layer that was unfrozen inside a frozen one is trained.
    """
    return [v for v in layer.variables if v.trainable]


def is_container(layer: keras.layers.Layer) -> bool:
    """Whether the layer is a Sequential or functional model whose call only passes tensors from layer to layer."""
    base: Any = keras.Sequential if isinstance(layer, keras.Sequential) else functional_class()
    kind: Any = type(layer)
    return isinstance(layer, base) and kind.call is base.call


def own_way(container: Any) -> list[str]:
    """The methods by which a call of a Sequential or functional model may do more than its graph says.

    Such as somebody wrote or put there: in a class of their own, on the model, or on the graph that a Sequential keeps.
    """
    graph = container._functional if isinstance(container, keras.Sequential) else None
    found: set[str] = set()
    for one in (container,) if graph is None else (container, graph):
        kind: Any = type(one)
        found |= _written(kind) | {name for name in replaced(one) if _leads(name)}
    return sorted(found)


_WAY = {"call", "quantized_call", "inputs", "outputs", "operations", "__call__", "__getattribute__"}
"""What a call goes through; beside them the names with one underscore, which Keras keeps for itself."""


def _leads(name: str) -> bool:
    return name in _WAY or (name.startswith("_") and not name.startswith("__") and name in _known())


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(dir(functional_class()))


@functools.lru_cache(1024)
def _written(kind: Any) -> frozenset[str]:
    """Those names, known to Keras' class of functional models, that another library's class has taken over."""
    others = [one for one in kind.__mro__ if one.__module__.split(".")[0] not in LIBRARIES]
    return frozenset(name for one in others for name in vars(one) if _leads(name) and name in _known())


LIBRARIES = ("tfdp_layers", "keras", "tensorflow", "builtins")


def inputs_of(model: keras.Model) -> Any:
    """The symbolic inputs of a built model, in the structure that its call takes."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else plain(model.input)


def outputs_of(model: keras.Model) -> Any:
    """The symbolic outputs of a built model, in the structure that its call returns."""
    return model.outputs[0] if isinstance(model, keras.Sequential) else plain(model.output)


def plain(structure: Any) -> Any:
    """Dicts and lists of Keras' own classes as plain ones.

    `FeatureSpace` gives such a dict as the inputs of a model, which then warns of every other dict that it is given.
    """
    if isinstance(structure, dict):
        return {name: plain(part) for name, part in structure.items()}
    return [plain(part) for part in structure] if isinstance(structure, list) else structure
