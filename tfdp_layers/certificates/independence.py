"""Whether a record's contribution depends on that record alone: proved where it can be, refused, or measured."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdp_layers.caller import warn
from tfdp_layers.certificates.elsewhere import refuse_elsewhere
from tfdp_layers.certificates.interactions import measure_interactions
from tfdp_layers.certificates.measuring import MEANING, NO_LAYER, culprit, measure, refuse_losses_of_weights
from tfdp_layers.certificates.registered import try_bounds
from tfdp_layers.certificates.synthetic import (
    drawn_from,
    inputs_like,
    on_valid_integers,
    specs,
    synthetic_inputs,
    synthetic_labels,
)
from tfdp_layers.clipping.bounding import SCOPE
from tfdp_layers.instances import kind_of
from tfdp_layers.per_record.agreement import RANGES
from tfdp_layers.proof import Finding, Report
from tfdp_layers.proof.models import prove_traced, traced_sums
from tfdp_layers.proof.narrowing import BEYOND
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import outputs_of
from tfdp_layers.uses.counted import ROWS_SCOPE, not_one_each

if TYPE_CHECKING:
    from tfdp_layers.models.training import PrivateTraining

_NOT_TAKEN = re.compile(
    r"\S+ = -?\d+ is not in \[0, \d+\)|assertion failed[^\n]*|all inputs should be in vocabulary[^\n]*"
)
"""What TensorFlow and Keras say of made-up places and words that a model does not take (of `num_oov_indices=0`)."""
_BOUND = "the optimizer's own bound goes over the records in loops, which are tested and not proved"

_OF_PLACES = (
    "the place of a record as a value",
    "the places of records as a value",
    "entries of some records picked by others",
    "a list that a loop over records carries, looked into",
    "and so lie in another record",
)
"""Reasons that a prover gives where a record's own places are used in a way that it does not follow."""

EAGER = Report((Finding("sums", "unknown", "run_eagerly=True runs Python anew in every step: one trace was proved"),))
"""What is known of steps that are not compiled, where a trace of them is proved."""


def check_independence(model: "PrivateTraining", x: Any = None, y: Any = None) -> Report:
    """Proves, from the traced sums, that what a record adds depends on that record alone; or says what stopped it.

    Formal guarantee: where the report says `proved`, the sums that a step on such records releases are, for any number
    of them, f(r_1) + ... + f(r_B), with one f that knows of no other record, and no state is written from records: see
    `tfdp_layers.proof`, and docs/guarantee.md for what is assumed. Where it does not, no mixing was found by measuring
    on synthetic records, at random weights and with randomness on; that is evidence, and no proof.

    Args:
        model: a compiled private model.
        x, y: a batch, or (trees of) tf.TensorSpec, that shows what records look like. If left out, the model's own
            inputs, with 8 for every size that they leave open, and labels like its outputs.

    Returns:
        A report: `proved`, and else `reason`, `operation`, `type` and `layer` of what stopped the proof.

    Raises:
        ValueError: records mix, proved or measured, naming the layer and the operation where they can be found;
            Python code runs in each step; or a record exceeded a bound that `tfdp.sensitivity_of` registered.
    """
    if isinstance(model, type) or not hasattr(model, "sensitivities"):
        raise ValueError(
            "check_independence takes a private model: model = tfdp.make_private(keras_model), compiled. Received:"
            f" {kind_of(model)}."
        )
    x = specs(synthetic_inputs(model, inputs_like(model, x))) if x is None else x  # one size for all inputs
    labels = synthetic_labels(model, synthetic_inputs(model, specs(x)), None if y is None else specs(y))
    function = traced_sums(model, specs(x), specs(labels))
    return examined(model, function, x, y, model.sensitivities())


