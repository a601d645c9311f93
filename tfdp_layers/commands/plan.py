"""`tfdp plan`: batch sizes and epochs, compared by what a budget buys with them."""

from pathlib import Path

from absl import flags

from tfdp_layers.accounting import RunPlan, plan
from tfdp_layers.commands.command import (
    Command,
    Refusal,
    WholeNumber,
    fraction,
    needed,
    positive,
    print_json,
    say_at_once,
    whole,
)
from tfdp_layers.commands.sampled_run import SAMPLING_HELP, SAMPLINGS, owned_records

__all__ = ["COMMAND"]

_DESCRIPTION = """
Prints, for a number of records and a budget (epsilon, delta), the noise that trainings of several batch
sizes and epochs need, how far their gradients can stand out of it, and which to start from. Nothing is
trained, and no data are read: it takes a few seconds.

Examples:
  tfdp plan --examples 60000 --epsilon 2.7 --delta 1e-5
  tfdp plan --examples 569 --epsilon 1 --delta 1e-4 --batch-sizes 16,64 --epochs 20,40,80 --weights 31

In Python: print(tfdp.plan(60_000, epsilon=2.7, delta=1e-5)).
"""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "examples",
        None,
        "Number of records of the training data; of persons, where fit gets unit_ids.",
        flag_values=values,
    )
    flags.DEFINE_float("epsilon", None, "The budget for the whole run, for example 2.7.", flag_values=values)
    text = "Probability with which the guarantee may fail; choose less than 1 / examples."
    flags.DEFINE_float("delta", 1e-5, text, flag_values=values)
    sizes = "Whole numbers with commas, expected records in a step; if left out, 1/128 to 1/8 of the records."
    flags.DEFINE_string("batch_sizes", None, sizes, flag_values=values)
    lengths = "Whole numbers with commas; 10,20,40,80 if left out."
    flags.DEFINE_string("epochs", None, lengths, flag_values=values)
    flags.DEFINE_integer("weights", None, "How many weights are trained: the scale of the signals.", flag_values=values)
    flags.DEFINE_enum("sampling", "poisson", list(SAMPLINGS), SAMPLING_HELP, flag_values=values)
    owned = "How many of the records one person owns at most, alone or with others, where fit gets owners."
    flags.DEFINE_integer("records_per_owner", None, owned, flag_values=values)
    flags.DEFINE_string("plot", None, "Writes the signals as a picture, too (needs matplotlib).", flag_values=values)
    flags.DEFINE_bool("json", False, "Print one JSON object.", flag_values=values)


def _run(values: flags.FlagValues) -> int:
    examples = whole("examples", values.examples, "the number of records of the training data")
    needed("examples", examples, "the number of records of the training data, for example --examples 60000.")
    epsilon = positive("epsilon", values.epsilon, "the budget")
    needed("epsilon", epsilon, "the budget for the whole run, for example --epsilon 2.7.")
    delta = fraction("delta", values.delta, "the probability with which the guarantee may fail")
    owned = owned_records(values, examples)
    say_at_once("Finding the noise that each training of the table needs, in a few seconds; nothing is trained.")
    try:
        found = plan(
            examples,
            epsilon,
            delta,
            batch_sizes=_numbers("batch-sizes", values.batch_sizes),
            epochs=_numbers("epochs", values.epochs),
            weights=whole("weights", values.weights, "the number of weights that are trained"),
            sampling=SAMPLINGS[values.sampling],
            records_per_owner=owned,
        )
    except (ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error
    if values.plot is not None:
        _draw(found, Path(values.plot))
    if values.json:
        print_json(found.to_json())
    else:
        print(found)
    return 0


def _numbers(name: str, text: str | None) -> list[int] | None:
    """Whole numbers with commas between them."""
    if text is None:
        return None
    try:
        found = [WholeNumber().convert(part) for part in text.split(",")]
    except ValueError as error:
        raise Refusal(f"--{name} takes whole numbers with commas, for example 256,1024. Received: {text!r}.") from error
    if any(part.strip() == "0" for part in text.split(",")):
        raise Refusal(f"--{name} takes whole numbers from 1 on. Received: {text!r}.")
    if any(part.strip().startswith("0") for part in text.split(",")):  # 1,024 would be batches of 1 and of 24
        raise Refusal(f"--{name} has commas between numbers, and none within them: 1024. Received: {text!r}.")
    return found


def _draw(found: RunPlan, path: Path) -> None:
    """Signal against epochs, a line for each batch size."""
    try:
        from tfdp_layers import plots
    except ImportError as error:
        raise Refusal("--plot needs matplotlib: pip install '.[plots]'. The table needs nothing.") from error
    try:
        plots.save(plots.plan(found), path)
    except (OSError, ValueError) as error:
        raise Refusal(f"the picture cannot be written to {path}: {error}") from error


COMMAND = Command("plan", _DESCRIPTION, _define, _run)
