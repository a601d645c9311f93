"""Measures whether records interact, where a proof stops: randomness on, several weights, scales and batch sizes."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.certificates.additivity import NONE, Gap, gap_of
from tfdp_layers.certificates.measuring import MEANING, eager, row, runner, traced
from tfdp_layers.certificates.starting import exchanged, same_global_seed, same_state
from tfdp_layers.certificates.switches import without_randomness
from tfdp_layers.certificates.synthetic import inputs_like, specs, synthetic_inputs, synthetic_labels
from tfdp_layers.proof.narrowing import narrows
from tfdp_layers.proof.outside import nodes_of
from tfdp_layers.sensitivity import SensitivityGroup

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

CASES = ((5, 1.0), (7, 10.0), (67, 0.1))
"""Rows of a batch, without a common period, and the scale of its inputs; each with other weights."""

ODD = (float("nan"), float("inf"), 300.0, -1.5, 3e9)
"""Numbers that a cast to few bits may give otherwise in a vector than alone."""

_EQUAL = 33
"""Rows of a batch of equal records: more than the 32 entries of a vector."""

_AGAIN = 2
"""Further draws that a gap is looked for in."""
_SINGLY = 16
_SPREAD = 0.3  # of what is added to the weights: also what starts at zero counts then


def measure_interactions(
    model: "PrivateTraining", function: Any, x: Any, y: Any, groups: Sequence[SensitivityGroup]
) -> None:
    """Measures that no two records interact, more thoroughly than `measure`: for what is not proved.

    For batches A and B, and A' and B' which differ from them by an exchange of one row, S(A) + S(B) = S(A') + S(B')
    where S is a sum over the records, also with random masks, if all four get the same: every mask belongs to a row.
    And S(A) is the sum of its parts' sums, with randomness off. Both at random weights, zeros made non-zero.

    A gap that no other draw of weights and records shows is rounding, and passes: where a softmax is saturated, or two
    entries of a maximum are next to equal, the last bit decides of a whole gradient. Records that meet do so at others.

    It finds what it can measure: records that meet at inputs, weights or sizes unlike these are not seen. Where real
    numbers are cast to few bits, numbers beyond those are tried as well.

    Args:
        function: the model's sums, of `traced_sums`.

    Raises: ValueError where they interact.
    """
    for seed, (rows, scale) in enumerate(CASES, 1):
        gap = largest_gap(model, function, (x, y), groups, rows, scale, seed)
        again = (seed + 100 * draw for draw in range(1, _AGAIN + 1))
        if gap.explained or all(
            largest_gap(model, function, (x, y), groups, rows, scale, other).explained for other in again
        ):
            continue
        raise ValueError(
            f"Records are not independent in model {model.name!r}, measured on batches of {rows} records at"
            f" random weights. {MEANING} ({gap}.){gap.doubt}"
        )
    if any(one.op == "Cast" and narrows(*types_of(one)) for one in nodes_of(function.graph)):
        measure_odd_numbers(model, function, x, y, groups)


def types_of(cast: Any) -> tuple[tf.DType, tf.DType]:
    return tf.as_dtype(cast.attr["SrcT"].type), tf.as_dtype(cast.attr["DstT"].type)


def measure_odd_numbers(
    model: "PrivateTraining", function: Any, x: Any, y: Any, groups: Sequence[SensitivityGroup]
) -> None:
    """Measures that many equal records add as often what one adds, where they hold numbers beyond small types.

    Raises: ValueError where they do not, at each of several draws of weights and records.
    """
    for number in ODD:
        draws = (odd_gap(model, function, (x, y), groups, number, seed) for seed in range(1, _AGAIN + 2))
        found = next(iter(sorted(draws, key=lambda gap: not gap.explained)))
        if not found.explained:
            raise ValueError(
                f"Records are not independent in model {model.name!r}: {_EQUAL} equal records that hold {number:g} do"
                f" not add {_EQUAL} times what one adds. A cast to an integer of few bits gives what is beyond its type"
                f" otherwise by the place in the batch: clip first, keras.ops.clip(x, 0, 255). {MEANING} ({found}.)"
            )


def odd_gap(
    model: "PrivateTraining",
    function: Any,
    data: tuple[Any, Any],
    groups: Sequence[SensitivityGroup],
    number: float,
    seed: int,
) -> Gap:
    """Between the sums of many equal records and as often those of one, some of whose real numbers are this one."""
    x, y = data
    rng = np.random.default_rng(seed)

    def made_odd(t: tf.Tensor) -> tf.Tensor:
        here = rng.random(t.shape) < 0.5
        return tf.where(here | ~here.any(), tf.cast(number, t.dtype), t) if t.dtype.is_floating else t

    with moved_weights(model, seed), without_randomness(model):
        own = synthetic_inputs(model, specs(inputs_like(model, x)), 1, seed)
        labels = synthetic_labels(model, own, y if y is None else specs(y), seed + 30)
        one = keras.tree.map_structure(made_odd, own), labels
        many = keras.tree.map_structure(lambda t: tf.repeat(t, _EQUAL, axis=0), one)
        try:
            (alone, _), (together, _) = (runner(model, function)(*rows) for rows in (one, many))
        except tf.errors.InvalidArgumentError:  # no record holds such a number
            return NONE
    times = [_EQUAL * t for t in alone]
    finite = all(bool(tf.reduce_all(tf.math.is_finite(t))) for t in (*times, *together))
    return gap_of(model, groups, together, [times]) if finite else NONE


def largest_gap(
    model: "PrivateTraining",
    function: Any,
    data: tuple[Any, Any],
    groups: Sequence[SensitivityGroup],
    rows: int,
    scale: float,
    seed: int,
) -> Gap:
    """What of both measurements rounding explains the least, on weights and records that the seed draws."""
    x, y = data
    with moved_weights(model, seed):
        xs = [synthetic_inputs(model, specs(inputs_like(model, x)), rows, seed + k, scale) for k in (10, 20)]
        with without_randomness(model):
            ys = [synthetic_labels(model, one, y if y is None else specs(y), seed + 30) for one in xs]
            found = [parts_and_whole(model, function, xs[0], ys[0], rows)]
        found += exchanges(model, function, list(zip(xs, ys, strict=True)), rows, seed)
    gaps = [gap_of(model, groups, together, alone) for together, alone in found]
    return next((gap for gap in gaps if not gap.explained), gaps[0])


def parts_and_whole(model: "PrivateTraining", function: Any, x: Any, y: Any, rows: int) -> tuple[Any, Any]:
    """The sums of a batch, and of its records alone; if they are many, of its halves.

    Of many operation by operation, as `bounded_gradient_sums` runs: a layer that knows their number may do otherwise.
    """
    if rows <= _SINGLY:
        parts, run = [row(i, (x, y)) for i in range(rows)], runner(model, function)
    else:
        halves = slice(rows // 2), slice(rows // 2, None)
        parts, run = [keras.tree.map_structure(lambda t, s=s: t[s], (x, y)) for s in halves], partial(eager, model)
    return run(x, y)[0], [run(*part)[0] for part in parts]


def exchanges(
    model: "PrivateTraining", function: Any, pair: list[Any], rows: int, seed: int
) -> list[tuple[Any, list[Any]]]:
    """The sums of two batches together, and, for several rows, of the same two with that row exchanged."""

    def compiled(data: Any) -> list[tf.Tensor]:
        with same_state(model, seed):
            return traced(function, *data)

    def one_by_one(data: Any) -> list[tf.Tensor]:
        with same_state(model, seed), same_global_seed(seed):
            return model.bounded_gradient_sums(*data)

    # A graph's own generators do not start again: then each operation is run by itself, which takes longer.
    again = zip(compiled(pair[0]), compiled(pair[0]), strict=True)
    summed = compiled if all(np.array_equal(a, b, equal_nan=True) for a, b in again) else one_by_one
    first, second = map(summed, pair)
    together = [a + b for a, b in zip(first, second, strict=True)]
    places = range(rows) if rows <= _SINGLY else (0, rows // 2, rows - 1)
    return [(together, [summed(data) for data in exchanged(pair, place, rows)]) for place in places]


@contextlib.contextmanager
def moved_weights(
    model: "PrivateTraining", seed: int, spread: float = _SPREAD, only: Sequence[Any] | None = None
) -> Iterator[None]:
    """Inside, weights are other ones, and none is zero; all state is put back after it.

    Signs of what is not trained stay: it may be a variance.

    Args:
        spread: the standard deviation of what is added.
        only: the variables to change; all without it.
    """
    rng = np.random.default_rng(seed)
    before = [(v, np.array(v)) for v in model.variables]
    trained = {id(v) for v in model.trainable_variables}
    moved = {id(v) for v in (model.variables if only is None else only)}
    try:
        for variable, value in before:
            if id(variable) in moved and tf.as_dtype(variable.dtype).is_floating:
                noise = rng.normal(scale=spread, size=variable.shape)
                free = (id(variable) in trained) | (value == 0)
                variable.assign(np.where(free, value + noise, value * np.exp(noise)))
        yield
    finally:
        for variable, value in before:
            variable.assign(value)
