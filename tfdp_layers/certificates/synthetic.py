"""Made-up records and labels, on which a model is measured."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.certificates.lookups import hold_ids
from tfdp_layers.per_record.agreement import RANGES, Drawn
from tfdp_layers.per_record.losses import is_sparse
from tfdp_layers.per_record.registry import unshared
from tfdp_layers.structure import inputs_of

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

__all__ = ["drawn_from", "inputs_like", "on_valid_integers", "specs", "synthetic_inputs", "synthetic_labels"]

ROWS = 4
_INTEGERS = ((0, 100), (0, 2), (0, 1))
_integers = ContextVar("integers", default=_INTEGERS[0])
_MISSED = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")
_drawn: ContextVar[Drawn] = ContextVar("drawn", default=RANGES[0])


@contextlib.contextmanager
def drawn_from(drawn: Drawn) -> Iterator[None]:
    """Inside, the real numbers of `synthetic_inputs` are of this range (of `RANGES`)."""
    token = _drawn.set(drawn)
    try:
        yield
    finally:
        _drawn.reset(token)


def on_valid_integers(measured: Callable[[], Any]) -> Any:
    """What a measurement gives on `synthetic_inputs`; on other integers where these lie outside of what they index.

    First smaller ones: a place within a record, such as the length of a text, goes into no table that would tell how
    large it may be. Then others than zeros, which a model that counts from 1, or shifts its ids, does not take.
    Raises: what the measurement raises on zeros.
    """
    error: tf.errors.InvalidArgumentError | None = None
    for integers in _INTEGERS:
        try:
            return _on(integers, measured)
        except tf.errors.InvalidArgumentError as on_these:
            error = on_these
    assert error is not None
    for integers in _others(str(error)):
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            return _on(integers, measured)
    raise error


def _on(integers: tuple[int, int], measured: Callable[[], Any]) -> Any:
    """What a measurement gives on integers of this range: the smallest, and how many."""
    token = _integers.set(integers)
    try:
        return measured()
    finally:
        _integers.reset(token)


def _others(error: str) -> list[tuple[int, int]]:
    """Ranges of integers to draw where zeros are refused: TensorFlow's error may say where a zero was looked up."""
    told = [(-int(place), int(rows)) for place, rows in _MISSED.findall(error)[:1]]
    return [*told, *((1, count) for _, count in _INTEGERS)]


def specs(data: Any) -> Any:
    """The shapes and types of records, without their number; None where there is nothing, or the spec of nothing."""
    return keras.tree.map_structure(
        lambda t: tf.TensorSpec((None, *t.shape[1:]), t.dtype) if hasattr(t, "shape") else None, data
    )


def inputs_like(model: "PrivateTraining", x: Any) -> Any:
    """What the records look like: `x`, or the model's own inputs where it is None."""
    return keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), inputs_of(model)) if x is None else x


def synthetic_inputs(model: "PrivateTraining", x: Any, rows: int = ROWS, seed: int = 0, scale: float = 1.0) -> Any:
    """Random rows like `x`: normal numbers, or of `drawn_from`; integers, no more of them than the smallest vocabulary
    has; texts of known and unknown words.

    Given tensors are kept (first rows), if they have as many. Floating-point numbers that an embedding looks up lie
    within its table.
    """
    rng = np.random.default_rng(seed)
    limits = [rows for layer in model._flatten_layers() for rows in table_rows(layer)]
    leaves = keras.tree.flatten(x)

    def fill(spec: Any, looked_up: bool) -> tf.Tensor:
        if not isinstance(spec, tf.TensorSpec) and len(spec) >= rows:
            return tf.convert_to_tensor(spec[:rows])
        shape = [rows] + [8 if d is None else d for d in spec.shape[1:]]
        dtype = tf.as_dtype(spec.dtype)
        if dtype == tf.string:
            return random_texts(model, shape, rng)
        if dtype.is_floating and not looked_up:
            return tf.constant(_drawn.get()(scale * rng.normal(size=shape)), dtype)
        first, count = (0, 2) if dtype.is_bool else _integers.get()
        return tf.cast(tf.constant(rng.integers(first, first + min([*limits, count]), shape)), dtype)

    def filled(ids: Sequence[bool]) -> Any:
        return keras.tree.pack_sequence_as(x, [fill(*one) for one in zip(leaves, ids, strict=True)])

    ids = hold_ids(model, len(leaves))
    made = filled(ids)
    return filled([True] * len(leaves)) if limits and not all(ids) and looks_up(model, made) else made


