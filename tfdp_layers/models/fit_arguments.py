"""What `fit` accepts: data that a sampler draws, and callbacks that look at nothing private."""

import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.logs import PUBLIC, posing_names, reads_as_validation
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.declared import DeclaredBatches
from tfdp_layers.batches.items import is_source
from tfdp_layers.batches.leaves import leaves_of
from tfdp_layers.batches.records import checked_sampling
from tfdp_layers.batches.stores import ArrayStore, Store
from tfdp_layers.callbacks.steering import decides_by, flatten_callbacks, refuse_steering
from tfdp_layers.caller import warn
from tfdp_layers.instances import replaced, shown
from tfdp_layers.layers.carried import HDF5
from tfdp_layers.models.elsewhere import OPTIONS, unexpected
from tfdp_layers.models.in_batches import refuse_beside
from tfdp_layers.models.inputs import stated_shapes
from tfdp_layers.models.made_by import warn_of_makers
from tfdp_layers.models.rebuilding import refuse_lost_ties
from tfdp_layers.models.validation_rows import warn_of_private_rows
from tfdp_layers.overlap import overlap
from tfdp_layers.sampling import Poisson
from tfdp_layers.structure import inputs_of, outputs_of

_LOOKED_AT = 32


def as_batches(arguments: dict[str, Any], options: dict[str, Any], model: Any = None) -> Batches:
    """The drawn batches that `fit` trains on, from its `x`, `y` and options. Warns of `shuffle=False`.

    Args:
        model: whose inputs state the sizes that a declared pipeline leaves open.

    Raises: ValueError for data that no sampler draws, and for options that contradict each other.
    """
    if arguments.get("shuffle") is False:
        warn(
            "shuffle=False has no effect: which records a step trains on is drawn at random, and the epsilon counts on"
            " that. For epochs in one secret order: sampling=tfdp.sampling.Cyclic(batch_size), with correlated noise."
        )
    batches = _batches_of(arguments, options)
    if isinstance(batches, DeclaredBatches) and model is not None:
        batches.state_shapes(functools.partial(stated_shapes, model))
    warn_of_private_rows(batches, arguments.get("validation_data"))
    warn_of_makers(batches)
    return batches


def _batches_of(arguments: dict[str, Any], options: dict[str, Any]) -> Batches:
    x = arguments.get("x")
    given = [name for name in (*OPTIONS, "seed") if options.get(name) is not None]
    if isinstance(x, Batches):
        given += [n for n in ("y", "batch_size", "sample_weight", "class_weight") if arguments.get(n) is not None]
        refuse_beside(x, given)
        refuse_foreign_draws(x)
        return x
    if x is None or hasattr(x, "element_spec") or isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
        raise ValueError(
            f"fit got {type(x).__name__}: how its batches were drawn is unknown, and the cost depends on it."
            f" {_single(x)} Single records are drawn by Poisson sampling, the cheapest, in batches of fit's batch_size."
            " Or say how it draws: tfdp.declare_sampling(dataset, sampling, examples=n)."
        )
    sampling, batch_size = options["sampling"], arguments.get("batch_size")
    if sampling is None:
        sampling = Poisson(32 if batch_size is None else batch_size)
    elif batch_size is not None and batch_size != checked_sampling(sampling).batch_size:
        raise ValueError(f"batch_size={batch_size} contradicts {sampling}: leave batch_size out.")
    return PrivateBatches(
        x,
        arguments.get("y"),
        sampling,
        options["physical_batch_size"],
        sample_weight=arguments.get("sample_weight"),
        class_weight=arguments.get("class_weight"),
        examples=options["examples"],
        unit_ids=options["unit_ids"],
        owners=options.get("owners"),
        records_per_owner=options.get("records_per_owner"),
        **{name: options[name] for name in ("records_per_unit", "views") if options.get(name) is not None},
        seed=options["seed"],
    )


def arrays_of(batches: Batches) -> Any:
    """The inputs that batches are drawn from, in the caller's structure; None where they are not arrays."""
    store = getattr(batches, "_store", None)
    return store.structure[0] if isinstance(store, ArrayStore) else None


def labels_of(batches: Batches) -> Any:
    """The labels that batches are drawn from, as one array; of a source that is read by index those of a few records.

    None where they are no single array, or nothing can be read before it is drawn.
    """
    store = getattr(batches, "_store", None)
    if isinstance(store, ArrayStore):
        return store.structure[1]
    if not isinstance(store, Store) or len(leaves_of(store.structure[1])) != 1:
        return None
    some = np.unique(np.linspace(0, len(store) - 1, _LOOKED_AT).astype(int))
    return store.take(some, len(some))[len(leaves_of(store.structure[0]))]


