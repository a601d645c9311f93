"""The options that describe a training run to the accountants: how records are drawn, how many, how often."""

from dataclasses import dataclass
from typing import Any

from absl import flags

from tfdp_layers.commands.command import Refusal, fraction, needed, whole
from tfdp_layers.sampling import FixedSize, Partition, Poisson, Sampling, TruncatedPoisson

__all__ = ["SAMPLINGS", "SAMPLING_HELP", "SampledRun", "define_sampled_run"]

SAMPLINGS = {cls.kind: cls for cls in (Poisson, TruncatedPoisson, FixedSize, Partition)}
SAMPLING_HELP = (
    "How the records of a step are drawn. poisson: each one independently (what tfdp trains with);"
    " truncated_poisson: the same, cut at mean + 6 standard deviations; without_replacement: exactly a batch,"
    " afresh at every step; partition: shuffled once an epoch and cut into batches."
)


@dataclass(frozen=True)
class SampledRun:
    """A training run as the accountants see it, without its noise."""

    sampling: Sampling
    examples: int
    steps: int
    delta: float

    @classmethod
    def from_options(cls, values: flags.FlagValues) -> "SampledRun":
        """Reads the options. Raises Refusal for missing and invalid ones."""
        examples = whole("examples", values.examples, "the number of records of the training data")
        needed("examples", examples, "the number of records of the training data, for example --examples 60000.")
        batch_size = whole("batch_size", values.batch_size, "the expected number of records in a step")
        needed("batch_size", batch_size, "the expected number of records in a step, for example --batch-size 2048.")
        delta = fraction("delta", values.delta, "the probability with which the guarantee may fail")
        sampling = SAMPLINGS[values.sampling](batch_size)
        try:
            per_epoch = sampling.steps_per_epoch(examples)
        except ValueError as error:
            raise Refusal(str(error)) from error
        return cls(sampling, examples, _steps(values, per_epoch), delta)

    def to_json(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "delta": self.delta,
            "relation": self.sampling.relation.name.lower(),
            "sampling": self.sampling.kind,
            "examples": self.examples,
            "batch_size": self.sampling.batch_size,
            "steps": self.steps,
        }


def define_sampled_run(values: flags.FlagValues) -> None:
    """Defines --sampling, --examples, --batch-size, --steps, --epochs and --delta."""
    flags.DEFINE_enum("sampling", "poisson", list(SAMPLINGS), SAMPLING_HELP, flag_values=values)
    flags.DEFINE_integer("examples", None, "Number of records of the training data.", flag_values=values)
    flags.DEFINE_integer("batch_size", None, "Expected number of records in a step.", flag_values=values)
    flags.DEFINE_integer("steps", None, "Number of training steps.", flag_values=values)
    flags.DEFINE_integer("epochs", None, "Number of epochs, in place of --steps.", flag_values=values)
    flags.DEFINE_float(
        "delta",
        1e-5,
        "Probability with which the guarantee may fail; choose less than 1 / examples.",
        flag_values=values,
    )


def _steps(values: flags.FlagValues, per_epoch: int) -> int:
    steps = whole("steps", values.steps, "the number of training steps")
    epochs = whole("epochs", values.epochs, "the number of epochs")
    if (steps is None) == (epochs is None):
        raise Refusal("give the length of the training by either --steps or --epochs.")
    return epochs * per_epoch if steps is None else steps
