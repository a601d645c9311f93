"""How often one call of a model uses each layer: a record's influence adds up over the uses of a shared layer."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.certificates.unrolling import Unrolled, refuse_counting, refuse_unrolled, stopped_if_unrolled
from tfdp_layers.clipping.bounding import Bounding
from tfdp_layers.per_record.adopted import NotOfRecordsError, adopt
from tfdp_layers.per_record.recording import Recorder, recording
from tfdp_layers.structure import inputs_of
from tfdp_layers.uses.counted import CountedLayer, inspect_uses

_RECORDS = 1009
"""Records in the trace that counts uses: a size that no other axis is likely to have."""


def uses_of_layers(model: keras.Model, bounding: Bounding | None = None, records: Any = None) -> Counter[int]:
    """How often one call of the model uses each layer that bounds itself, by the layer's id: counted in a trace.

    Args:
        records: what records look like, (trees of) tf.TensorSpec: the trace is of their sizes where the model leaves
            sizes open. How a call uses weights may depend on what is known of these.

    Raises: ValueError for a use that the bound does not cover (see `inspect_uses`), for a layer without per-record
        formula, and for a weight used outside its layer.
    """
    sizes = [t.shape[0] for t in keras.tree.flatten(inputs_of(model)) if t.shape[0] is not None]
    rows = sizes[0] if sizes else _RECORDS
    variables = _bounded(model) if bounding is None else model.trainable_variables
    uses: Counter[int] = Counter()
    failed: list[Exception] = []

    def trace(x: Any) -> None:
        with (
            rows_of_texts(model, rows),
            inspect_uses(rows) as counted,
            tf.GradientTape() as tape,
            recorded(model, tape, bounding, rows) as recorder,
            stopped_if_unrolled(watched, failed),
        ):
            recorder.eager = bool(model.run_eagerly)
            outputs = [t for t in keras.tree.flatten(model(x, training=True)) if t.dtype.is_floating]
        uses.update(counted)
        reached = tape.gradient(outputs, [v.value for v in variables])
        for variable in (v for v, gradient in zip(variables, reached, strict=True) if gradient is not None):
            raise ValueError(_of_saved_model(model, variable) or used_outside(variable))

    watched = not sizes
    while True:
        try:
            traced = tf.function(trace, autograph=False).get_concrete_function(specs_of(model, rows, records))
            forget_gradients(traced.graph)
            return uses
        except Unrolled as unrolled:  # by records perhaps, which a step refuses at once
            forget_gradients(unrolled.graph)
            watched = False
            looks = specs_of(model, None, records)
            refuse_unrolled(model, functools.partial(forward, model, bounding), looks, unrolled.place)
        except NotOfRecordsError as error:
            if not adopt(model, error.part):
                raise
        except ValueError as error:
            refuse_counting(model, specs_of(model, None, records), failed, error)
            raise


def _bounded(model: keras.Model) -> list[Any]:
    """The weights of layers that bound themselves."""
    layers = (layer for layer in model._flatten_layers() if isinstance(layer, CountedLayer))
    return [v for layer in layers for v in layer.trainable_variables]


def _of_saved_model(model: keras.Model, variable: keras.Variable) -> str:
    """The message for a weight of a saved model's functions, whose uses nobody sees; "" for another."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.TFSMLayer) and any(variable is one for one in layer.trainable_variables):
            return (
                f"Weight {variable.path!r} is of the saved model of layer {layer.name!r} (TFSMLayer), whose functions"
                " use it where nothing bounds a record's influence on its gradient. Freeze it: that layer's trainable ="
                " False, before compile; what comes behind it is trained. To train it, load the model as layers of"
                " Keras: keras.saving.load_model of a .keras file."
            )
    return ""


def used_outside(variable: keras.Variable) -> str:
    """The message for a weight that has a gradient past its layer."""
    return (
        f"Weight {variable.path!r} is also used outside its layer, where nothing bounds a record's influence on its"
        " gradient. Use it through its layer alone, or through tf.stop_gradient; of logits tied to an embedding, that"
        " is keras.layers.ReversibleEmbedding, or one layer of your own that holds the weight and both uses."
    )


def specs_of(model: keras.Model, rows: int | None, records: Any = None) -> Any:
    """The model's inputs, of so many records; those of `records`, where the model leaves sizes open."""
    inputs = inputs_of(model)
    if records is not None and any(None in x.shape[1:] for x in keras.tree.flatten(inputs)):
        inputs = records
    return keras.tree.map_structure(lambda x: tf.TensorSpec((rows, *x.shape[1:]), x.dtype), inputs)


def forward(model: keras.Model, bounding: Bounding | None, x: Any) -> list[tf.Tensor]:
    """The outputs of a step of any number of records."""
    records = tf.shape(keras.tree.flatten(x)[0])[0]
    with tf.GradientTape() as tape, recorded(model, tape, bounding, records=records) as recorder:
        recorder.eager = bool(model.run_eagerly)
        return [t for t in keras.tree.flatten(model(x, training=True)) if isinstance(t, tf.Tensor)]


def forget_gradients(graph: Any) -> None:
    """Forgets the custom gradients of a graph that nobody will call: else TensorFlow keeps them, and it, for ever."""
    from tensorflow.python.framework import ops

    registry = getattr(getattr(ops, "gradient_registry", None), "_registry", {})
    for op in graph.get_operations():
        with contextlib.suppress(ValueError):  # an operation without a gradient of its own
            registry.pop(op.get_attr("_gradient_op_type").decode(), None)


@contextlib.contextmanager
def rows_of_texts(model: keras.Model, rows: int) -> Iterator[None]:
    """Inside, Keras' `TextVectorization` says in a trace how many rows it gives, which TensorFlow loses sight of.

    That they are those of the records, each its own, is for the proof of the real step, or its measurement.
    """
    layers = [layer for layer in model._flatten_layers() if type(layer) is keras.layers.TextVectorization]

    def shaped(call: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        return tf.ensure_shape(outputs, (rows, *outputs.shape[1:])) if isinstance(outputs, tf.Tensor) else outputs

    for layer in layers:
        layer.call = functools.partial(shaped, layer.call)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


@contextlib.contextmanager
def recorded(
    model: keras.Model,
    tape: tf.GradientTape,
    bounding: Bounding | None,
    rows: int | None = None,
    records: int | tf.Tensor | None = None,
) -> Iterator[Any]:
    """A `Recorder` of the layers that `bounding` bounds, active inside the block; an idle one without `bounding`.

    Args:
        rows: the number of records of an inspection; see `Recorder`.
        records: the number of records of a step, where it is not inspected.
    """
    recorder = Recorder(tape, rows, records)
    if bounding is None:
        yield recorder
    else:
        with recording(model, recorder, bounding.allow_generic):
            yield recorder
