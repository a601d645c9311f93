"""The ledger that is saved among the weights of a model or a layer, so that what they cost goes wherever they go."""

import json
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from tfdp_layers.accounting.choice import Counted
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.accounting.storage import LedgerError

__all__ = [
    "PAID_WEIGHTS",
    "STORED_LEDGER",
    "STORED_NOTES",
    "is_model_file",
    "ledger_of_model_file",
    "notes_of_model_file",
    "read_paid_weights",
    "read_stored_ledger",
    "read_stored_notes",
    "write_paid_weights",
    "write_stored_ledger",
    "write_stored_notes",
]

STORED_LEDGER = "privacy_ledger"
"""Its name among the variables in the file."""

PAID_WEIGHTS = "privacy_paid_weights"
"""The name of a flag for each weight: whether a training released something into it."""

STORED_NOTES = "privacy_notes"
"""The name of what a statement of the weights says beside the ledger; it is there only where there is something."""


def write_stored_ledger(store: Any, ledger: Ledger) -> None:
    """Saves a copy of the ledger beside the variables in `store`, the mapping that Keras gives `save_own_variables`."""
    store[STORED_LEDGER] = _encoded(ledger.to_json())


def read_stored_ledger(store: Any) -> tuple[dict[str, Any], Ledger | None]:
    """Reads what `write_stored_ledger` wrote, in `load_own_variables`.

    Returns:
        The variables without the ledger, for Keras, and the ledger: None where none was saved with them.
    Raises:
        LedgerError: what was saved is not a whole ledger, or was put elsewhere.
    """
    try:
        variables = {name: store[name] for name in store.keys()}  # noqa: SIM118 (an h5 group is no dict)
    except ValueError as error:
        if "vars" not in store.keys():  # noqa: SIM118
            raise
        raise LedgerError(
            "keras.saving.KerasFileEditor wrote this file, it seems: that puts the ledger, and a model's other own"
            " variables, where Keras does not look for them, and leaves out what objects inside of others hold. Load"
            " the file that model.save or model.save_weights wrote, and change weights by set_weights."
        ) from error
    stored = variables.pop(STORED_LEDGER, None)
    return variables, None if stored is None else Ledger.from_json(_decoded(stored))


def write_paid_weights(store: Any, paid: Sequence[bool]) -> None:
    """Saves, of each weight of a model in their order, whether a training released something into it."""
    store[PAID_WEIGHTS] = np.asarray(paid, np.uint8)


def read_paid_weights(variables: dict[str, Any]) -> list[bool] | None:
    """Takes what `write_paid_weights` wrote out of the variables; None where it is missing or damaged."""
    stored = variables.pop(PAID_WEIGHTS, None)
    try:
        return None if stored is None else [bool(flag) for flag in np.asarray(stored, np.uint8).reshape(-1)]
    except (TypeError, ValueError):
        return None


def write_stored_notes(store: Any, notes: Sequence[str], counted: Counted | None = None) -> None:
    """Saves what statements of these weights have to say.

    Args:
        notes: sentences.
        counted: what the ledger beside them counts that was planned only; None where it counts no such thing.
    """
    if notes or counted is not None:
        text = json.dumps({"notes": list(notes), "counted": None if counted is None else astuple(counted)})
        store[STORED_NOTES] = _encoded(text)


def read_stored_notes(variables: dict[str, Any]) -> tuple[list[str], Counted | None]:
    """Takes what `write_stored_notes` wrote out of the variables. Raises LedgerError where that is damaged."""
    stored = variables.pop(STORED_NOTES, None)
    return ([], None) if stored is None else _notes_in(stored)


def ledger_of_model_file(path: Path) -> Ledger:
    """The ledger in a file of `model.save` or `save_weights`. Loads no TensorFlow; builds no model.

    Raises: LedgerError for another file, and for a model's without a ledger.
    """
    found = _variable_of(path, STORED_LEDGER)
    if found is None:
        raise LedgerError(
            f"{path} holds a model without a ledger: it was not saved by a private model, or was exported (to_keras)."
            " The private model's own model.save writes both."
        )
    return Ledger.from_json(_decoded(found))


def notes_of_model_file(path: Path) -> tuple[str, ...]:
    """What the file of a model says beside its ledger, in sentences. Raises: LedgerError as `ledger_of_model_file`."""
    found = _variable_of(path, STORED_NOTES)
    notes, counted = ([], None) if found is None else _notes_in(found)
    return (*notes, *([] if counted is None else [counted.note]))


def _variable_of(path: Path, name: str) -> Any:
    """One of a model's own variables in its file; None where it is not there."""
    import h5py  # as Keras does, which brings it along

    refuse_no_plain_file(path, "Give the path of a file that model.save or save_weights wrote.", LedgerError)
    try:
        with ExitStack() as opened:
            whole: Any = path
            if zipfile.is_zipfile(path):
                archive = opened.enter_context(zipfile.ZipFile(path))
                whole = opened.enter_context(archive.open("model.weights.h5"))
            file = opened.enter_context(h5py.File(whole, "r"))
            stored = file.get(f"vars/{name}", file.get(name))
            return None if stored is None else np.asarray(stored[()])
    except (OSError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise LedgerError(f"{path} is no whole model file of Keras ({error}).") from error


def is_model_file(path: Path) -> bool:
    """Whether a file begins as those of Keras do."""
    with path.open("rb") as file:
        return file.read(8).startswith((b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"))


def _encoded(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


def _decoded(stored: Any) -> str:
    try:
        return np.asarray(stored, np.uint8).tobytes().decode()
    except (TypeError, ValueError) as error:
        raise _damaged(error) from error


def _notes_in(stored: Any) -> tuple[list[str], Counted | None]:
    try:
        value = json.loads(_decoded(stored))
        notes, counted = value["notes"], None if value["counted"] is None else Counted(*value["counted"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(error) from error
    kinds = [] if counted is None else list(map(type, astuple(counted)))
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes) or kinds not in ([], _KINDS):
        raise _damaged("notes that are none")
    return notes, counted


_KINDS = [str, int, str]


def _damaged(what: Any) -> LedgerError:
    return LedgerError(f"The ledger saved with these weights is damaged ({what}). Use a backup of them.")
