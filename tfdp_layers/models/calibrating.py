"""How much noise a `fit` adds: the number that was given, or the least with which all its steps keep to the budget."""

import contextlib
import math
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp_layers.accounting import (
    Budget,
    GroupNoise,
    Ledger,
    Release,
    affordable_steps,
    calibrate_noise_multiplier,
    epsilon,
)
from tfdp_layers.accounting.searching import OutOfReachError
from tfdp_layers.accounting.wording import rounded_up as at_least
from tfdp_layers.batches.base import Batches
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget
from tfdp_layers.callbacks.steering import flatten_callbacks
from tfdp_layers.caller import warn
from tfdp_layers.models.planning import Plan
from tfdp_layers.models.run import release_of
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.learning_rate import KERAS, adam_rate, held
from tfdp_layers.sampling.correlated import Correlated
from tfdp_layers.sensitivity import SensitivityGroup

_DIGITS = 5
_LEAST_LEFT = 0.01
"""Of a budget: with less than this left, noise is not stretched over further steps."""
_PROTECTS_NOBODY = 0.1
"""A noise multiplier below which a step costs an epsilon of 50 and more. 0 is given on purpose, to compare."""
_MOST_STRETCHED = 10.0
"""Times the noise of earlier steps: what is left of a spent budget affords any number of steps, each of nothing."""

_kept_to: "weakref.WeakKeyDictionary[Ledger, Budget]" = weakref.WeakKeyDictionary()
"""Ledgers of which a `fit` of this process kept to a budget, and the last one."""


def settle_noise(
    optimizer: PrivateOptimizer,
    ledger: Ledger,
    batches: Batches,
    groups: Sequence[SensitivityGroup],
    plan: Plan,
    arguments: Mapping[str, Any],
) -> None:
    """Finds the noise multiplier and Adam's rate of a `fit`, where it is to find them, and says which, in a line each.

    It is the smallest, rounded up to five digits, with which all planned steps on top of what the ledger holds keep to
    the `PrivacyBudget` among the callbacks, and to the ledger's own budget. The budget enforces it, as with any number.
    Of several workers the chief finds it, and tells the others.

    Args:
        ledger: of the model; its file is locked, so that what it holds stays what it is until the first step.
        arguments: of the `fit`, by name; nothing is printed with verbose=0.

    Raises, before anything is spent:
        ValueError: there is no `PrivacyBudget`, or there are two; the optimizer adds no noise that grows with its
            multiplier.
        BudgetExhausted: nothing, or next to nothing, is left of the budget.
    """
    workers, rate = optimizer.workers, math.nan
    if workers is not None and not workers.chief:
        number, rate = (float(text) for text in workers.text().split())
        if optimizer.multiplier.calibrates:
            optimizer.multiplier.found = number
        if not math.isnan(rate):
            optimizer._rate.use(optimizer.inner_optimizer, rate)
        return
    said: list[str] = []
    try:
        budget = budget_of(arguments.get("callbacks"))
        if optimizer.multiplier.calibrates and not (budget is None and optimizer.multiplier.kept):
            said.append(_calibrate(optimizer, ledger, batches, groups, plan, budget))
        elif budget is None and 0 < optimizer.multiplier.number < _PROTECTS_NOBODY:
            _warn_of_little(optimizer)
        if told := settle_rate(optimizer, groups, affordable(optimizer, ledger, batches, groups, plan, budget)):
            rate = held(optimizer.learning_rate)
            said.append(told)
        if not plan.steps and said:
            said = ["No step is planned: nothing is released."]
        if said and arguments.get("verbose") != 0:
            print(*said, sep="\n", flush=True)
        _remember(ledger, budget)
    except BaseException:
        if workers is not None:
            workers.abort()
        raise
    if workers is not None:
        workers.text(f"{optimizer.multiplier.number!r} {rate!r}")


