"""Whether strings go where a model takes strings, said before anything is spent."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.records import leaves_by_name
from tfdp_layers.models.inputs import matched

_NUMBERS = (
    "Turn words into numbers before fit, with words that are known beforehand: run StringLookup or TextVectorization on"
    " the data; or inside of the model, behind keras.Input(..., dtype='string'), with them as vocabulary=, not the"
    " words of these records (docs/recipe_text.md, docs/recipe_tabular.md)."
)


def check_texts(model: keras.Model, x: Any) -> None:
    """Raises ValueError for strings where the model takes numbers, numbers where it takes strings, and strings in XLA.

    Args:
        x: `tf.TensorSpec` of the records, in the structure that `fit` got.
    """
    check_lookups(model)
    texts = [name for name, spec in leaves_by_name("x", x) if spec.dtype == tf.string]
    if texts and model.jit_compile:
        raise ValueError(
            f"{texts[0]} holds strings, and jit_compile=True compiles the model by XLA, which knows none. Compile it"
            " with jit_compile=False, or run the lookup on the data before fit."
        )
    if texts and not model.built and isinstance(model, keras.Sequential):
        raise ValueError(
            f"{texts[0]} holds strings, and model {model.name!r} does not say that it takes any: Keras would take its"
            " input for numbers. Begin it with keras.Input(shape, dtype='string'), where its first layer looks words"
            f" up. {_NUMBERS}"
        )
    for name, spec, taken in matched(model, x):
        wanted = keras.backend.standardize_dtype(taken.dtype)
        if spec.dtype == tf.string and wanted != "string":
            raise ValueError(
                f"{name} holds strings, and the model takes {wanted} there. Numbers that were read as strings become"
                f" numbers again by {name}.astype('{wanted}'). {_NUMBERS}"
            )
        if spec.dtype != tf.string and wanted == "string":
            raise ValueError(
                f"{name} holds {spec.dtype.name} numbers, and the model takes strings there. Give strings:"
                f" {name}.astype(str), if that writes them as its vocabulary does."
            )


def check_lookups(model: keras.Model) -> None:
    """Raises ValueError for a layer that is to look words up and has none yet, or that fills up to the longest text."""
    kl = keras.layers
    for layer in model._flatten_layers():
        if not isinstance(layer, kl.StringLookup | kl.IntegerLookup | kl.TextVectorization):
            continue
        ragged = isinstance(layer, kl.TextVectorization) and layer._output_mode == "int"
        if ragged and not layer._output_sequence_length:
            raise ValueError(
                f"Layer {layer.name!r} (TextVectorization) fills each text up to the longest of the batch, so what a"
                " record becomes depends on others. Give it a number of words:"
                " TextVectorization(..., output_sequence_length=64)."
            )
        if not layer.get_vocabulary(include_special_tokens=False):
            raise ValueError(
                f"Layer {layer.name!r} ({type(layer).__name__}) has no vocabulary yet. Give it the words that are known"
                " beforehand, vocabulary=[...], not the words of these records; or words found with noise:"
                " tfdp.preprocessing.vocabulary (docs/data.md). What adapt() learns of private records is released with"
                " the model, without noise."
            )
