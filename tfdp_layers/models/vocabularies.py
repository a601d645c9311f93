"""Vocabularies of a model that are the words of the very records that it is trained on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.batches.texts import is_text
from tfdp_layers.caller import warn
from tfdp_layers.certificates.constants import named_by

__all__ = ["units_in", "warn_of_vocabularies"]

_FEWEST, _ALONE, _FOUND = 8, 0.5, 0.95
_MOST, _MOST_TEXTS, _LETTERS = 1_000_000, 100_000, 20_000_000
"""Entries of an array, and texts and bytes that are taken apart: more are not looked at, which would take seconds."""


def warn_of_vocabularies(model: Any, inputs: Sequence[np.ndarray], units: np.ndarray | None = None) -> None:
    """Warns of a lookup layer whose vocabulary was copied from these records.

    That is one of which nearly all words occur in the records, and half of them, 8 at least, in a single record each
    (or unit). Nothing is said of words that many records share, as those are that `tfdp.preprocessing.vocabulary`
    releases; of public lists with words that no record has; nor of whole numbers without a gap. Not noticed: words that
    were changed on the way to the layer, and those of more than a million entries, of 100,000 texts or 20 MB of text.

    Args:
        inputs: the arrays of x, (records, ...); none where they are not looked at.
        units: (records,) numbers of whoever a record belongs to; None where each belongs to another.
    """
    for layer in _lookups(model):
        words = layer.get_vocabulary(include_special_tokens=False) if layer.vocabulary_size() <= 2 * _MOST else []
        if len(words) < _FEWEST or _is_range(words):
            continue
        if any(_copied(words, *entries, units) for one in inputs if (entries := _entries(layer, one)) is not None):
            whom = "record" if units is None else "unit"
            warn(
                f"Layer {layer.name!r} ({type(layer).__name__}): its vocabulary of {len(words):,} seems to be copied"
                f" from these records, and half of it or more occurs in one {whom} alone. It is released with the"
                " model, word by word, and no epsilon covers that. Find words that many share, with noise:"
                " tfdp.preprocessing.vocabulary (docs/data.md); number all words that there may be, which keeps none:"
                " keras.layers.Hashing; or take a public list. Where it is one, nothing is lost."
            )
            return


def units_in(model: Any) -> np.ndarray | None:
    """Whose each record is in the training that a model is in: (records,) numbers; None where they are one each."""
    run = getattr(getattr(model, "_privacy", None), "run", None)
    units = getattr(getattr(run, "batches", None), "_units", None)
    return None if units is None else units.positions


def _lookups(model: Any) -> Iterator[Any]:
    """The layers that look words up, those that the function of a Lambda names among them."""
    kl = keras.layers
    for own in model._flatten_layers():
        for layer in (own, *named_by(own)):
            if isinstance(layer, kl.StringLookup | kl.IntegerLookup | kl.TextVectorization):
                yield layer


def _is_range(words: Sequence[Any]) -> bool:
    """Whether they are whole numbers without a gap, which nobody needs records for."""
    return isinstance(words[0], int | np.integer) and len(words) == max(words) - min(words) + 1


def _entries(layer: Any, array: np.ndarray) -> tuple[list[Any], np.ndarray] | None:
    """The words that a layer would find in an array, and of which record each is; None where it takes no such array."""
    if not 0 < array.size <= _MOST:
        return None
    if isinstance(layer, keras.layers.IntegerLookup):
        return (array.ravel().tolist(), _rows(array)) if array.dtype.kind in "iuf" else None
    if not is_text(array):
        return None
    texts = [one.encode() if isinstance(one, str) else bytes(one) for one in array.ravel().tolist()]
    if isinstance(layer, keras.layers.TextVectorization):
        return _split(layer, array.shape, texts)
    return texts, _rows(array)


def _rows(array: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(array)), array.size // len(array))


def _split(layer: Any, shape: tuple[int, ...], texts: list[bytes]) -> tuple[list[Any], np.ndarray] | None:
    """The words that a layer makes of texts, as it makes them; None for too much text, or where it splits otherwise."""
    if not hasattr(layer, "_preprocess") or len(texts) > _MOST_TEXTS or sum(map(len, texts)) > _LETTERS:
        return None
    with tf.device("CPU:0"):
        found = layer._preprocess(tf.reshape(tf.constant(texts), shape))
    if isinstance(found, tf.RaggedTensor):
        return (found.values.numpy().tolist(), found.value_rowids().numpy()) if found.ragged_rank == 1 else None
    found = found.numpy()
    return found.ravel().tolist(), _rows(found)


def _copied(words: Sequence[Any], entries: list[Any], rows: np.ndarray, units: np.ndarray | None) -> bool:
    """Whether nearly all words occur, and half of them in one record or unit alone."""
    owners = rows if units is None else units[rows]
    if len(np.unique(owners)) == len(entries):
        counts = Counter(entries)
    else:
        counts = Counter(word for _, word in set(zip(owners.tolist(), entries, strict=True)))
    found = [counts[word] for one in words if (word := one.encode() if isinstance(one, str) else one) in counts]
    return len(found) >= _FOUND * len(words) and found.count(1) >= max(_FEWEST, _ALONE * len(words))
