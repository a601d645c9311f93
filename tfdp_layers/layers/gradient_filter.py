"""The identity whose backward pass filters the gradient."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.rules.entries import Clamp, EntryRule, Tanh
from tfdp_layers.structure import KerasMixin

_RULES: dict[str, type[EntryRule]] = {"tanh": Tanh, "clamp": Clamp}
"""What a saved layer may name; files name kinds from this list, never modules to import."""


@keras.saving.register_keras_serializable(package="tfdp_layers")
class GradientFilter(KerasMixin, keras.layers.Layer):
    """Passes its input through unchanged; on the way back, every entry of the gradient goes through `rule`.

    Forward: y = x. Backward: dL/dx = rule(dL/dy), entry by entry; NaN and infinity become zero. Whatever lies below
    then gets gradients of at most `rule.largest` an entry, so on the way back through many layers or time steps they
    cannot explode.

    It is a help for training and no privacy mechanism: it makes what flows back to the layers BELOW it small, each
    record's and each position's by itself, and bounds no sum of them. In a private model it changes no guarantee: it
    owns no weights, each record's gradient still depends on that record alone, and what bounds the layers' gradients
    (their own clips, or the optimizer's) acts behind it.

    Shapes: any, unchanged. A structure of tensors is filtered leaf by leaf; integers pass.
    In a recurrent cell, apply it to the states, and the gradient is filtered once for every step on its way back:

        class FilteredLSTMCell(keras.layers.LSTMCell):
            def __init__(self, units, **kwargs):
                super().__init__(units, **kwargs)
                self.filter = tfdp.layers.GradientFilter(tfdp.rules.Tanh())

            def call(self, inputs, states, training=False):
                return super().call(inputs, self.filter(states), training)

        keras.layers.RNN(FilteredLSTMCell(64))

    The units of the gradient are those of the loss as it is differentiated: `fit` of an ordinary Keras model divides by
    the batch size, a private model does not.

    Args:
        rule: `tfdp.rules.Tanh` (the paper's) or `tfdp.rules.Clamp`, or their names with default settings.
        name, dtype: as in Keras.

    Raises: ValueError for anything else.
    Source: "Improving the Algorithm of Deep Learning with Differential Privacy" (2021), section III, for recurrent
        networks.
    """

    def __init__(self, rule: EntryRule | str = "tanh", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        chosen: Any = _RULES[rule]() if isinstance(rule, str) and rule in _RULES else rule
        if type(chosen) not in _RULES.values():
            raise ValueError(
                "`rule` must be tfdp.rules.Tanh(...) or tfdp.rules.Clamp(...), which change each entry of a gradient by"
                f" itself, or one of {sorted(_RULES)}. Received: rule={rule!r}."
            )
        self.rule: EntryRule = chosen
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        return keras.tree.map_structure(lambda tensor: filter_gradient(tensor, self.rule), inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        (name,) = (name for name, kind in _RULES.items() if type(self.rule) is kind)
        return super().get_config() | {"rule": {"kind": name, **vars(self.rule)}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GradientFilter":
        rule = dict(config["rule"])
        return cls(**(config | {"rule": _RULES[rule.pop("kind")](**rule)}))


def filter_gradient(values: tf.Tensor, rule: EntryRule) -> Any:
    """The identity whose backward pass applies `rule`. It closes over no variable."""
    values = tf.convert_to_tensor(values)
    if not values.dtype.is_floating:
        return values

    @tf.custom_gradient
    def identity(inputs: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tf.identity(inputs), rule

    return identity(values)
