"""The options that describe a training run to the accountants: how records are drawn, how many, how often."""

from dataclasses import dataclass
from typing import Any

from absl import flags

from tfdp_layers.accounting import GroupNoise, Release
from tfdp_layers.accounting.ledger_format import checked_count
from tfdp_layers.commands.command import Missing, Refusal, fraction, needed, whole
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, Sampling, TruncatedPoisson
from tfdp_layers.sampling.correlated import Correlated

__all__ = [
    "SAMPLINGS",
    "SAMPLING_HELP",
    "SampledRun",
    "correlation",
    "define_correlation",
    "define_sampled_run",
    "owned_records",
]

SAMPLINGS = {cls.kind: cls for cls in (Poisson, TruncatedPoisson, FixedSize, Partition, Cyclic)}
SAMPLING_HELP = (
    "How the records of a step are drawn. poisson: each one independently (what tfdp trains with);"
    " truncated_poisson: the same, cut at mean + 6 standard deviations; without_replacement: exactly a batch,"
    " afresh at every step; partition: shuffled once an epoch and cut into batches; cyclic: shuffled once, and cut into"
    " the same batches in every epoch."
)
_MOST_VISITS = 10**6


@dataclass(frozen=True)
class SampledRun:
    """A training run as the accountants see it, without its noise."""

    sampling: Sampling
    examples: int
    steps: int
    delta: float
    noise: Correlated | None = None
    records_per_owner: int | None = None

    @classmethod
    def from_options(cls, values: flags.FlagValues) -> "SampledRun":
        """Reads the options. Raises Refusal for missing and invalid ones."""
        examples = whole("examples", values.examples, "the number of records of the training data")
        needed("examples", examples, "the number of records of the training data, for example --examples 60000.")
        batch_size = whole("batch_size", values.batch_size, "the expected number of records in a step")
        needed("batch_size", batch_size, "the expected number of records in a step, for example --batch-size 2048.")
        delta = fraction("delta", values.delta, "the probability with which the guarantee may fail")
        sampling = SAMPLINGS[values.sampling](batch_size)
        owned = owned_records(values, examples)
        try:
            if owned is not None:
                sampling.refuse_owners()
            per_epoch = sampling.steps_per_epoch(examples)
            steps, noise = checked_count("steps", _steps(values, per_epoch)), correlation(values)
            if noise is not None:
                _check_visits(steps, per_epoch)
            noise = None if noise is None else sampling.settled(noise, steps, examples)
        except ValueError as error:
            raise Refusal(str(error)) from error
        return cls(sampling, examples, steps, delta, noise, owned)

    def release(self, noise_multiplier: float) -> Release:
        """What each step releases with this noise."""
        groups = (GroupNoise("all weights", 1.0, noise_multiplier),)
        return Release(
            groups,
            self.sampling,
            self.examples,
            noise=self.noise,
            unit="record" if self.records_per_owner is None else "owner",
            records_per_owner=self.records_per_owner or 1,
        )

    def describe(self) -> str:
        """How records are drawn and noise is correlated, in words."""
        noise = f"; correlated noise, decay {self.noise.number:g}" if self.noise else ""
        owners = f"; an owner has at most {self.records_per_owner} of them" if self.records_per_owner else ""
        return self.sampling.describe(self.examples) + noise + owners

    def to_json(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "delta": self.delta,
            "relation": self.release(1.0).relation.name.lower(),
            "sampling": self.sampling.kind,
            "examples": self.examples,
            "batch_size": self.sampling.batch_size,
            "steps": self.steps,
            "decay": None if self.noise is None else self.noise.decay,
            "records_per_owner": self.records_per_owner,
        }


def define_sampled_run(values: flags.FlagValues) -> None:
    """Defines --sampling, --examples, --batch-size, --steps, --epochs, --records-per-owner and --delta."""
    flags.DEFINE_enum("sampling", "poisson", list(SAMPLINGS), SAMPLING_HELP, flag_values=values)
    define_correlation(values)
    flags.DEFINE_integer("examples", None, "Number of records of the training data.", flag_values=values)
    flags.DEFINE_integer("batch_size", None, "Expected number of records in a step.", flag_values=values)
    flags.DEFINE_integer("steps", None, "Number of training steps.", flag_values=values)
    flags.DEFINE_integer("epochs", None, "Number of epochs, in place of --steps.", flag_values=values)
    flags.DEFINE_integer(
        "records_per_owner",
        None,
        "How many of the records one person owns at most, alone or with others, where fit gets owners; it protects them"
        " all. Left out, it protects one record.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "delta",
        1e-5,
        "Probability with which the guarantee may fail; choose less than 1 / examples.",
        flag_values=values,
    )


def define_correlation(values: flags.FlagValues) -> None:
    """Defines --noise and --decay."""
    flags.DEFINE_enum(
        "noise",
        "independent",
        ["independent", "correlated"],
        "Of the steps. correlated: each takes back a part of the last one's noise; for cyclic and partition.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "decay", None, "The part that --noise correlated takes back; the best if left out.", flag_values=values
    )


def correlation(values: flags.FlagValues) -> Correlated | None:
    """The correlated noise that the options ask for. Raises Refusal for a decay without it, or out of range."""
    if values.noise == "independent":
        if values.decay is not None:
            raise Refusal("--decay is of --noise correlated: give that too, or leave --decay out.")
        return None
    try:
        return Correlated(values.decay)
    except ValueError as error:
        raise Refusal(str(error)) from error


def owned_records(values: flags.FlagValues, examples: int) -> int | None:
    """How many records one owner owns at most; None if left out. Raises Refusal for more than there are."""
    owned = whole("records_per_owner", values.records_per_owner, "how many records one owner owns at most")
    if owned is not None and owned > examples:
        raise Refusal(
            f"--records-per-owner={owned} is more than all records (--examples={examples}): give how many of them one"
            " owner owns at most."
        )
    return owned


def _check_visits(steps: int, per_epoch: int) -> None:
    """Raises Refusal for more epochs than correlated noise is accounted for: it takes memory for each of them."""
    if steps > _MOST_VISITS * per_epoch:
        raise Refusal(
            f"--noise correlated is accounted for up to {_MOST_VISITS:,} epochs. Received: {steps:,} steps,"
            f" {per_epoch:,} in each epoch."
        )


def _steps(values: flags.FlagValues, per_epoch: int) -> int:
    steps = whole("steps", values.steps, "the number of training steps")
    epochs = whole("epochs", values.epochs, "the number of epochs")
    if (steps is None) == (epochs is None):
        raise (Missing if steps is None else Refusal)("give the length of the training by either --steps or --epochs.")
    return epochs * per_epoch if steps is None else steps
