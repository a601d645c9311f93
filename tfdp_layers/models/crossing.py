"""What of a private model only its releases may move, and what its records may write."""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.models.accounts import join_accounts, join_copies
from tfdp_layers.models.earlier import warn_of_read
from tfdp_layers.models.fit_arguments import refuse_late_names
from tfdp_layers.proof.metrics import written_by_records
from tfdp_layers.proof.reads import same_as
from tfdp_layers.proof.steering import Crossings
from tfdp_layers.structure import SEEDS, held_by, variables_held


def crossings_of(model: Any, sums: bool = True) -> Crossings:
    """Watches the parts of a step of a private model that is in `fit`.

    Args:
        sums: whether sums are among what is watched, which may write what their trace was seen to write.
    """
    replicas = model._privacy.require_run().replicas

    def kept() -> list[Any]:
        return kept_from_records(model, copied=replicas is not None)

    def own() -> list[Any]:
        seeds = [v for v in model.non_trainable_variables if SEEDS in v.path]
        return [*written_by_records(model), *seeds]

    return Crossings(
        model.name,
        kept,
        None if replicas is None else own,
        model._privacy.written_by_sums if sums else frozenset(),
        hidden=lambda: written_by_records(model),
        ended=lambda: bool(model.stop_training),
        pay=functools.partial(pay_for_read, model),
    )


def pay_for_read(model: Any, variables: list[Any], numbers: list[np.ndarray]) -> None:
    """Takes over what that cost which a release reads beside the model: an optimizer that pulls towards other weights.

    Raises: as `join_accounts`.
    """
    state = model._privacy
    optimizer = model.optimizer
    own = same_as([*model.weights, *optimizer.variables, *optimizer.kept_in_memory(), *state.read_by_release])
    more = [one for one in variables if not own(one)]  # replicas read one of the copies
    state.read_by_release += more
    if more and state.watch is not None:
        state.watch.look(anew=True)
    join_accounts(state.account, state.read_by_release, ())
    with tf.init_scope():
        warn_of_read(model, more)
    join_copies(state.account, numbers)


def kept_from_records(model: Any, copied: bool) -> list[Any]:
    """The variables that only a release, or nothing, may move: what releases move and read, and what layers hold.

    Args:
        copied: whether replicas have copies of them, of which only those of Keras and the optimizer are looked at.
    """
    state = model._privacy
    found = [*model.weights, *model.optimizer.variables, *state.read_after_noise, *state.read_by_release]
    if not copied:
        held = (one for layer in model._flatten_layers() for one in variables_held(layer))
        found += [*state.read_by_sums, *held]
    own = {id(held_by(variable)) for variable in written_by_records(model)}
    by_id = {id(held_by(v)): v for v in reversed(found)}  # Keras' own, which have names, over TensorFlow's
    return [variable for key, variable in by_id.items() if key not in own]


def results_of(model: Any) -> dict[str, Any]:
    """What a training step logs. Raises ValueError where that is named like a validation metric."""
    logs: dict[str, Any] = model.get_metrics_result()
    refuse_late_names(logs, model._privacy.posing)
    return logs


@contextlib.contextmanager
def as_graph(what: str) -> Iterator[None]:
    """Around code of metrics that is traced. Raises ValueError where that needs a number that a trace has not."""
    try:
        yield
    except (AttributeError, NotImplementedError, TypeError, tf.errors.OperatorNotAllowedInGraphError) as error:
        if not any(one in str(error) for one in ("Symbolic", "symbolic", "NumPy", "numpy", "Tensor")):
            raise
        raise ValueError(
            f"{what} uses a number of its variables in Python (float(), numpy(), an `if`). What it writes is looked at"
            " before the training, as a graph of TensorFlow, in which variables have no numbers yet: metrics see"
            " private records, and may write nothing else than their own variables. Let it only assign constants:"
            f" variable.assign(0). TensorFlow said: {error}"
        ) from error


@contextlib.contextmanager
def resetting(model: Any) -> Iterator[None]:
    """Around a reset of the metrics: in `fit`, they must write nothing but themselves, and keep nothing."""
    if not tf.executing_eagerly():
        with as_graph("reset_state of a metric"):
            yield
        return
    if model._privacy.run is None:
        yield
        return
    with crossings_of(model, sums=False).of_records():
        yield
        refuse_kept([*model.metrics, *getattr(model._compile_metrics, "metrics", ())])


@contextlib.contextmanager
def updating(model: Any) -> Iterator[None]:
    """Around the update of the metrics in an eager step: what the sums may write, metrics may not."""
    run = model._privacy.require_run()
    eager = tf.executing_eagerly() and run.replicas is None
    with crossings_of(model, sums=False).of_records() if eager else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def asking(model: Any) -> Iterator[None]:
    """Around the results of metrics between two steps, where those of the caller's own run their Python: as above."""
    metrics = [*model.metrics, *getattr(model._compile_metrics, "metrics", ())]
    if (
        all(type(one).__module__.split(".")[0] == "keras" for one in metrics)
        or model._privacy.run is None
        or not tf.executing_eagerly()
    ):
        yield
        return
    with crossings_of(model, sums=False).of_records():
        yield


def forget_metrics(model: Any) -> None:
    """Sets back the metrics that the layers of a model, and the model as one of them, keep; not those of compile.

    What they hold of records carries no noise, and Keras writes it wherever such a layer goes by `export`, also in a
    model around the private one, or made of parts of it. Metrics of compile go nowhere but where the model itself goes,
    which leaves them out.
    """
    for layer in model._flatten_layers():
        for metric in layer._metrics:
            metric.reset_state()


def refuse_kept(metrics: Iterable[Any]) -> None:
    """Raises ValueError for a metric, just reset, whose `reset_state` keeps something of what it saw.

    Such a metric would carry numbers of the training records into the metrics of the validation data, which are public.
    Keras' own metrics are known to forget.
    """
    for metric in metrics:
        if getattr(metric.reset_state, "__module__", "").split(".")[0] == "keras":
            continue
        numbers = [v for v in metric.variables if np.asarray(v).dtype.kind in "biufc"]
        after = [np.array(v) for v in numbers]
        for variable, value in zip(numbers, after, strict=True):
            variable.assign(~value if value.dtype.kind == "b" else np.nan_to_num(value) + np.ones_like(value))
        metric.reset_state()
        if any(not np.array_equal(v, value, equal_nan=True) for v, value in zip(numbers, after, strict=True)):
            raise ValueError(
                f"Metric {metric.name!r} keeps numbers over reset_state: those of the training records, which carry no"
                " noise, would be in the validation metrics, by which callbacks may decide. Let its reset_state set"
                " every variable to a constant: variable.assign(0)."
            )