def unwrap(arguments: dict[str, Any], model: keras.Model) -> None:
    """Puts x in the place of [x], and y of [y], where the model has one input, or output, and no list of them.

    Keras takes both, and warns of the list in each trace: a private training makes several.

    Raises: ValueError for a list of records, or of batches, which Keras would read as one input after the other.
    """
    if not model.built:
        return
    x = arguments.get("x")
    if isinstance(x, list) and len(x) > 1 and isinstance(x[0], tuple) and not keras.tree.is_nested(inputs_of(model)):
        raise ValueError(
            f"x is a list of {len(x):,} tuples, and the model has one input. Records (x, y) go to fit as"
            " tfdp.records(the_list); of batches make arrays, x = numpy.concatenate([x for x, y in the_list]), and y"
            " alike."
        )
    for name, expected in (("x", inputs_of(model)), ("y", outputs_of(model))):
        given = arguments.get(name)
        if not isinstance(given, list | tuple) or len(given) != 1 or keras.tree.is_nested(expected):
            continue
        if hasattr(given[0], "shape"):
            arguments[name] = given[0]


def refuse_foreign_draws(batches: Batches) -> None:
    """Raises ValueError for batches that code other than this library's draws: of a subclass, or put on the object."""
    foreign = replaced(batches)
    if foreign or type(batches) not in (PrivateBatches, DeclaredBatches):
        what = f"has a {foreign[0]}() of its own" if foreign else "is a class of your own"
        raise ValueError(
            f"{type(batches).__name__} {what}: how it draws is unknown, and it would be charged as PrivateBatches"
            " draws. Change records one by one, tfdp.records(source, transform=...); or declare how your own code"
            " draws: tfdp.declare_sampling(iterable, sampling, examples=n)."
        )


def refuse_unsound_fit(arguments: dict[str, Any], logged: Iterable[str] = (), model: Any = None) -> None:
    """Raises ValueError for arguments and callbacks that let un-noised numbers steer the training.

    Args:
        arguments: of `fit`, by name.
        logged: names that training metrics start with: of the model's outputs and of its metrics.
        model: what is trained, where it is there already.
    """
    epochs = arguments.get("epochs", 1)
    if isinstance(epochs, bool) or not hasattr(epochs, "__index__") or epochs < 0:
        raise ValueError(
            f"epochs must be an integer, 0 or more. Received: {shown(epochs)} of type {type(epochs).__name__}."
        )
    steps = arguments.get("steps_per_epoch")
    if steps is not None and (isinstance(steps, bool) or not hasattr(steps, "__index__") or not 1 <= steps < 2**31):
        raise ValueError(f"steps_per_epoch must be an integer from 1 to 2^31 - 1. Received: {steps!r}.")
    if arguments.get("validation_split"):
        raise ValueError(
            "validation_split carves the validation data out of the private data: its metrics are computed without"
            " noise and would be released. Give public data as validation_data=(x, y): rows that you split off yourself"
            " are private as well, and tfdp.release_metric pays for what they say."
        )
    reserved = sorted(set(PUBLIC) & set(logged))
    if reserved:
        raise ValueError(
            f"Outputs or metrics are called {reserved}: in the logs these names stand for public numbers, by which"
            " callbacks may decide, and a training metric carries no noise. Give them other names."
        )
    validation = arguments.get("validation_data")
    if isinstance(validation, Store) or is_source(validation):
        raise ValueError(
            f"validation_data is {type(validation).__name__}, which Keras cannot evaluate on. Give public arrays"
            " (x, y), or a tf.data.Dataset of batches."
        )
    if shares_records(arguments.get("x"), validation):
        raise ValueError(
            "validation_data is the private training data itself, or some of it; its metrics carry no noise. Leave it"
            " out, or give public data. One number of persons who are held out of fit, such as their accuracy, is paid"
            " for by tfdp.release_metric (docs/first_model.md)."
        )
    _refuse_callbacks(arguments, posing_names(logged), model)


def _refuse_callbacks(arguments: Mapping[str, Any], posing: Sequence[str], model: Any) -> None:
    """Raises ValueError for callbacks that decide by private numbers, or would fail after a step that is paid for."""
    for callback in flatten_callbacks(arguments.get("callbacks")):
        refuse_steering(callback, arguments.get("validation_data") is not None, posing)
        refuse_without_tensorboard(callback)
        refuse_unwritable(callback, model)
        if arguments.get("verbose") != 0:
            _say_what_is_taken_as_public(callback)


def _say_what_is_taken_as_public(callback: Any) -> None:
    """One line where a callback decides by validation data: people hold out private records for it."""
    if reads_as_validation(str(decides_by(callback))):
        print(
            f"{type(callback).__name__} decides by validation_data, which are taken as public: rows held out of private"
            " data are not."
        )


def refuse_without_tensorboard(callback: Any) -> None:
    """Raises ImportError for Keras' TensorBoard without the package: it would fail after a step that is paid for."""
    if isinstance(callback, keras.callbacks.TensorBoard) and importlib.util.find_spec("tensorboard") is None:
        raise ImportError(
            f"{type(callback).__name__} writes through the package tensorboard, which is not installed (TensorFlow no"
            " longer brings it). Install it: pip install tensorboard. tfdp.callbacks.PrivacyTensorBoard shows epsilon,"
            " too."
        )


