"""Bounds that are on somebody's word, registered outside of this library: tried on single records, and stated as such.

A bound is a theorem about a class, and no trace tells whether it holds: where a subclass multiplies its kernel by four,
the layer below clips and one record adds four times the bound. What is tried here is each record alone, hostile ones
too, at several weights: a bound that is exceeded there is refused. One that is not may be too small all the same.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.remarks import ON_WORD
from tfdp_layers.certificates.additivity import norm_of
from tfdp_layers.certificates.certificate import leaf_layers
from tfdp_layers.certificates.interactions import moved_weights
from tfdp_layers.certificates.measuring import called, row
from tfdp_layers.certificates.starting import same_state
from tfdp_layers.certificates.synthetic import drawn_from, inputs_like, specs, synthetic_inputs, synthetic_labels
from tfdp_layers.per_record.agreement import Drawn
from tfdp_layers.sensitivity import SensitivityGroup, on_word

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

LARGEST = 1.001
"""Of its bound: what is above that is no rounding."""

SPREADS = (0.3, 3.0)
"""Of what is added to all trained weights; they are tried as they are, too."""

TURNS = 2
"""In each of these, every other layer that is tried keeps its weights, and all others get large ones: behind large
outputs the next layer, whose input is clipped, passes little back."""

WEIGHTS = (1.0, 1e4)
"""What real labels, and weights of records, are multiplied by: upstream gradients are to exceed what clips them."""


def lone(place: int | None, number: float) -> Drawn:
    """Zeros, but for this number at one place of each input; None: at any."""

    def drawn(normal: np.ndarray) -> np.ndarray:
        made = np.zeros(normal.size)
        made[int(np.argmax(normal)) if place is None else place] = number
        return made.reshape(normal.shape)

    return drawn


NO_NUMBER = functools.partial(np.full_like, fill_value=float("nan"))
HOSTILE: tuple[Drawn, ...] = (
    *(functools.partial(np.multiply, scale) for scale in (1.0, 30.0, 1e-3, 1e-30, 1e5, 1e20)),
    *(functools.partial(np.full_like, fill_value=one) for one in (0.0, 1.0, -1e3, float("inf"))),
    NO_NUMBER,
    np.abs,
    *(lone(place, number) for place in (0, -1, None) for number in (1.0, -1.0, 1e3, -1e3)),
)
"""What is made of normal numbers: records of all sizes, of equal entries, of one entry, and of no numbers."""

MOST = (1 + len(SPREADS) + TURNS) * len(HOSTILE) * len(WEIGHTS)


def layers_on_word(model: keras.Model) -> list[tuple[str, Any]]:
    """The trained layers, by name, whose bound is on somebody's word."""
    return [(path, layer) for path, layer in leaf_layers(model) if layer.trainable_variables and on_word(layer)]


def notes_of_words(model: keras.Model) -> list[str]:
    """What statements say of these bounds."""
    return [
        f"The bound of layer {path!r} ({type(layer).__name__}) {ON_WORD}: it was tried on up to {MOST} made-up records,"
        " each alone, and is not proved."
        for path, layer in layers_on_word(model)
    ]


def try_bounds(
    model: "PrivateTraining", function: Any, x: Any, y: Any, groups: Sequence[SensitivityGroup], seed: int = 7
) -> None:
    """Compares what single records add to the weights of `layers_on_word` with their bounds; nothing without these.

    Randomness stays on. Of weights with a constraint those are tried that keep it, as each step leaves them; weights
    that are not trained stay, since a bound may be computed of them.

    Args:
        function: the model's sums, of `traced_sums`.
        x, y: of `measure`.

    Raises:
        ValueError: one adds more than `LARGEST` times its bound, or what is not finite.
        tf.errors.InvalidArgumentError: the model takes none of these records.
    """
    layers = {id(v): layer for _, layer in layers_on_word(model) for v in layer.trainable_variables}
    tried = [group for group in groups if any(id(v) in layers for v in group.variables)]
    if not tried:
        return
    places = {id(v): i for i, v in enumerate(model.trainable_variables)}
    failed: tf.errors.InvalidArgumentError | None = None
    added: list[list[float]] = []
    for sums in sums_of_records(model, function, x, y, seed):
        if isinstance(sums, tf.errors.InvalidArgumentError):
            failed = sums
        else:
            added.append([norm_of([sums[places[id(v)]] for v in group.variables]) for group in tried])
    if failed is not None and not added:
        raise failed
    for group, norms in zip(tried, zip(*added, strict=True), strict=True):
        layer = next(layers[id(v)] for v in group.variables if id(v) in layers)
        refuse_larger(group, layer, max(norms) if np.isfinite(norms).all() else np.inf)