def looks_up(model: "PrivateTraining", x: Any) -> bool:
    """Whether a layer of the user's own looks floating-point numbers up: those beyond every table end its call."""
    if not any(t.dtype.is_floating for t in keras.tree.flatten(x)):
        return False
    far = keras.tree.map_structure(lambda t: tf.fill(t.shape, tf.cast(1e6, t.dtype)) if t.dtype.is_floating else t, x)
    try:
        model(far, training=False)
    except tf.errors.InvalidArgumentError as error:
        return "is not in [0, " in str(error)
    return False


def table_rows(layer: Any) -> list[int]:
    """The rows of an embedding's table; of a layer of the user's own those of what may be one: its own matrices."""
    if isinstance(layer, keras.layers.Embedding):
        return [layer.input_dim]
    if isinstance(layer, keras.Model) or type(layer).__module__.startswith("keras."):
        return []
    return [v.shape[0] for v in unshared(layer) if len(v.shape) > 0 and v.shape[0] > 1]


def random_texts(model: "PrivateTraining", shape: Sequence[int], rng: np.random.Generator) -> tf.Tensor:
    """Texts of one to four words: those that layers of the model look up, and others."""
    known = [word for layer in model._flatten_layers() for word in words_of(layer)]
    words = np.array([*known[:100], "a", "unknown", "17"])
    counts = rng.integers(1, 5, shape)
    counts[rng.random(shape) < 0.5] = 1  # a layer that splits nothing knows single words alone
    texts = [" ".join(rng.choice(words, count)) for count in counts.flat]
    return tf.reshape(tf.constant(texts), shape)


def words_of(layer: keras.layers.Layer) -> list[str]:
    """The strings that a layer looks up; none of a layer that has none yet."""
    if isinstance(layer, keras.layers.StringLookup | keras.layers.TextVectorization):
        return [str(word) for word in layer.get_vocabulary()] if layer.vocabulary_size() else []
    return []


def output_shapes(model: "PrivateTraining", x: Any) -> list[Any]:
    """What has the shapes of the model's outputs, traced where that tells them: synthetic integers may not be valid."""
    traced = tf.function(functools.partial(model.__call__, training=True), autograph=False).get_concrete_function(x)
    outputs = keras.tree.flatten(traced.structured_outputs)
    known = all(t.shape.is_fully_defined() for t in outputs)
    return outputs if known else keras.tree.flatten(model(x, training=True))


def synthetic_labels(model: "PrivateTraining", x: Any, y: Any, seed: int = 1) -> Any:
    """Random labels like `y`; classes below the width of the output for integers, uniform numbers otherwise.

    Where `on_valid_integers` tries others than the first integers, these are fewer: a loss may look labels up, in a
    table of fewer rows than the model has outputs; or begin at 1.
    """
    rng = np.random.default_rng(seed)
    outputs = output_shapes(model, x)
    rows = len(keras.tree.flatten(x)[0])
    if y is None:
        sparse = [is_sparse(loss) for loss in model.compiled_losses]
        specs = zip(outputs, sparse, strict=True)
        y = [tf.TensorSpec(t.shape[:-1], tf.int64) if s else tf.TensorSpec(t.shape, tf.float32) for t, s in specs]
    leaves = keras.tree.flatten(y)

    def fill(spec: Any, output: tf.Tensor) -> tf.Tensor:
        if not isinstance(spec, tf.TensorSpec) and len(spec) >= rows:
            return tf.convert_to_tensor(spec[:rows])
        open_sizes = [*output.shape[1:], *[8] * len(spec.shape)]  # of labels with more axes, those that are not known
        shape = [rows] + [o if d is None else d for d, o in zip(spec.shape[1:], open_sizes, strict=False)]
        dtype = tf.as_dtype(spec.dtype)
        if dtype.is_integer or dtype.is_bool:
            same = len(shape) == len(output.shape) and shape[-1] == output.shape[-1]
            top = 2 if same or output.shape[-1] == 1 else output.shape[-1]
            first, count = _integers.get()
            first = min(first, max(0, top - 2))  # two at least: equal labels would show no mixing of labels
            return tf.cast(tf.constant(rng.integers(first, min(top, first + max(2, count)), shape)), dtype)
        return tf.constant(rng.uniform(size=shape), dtype)

    padded = outputs + outputs[-1:] * (len(leaves) - len(outputs))
    return keras.tree.pack_sequence_as(y, [fill(s, o) for s, o in zip(leaves, padded, strict=False)])
