"""Whole numbers that public calls take: what is none, or no machine can hold, is refused in plain words."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.fit_arguments import refuse_unsound_fit

X = np.random.default_rng(0).uniform(size=(40, 3)).astype("float32")
Y, IDS = np.ones((40, 1), "float32"), np.arange(40) // 2
P = tfdp.sampling.Poisson
ODD: list[Any] = [0, -1, -(2**63), True, 2.0, 2.5, "2", np.float32(2.0), [2], 1e9]
HUGE: list[Any] = [2**31, 2**63, 2**100]
GOOD: list[Any] = [2, np.int64(2), np.uint8(2)]


def fit(**options: Any) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model.fit(X, Y, **({"batch_size": 4, "steps_per_epoch": 1, "verbose": 0} | options))


def batches(**options: Any) -> Any:
    return next(iter(tfdp.PrivateBatches(X, Y, P(4), **options).stream()))


COUNTS: dict[str, Callable[[Any], Any]] = {
    "views": lambda n: batches(views=n),
    "physical_batch_size": lambda n: batches(physical_batch_size=n),
    "records_per_unit": lambda n: batches(unit_ids=IDS, records_per_unit=n),
    "both": lambda n: batches(unit_ids=IDS, records_per_unit=n, views=n),
    "records_per_owner": lambda n: batches(owners=IDS, records_per_owner=n),
    "limit_owners": lambda n: tfdp.preprocessing.limit_owners(IDS, records_per_owner=n),
    "Scattering2D": lambda n: tfdp.layers.Scattering2D(1, n),
    "scales": lambda n: tfdp.layers.Scattering2D(n),
    "steps_per_epoch": lambda n: refuse_unsound_fit({"steps_per_epoch": n}),
    "views of fit": lambda n: fit(views=n),
}
SAMPLERS = {name: getattr(tfdp.sampling, name) for name in ("Poisson", "FixedSize", "Partition", "Cyclic")}
MORE: dict[str, Callable[[Any], Any]] = {
    **{name: (lambda n, kind=kind: kind(n).check(40)) for name, kind in SAMPLERS.items()},
    "batch_size of fit": lambda n: fit(batch_size=n),
}


def of(kinds: dict[str, Any], numbers: list[Any]) -> list[Any]:
    return [pytest.param(call, n, id=f"{name}-{n!r}") for name, call in kinds.items() for n in numbers]


@pytest.mark.parametrize(("call", "number"), of(COUNTS | MORE, ODD + HUGE))
def test_what_is_no_whole_number_in_range_is_refused(call, number):
    """2^31 views ended in an error of TensorFlow's, or took all memory."""
    with pytest.raises(ValueError, match=r"integer|at least 1|make .* rows|beyond|larger than"):
        call(number)


@pytest.mark.parametrize(
    ("call", "number"), of({name: COUNTS[name] for name in ("views", "both", "limit_owners")}, GOOD)
)
def test_whole_numbers_pass_in_every_type(call, number):
    found, plain = (keras.tree.flatten(call(n)) for n in (number, 2))
    assert found
    assert [np.ndim(one) for one in found] == [np.ndim(one) for one in plain]