def refuse_unwritable(callback: Any, model: Any) -> None:
    """Raises ValueError for a checkpoint of the model that `save` would refuse, after an epoch is paid for."""
    whole = isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only
    if whole and str(callback.filepath).endswith((".h5", ".hdf5")):
        raise ValueError(f"{type(callback).__name__} would write {callback.filepath}. {HDF5}")
    if whole and model is not None:
        refuse_lost_ties(model)


def logged_names(model: Any) -> list[str]:
    """What the names of training metrics start with: the names of outputs and of compiled metrics."""
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    named = [getattr(m, "name", None) or getattr(m, "__name__", m) for m in keras.tree.flatten(given)]
    of_layers = [m.name for layer in model._flatten_layers(include_self=False) for m in layer._metrics]
    return [*model._names_of_outputs(), *getattr(model, "output_names", []), *map(str, named), *of_layers]


def refuse_late_names(logs: Iterable[str], posing: bool) -> None:
    """Raises ValueError for training metrics named like validation metrics, where `fit` could not know it beforehand.

    Args:
        logs: names of what a training step logs.
        posing: whether `posing_names` found some; then no number in the logs passes for public.
    """
    late = [] if posing else posing_names(logs)
    if late:
        raise ValueError(
            f"A training step logs {late}, names of validation metrics, by which callbacks may decide, and a training"
            " metric carries no noise. Give its metrics other names."
        )


def shares_records(x: Any, validation: Any) -> bool:
    """Whether the validation data are the training data, or a view of some of them."""
    held = getattr(x, "_store", x)
    source = read_from(held)
    if source is not None and validation is source:
        return True
    if isinstance(validation, Batches):
        return validation is x
    if isinstance(validation, tf.data.Dataset):
        return reads(validation, source)
    if not isinstance(validation, list | tuple) or not validation:
        return False
    if isinstance(held, Store):
        x = [held.structure[0], *(leaf() for leaf in held.given)]
    return overlap(keras.tree.flatten(x), keras.tree.flatten(validation[0]))


def read_from(held: Any) -> Any:
    """The pipeline that records or declared batches come from, if they do, and the caller still has it."""
    pipeline = getattr(held, "pipeline", None) if isinstance(held, Store | Batches) else None
    return None if pipeline is None else pipeline()


def reads(dataset: tf.data.Dataset, source: Any) -> bool:
    """Whether a pipeline goes on from the very one that records were read from, by batch or take, say.

    Two parts of one pipeline, `skip(n)` to train on and `take(n)`, read none of each other.
    """
    return source is not None and (dataset is source or any(reads(one, source) for one in dataset._inputs()))


_WITHOUT_LEDGER: tuple[type, ...] = tuple(
    kind for kind in [getattr(keras.callbacks, "OrbaxCheckpoint", None)] if kind is not None
)
"""Keras' callbacks that write weights past the model's own methods, as far as this version has them."""


def _writes_weights(callback: Any) -> bool:
    """Whether it is one of Keras' callbacks that write weights into files."""
    if isinstance(callback, keras.callbacks.TensorBoard):
        return bool(callback.embeddings_freq)
    return isinstance(callback, (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint, *_WITHOUT_LEDGER))


def warn_of_lost_count(callbacks: Any, ledger: Ledger) -> None:
    """Warns where weights are written and what they cost is counted in memory alone: with the process it is lost."""
    found = next(filter(_writes_weights, flatten_callbacks(callbacks)), None)
    if found is None or ledger.path is not None or ledger.is_copy:  # which is not charged: the chief's is, say
        return
    if isinstance(found, _WITHOUT_LEDGER):
        warn(
            f"{type(found).__name__} writes weights without a ledger, and this ledger is in memory: in another process"
            " nobody knows what they cost, and statements, files and fit of a model restored from them are refused."
            " Keep the count in a file, model.ledger = tfdp.accounting.Ledger('ledger.json'), and give it to that"
            " model; or write with keras.callbacks.ModelCheckpoint, whose files hold it.",
        )
    else:
        warn(
            f"{type(found).__name__} writes weights, and the ledger is in memory: after a crash the steps since the"
            " file that you go on from are counted nowhere, though other files may hold what they released. Keep"
            " the count in a file: model.ledger = tfdp.accounting.Ledger('ledger.json').",
        )


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a Keras method by name, without copying its signature.

    Raises: TypeError for an argument that neither it nor this library knows, with the one that may have been meant.
    """
    signature = inspect.signature(function)
    known = [*signature.parameters, *OPTIONS, "accept_measured"]
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown:
        raise unexpected(getattr(function, "__name__", "fit"), unknown[0], known)
    return dict(signature.bind(*args, **kwargs).arguments)


def _single(given: Any) -> str:
    """How single records come of what gives batches."""
    if hasattr(given, "element_spec"):
        return (
            "Give arrays; or, of a tf.data pipeline, tfdp.records(dataset) where it gives single records,"
            " tfdp.records(dataset.unbatch()) where it gives batches."
        )
    return (
        "Give arrays; or a class of your own that is no keras.utils.PyDataset, with __len__ and __getitem__(index),"
        " which gives one record, (x, y)."
    )