def affordable(
    optimizer: PrivateOptimizer,
    ledger: Ledger,
    batches: Batches,
    groups: Sequence[SensitivityGroup],
    plan: Plan,
    budget: PrivacyBudget | None,
) -> int:
    """How many of the planned steps the budget affords, where the noise was given: a rate of more would be too low."""
    if budget is None or optimizer.multiplier.calibrates or not optimizer._rate.by_name or plan.steps < 2:
        return plan.steps
    noise = release_of(batches, groups, optimizer).noise_multiplier
    if not 0.0 < noise < math.inf or batches.unit == "owner":
        return plan.steps
    with contextlib.suppress(ValueError, ArithmeticError, NotImplementedError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        drawn = batches.sampling, batches.examples
        return affordable_steps(budget.epsilon, budget.delta, *drawn, noise, ledger, plan.steps, optimizer.correlation)
    return plan.steps


def settle_rate(optimizer: PrivateOptimizer, groups: Sequence[SensitivityGroup], steps: int) -> str:
    """Sets the learning rate of Adam by its name, and says so; "" where somebody set one, but for Keras' own.

    It goes by the steps of all `fit`s so far and the next ones, and by the weights that are trained.
    """
    shapes = [variable.shape for group in groups for variable in group.variables]
    steps, weights = int(optimizer.releases.numpy()) + steps, sum(math.prod(shape) for shape in shapes)
    inner, name = optimizer.inner_optimizer, type(optimizer.inner_optimizer).__name__
    if optimizer._rate.settle(inner, steps, shapes):
        found = f"{optimizer._rate.found:g}"
        return f"{name} starts at a learning rate of {found}, for {steps:,} steps and {weights:,} weights."
    if optimizer._rate.is_kerases(inner) and adam_rate(steps, shapes) > 2 * KERAS:
        return (
            f"{name} has Keras' learning rate of {KERAS:g}, which is low for so few private steps: by its name,"
            f' "{name.lower()}", it would start at {adam_rate(steps, shapes):g}.'
        )
    return ""


def _warn_of_little(optimizer: PrivateOptimizer) -> None:
    kind, number = type(optimizer).__name__, optimizer.multiplier.number
    warn(
        f"{kind} has a noise multiplier of {number:g}, and no PrivacyBudget limits what that costs: a single step costs"
        f" an epsilon beyond any that protects. If it was meant as a learning rate: {kind}(keras.optimizers.Adam("
        f"{number:g})). Else leave it out, and give fit a budget, which finds the noise."
    )


def budget_of(callbacks: Any) -> PrivacyBudget | None:
    """The `PrivacyBudget` among the callbacks of a `fit`. Raises ValueError where there are two."""
    found = [callback for callback in flatten_callbacks(callbacks) if isinstance(callback, PrivacyBudget)]
    if len(found) > 1:
        raise ValueError(
            "One fit got two PrivacyBudget callbacks, and the optimizer keeps one limit. Give it the tighter one."
        )
    return found[0] if found else None


def _calibrate(
    optimizer: PrivateOptimizer,
    ledger: Ledger,
    batches: Batches,
    groups: Sequence[SensitivityGroup],
    plan: Plan,
    budget: PrivacyBudget | None,
) -> str:
    """Sets the noise multiplier that is in use, and returns what to say of it."""
    if budget is None:
        raise ValueError(
            f"The noise multiplier of {type(optimizer).__name__} is 'calibrate' (its default), and fit got no budget to"
            " find it from. Add one: fit(..., callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=2.7, delta=1e-5)]), with"
            " delta below 1 / number of records. Or give the optimizer a number: noise_multiplier=1.0."
        )
    ledger.lock()
    ledger.check(Release((GroupNoise("any", 1.0, 1.0),), batches.sampling, batches.examples, unit=batches.unit))
    accounted = (ledger.as_published() if budget.accept_nominal else None) or ledger
    targets = [Budget(budget.epsilon, budget.delta), *([ledger.budget] if ledger.budget else [])]
    correlation = optimizer.correlation
    steps = max(1, plan.steps)
    needed = [_least_noise(target, accounted, batches, steps, correlation) for target in targets]
    joint, binding = max(needed), targets[needed.index(max(needed))]  # of two that need as much, the callback's
    optimizer.multiplier.found = rounded_up(joint / _joint_of_one(optimizer, batches, groups))
    spent = float(epsilon(accounted, binding.delta)) if accounted.steps else 0.0
    beside = f", beside epsilon {at_least(spent)} that the ledger holds" if spent else ""
    of_noise = "" if correlation is None else f" with correlated noise, decay {correlation.number:g}"
    drawn = (
        f"{batches.sampling.batch_size:,} of {batches.examples:,} {'units' if batches.unit == 'unit' else 'records'}"
    )
    drawn += f" (an owner has at most {batches.records_per_owner})" if batches.unit == "owner" else ""
    of = (
        ""
        if binding is targets[0]
        else f", the budget of the data set {ledger.dataset!r} ({budget!r} needs less noise),"
    )
    return (
        f"Noise multiplier {optimizer.multiplier.number:.{_DIGITS}g}: epsilon {at_least(binding.epsilon, 6)} at delta"
        f" {at_least(binding.delta, 6)}{of} after {plan}, {drawn} each by {batches.sampling.kind} sampling"
        f"{of_noise}{beside}."
    )


def _joint_of_one(optimizer: PrivateOptimizer, batches: Batches, groups: Sequence[SensitivityGroup]) -> float:
    """The noise multiplier of all groups together where the optimizer's is 1: 1, but for rounding, of all of ours."""
    optimizer.multiplier.found = 1.0
    joint = release_of(batches, groups, optimizer).noise_multiplier
    optimizer.multiplier.found = None
    if not 0.0 < joint < math.inf:
        raise ValueError(
            f"{type(optimizer).__name__} adds no noise to some group of weights, or bounds none, whatever its noise"
            " multiplier: there is none that keeps to a budget."
        )
    return joint


def _least_noise(
    target: Budget, ledger: Ledger, batches: Batches, steps: int, noise: Correlated | None = None
) -> float:
    """The joint noise multiplier with which these steps fit. Raises BudgetExhausted where nothing is left for them."""
    spent = float(epsilon(ledger, target.delta)) if ledger.steps else 0.0
    if spent >= target.epsilon:
        raise BudgetExhausted(_nothing_left(target, spent, ledger))
    try:
        with warnings.catch_warnings():  # of a large delta the callback warns
            warnings.simplefilter("ignore", UserWarning)
            found = calibrate_noise_multiplier(
                target.epsilon,
                target.delta,
                batches.sampling,
                batches.examples,
                steps,
                ledger,
                noise,
                batches.records_per_owner,
            )
    except OutOfReachError:
        if not spent:
            raise
        raise BudgetExhausted(_nothing_left(target, spent, ledger)) from None
    before = [r.noise_multiplier for r in ledger.releases if isinstance(r, Release) and r.purpose == "step"]
    left = 1.0 - spent / target.epsilon
    if left < _LEAST_LEFT and before and found > _MOST_STRETCHED * max(before):
        raise BudgetExhausted(_nothing_left(target, spent, ledger))
    return found


def named(budget: Budget) -> str:
    """A budget in words, whose digits never show less than it is."""
    return f"epsilon={at_least(budget.epsilon, 6)} at delta={at_least(budget.delta, 6)}"


def _nothing_left(target: Budget, spent: float, ledger: Ledger) -> str:
    where = "" if ledger.path is None else f" {ledger.path}, which outlives this process,"
    of = f" of the data set {ledger.dataset!r}," if target == ledger.budget else ""
    left = (
        f"Nothing is left of the budget{of} {named(target)}: the {ledger.steps} releases in the ledger{where} spent"
        f" epsilon={at_least(spent)}. Nothing more was released"
    )
    if of:
        return left + (
            ", and no PrivacyBudget raises what was fixed for the data set. The models that were trained may be used"
            " for ever; a further one needs other records."
        )
    fixed = "" if ledger.budget is None else f" (no more than {named(ledger.budget)}, fixed for the data set)"
    return left + (
        ". With noise_multiplier='calibrate' one fit plans to use the whole budget: give all epochs to one fit, or the"
        f" next one a larger budget{fixed}, which is for whoever answers for these people to say; or give the optimizer"
        " a fixed noise_multiplier before the first, such as 1.0."
    )


def rounded_up(multiplier: float) -> float:
    """The number of five digits at or above it, so that what is printed is what is used."""
    unit = 10.0 ** (math.floor(math.log10(multiplier)) - _DIGITS + 1)
    # A little more than rounding may have taken from the sum over groups.
    return float(f"{math.ceil(multiplier * (1 + 1e-9) / unit) * unit:.{_DIGITS}g}")


def _remember(ledger: Ledger, budget: PrivacyBudget | None) -> None:
    """Notes which budget a ledger kept to; warns where nothing keeps it to that any more."""
    if budget is not None:
        _kept_to[ledger] = Budget(budget.epsilon, budget.delta)
        return
    before = _kept_to.get(ledger)
    if before is not None and ledger.budget is None:
        warn(
            f"This fit has no PrivacyBudget, and an earlier one on the same ledger kept to {named(before)}:"
            " nothing keeps to that now. Add a tfdp.callbacks.PrivacyBudget to callbacks.",
        )