def examined(
    model: "PrivateTraining",
    function: Any,
    x: Any,
    y: Any,
    groups: Sequence[SensitivityGroup],
    written: Sequence[Any] = (),
) -> Report:
    """The report on a model's traced sums, after `measure`, and `measure_interactions` where they are not proved.

    And after `try_bounds`, of layers whose bound somebody registered.

    Args:
        function: of `traced_sums`, the one that steps run, but for steps that are not compiled.
        x, y: of `measure`.
        written: of `examined_metrics`.

    Raises: ValueError, see `check_independence`.
    """
    report = but_for_the_bound(prove_traced(model, function, written))
    refuse_elsewhere(model, function)
    if report.status == "mixed":
        found = "" if report.layer else f"{culprit(model, synthetic_inputs(model, inputs_like(model, x)))}; "
        raise ValueError(
            f"Records are not independent in model {model.name!r}: {found}{stopped_by(report)}. {MEANING}"
            f"{of_the_loss(model, y, report) if found.startswith(NO_LAYER) else ''}{of_places(report)}"
            f"{of_augmentations(model, report)}"
        )

    eager = report.proved and model.run_eagerly
    certain = replace(EAGER, common=report.common) if eager else report

    def measured() -> Any:
        drawn = measure(model, function, x, y, groups, report.proved)
        if not certain.proved:
            refuse_equal_rows(model, x, certain)
        if not report.proved:
            with drawn_from(drawn or RANGES[0]):
                measure_interactions(model, function, x, y, groups)
        try_bounds(model, function, x, y, groups)
        return drawn

    finite = True
    with values_told(model, certain, x, y), rows_told():
        finite = on_valid_integers(measured) is not None
    return certain if finite or eager else hardly_measured(certain)


@contextlib.contextmanager
def rows_told() -> Iterator[None]:
    """Inside, TensorFlow's error about the rows that a layer gets in the traced step says what it is about."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        text = str(error)
        if ROWS_SCOPE not in text and "Invalid shape broadcast" not in text:  # XLA names no operation
            raise
        raise ValueError(not_one_each("other rows than one for each record")) from error


@contextlib.contextmanager
def values_told(model: "PrivateTraining", report: Report, x: Any, y: Any) -> Iterator[None]:
    """Inside, what is made up may be nothing that the model takes: a proof stands without being measured, too.

    Raises: ValueError where nothing is proved, as of eager steps, of which one trace was; and for a loss that uses a
        weight itself, which takes a trace, but no numbers.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _NOT_TAKEN.search(str(error))
        if found is None:
            raise
        if not report.proved:
            raise _not_measured(model, report, f"the model takes none of these: {found[0]}") from error

        made_up = synthetic_inputs(model, inputs_like(model, x))
        labels = synthetic_labels(model, made_up, y)

        def uses() -> None:
            refuse_losses_of_weights(model, made_up, labels)

        tf.function(uses, autograph=False).get_concrete_function()


def refuse_equal_rows(model: "PrivateTraining", x: Any, report: Report) -> None:
    """Raises ValueError where all records that are made up are equal: on such a batch a mean is each record's own."""
    rows = keras.tree.flatten(synthetic_inputs(model, inputs_like(model, x)))
    if all(bool(tf.reduce_all(one[1:] == one[:-1])) for one in rows):
        raise _not_measured(model, report, "the model takes no two different ones of these")


def _not_measured(model: "PrivateTraining", report: Report, why: str) -> ValueError:
    return ValueError(
        f"Records may not be independent in model {model.name!r}: it is not proved ({stopped_by(report)}), and could"
        f" not be measured on numbers that are made up in the place of records and labels: {why}. Shift ids, and labels"
        " that the loss looks up, before fit, not in the model or the loss, so that each begins at 0; make other inputs"
        " valid by operations: keras.ops.clip, keras.ops.maximum."
    )


def of_the_loss(model: "PrivateTraining", y: Any, report: Report) -> str:
    """What is likely to mix records in a loss: that it averages over the batch, or the shape of labels."""
    if "over the records of the batch" in stopped_by(report):
        return (
            " The loss averages something over the batch, as weights by the share of a class in it do: give public"
            " weights, class_weight={0: 1.0, 1: 4.0} of fit say, and leave the mean over the losses to Keras."
        )
    return of_flat_labels(model, y)


def of_flat_labels(model: "PrivateTraining", y: Any) -> str:
    """What is likely to mix records where labels (records,) meet outputs (records, n) in a loss of the caller's own."""
    outputs = keras.tree.flatten(outputs_of(model)) if model.built else []
    for label, output in zip(keras.tree.flatten(y), outputs, strict=False):
        shape = getattr(label, "shape", None)
        if shape is not None and len(output.shape) == len(shape) + 1:
            or_so = ", or compare p[:, 0] in the loss" if output.shape[-1] == 1 else ""
            return (
                f" The labels have one axis less than the predictions, whose last axis is {output.shape[-1]}: a loss"
                " that subtracts one from the other compares each record with all. Give"
                f" {'y[:, None]' if len(shape) == 1 else 'y[..., None]'}{or_so}."
            )
    return ""


