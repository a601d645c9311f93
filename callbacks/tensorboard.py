"""The callback that shows a private run in TensorBoard."""

import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import Epsilon, Statement, nominal_epsilon
from tfdp_layers.accounting.accountant import check_delta, events_of
from tfdp_layers.accounting.logs import PUBLIC, metric_of, reads_as_validation
from tfdp_layers.accounting.plain_files import refuse_no_path
from tfdp_layers.accounting.renyi import convert_rdp, rdp_curve
from tfdp_layers.accounting.wording import cost_text
from tfdp_layers.callbacks.spending import Spending
from tfdp_layers.caller import warn

__all__ = ["PrivacyTensorBoard"]

_DEFAULT_DELTA = 1e-5
_ORDERS_SHOWN = 16.0
_COSTS = ("privacy/epsilon", "privacy/nominal_epsilon")


class PrivacyTensorBoard(keras.callbacks.Callback):
    """Writes what a private run spends to TensorBoard. It reads the ledger and spends nothing.

    Scalars, against the number of releases in the model's ledger: `privacy/epsilon` (what holds; beside it
    `privacy/nominal_epsilon` where an algorithm was used as printed), `privacy/noise_multiplier`, and for
    each group of weights `privacy/bound/GROUP` and `privacy/noise_stddev/GROUP` (both on the sum of gradients). Metrics
    of the validation data, which are public by declaration, as `validation/NAME`. As TensorBoard draws charts smoothed
    (set Smoothing to 0), the exact epsilon after each epoch stands as text, too: `privacy/epsilon_spent`. At the end of
    `fit`: the privacy statement as text; hyper-parameters are on the HParams page. In a run of its own,
    `rdp_after_STEPS_steps`, against the order (TensorBoard's step axis; integer orders around the best): the Renyi
    divergence `privacy/rdp_curve`, and `privacy/epsilon_by_order`, the epsilon that each order proves.

    Not covered by the guarantee, and left out unless asked for: training loss and metrics. With `log_unprotected=True`
    they are written as `unprotected/NAME`. A name like "val_mae" proves nothing: where an output or a metric is called
    "val" or "val_...", or `fit` has no validation data, no number passes for one of validation data, with a warning.

    Args:
        log_dir: the folder; made if missing.
        delta: in (0, 1), for epsilon; None takes that of a `PrivacyBudget` in the same `fit`, and 1e-5 without one.
        update_freq: "epoch", or a number of batches after which epsilon is written as well, then as an upper bound.
        log_unprotected: also writes training loss and metrics, which are computed from private data without noise.

    Raises:
        ImportError: tensorboard is not installed.
        ValueError: delta or update_freq out of range; a log_dir that cannot be written. From `fit`: a model that is
            not private.
    """

    # Of several workers only the chief runs it: the others have no ledger.
    chief_only = True

    _spending: Spending
    _used_delta: float

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        delta: float | None = None,
        update_freq: str | int = "epoch",
        log_unprotected: bool = False,
    ) -> None:
        super().__init__()
        self._hparams_api = _import_hparams()
        self.log_dir = _writable(log_dir)
        self.delta = None if delta is None else check_delta(delta)
        self.update_freq = _checked_frequency(update_freq)
        self.log_unprotected = bool(log_unprotected)
        self._writer: Any = None
        self._batches, self._said = 0, False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the log and writes the hyper-parameters. Raises ValueError, see the class."""
        self._close()
        _writable(self.log_dir)
        # A budget in the same fit stands before this callback and has put its epsilon, which knows its delta, here.
        shared = (logs or {}).get("epsilon")
        self._used_delta = shared.delta if isinstance(shared, Epsilon) else _DEFAULT_DELTA
        if self.delta is not None:
            self._used_delta = self.delta
        self._spending = Spending(self.model, self._used_delta)
        self._batches, self._said = 0, False
        self._writer = tf.summary.create_file_writer(self.log_dir)
        with self._writer.as_default():
            self._hparams_api.hparams(self._hyper_parameters())
        self._write({"privacy/epsilon": self._spending.exact()} | self._noise())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes epsilon every `update_freq` batches."""
        if isinstance(self.update_freq, str):
            return
        previous, self._batches = self._batches, self._batches + int(self.model.steps_per_execution)
        if previous // self.update_freq == self._batches // self.update_freq:
            return
        values = {"privacy/epsilon": self._epsilon_from(logs, exact=False)}
        self._write(values | self._unprotected(logs, "unprotected/batch_"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes epsilon, noise and bounds, and validation metrics."""
        public = {f"validation/{metric_of(n)}": v for n, v in (logs or {}).items() if self._is_of_validation(n)}
        self._say_left_out(logs or {})
        spent = self._epsilon_from(logs, exact=True)
        values = {"privacy/epsilon": spent} | self._noise() | public
        self._write(values | self._unprotected(logs, "unprotected/"))
        self._say(spent)
        self._writer.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the statement and the RDP curve, and closes the log."""
        statement = Statement.from_ledger(self.model.ledger, self._used_delta)
        with self._writer.as_default():
            tf.summary.text("privacy/statement", _preformatted(str(statement)), step=self._spending.releases)
        self._write_rdp_curve()
        self._close()

    def _epsilon_from(self, logs: dict[str, Any] | None, exact: bool) -> float:
        """The epsilon that a budget of the same delta has put into the logs, or else our own."""
        shared = (logs or {}).get("epsilon")
        if isinstance(shared, Epsilon) and shared.delta == self._used_delta:
            return float(shared)
        if self._spending.stale:
            self._spending = Spending(self.model, self._used_delta)
        return float(self._spending.exact()) if exact else self._spending.bound()

    def _noise(self) -> dict[str, float]:
        release = self._spending.release
        nominal = nominal_epsilon(self.model.ledger, self._used_delta)
        values = {} if nominal is None else {"privacy/nominal_epsilon": float(nominal)}
        values |= {"privacy/noise_multiplier": release.noise_multiplier}
        for group in release.groups:
            values[f"privacy/bound/{group.name}"] = group.bound
            values[f"privacy/noise_stddev/{group.name}"] = group.stddev
        return values

    def _unprotected(self, logs: dict[str, Any] | None, prefix: str) -> dict[str, float]:
        if not self.log_unprotected:
            return {}
        named = (logs or {}).items()
        spent = ("epsilon", "nominal_epsilon")
        return {prefix + n: value for n, value in named if n not in spent and not self._is_of_validation(n)}

    def _is_of_validation(self, name: str) -> bool:
        return name not in PUBLIC and not self.model.private_in_logs(name)

    def _say_left_out(self, logs: dict[str, Any]) -> None:
        """Warns, once in a training, of numbers that are called like validation metrics and may be none."""
        left = [name for name in logs if reads_as_validation(name) and not self._is_of_validation(name)]
        if left and not self._said and not self.log_unprotected:
            self._said = True
            warn(
                f"PrivacyTensorBoard does not write {left}: they are named like metrics of validation data, and may be"
                " computed from the private data without noise, since outputs or metrics of the model are called 'val'"
                " or 'val_...', or fit got no validation_data. Give outputs and metrics other names, and public data as"
                " validation_data=(x, y)."
            )

    def _write(self, values: dict[str, float]) -> None:
        with self._writer.as_default(step=self._spending.releases):
            for tag, value in values.items():
                tf.summary.scalar(tag, _at_least(value) if tag in _COSTS else value)

    def _say(self, spent: float) -> None:
        """The number itself: a chart that is smoothed shows one that was true some steps before."""
        releases = self._spending.releases
        text = f"{cost_text(spent, self._used_delta)} after {releases:,} releases"
        with self._writer.as_default():
            tf.summary.text("privacy/epsilon_spent", text, step=releases)

    def _write_rdp_curve(self) -> None:
        """In a run of its own: there the step axis means the order."""
        ledger = self.model.ledger
        if ledger.relation is None:
            return
        orders, divergences = rdp_curve(tuple(events_of(ledger).items()), ledger.relation)
        proven = [convert_rdp(orders[[i]], divergences[[i]], self._used_delta) for i in range(len(orders))]
        # Far beyond the best order the curve only shoots up, and would flatten the rest.
        largest = max(_ORDERS_SHOWN, 2.0 * float(orders[np.argmin(proven)]))
        writer = tf.summary.create_file_writer(os.path.join(self.log_dir, f"rdp_after_{ledger.steps}_steps"))
        with writer.as_default():
            for order, divergence, epsilon in zip(orders, divergences, proven, strict=True):
                if float(order).is_integer() and order <= largest:
                    tf.summary.scalar("privacy/rdp_curve", divergence, step=int(order))
                    tf.summary.scalar("privacy/epsilon_by_order", _at_least(epsilon), step=int(order))
        writer.close()

    def _hyper_parameters(self) -> dict[str, Any]:
        release = self._spending.release
        values = {
            "sampling": release.sampling.kind,
            "batch_size": release.sampling.batch_size,
            "examples": release.examples,
            "delta": self._used_delta,
            "noise_multiplier": release.noise_multiplier,
        }
        settings = self.model.optimizer.get_config()
        name, wrapped = type(self.model.optimizer).__name__, settings.get("optimizer")
        if isinstance(wrapped, dict):
            name = f"{name}({wrapped['class_name']})"
            # No more of it: Adam's epsilon beside the privacy budget's would mislead.
            settings = {"learning_rate": wrapped["config"].get("learning_rate")} | settings
        plain = {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str)}
        plain.pop("name", None)
        return plain | values | {"optimizer": name}

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _import_hparams() -> Any:
    try:
        from tensorboard.plugins.hparams import api
    except ImportError as error:
        raise ImportError(
            "PrivacyTensorBoard writes through the package tensorboard, which is not installed (TensorFlow no longer"
            " brings it). Install it: pip install '.[tensorboard]'."
        ) from error
    return api


def _writable(log_dir: str | os.PathLike[str]) -> str:
    """The folder as text, made and tried. Raises ValueError if it can't be written."""
    refuse_no_path(log_dir, "log_dir", "logs")
    path = os.fspath(log_dir)
    try:
        tf.io.gfile.makedirs(path)
        if "://" not in path:  # Remote file systems can't be tried by a nameless file.
            with tempfile.TemporaryFile(dir=path):
                pass
    except (OSError, tf.errors.OpError) as error:
        raise ValueError(
            f"log_dir={path!r} can't be written, so nothing could be shown: {error}. Choose another folder, or change"
            " its permissions."
        ) from error
    return path


def _checked_frequency(update_freq: Any) -> str | int:
    if update_freq == "epoch":
        return update_freq
    if isinstance(update_freq, bool) or not isinstance(update_freq, int | np.integer) or update_freq < 1:
        raise ValueError(
            f"update_freq is 'epoch' or a number of batches, 1 or more. Received: update_freq={update_freq!r}."
        )
    return int(update_freq)


def _at_least(value: float) -> np.float32:
    """In single precision, as TensorBoard keeps numbers, and not below the value."""
    single = np.float32(value)
    return single if float(single) >= value else np.nextafter(single, np.float32(np.inf))


def _preformatted(text: str) -> str:
    """A Markdown code block by indentation: nothing in the text, fences included, can end it."""
    return "".join(f"    {line}\n" for line in text.splitlines())
