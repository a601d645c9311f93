"""What the best trial is best at: a number of public data, or one released with noise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfdp_layers.accounting.logs import metric_of, reads_as_validation
from tfdp_layers.accounting.selection import Part
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.whose import Whose, whose_of
from tfdp_layers.instances import refuse_own_code
from tfdp_layers.metrics import Counted, metric_release, most_moved, one_each, release_metric, whole_draw
from tfdp_layers.models.looking import choosing
from tfdp_layers.noise import NoiseSource, as_noise_source
from tfdp_layers.sampling import drawing_all

__all__ = ["NoisyMean", "Objective", "objective_of"]

_RISING = ("acc", "auc", "precision", "recall", "score", "cosine", "iou")
_FALLING = ("loss", "error", "entropy", "divergence", "mse", "mae", "hinge", "perplexity")


@dataclass(frozen=True)
class NoisyMean:
    """An objective on PRIVATE records: the mean of one bounded number a record, released with noise by every trial.

    It is `tfdp.release_metric` inside of a trial, and the search pays for it as a part of each.

    Attributes:
        values: gives, of a trained model, numbers or booleans (records,), each computed from its own record and the
            model, for example `lambda model: model.predict(x, verbose=0).argmax(-1) == y`; of one output
            `lambda model: (model.predict(x, verbose=0)[:, 0] > 0.5) == y`, with y (records,).
        stddev: of the noise on the mean, in the metric's units.
        lower, upper, noise_source: as in `tfdp.release_metric`.
        unit_ids, owners, records_per_owner: as there, for a `fit` that got them.
        examples: the declared, public number of records, or of units, that `values` is of; that of the training if left
            out, which is taken as counted, so that a record is charged with twice as much: see `tfdp.release_metric`.
            Held-out records have a number of their own, by which their mean is divided.
    """

    values: Callable[[Any], Any]
    stddev: float
    lower: float = 0.0
    upper: float = 1.0
    noise_source: str | NoiseSource = "secure"
    unit_ids: Any = None
    owners: Any = None
    records_per_owner: int | None = None
    examples: int | None = None

    def __call__(self, model: Any, examples: int) -> float:
        """Releases the number, charged to the trial."""
        return release_metric(
            self.values(model),
            model.ledger,
            stddev=self.stddev,
            lower=self.lower,
            upper=self.upper,
            examples=self._examples(examples),
            unit_ids=self.unit_ids,
            owners=self.owners,
            records_per_owner=self.records_per_owner,
            name="score",
            noise_source=self.noise_source,
        )

    def part(self, batches: Batches, secret: str = "") -> Part:
        """What it costs a trial on these records; `secret` is that of the ledger that pays for it."""
        examples, whose = self._examples(batches.examples), self._whose()
        sampling = drawing_all(batches.sampling.relation, examples)
        release = metric_release(
            "score",
            most_moved(self.lower, self.upper, sampling, whose.unit, isinstance(examples, Counted)),
            float(self.stddev) * examples,
            sampling,
            as_noise_source(self.noise_source),
            whose.stated(secret),
        )
        return release, 1

    def check(self, model: Any, batches: Batches) -> None:
        """Raises ValueError for values of a model, released nowhere, that no trial could release: not one a record, or
        of another number than they are divided by.

        Held-out records, divided by the number of those that are trained on, would have a score of their share.
        """
        values = self.values(model)
        found = len(one_each(values))
        units = whose_of(
            found, self.unit_ids, self.owners, self.records_per_owner, ("values", values), scores=True
        ).units
        found, kind = (found, "records") if units is None else (len(units), "units")
        declared = int(self._examples(batches.examples))
        if self.examples is None and found not in (declared, getattr(batches, "_drawable", declared)):
            raise ValueError(
                f"NoisyMean gives numbers of {found:,} {kind}, and the training is on {declared:,}: these are"
                " other ones, and their mean would be divided by the wrong number. Say by which public number to"
                f" divide: NoisyMean(..., examples={found}) if anybody may know how many they are, or else a round"
                " number near it, which does not depend on who they are: the mean is then off by the ratio of them."
            )
        whole_draw(model.ledger, declared, found)  # neighbours of one size need all rows

    def _examples(self, trained: int) -> int:
        return Counted(trained) if self.examples is None else self.examples

    def _whose(self) -> Whose:
        """Whose records the values are of, which is known without the values."""
        given = self.unit_ids if self.owners is None else self.owners
        return whose_of(0 if given is None else len(given), self.unit_ids, self.owners, self.records_per_owner)


@dataclass(frozen=True)
class Objective:
    """A score of trained models.

    Attributes:
        of: gives a number of a model and of the number of records, which are public.
        sign: 1 where higher is better, -1 where lower is.
        paid: what is released to get it; None where it is of public data.
        own: whether it is a function of the caller's, which may look at no training records.
    """

    of: Callable[[Any, int], float]
    sign: float = 1.0
    paid: NoisyMean | None = None
    own: bool = False

    def score(self, model: Any, batches: Batches) -> float:
        """The higher the better, of a model that was trained on these, the private ones.

        Raises: ValueError where a function of the caller's asks the model for numbers of their records.
        """
        with choosing(batches if self.own else None):
            return self.sign * float(self.of(model, batches.examples))

    def rehearse(self, model: Any, batches: Batches) -> None:
        """Raises what is wrong with it, by a model of made-up records, before anything is paid for. Arguments alike."""
        if self.paid is None:
            self.score(model, batches)
        else:
            self.paid.check(model, batches)

    def shown(self, score: float) -> float:
        """The number itself, of a score."""
        return self.sign * score

    def parts(self, batches: Batches, secret: str = "") -> list[Part]:
        """What it adds to the cost of a trial on these records."""
        return [] if self.paid is None else [self.paid.part(batches, secret)]


def objective_of(objective: Any, validation_data: Any, mode: str) -> Objective:
    """Reads the arguments of a search. Raises ValueError for what gives no score of public data."""
    if isinstance(objective, NoisyMean):
        refuse_own_code(objective, [NoisyMean], "`objective`")
        return Objective(objective, -1.0 if mode == "min" else 1.0, objective)
    if callable(objective):
        if validation_data is not None or mode != "auto":
            raise ValueError(
                "An objective that is a function of the model needs no validation_data and no mode: it holds its own"
                " public data, and higher is better."
            )
        return Objective(lambda model, _: objective(model), own=True)
    if not isinstance(objective, str) or not reads_as_validation(objective):
        raise ValueError(
            f"objective must be the name of a metric of validation_data, such as 'val_accuracy' or 'val_loss', or a"
            f" function of the model. Received: {objective!r}. A metric of the training data carries no noise: choosing"
            " by it would leak."
        )
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (2, 3):
        raise ValueError(f"The objective {objective!r} needs validation_data=(x, y), which are PUBLIC.")
    name, sign = metric_of(objective), _sign(objective, mode)

    def of(model: Any, _: int) -> float:
        x, y, *weights = validation_data
        logs = model.evaluate(x, y, sample_weight=weights[0] if weights else None, verbose=0, return_dict=True)
        if not isinstance(logs, Mapping) or name not in logs:
            raise ValueError(f"The model has no metric {name!r}: evaluate gives {sorted(logs)}. Add it to compile.")
        return float(logs[name])

    return Objective(of, sign)


def _sign(objective: str, mode: str) -> float:
    if mode not in ("auto", "max", "min"):
        raise ValueError(f"mode must be 'max', 'min' or 'auto'. Received: {mode!r}.")
    if mode != "auto":
        return 1.0 if mode == "max" else -1.0
    rises, falls = (any(part in objective.lower() for part in parts) for parts in (_RISING, _FALLING))
    if rises == falls:
        raise ValueError(f"Whether {objective!r} is better high or low is not known: give mode='max' or 'min'.")
    return 1.0 if rises else -1.0