def of_places(report: Report) -> str:
    """What to do where places from the data may lie beyond the record, in another one."""
    in_segments = "Segment" in report.type
    if report.first is None or not (in_segments or any(text in report.reason for text in _OF_PLACES)):
        return ""
    if in_segments and "CrossEntropyWithLogits" in report.first.place:
        return (
            " This is how TensorFlow computes the loss where tf.config.experimental.enable_op_determinism() is on:"
            " leave it out, for what private training draws repeats in no run; or give one-hot labels and"
            " CategoricalCrossentropy, of which it is then measured, not proved, that records stay apart."
        )
    return (
        " If it takes what a record has at a place that comes from the data, such as its last visit, write tf.gather(h,"
        " keras.ops.clip(n, 0, T - 1), batch_dims=1), for h (batch, T, ...) and n (batch,): that keeps it inside of the"
        " record, and is proved where the model states T, keras.Input((T, ...)). So is keras.ops.take_along_axis by"
        " places that keras.ops.clip keeps in the axis."
    )


def of_augmentations(model: "PrivateTraining", report: Report) -> str:
    """What to do about a layer of Keras' that augments by others inside, or casts numbers that may be too large."""
    name = report.layer.split("/")[-1]
    kinds = {type(one).__name__ for one in model._flatten_layers() if one.name == name}
    if several := kinds & {"RandAugment", "AugMix"}:
        return (
            f" Layer {name!r} is {min(several)}, which chooses among other layers inside, so that nothing in front of"
            " it helps. Put those that you want into the model one by one: RandomShear, RandomTranslation,"
            " RandomRotation, RandomBrightness, RandomContrast, RandomColorDegeneration, RandomSharpness and"
            " Solarization train as they are, RandomPosterization behind keras.layers.ReLU(max_value=255). Or augment"
            " images as they are read: tfdp.records(source, transform) (docs/data.md)."
        )
    if report.first is None or not report.first.reason.startswith(BEYOND):
        return ""
    return (
        " In front of a layer that casts by itself (RandomPosterization) put one that keeps to its value_range:"
        " keras.layers.ReLU(max_value=1.0) for (0, 1)."
    )


def but_for_the_bound(report: Report) -> Report:
    """The report, with "unknown" for "mixed" in the operations by which the optimizer bounds what records add.

    Some of them (the tanh filter, AdaDP) go over large batches in loops that no rule follows. What they are given is
    one row a record, or a fault before them is found; that they add up what each record alone would give is tested for
    every kind of layer.
    """
    return replace(report, findings=tuple(map(unknown_within_the_bound, report.findings)))


def hardly_measured(report: Report) -> Report:
    """The report, which says where it is not proved that on NaN nothing much can be measured."""
    why = "; and it could hardly be measured: losses or gradients are NaN on all synthetic records"
    return replace(
        report,
        findings=tuple(
            found if found.status == "proved" or found.reason == _BOUND else replace(found, reason=found.reason + why)
            for found in report.findings
        ),
    )


def unknown_within_the_bound(found: Finding) -> Finding:
    """What was found, but "unknown" for "mixed" where the optimizer's own bound is at fault."""
    if found.status != "mixed" or not found.place.startswith(f"/{SCOPE}/"):
        return found
    return replace(found, status="unknown", reason=_BOUND, operation="", layer="")


def stopped_by(report: Report) -> str:
    """What stopped the proof, in words: the reason, the operation and its layer."""
    found = report.first
    if found is None or not found.operation:
        return report.reason
    layer = f", in layer {found.layer!r}" if found.layer else ""
    return f"{found.reason} (operation {found.operation!r} of type {found.type}{layer})"


def warn_of_measured(model: keras.Model, report: Report) -> None:
    """Warns that the independence of records is measured, not proved; not of what is tested here."""
    if all(found.status == "proved" or found.reason == _BOUND for found in (*report.findings, *report.writes)):
        return
    fix = (
        "Compile the model with run_eagerly=False, whose steps run what was proved"
        if model.run_eagerly
        else "If you know that this keeps each record to itself, accept it: model.fit(..., accept_measured=True)"
    )
    warn(
        f"The independence of records in model {model.name!r} is measured, not proved: {stopped_by(report)}. On"
        f" synthetic records no mixing was found, and the privacy statement says so. {fix}.",
    )


PROVED = "proved"
"""What ledger and statement say where a proof was found."""


def in_words(report: Report) -> str:
    """For ledger and statement: "proved", or "measured" and what stopped the proof."""
    return PROVED if report.proved else f"measured, not proved: {stopped_by(report)}"
