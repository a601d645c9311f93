"""What there is to draw, in whatever a training left behind: a History, a ledger, a statement, a folder of logs."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.composition import smallest_epsilon

__all__ = ["Points", "by_name", "epsilon_points", "history_of", "ledger_of", "scalars_of", "statement_of"]

Points = tuple[list[float], list[float]]
_MOST_POINTS = 24
_DEFAULT_DELTA = 1e-5


def by_name(sources: tuple[Any, ...], named: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """All sources by a name: that of the keyword, of the folder or of the data set, or a number.

    Raises: ValueError where there are none.
    """
    found: dict[str, Any] = {}
    for number, source in enumerate(sources, 1):
        dataset = getattr(source, "dataset", None)
        path = Path(source).name if isinstance(source, str | os.PathLike) else None
        name = dataset or path or f"{kind} {number}"
        found[name if name not in found else f"{name} ({number})"] = source
    found |= {name.replace("_", " "): source for name, source in named.items()}
    if not found:
        raise ValueError(f"Nothing to draw: give at least one {kind}.")
    return found


def history_of(source: Any) -> dict[str, list[float]] | None:
    """The logs of a Keras `History`, or a mapping like it: a list of numbers by name. None for anything else."""
    logs = getattr(source, "history", source)
    logs = getattr(logs, "history", logs)  # a model's `history` is a History
    if isinstance(logs, Mapping) and all(isinstance(v, list | tuple) for v in logs.values()):
        return {name: [float(value) for value in values] for name, values in logs.items()}
    return None


def ledger_of(source: Any) -> Ledger | None:
    """The ledger that a source is, holds (a model), or names (a file, a folder with ledger.json); None without one."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        path = path / "ledger.json" if path.is_dir() else path
        return Ledger.read(path) if path.is_file() else None
    found = source if isinstance(source, Ledger) else getattr(source, "ledger", None)
    return found if isinstance(found, Ledger) else None


def epsilon_points(source: Any, delta: float | None) -> tuple[Points, str]:
    """Epsilon along a training, and what it is drawn against: "step" or "epoch".

    Raises: ValueError for a source that does not tell it.
    """
    counted = isinstance(source, str | os.PathLike) or ledger_of(source) is not None  # a model has a History, too
    logs = None if counted else history_of(source)
    if logs is not None:
        if "epsilon" not in logs:
            raise ValueError(
                "This History holds no epsilon: fit with a tfdp.callbacks.PrivacyBudget among its callbacks, or give"
                f" the model's ledger. It holds {sorted(logs)}."
            )
        values = logs["epsilon"]
        return ([float(n) for n in range(1, len(values) + 1)], values), "epoch"
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        written = scalars_of(source).get("privacy/epsilon")
        if written is not None:
            return written, "step"
    ledger = ledger_of(source)
    if ledger is None:
        raise ValueError(
            "epsilon is drawn of a History, a Ledger, a private model, or a folder of logs (of PrivacyTensorBoard, or"
            f" with ledger.json). Received: {source!r}."
        )
    return _along(ledger, check_delta(_DEFAULT_DELTA if delta is None else delta)), "step"


def _along(ledger: Ledger, delta: float) -> Points:
    """Exact epsilons of a ledger after some of its releases, in the order of its entries."""
    if ledger.relation is None:
        raise ValueError("This ledger is empty: nothing was released yet.")
    total = ledger.steps
    wanted = {round(total * n / _MOST_POINTS) for n in range(_MOST_POINTS + 1)}
    if len(ledger.entries) <= _MOST_POINTS:  # and where one entry ends and another begins
        wanted |= set(itertools.accumulate(entry.steps for entry in ledger.entries))
    x, y, before, done = [], [], Counter[Any](), 0
    for entry in ledger.entries:
        for steps in (step - done for step in sorted(wanted) if done + bool(done) <= step <= done + entry.steps):
            counts = before + Counter({entry.release.event(): entry.release.charges(steps)})
            x.append(float(done + steps))
            y.append(smallest_epsilon(counts, ledger.relation, delta)[0])
        before[entry.release.event()] += entry.charges
        done += entry.steps
    return x, y


def scalars_of(folder: str | os.PathLike[str]) -> dict[str, Points]:
    """The scalars that TensorBoard's files directly in a folder hold, by tag; none where there are no such files.

    Raises: ImportError where the package tensorboard is missing.
    """
    if not any(Path(folder).glob("events.out.tfevents.*")):
        return {}
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise ImportError("Logs are read by the package tensorboard: pip install '.[tensorboard]'.") from error
    events = EventAccumulator(os.fspath(folder), size_guidance={"tensors": 0}).Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        rows = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        if all(value.ndim == 0 and value.dtype.kind == "f" for _, value in rows):
            found[tag] = ([float(step) for step, _ in rows], [float(value) for _, value in rows])
    return found


def statement_of(source: Any, delta: float | None) -> Statement:
    """A statement itself, or that of a ledger. Raises ValueError for anything else."""
    if isinstance(source, Statement):
        return source
    ledger = ledger_of(source)
    if ledger is None:
        raise ValueError(f"This is drawn of a Statement, a Ledger or a private model. Received: {source!r}.")
    return Statement.from_ledger(ledger, check_delta(_DEFAULT_DELTA if delta is None else delta))
