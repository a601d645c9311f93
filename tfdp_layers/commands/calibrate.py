"""`tfdp calibrate`: how much noise a budget needs."""

from absl import flags

from tfdp_layers.accounting import Ledger, Statement, calibrate_noise_multiplier, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.wording import cost_text, rounded_up
from tfdp_layers.commands.command import Command, Refusal, needed, positive, print_json, wrapped
from tfdp_layers.commands.sampled_run import SampledRun, define_sampled_run

__all__ = ["COMMAND"]

_DESCRIPTION = """
Prints the smallest noise multiplier with which a training run keeps to a budget (epsilon, delta).
The epsilon that it gives is computed at the end and never exceeds the budget. Nothing is trained.

Example:
  tfdp calibrate --epsilon 2.7 --delta 1e-5 --examples 60000 --batch-size 2048 --epochs 40

Give the number to an optimizer: tfdp.optimizers.NoisyOptimizer(optimizer, noise_multiplier=...).
`tfdp train` does all this by itself.
"""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_float("epsilon", None, "The budget for the whole run, for example 2.7.", flag_values=values)
    define_sampled_run(values)
    flags.DEFINE_bool("json", False, "Print one JSON object.", flag_values=values)


def _run(values: flags.FlagValues) -> int:
    target = positive("epsilon", values.epsilon, "the budget")
    needed("epsilon", target, "the budget for the whole run, for example --epsilon 2.7.")
    run = SampledRun.from_options(values)
    try:
        given = (target, run.delta, run.sampling, run.examples, run.steps)
        noise = calibrate_noise_multiplier(*given, noise=run.noise, records_per_owner=run.records_per_owner or 1)
        ledger = Ledger()
        charge(ledger, run.release(noise), run.steps)
        reached = epsilon(ledger, run.delta)
    except (ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error
    if values.json:
        print_json(
            {
                "noise_multiplier": noise,
                "target_epsilon": target,
                "epsilon": float(reached),
                "accountant": reached.accountant,
                **run.to_json(),
            }
        )
        return 0
    print(f"noise multiplier = {rounded_up(noise, 6)}")
    print(f"It gives {cost_text(reached, run.delta, 6)} (by {reached.accountant}).")
    print(wrapped(f"Run: {run.steps} steps. Sampling: {run.describe()}", "", 4))
    statement = Statement.from_ledger(ledger, run.delta)
    print(wrapped(f"Protects {statement.privacy_unit}; {statement.relation}", "", 4))
    return 0


COMMAND = Command("calibrate", _DESCRIPTION, _define, _run)
