"""Weights that were counted from the private labels are warned of, whoever counted them."""

import warnings

import numpy as np
import pytest

from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.sampling import Poisson

LABELS = np.repeat([0, 1, 2], [40, 15, 5])
COUNTS = {label: int((label == LABELS).sum()) for label in (0, 1, 2)}
BALANCED = {label: 60 / (3 * count) for label, count in COUNTS.items()}
INVERSE = np.array([1 / COUNTS[label] for label in LABELS])
SAYS = "weigh exactly inversely to how many records each has"


def drawn(y=LABELS, **options):
    records = 60 if y is None or isinstance(y, tuple) else len(y)
    return PrivateBatches(np.ones((records, 2), "float32"), y, Poisson(8), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": BALANCED},
        {"class_weight": {label: factor / BALANCED[0] for label, factor in BALANCED.items()}},
        {"class_weight": BALANCED, "y": LABELS[:, None]},
        {"class_weight": BALANCED, "y": np.eye(3)[LABELS]},
        {"sample_weight": INVERSE},
        {"sample_weight": INVERSE[:, None]},
    ],
    ids=["balanced", "another factor", "column", "one-hot", "weights of records", "column of them"],
)
def test_factors_counted_from_the_labels_are_seen(options):
    with pytest.warns(UserWarning, match=SAYS):
        drawn(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {label: round(factor, 1) for label, factor in BALANCED.items()}},
        {"class_weight": {2: 10.0}},
        {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}},
        {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}, "y": np.arange(60) % 3},
        {"class_weight": {0: 1.0, 1: 9.0}, "y": np.repeat([0, 1], [900, 100])},
        {"sample_weight": np.repeat([6.0, 3.0, 2.0], [100, 200, 300]), "y": np.repeat([0, 1, 2], [100, 200, 300])},
        {"sample_weight": np.linspace(1, 2, 60)},
        {"sample_weight": np.zeros(60)},
        {"sample_weight": np.where(LABELS == 2, 0.0, INVERSE)},
        {"sample_weight": np.linspace(1, 2, 60), "y": np.linspace(0, 1, 60)},
        {"sample_weight": np.linspace(1, 2, 60), "y": None},
        {"sample_weight": (INVERSE, INVERSE), "y": (LABELS, LABELS)},
    ],
    ids=[
        "rounded",
        "one class",
        "equal",
        "equal classes",
        "nine controls a case",
        "people for each who was asked",
        "others",
        "none",
        "left out",
        "numbers",
        "no labels",
        "two outputs",
    ],
)
def test_other_weights_are_let_pass(options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drawn(**options)
    assert not [str(one.message) for one in caught if SAYS in str(one.message)]


@pytest.mark.parametrize(
    ("factors", "classes", "largest"),
    [
        ({0: 0.1}, None, 1.0),
        ({1: 5.0}, None, 5.0),
        ({0: 0.5, 1: 0.1}, None, 1.0),  # there may be a third class: the labels, which would say so, are private
        ({0: 0.5, 1: 0.1}, 2, 0.5),
        ({0.0: 0.5, 1.0: 0.1}, 2, 0.5),
        ({0: 0.5, 1: 0.1}, 3, 1.0),
        ({1: 0.5, 2: 0.1}, 2, 1.0),
        ({0: 0.5, 1: 0.1, 7: 0.7}, 2, 0.7),
        ({0: 0.5}, 1, 0.5),
        ({0: 0.0, 1: 0.0, 2: 0.0}, 3, None),
        ({}, 2, 1.0),
    ],
)
def test_classes_that_are_not_named_weigh_1(
    factors: dict[int, float], classes: int | None, largest: float | None
) -> None:
    assert drawn(class_weight=factors).largest_weight(classes) == largest
    assert drawn(class_weight=factors, sample_weight=np.ones(60)).largest_weight(classes) is None


@pytest.mark.parametrize(("factors", "largest"), [({0: 0.5, 1: 0.1}, 1.0), ({0: 0.5, 1: 0.1, 2: 0.2}, 0.5)])
def test_the_width_of_one_hot_labels_is_public_and_says_how_many_classes_there_are(
    factors: dict[int, float], largest: float
) -> None:
    batches = drawn(np.eye(3)[LABELS], class_weight=factors)
    assert batches.largest_weight() == batches.largest_weight(2) == largest


@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None], np.eye(3)[LABELS]], ids=["numbers", "column", "one-hot"])
@pytest.mark.parametrize("classes", [None, 2, 3, 9])
def test_no_label_changes_the_largest_and_none_weighs_more(labels: np.ndarray, classes: int | None) -> None:
    """The theorem, where `classes` is true of the labels: it bounds every weight, and tells nothing of them."""
    rng = np.random.default_rng(0)
    for named in ([0, 1], [0, 1, 2], [2], [0, 2]):
        factors = {label: float(rng.uniform(0.01, 0.9)) for label in named}
        found = drawn(labels, class_weight=factors)
        others = drawn(labels[:1].repeat(60, axis=0), class_weight=factors)
        assert found.largest_weight(classes) == others.largest_weight(classes)
        if classes != 2:
            assert found._store.structure[2].max() <= np.float32(found.largest_weight(classes))
