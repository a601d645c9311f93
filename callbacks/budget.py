"""The callback that keeps a training run within (epsilon, delta)."""

import math
from typing import Any

import keras

from tfdp_layers.accounting import Budget, BudgetExhausted, Epsilon, Release, affordable_steps
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.callbacks.spending import Spending
from tfdp_layers.caller import warn
from tfdp_layers.instances import Elsewhere

__all__ = ["BudgetExhausted", "PrivacyBudget"]

_MOST_STEPS = 10_000_000


class PrivacyBudget(keras.callbacks.Callback):
    """Stops `fit` before the step that would spend more than (epsilon, delta), all that the ledger holds included.

    It is the ledger that enforces: until `fit` ends, no reservation passes that would exceed the budget, whoever asks
    for it: another training or a released metric on the same ledger, from whichever thread. And this callback plans: at
    the start it tells the optimizer how many steps still fit (past that the compiled step releases nothing, also in the
    middle of a call that covers several steps, `steps_per_execution`), and it ends `fit` once they are made. What
    earlier calls of `fit` spent, or the run that a loaded model comes from, counts.

    `epsilon` joins the logs, so that the progress bar, History, CSVLogger and TensorBoard show it: after a step a cheap
    upper bound, after an epoch the smallest epsilon that an accountant proves.

    Formal guarantee: when `fit` ends, `tfdp.accounting.epsilon(model.ledger, delta) <= epsilon`, under the neighbouring
    relation of the ledger, provided it held at the start. A run with a seeded source keeps to the number as well, but
    its statement is void. With `accept_nominal` the guarantee is lost for algorithms used as printed.

    Args:
        epsilon: the budget, finite and above 0; a `fit` keeps to what it was as it began.
        delta: in (0, 1); above 1 / examples (units, owners) it protects little: a UserWarning says so when training
            starts.
        accept_nominal: for an algorithm used as printed (`as_published=True`), whose publication states a smaller
            epsilon than holds: keeps to the publication's figure, which is NOT a guarantee. The logs then show both,
            `epsilon` (what holds) and `nominal_epsilon`. Without it such a `fit` is refused.

    Attributes:
        exhausted: whether the current or last `fit` was ended because no further step fits.

    Raises:
        ValueError: epsilon or delta out of range. From `fit`: a model that is not private, a noise multiplier of 0, an
            algorithm used as printed unless `accept_nominal`, or a second budget.
        BudgetExhausted: from `fit`, before anything is released, when not one more step fits.

    Example:
        model.fit(x, y, batch_size=2048, epochs=40, callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=2.7, delta=1e-5)])
    """

    # fit puts such callbacks first: Keras hands one dict of logs along the list, and later callbacks see what is in it.
    adds_to_logs = True
    # Of several workers only the chief runs it: the others have no ledger.
    chief_only = True

    _spending: Spending
    _true: Spending | None = None
    _ceiling: Epsilon

    spent, get_epsilon = Elsewhere.several(
        2, "What was spent is in the model's ledger: tfdp.accounting.epsilon(model.ledger, budget.delta)."
    )

    def __init__(self, epsilon: float, delta: float | None = None, *, accept_nominal: bool = False) -> None:
        super().__init__()
        self.epsilon = _checked_epsilon(epsilon)
        self.delta = check_delta(delta)
        self.accept_nominal = bool(accept_nominal)
        self.exhausted = False
        self._kept_to = Budget(self.epsilon, self.delta)  # by the fit that runs
        self._allowed = 0
        self._planned = 0

    def __repr__(self) -> str:
        nominal = ", accept_nominal=True" if self.accept_nominal else ""
        return f"PrivacyBudget(epsilon={rounded_up(self.epsilon, 6)}, delta={rounded_up(self.delta, 6)}{nominal})"

    @property
    def _named(self) -> str:
        return f"epsilon={rounded_up(self._kept_to.epsilon, 6)} at delta={rounded_up(self._kept_to.delta, 6)}"

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Plans how many steps fit. Raises ValueError and BudgetExhausted, see the class."""
        if isinstance((logs or {}).get("epsilon"), Epsilon):
            raise ValueError(
                "One fit got two PrivacyBudget callbacks, and the optimizer keeps one limit. Give it the tighter one."
            )
        self.exhausted, self._kept_to = False, Budget(self.epsilon, self.delta)
        self._plan()
        self._add_to(logs, self._spending.exact())

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks ahead to the end of the epoch: until then its epsilon bounds that of every step."""
        self._follow(first=not self.model.made_in_fit)
        ahead = min(self._allowed, self._spending.released + self._steps_of_an_epoch())
        self._ceiling = self._spending.curve.at(ahead)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Plans anew if a callback loaded weights, with what they cost, or another training spent of the ledger."""
        self._follow()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds an upper bound on epsilon to the logs; ends `fit` when all steps that fit are made."""
        self._follow()
        ceiling = self._ceiling
        bound = min(self._spending.bound(), float(ceiling))
        self._add_to(
            logs, Epsilon(bound, self._kept_to.delta, "upper bound", ceiling.relation, ceiling.sampling), exact=False
        )
        planned_less = self._allowed < self._planned or self.model.outspent_in_fit
        if planned_less and self._limited.releases_left() == 0:
            self._end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the exact epsilon to the logs."""
        self._follow()
        self._add_to(logs, self._spending.exact())

    def _end(self) -> None:
        """Ends `fit`, and says so, once."""
        self.model.stop_training = True
        if self.exhausted:
            return
        self.exhausted = True
        made = int(self.model.made_in_fit)
        warn(
            f"The budget {self._named} ends training after {made:,} of"
            f" {made + self._further():,} planned steps: one more would exceed it. For all of them use more noise"
            " (noise_multiplier='calibrate' finds it, or tfdp.accounting.calibrate_noise_multiplier), fewer epochs, or"
            " a larger budget.",
        )

    @property
    def _limited(self) -> Any:
        """Who keeps the limit: the private optimizer; where it is tensorflow-privacy's, the model with its ledger."""
        return self.model if hasattr(self.model, "limit_releases") else self.model.optimizer

    def _follow(self, first: bool = False) -> None:
        """Plans anew where the ledger moved otherwise than by this `fit`. Where nothing is left, that ends it.

        Args:
            first: whether nothing was released yet: then it raises BudgetExhausted.
        """
        if not self._spending.stale:
            return
        try:
            self._plan()
        except BudgetExhausted:
            if first:
                raise
            self._end()

    def _plan(self) -> None:
        self._spending, self._true = Spending(self.model, self._kept_to.delta), None
        printed = self._spending.release.nominal_noise_multiplier is not None
        if self.accept_nominal and (printed or self.model.ledger.as_published() is not None):
            self._spending, self._true = Spending(self.model, self._kept_to.delta, nominal=True), self._spending
        elif printed:
            raise ValueError(self._refusal())
        release = self._spending.release
        if release.noise_multiplier == 0:
            raise ValueError(
                f"{self!r} on a release without noise: its epsilon is infinite, and no"
                " budget affords a step. Give the optimizer a positive noise_multiplier"
                " (tfdp.accounting.calibrate_noise_multiplier finds one), or leave PrivacyBudget out."
            )
        self.model.keep_fit_to(self._kept_to, nominal=self._true is not None)
        self._planned = self._further()
        self._allowed = 0
        try:
            self._allowed = self._affordable(release)
        finally:
            self._limited.limit_releases(self._allowed)
        self._ceiling = self._spending.curve.at(self._allowed)
        if self._allowed == 0 < self._planned:
            raise BudgetExhausted(self._nothing_left())

    def _affordable(self, release: Release) -> int:
        """How many of the planned steps fit into the budget."""
        return affordable_steps(
            self._kept_to.epsilon,
            self._kept_to.delta,
            release.sampling,
            release.examples,
            release.noise_multiplier,
            ledger=self._spending.ledger,
            maximum=self._planned,
            noise=release.noise,
            held=self._spending.held,
            records_per_owner=release.records_per_owner,
            owners=release.owners,
        )

    def _further(self) -> int:
        """How many steps `fit` is still to make."""
        planned = getattr(self.model, "planned_in_fit", None)
        if planned is None:
            return int(self.params.get("epochs") or 1) * self._steps_of_an_epoch()
        return max(0, int(planned) - int(self.model.made_in_fit))

    def _steps_of_an_epoch(self) -> int:
        """Its last call makes as many steps as any other, also where fewer were left."""
        together = int(self.model.steps_per_execution)
        return -(-int(self.params.get("steps") or _MOST_STEPS) // together) * together

    def _add_to(self, logs: dict[str, Any] | None, epsilon: Epsilon, exact: bool = True) -> None:
        """The epsilon that the budget keeps to; where that is a nominal one, beside the one that holds."""
        if logs is None:
            return
        if self._true is not None:
            logs["nominal_epsilon"] = epsilon
            value = float(self._true.exact()) if exact else self._true.bound()
            epsilon = Epsilon(value, self._kept_to.delta, epsilon.accountant, epsilon.relation, epsilon.sampling)
        logs["epsilon"] = epsilon

    def _refusal(self) -> str:
        """Why an algorithm used as printed does not start under a budget, with both figures."""
        nominal = Spending(self.model, self._kept_to.delta, nominal=True)
        one, printed = float(self._spending.curve.at(1)), float(nominal.curve.at(1))
        return (
            f"{self!r} on an algorithm used as printed (as_published=True), whose"
            f" publication states less than it costs: at delta={rounded_up(self._kept_to.delta, 6)} one step costs"
            f" epsilon={rounded_up(one)}, and nominally {rounded_up(printed)}. Use the sound default"
            " (as_published=False); or, to study the printed algorithm, PrivacyBudget(..., accept_nominal=True), which"
            " keeps to the nominal figure and guarantees nothing."
        )

    def _nothing_left(self) -> str:
        curve = self._spending.curve
        releases, spent, more = self._spending.releases, float(curve.at(0)), float(curve.at(1))
        if not releases:
            return (
                f"The budget {self._named} is smaller than what one release costs"
                f" with this noise, epsilon={rounded_up(more)}. Nothing was released. Let fit find the noise"
                " (noise_multiplier='calibrate', the default), or use more of it, a larger budget, or a smaller"
                " batch_size."
            )
        return (
            f"Nothing is left of the budget {self._named}: the {releases} releases"
            f" in the ledger spent epsilon={rounded_up(spent)}, and one more would make it {rounded_up(more)}. Nothing"
            " more was released. Use a larger budget, more noise (noise_multiplier), or a smaller batch_size."
        )


def _checked_epsilon(epsilon: Any) -> float:
    try:
        value = math.nan if isinstance(epsilon, bool | str) else float(epsilon)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(
            f"epsilon, the budget, must be a finite number above 0. Received: epsilon={epsilon!r}. Values from 1 to 8"
            " are common; smaller is more private."
        )
    return value