def sums_of_records(
    model: "PrivateTraining", function: Any, x: Any, y: Any, seed: int
) -> Iterator[list[tf.Tensor] | tf.errors.InvalidArgumentError]:
    """The sums of each hostile record alone, at each of the weights; the error of one that the model does not take."""
    look = specs(inputs_like(model, x))
    for spread, moved in draws_of_weights(model):
        with moved_weights(model, seed, spread, moved), same_state(model, seed):
            for variable in moved:
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable.value))
            usual = synthetic_inputs(model, look, len(HOSTILE), seed)
            labels = synthetic_labels(model, usual, y if y is None else specs(y), seed + 1)
            for number, (record, weight) in enumerate(itertools.product(hostile(model, look, usual), WEIGHTS)):
                label = keras.tree.map_structure(functools.partial(times, weight), row(number // len(WEIGHTS), labels))
                try:
                    yield called(function, record, label, weight)[0]
                except tf.errors.InvalidArgumentError as error:
                    yield error


def draws_of_weights(model: "PrivateTraining") -> Iterator[tuple[float, Sequence[Any]]]:
    """Which weights are moved, and how far: see `SPREADS` and `TURNS`."""
    trained, layers = model.trainable_variables, [layer for _, layer in layers_on_word(model)]
    yield 0.0, []
    for spread in SPREADS:
        yield spread, trained
    for turn in range(TURNS):
        kept = {id(v) for layer in layers[turn::TURNS] for v in layer.trainable_variables}
        yield SPREADS[-1], [v for v in trained if id(v) not in kept]


def hostile(model: "PrivateTraining", look: Any, usual: Any) -> list[Any]:
    """A record of each row of usual ones, by `HOSTILE`; integers, texts and numbers that are looked up stay."""
    with drawn_from(NO_NUMBER):
        marks = synthetic_inputs(model, look, 1)

    def made(drawn: Drawn, value: tf.Tensor, mark: tf.Tensor) -> tf.Tensor:
        real = mark.dtype.is_floating and bool(tf.reduce_all(tf.math.is_nan(mark)))
        return tf.constant(drawn(np.asarray(value, np.float64)), value.dtype) if real else value

    return [
        keras.tree.map_structure(functools.partial(made, drawn), row(i, usual), marks)
        for i, drawn in enumerate(HOSTILE)
    ]


def times(weight: float, label: tf.Tensor) -> Any:
    """A real label, so many times as large; others as they are."""
    return label * tf.cast(weight, label.dtype) if label.dtype.is_floating else label


def refuse_larger(group: SensitivityGroup, layer: Any, found: float) -> None:
    """Raises ValueError where the most that one record added to a group is more than its bound, or no number."""
    if found <= LARGEST * group.bound:
        return
    many = f"{found:.6g}, {found / group.bound:.4g} times that" if np.isfinite(found) else "what is not finite"
    raise ValueError(
        f"The registered bound of layer {group.name!r} ({type(layer).__name__}) does not hold: it says that one record"
        f" moves the sum of gradients by at most {group.bound:.6g}, and a made-up record, alone, moves it by {many}. So"
        " the noise would be too small. Correct the bound, for every record and at all weights (tfdp.sensitivity_of):"
        " what weights are multiplied by belongs into it. Or use a layer of tfdp.layers; or an ordinary one, with"
        " tfdp.optimizers.ClippedOptimizer, which clips each record's gradient."
    )
