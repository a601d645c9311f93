"""Formulas of classes that are known by their name only: compared with the layer's own call before they are used."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from tfdp_layers.per_record.recording import Recorder

_RECORDS, _SIZE = 2, 3
"""Records of a comparison, and what stands for sizes that are not known."""
TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2}
"""Of comparisons, by the type that is computed in; where it is none of these, each comparison's own."""
_AGREED: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()
"""Of each class the settings, and shapes of arguments, that were compared."""
Drawn: TypeAlias = Callable[[np.ndarray], np.ndarray]
RANGES: tuple[Drawn, ...] = (
    lambda normal: normal,
    np.abs,
    lambda normal: 1.0 / (1.0 + np.exp(-normal)),
    lambda normal: 1.0 + np.abs(normal),
    lambda normal: 100.0 * (1.0 + np.abs(normal)),
    lambda normal: -np.abs(normal),
)
"""What random numbers are tried on, one after the other, until what is computed of them is finite: normal ones,
positive ones for roots and logarithms, shares, those from 1 and from 100 on, negative ones."""


class RefusedLayerError(ValueError):
    """A formula's own refusal of a layer, whatever the comparison would say."""


def agreeing(function: Callable[..., Any], layer: Any, record: Recorder, original: Callable[..., Any]) -> Any:
    """The formula, which compares itself with the layer's own call where it is called first.

    A package may change what a class computes and keep its name, and another class may take it. So both are called on
    random inputs of the same shapes, at random values of the layer's weights, once for each class, its settings and the
    shapes: functions that differ hardly agree there by chance.

    Raises: ValueError, from the call, where the results differ or one of them fails.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if not record.idle:
            compare(function, layer, record, original, args, kwargs)
        return function(*args, **kwargs)

    return call


def compare(
    function: Callable[..., Any],
    layer: Any,
    record: Recorder,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Compares a formula with a layer's call on arguments like these. Raises: ValueError where they differ."""
    known = _AGREED.setdefault(type(layer), set())
    key = settings_of(layer, args, kwargs)
    if key in known:
        return
    for drawn in RANGES:  # what is NaN says little
        own, ours = results((original, function), layer, record, (args, kwargs), drawn)
        if len(own) != len(ours) or not all(map(functools.partial(alike, layer.compute_dtype), own, ours)):
            raise ValueError(differs(layer))
        if all(np.isfinite(one).all() for one in own):
            break
    known.add(key)


def results(
    functions: Sequence[Callable[..., Any]], layer: Any, record: Recorder, arguments: Any, drawn: Drawn
) -> list[list[np.ndarray]]:
    """What each gives of random arguments like these, at random weights. Raises: ValueError where one fails."""
    rng, records = np.random.default_rng(0), record.records
    found = []
    with record.aside(_RECORDS), tf.init_scope():
        args, kwargs = keras.tree.map_structure(lambda leaf: random_like(leaf, rng, records, drawn=drawn), arguments)
        for one in functions:
            values = np.random.default_rng(1)
            weights = [(v, tf.constant(values.normal(size=v.shape), v.dtype)) for v in float_weights(layer)]
            try:
                with keras.StatelessScope(state_mapping=weights):
                    found.append(arrays(one(*args, **kwargs)))
            except RefusedLayerError:
                raise
            except Exception as error:
                raise ValueError(f"{differs(layer)} On random inputs it fails: {error}") from error
    return found


def alike(dtype: str, own: np.ndarray, ours: np.ndarray) -> bool:
    """Whether a result is the layer's own, which may be one for all records, but for rounding."""
    whole = np.broadcast_to(own, ours.shape) if own.ndim == ours.ndim and len(own) == 1 else own
    if whole.shape != ours.shape:
        return False
    error = TOLERANCE.get(dtype, 1e-4) * np.abs(own[np.isfinite(own)]).max(initial=1e-3)
    return bool(np.allclose(ours, whole, rtol=0.0, atol=error, equal_nan=True))


def float_weights(layer: Any) -> list[Any]:
    return [v for v in layer.variables if v.dtype in ("float16", "bfloat16", "float32", "float64")]


def settings_of(layer: Any, args: Any, kwargs: Any) -> str:
    """The layer's settings and what its arguments look like, as text."""
    plain = (str, int, float, bool, tuple, type(None))  # not get_config: some layers have none
    config = {name: value for name, value in vars(layer).items() if isinstance(value, plain)}
    config = {name: value for name, value in config.items() if name not in ("name", "_name", "_path")}
    leaves = [
        (str(leaf.dtype), leaf.shape.as_list()[1:]) if tf.is_tensor(leaf) else repr(leaf)
        for leaf in keras.tree.flatten((args, kwargs))
    ]
    weights = [(v.name, tuple(v.shape), str(v.dtype)) for v in layer.variables]
    return json.dumps([config, leaves, sorted(kwargs), weights], default=str, sort_keys=True)


def random_like(
    leaf: Any, rng: np.random.Generator, records: Any, count: int = _RECORDS, drawn: Drawn = RANGES[0]
) -> Any:
    """A random tensor like this one, of `count` records instead of `records`; anything but a tensor as it is.

    Axis 0 may hold several rows a record; where `records` is no number, the records are what it holds, unless it is 1.
    """
    if not tf.is_tensor(leaf):
        return leaf
    sizes = [_SIZE if n is None else n for n in leaf.shape]
    if sizes and leaf.shape[0] != 1:
        known = isinstance(records, int) and leaf.shape[0] is not None
        rows, rest = divmod(sizes[0], records) if known else (1, 0)
        sizes[0] = sizes[0] if rest else rows * count
    if leaf.dtype.is_floating:
        return tf.constant(drawn(rng.normal(size=sizes)), leaf.dtype)
    return tf.cast(tf.constant(rng.integers(0, 2, sizes)), leaf.dtype)


def arrays(outputs: Any) -> list[np.ndarray]:
    """The tensors among the outputs, as float64."""
    return [np.asarray(tf.cast(t, tf.float64)) for t in keras.tree.flatten(outputs) if tf.is_tensor(t)]


def differs(layer: Any) -> str:
    """The message for a layer that does not compute as its formula says."""
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    return (
        f"Layer {layer.name!r} ({kind}) does not compute what the per-record formula of that name says: another version"
        " of its package changed it, or another class took the name. Register a formula for the class itself,"
        " @tfdp.per_record_formulas(TheLayer); or allow the slow way (allow_generic=True on the optimizer) for a"
        " subclass of it; or freeze it (layer.trainable = False)."
    )
