"""Features of records by a public prefix of a model, computed once instead of in every step."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.footprint import came_from
from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.accounting.released import costs_of, is_paid_for
from tfdp_layers.batches.texts import is_text
from tfdp_layers.certificates.constants import refusal_of_constants
from tfdp_layers.instances import refuse_other_kind
from tfdp_layers.layers.adapted import AdaptedLayer
from tfdp_layers.models.earlier import warn_of_features
from tfdp_layers.models.kept_features import file_for, read, remove_half_files, write
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.noise.cores import cores, on_gpus
from tfdp_layers.proof import prove_rows
from tfdp_layers.proof.outside import numbers_held, outside, refuse_by_name
from tfdp_layers.structure import held_by

_PART = 32
"""Records at a time that XLA computes for each core of a CPU: few enough for its cache."""
_PROBED = 32
"""Records on which a prefix is measured whose rows could not be proved apart."""


def features(
    prefix: "keras.layers.Layer | list[keras.layers.Layer]",
    x: Any,
    *,
    batch_size: int = 512,
    jit_compile: bool | None = None,
    dtype: str | None = None,
    cache: str | Path | None = None,
) -> np.ndarray:
    """What a layer, a model or a list of layers puts out for each record, in inference mode.

    For a prefix that owes nothing to the private data: without weights, such as `tfdp.layers.Scattering2D`, or with
    weights that are public. Then a model trained on the features has the guarantee that it would have with the prefix
    as its first, frozen layers. The features are as private as the records: they are not released by this.

    Args:
        prefix: a Keras layer or model, or layers to be called one after the other.
        x: (n, ...), an array.
        batch_size: records computed at a time, at most: on CPUs XLA takes 32 a core, which stay in its cache.
        jit_compile: whether by XLA; left out, where the prefix has no weights and x no strings. It halves the time of
            `Scattering2D`.
        dtype: of the result, "float16" say for half the memory; the prefix' output type if left out.
        cache: a folder that keeps the features in a file, named by a digest of prefix, x and versions: the next call
            with the same ones only opens it, in another process too. Such a file is as private as the records. The
            folder, if it is made here, and the files are for this user alone; the digest is keyed by a secret in
            `features.key` there, so that a name tells nothing of x to who cannot read that. Without that file, or
            with another one, the features are computed once more.

    Returns: (n, ...), an array; from a cache a memory-mapped one, not writable, of which nothing is in memory at first.
        Warns of weights that an ordinary optimizer trained here: `tfdp.public(prefix)` declares that it was on public
        data.
    Raises: ValueError for an empty x; a prefix with layers that this library trains or adapts on private data, whose
        cost would be lost, or with constants of preprocessing that `adapt` may have learned (`tfdp.public` declares
        them); and one whose output for a record depends on the other records: proved, or where no proof is found,
        measured on records of x; and a `cache` whose `features.key`, or file of these features, is no plain, whole
        file. OSError where the disk has no room for the features; nothing of them stays then.
    """
    given, x = x, np.asarray(x)
    layers = list(prefix) if isinstance(prefix, list | tuple) else [prefix]
    if not len(x):
        raise ValueError("There are no records: x has length 0.")
    if not layers:
        raise ValueError("The prefix has no layers: give at least one.")
    for layer in layers:
        refuse_other_kind(layer, keras.layers.Layer, "The prefix", "a Keras layer or model, or a list of layers")
        refuse_private(layer)
        warn_of_features(layer)
    wanted = None if dtype is None else np.dtype(dtype)
    if cache is None:
        made = in_memory(computed(layers, x, batch_size, jit_compile), len(x), wanted)
        came_from(made, given)
        return made
    refuse_no_path(cache, "cache, a folder,", "features")
    file = file_for(Path(cache), layers, x, wanted)
    refuse_no_plain_file(file, "Remove it, or give another folder as cache.")
    remove_half_files(file.parent)
    if not file.exists():
        write(file, computed(layers, x, batch_size, jit_compile), len(x), wanted)
    kept = read(file, len(x))
    came_from(kept, given)
    return kept


def in_memory(parts: Iterator[np.ndarray], count: int, dtype: np.dtype | None) -> np.ndarray:
    """The features of `count` records in one array."""
    found, start = None, 0
    for part in parts:
        if found is None:
            found = np.empty((count, *part.shape[1:]), dtype or part.dtype)
        found[start : start + len(part)] = part
        start += len(part)
    assert found is not None  # there is at least one record
    return found


def computed(layers: list[Any], x: np.ndarray, batch_size: int, jit_compile: bool | None) -> Iterator[np.ndarray]:
    """The features of some records after the other."""

    def through(rows: Any) -> Any:
        for layer in layers:
            options = {"training": False} if layer._call_has_training_arg else {}
            rows = layer(rows, **options)
        return rows

    compilable = not (is_text(x) or any(layer.weights for layer in layers))
    compiled = compilable if jit_compile is None else jit_compile
    # For any number of records, and never traced again: what is proved is what computes.
    spec = tf.TensorSpec((None, *x.shape[1:]), tf.convert_to_tensor(x[:1]).dtype)
    step = tf.function(through, autograph=False, jit_compile=compiled).get_concrete_function(spec)
    refuse_mixed(step, x)
    refuse_hidden(step)
    # Always the same number of rows: by it kernels choose the order of their additions, and one record less would
    # change the last bits of all others.
    together = rows_at_a_time(layers, compiled, batch_size)
    for start in range(0, len(x), together):
        rows = x[start : start + together]
        missing = together - len(rows)
        if missing:  # one size, one trace
            rows = np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
        part = np.asarray(step(tf.convert_to_tensor(rows)))
        yield part[: len(part) - missing]


def rows_at_a_time(layers: Sequence[Any], compiled: bool, batch_size: int) -> int:
    """How many records are computed together; those of a prefix with state, such as of random numbers, as asked."""
    if not compiled or any(layer.variables for layer in layers) or on_gpus():
        return batch_size
    return min(batch_size, _PART * cores())


def refuse_private(layer: Any) -> None:
    """Raises ValueError for a prefix that was, or may have been, made from private data."""
    for part in layer._flatten_layers():
        own = (*part._trainable_variables, *part._non_trainable_variables)
        if isinstance(part, AdaptedLayer | PrivateTraining) or any(is_paid_for(held_by(weight)) for weight in own):
            raise ValueError(
                f"{part.name!r} ({type(part).__name__}) in the prefix has a ledger, or holds weights that a private"
                " training released: features without it would lose what its weights cost. Make it the first layers of"
                " the private model instead, or keep a prefix with public weights out of private trainings."
            )
        reason = refusal_of_constants(part)
        if reason is not None:
            raise ValueError(f"Layer {part.name!r} ({type(part).__name__}) in the prefix: {reason}")


def refuse_hidden(step: Any) -> None:
    """Raises ValueError for released weights that the prefix reads, and that none of its layers holds for Keras."""
    for variable in step.graph.variables:
        if is_paid_for(variable):
            raise ValueError(
                f"The prefix reads {variable.name!r}, which a private training released: features would lose what it"
                " cost. Make its layer one of the first layers of the private model instead."
            )
    if next(costs_of(numbers_held(step.graph)), None) is not None:
        raise ValueError(
            "The prefix computes with an array of numbers that a private training released: features would lose what"
            " they cost. Make its layer one of the first layers of the private model instead."
        )


def refuse_mixed(step: Any, x: np.ndarray) -> None:
    """Raises ValueError if a record's features depend on the records beside it, or may."""
    kind = outside(step.graph.get_operations())
    refuse_by_name(kind)
    if kind is not None:
        raise ValueError(
            f"The prefix takes or keeps numbers outside of its inputs and weights, or may (operation {kind}): one"
            " record would be in several features. Leave that out, or compute it from the data before."
        )
    report = prove_rows(step)
    if not report.proved and (report.status == "mixed" or differ_alone(step, x[:_PROBED])):
        raise ValueError(
            "The prefix does not put out one row for each record by itself: its output for a record depends on other"
            f" records, so one record would be in several features ({report.reason}). Take out what computes over the"
            " batch axis."
        )


def differ_alone(step: Any, rows: np.ndarray) -> bool:
    """Whether some record's features change with the records beside it, or with its place among them."""
    alone = [np.asarray(step(tf.convert_to_tensor(rows[i : i + 1]))) for i in range(len(rows))]
    for order in (slice(None), slice(None, None, -1), slice(0, 2), slice(0, 7)):
        together = np.asarray(step(tf.convert_to_tensor(rows[order])))
        wanted = np.concatenate(alone[order])
        if together.shape != wanted.shape or not np.allclose(together, wanted, 1e-3, 1e-5, equal_nan=True):
            return True
    return False
