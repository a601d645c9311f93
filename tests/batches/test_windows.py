"""Windows that overlap bring a warning, shuffled and strided ones too; series of different people don't."""

import warnings

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.people import People
from tfdp_layers.batches.windows import warn_of_windows

RNG = np.random.default_rng(0)
SERIES = np.cumsum(RNG.normal(size=(3000, 2)), axis=0).astype("float32")
ORDER = RNG.permutation(2000)


def windows(steps, stride=1, series=SERIES):
    view = np.lib.stride_tricks.sliding_window_view(series, steps, axis=0)[::stride]
    return np.moveaxis(view, -1, 1).copy()


OVERLAPPING = {
    "windows": windows(24),
    "shuffled": windows(24)[ORDER],
    "a part of them": windows(24)[ORDER][:400],
    "of one number a step": windows(48, series=SERIES[:, 0]),
    "newest first": windows(24)[:, ::-1],
    "that move by half": windows(24, 12),
    "that move by a quarter": windows(168, 42),
    "of whole numbers": windows(30, series=RNG.integers(0, 30, 3000)),
    "long ones": windows(1000, 10),
    "that move by two fifths": windows(100, 40),
    "that move by three eighths": windows(96, 36),
    "of a week": windows(7),
    "of two weeks": windows(14)[ORDER],
    "of half a day": windows(15, 5),
    "of few steps and one number": windows(8, series=SERIES[:, 0]),
    "lagged columns": windows(7, series=SERIES[:, 0])[:, ::-1],
    "in a tenth of the records": np.concatenate([RNG.normal(size=(1800, 24, 2)), windows(24)[:200]]),
}
OVERLAPPING["beside what never changes"] = np.concatenate(
    [windows(24), RNG.normal(size=(len(windows(24)), 1, 1)).repeat(24, 1)], 2
)
OVERLAPPING["short ones beside noise"] = np.concatenate(
    [windows(12), windows(12, series=SERIES**2)[:, :, :1], RNG.normal(size=(2989, 12, 1))], 2
)
OTHER = {
    "that move by their length": windows(24, 24),
    "series of many people": np.cumsum(RNG.normal(size=(500, 24, 2)), axis=1),
    "one value each": np.repeat(RNG.normal(size=(500, 1)), 24, axis=1),
    "two values": RNG.integers(0, 2, (4000, 24)),
    "padded tokens": np.where(np.arange(40) < RNG.integers(2, 40, (500, 1)), RNG.integers(1, 50, (500, 40)), 0),
    "padded before": np.where(np.arange(40) > RNG.integers(0, 39, (500, 1)), RNG.integers(1, 50, (500, 40)), 0),
    "copies": np.repeat(RNG.normal(size=(100, 24)), 5, axis=0),
    "images": RNG.integers(0, 255, (500, 28, 28)),
    "a wide table": RNG.normal(size=(500, 100)),
    "few columns": windows(4, series=SERIES[:, 0]),
    "short ones of few values": windows(12, series=RNG.integers(0, 9, 3000).astype("float32")),
    "short ones of whole numbers": windows(12, series=RNG.integers(0, 30, 3000)),
    "short ones that move by more than half": windows(7, 4),
    "short series of many people": np.cumsum(RNG.normal(size=(500, 7, 2)), axis=1),
    "short padded ones": np.where(np.arange(7) < RNG.integers(0, 8, (500, 1)), RNG.normal(size=(500, 7)), 0.0),
    "doses, each half of the one before": 2.0 ** (RNG.integers(0, 9, (500, 1)) - np.arange(7)),
    "a table": RNG.normal(size=(500, 7)),
    "a table of coarse numbers": RNG.normal(size=(500, 7)).round(1),
    "one-hot": np.eye(7)[RNG.integers(0, 7, 500)],
    "nothing": np.zeros((500, 40)),
    "more numbers than are looked at": np.zeros((16, (1 << 18) + 1), "float32"),
    "no numbers": np.zeros((500, 40, 0)),
    "no records": np.zeros((0, 40)),
    "texts": np.array([["a"] * 20] * 50),
}


HOUR = (RNG.integers(0, 24, (500, 1)) + np.arange(48)) % 24
SINCE = RNG.integers(0, 2000, (500, 1)) + np.arange(48)
TONE = np.arange(400) + RNG.integers(0, 40, (500, 1))
CLOCKS = {
    "hours of the day": (HOUR / 24).astype("float32"),
    "hours of half a day": HOUR[:, :20],
    "hours since a date": (SINCE / 2048).astype("float32"),
    "ages by months": ((SINCE[:, :24] + 500) / 12).astype("float32"),
    "few hours": SINCE[:, :7].astype("float32"),
    "sine and cosine of the hour": np.stack([np.sin(SINCE * np.pi / 12), np.cos(SINCE * np.pi / 12)], 2)[:, :20],
    "one of the hours": np.eye(24)[HOUR[:, :20]],
    "pure tones": np.sin(TONE * 2 * np.pi / 40).astype("float32"),
    "what comes again": RNG.normal(size=24)[HOUR],
    "hours and what never changes": np.stack([HOUR, 0 * HOUR], 2),
}
CALENDAR = np.stack([HOUR / 24, SINCE // 24 % 7, SINCE % 700 < 9], 2)


def said(*arrays, people=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_windows(arrays, people)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", OVERLAPPING)
def test_windows_that_overlap_are_told(name):
    (message,) = said(RNG.normal(size=(len(OVERLAPPING[name]), 3)), OVERLAPPING[name])
    assert message.startswith("Records overlap: of ")


@pytest.mark.parametrize("name", OTHER)
def test_others_are_left_in_peace(name):
    assert said(OTHER[name]) == []


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks_are_left_in_peace_alone_and_beside_series_of_many_people(name):
    clock = CLOCKS[name]
    assert said(clock) == said(RNG.normal(size=(*clock.shape[:2], 2)), clock) == []


def test_a_clock_beside_windows_that_overlap_hides_nothing():
    hours = (ORDER[:, None] + np.arange(24)) % 24
    for inputs in ((windows(24)[ORDER], hours), (hours, windows(24)[ORDER], np.ones((2000, 24)))):
        (message,) = said(*inputs)
        assert message.startswith("Records overlap: of 2,000 that were looked at, ")


def test_inputs_of_the_same_steps_must_overlap_together():
    assert len(said(CALENDAR)) == 1
    assert said(CALENDAR, RNG.normal(size=(500, 48))) == []
    assert said(CALENDAR, RNG.integers(0, 2, (500, 48, 3))) == []
    assert len(said(CALENDAR, RNG.normal(size=(500, 12)))) == 1


FRAMES = RNG.random((300, 6, 6, 1)).astype("float32")
SLIDE = RNG.integers(0, 256, (300, 300, 3), dtype=np.uint8)
SPECTRA = RNG.random((3000, 20))
LINES, PLACES = np.mgrid[:28, :28]
ON_OTHER_AXES = {
    "channels first": np.moveaxis(windows(24), 1, -1),
    "channels first, one more axis": np.moveaxis(windows(64, 16), 1, -1)[..., None],
    "one channel": windows(200, 20, SERIES[:, 0])[:, None],
    "frames of a film": np.stack([FRAMES[i : i + 16] for i in range(284)]),
    "spectrograms": np.stack([SPECTRA[i : i + 40].T for i in range(0, 2900, 10)])[..., None],
    "tiles": np.stack([SLIDE[i : i + 32, j : j + 32] for i in range(0, 260, 16) for j in range(0, 260, 16)]),
}
PICTURES = {
    "pictures": RNG.integers(0, 255, (500, 28, 28, 1)),
    "in colour": RNG.random((300, 32, 32, 3)),
    "smooth ones": np.cumsum(np.cumsum(RNG.normal(size=(400, 28, 28, 1)), 1), 2),
    "black ones": np.zeros((300, 28, 28, 1)),
    "squares in places": np.stack(
        [(abs(LINES - a) < 5) & (abs(PLACES - b) < 5) for a, b in RNG.integers(5, 23, (500, 2))]
    )[..., None].astype("float32"),
    "discs in places": np.stack([(LINES - a) ** 2 + (PLACES - b) ** 2 < 60 for a, b in RNG.integers(8, 20, (500, 2))])[
        ..., None
    ].astype("float32"),
    "tiles side by side": np.stack(
        [SLIDE[i : i + 30, j : j + 30] for i in range(0, 271, 30) for j in range(0, 271, 30)]
    ),
    "features of a network": np.maximum(RNG.normal(size=(300, 7, 7, 32)), 0.0),
}


@pytest.mark.parametrize("name", ON_OTHER_AXES)
def test_windows_are_told_on_whatever_axis_their_steps_lie(name):
    (message,) = said(ON_OTHER_AXES[name])
    assert message.startswith("Records overlap: of ")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_left_in_peace(name):
    assert said(PICTURES[name]) == []


def own_windows(steps, people=40, each=60):
    """Of each person's own series; and whose they are."""
    found = [windows(steps, series=RNG.normal(size=(each, 2)).astype("float32")) for _ in range(people)]
    return np.concatenate(found), np.repeat(np.arange(people), len(found[0]))


@pytest.mark.parametrize("layout", ["steps first", "channels first"])
@pytest.mark.parametrize("steps", [7, 24])
def test_windows_across_people_are_told_and_each_persons_own_are_not(steps, layout):
    """A person there or not moved a sum by 11.8 bounds where windows of 30 days had the last day's id."""

    def placed(x):
        return x if layout == "steps first" else np.moveaxis(x, 1, 2)

    own, whose = own_windows(steps)
    assert len(said(placed(own))) == 1
    assert said(placed(own), people=People.by(whose)) == []
    across = windows(steps, series=RNG.normal(size=(40 * 60, 2)).astype("float32"))
    last = (np.arange(40 * 60) // 60)[steps - 1 :]
    (message,) = said(placed(across), people=People.by(last))
    assert "groupby" in message


def test_windows_of_all_their_owners_are_covered():
    across = windows(24)
    days = np.arange(3000) // 30
    first, last = days[: len(across)], days[23:]
    with pytest.warns(UserWarning, match="of somebody else"):
        tfdp.PrivateBatches(
            across, np.ones((len(across), 1)), tfdp.sampling.Poisson(8), owners=last, records_per_owner=60
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = np.stack([first, last], 1)
        tfdp.PrivateBatches(
            across, np.ones((len(across), 1)), tfdp.sampling.Poisson(8), owners=both, records_per_owner=60
        )


def test_batches_of_records_say_it_and_those_of_units_do_where_they_are_other_peoples():
    x, y = windows(24), np.ones((len(windows(24)), 1))
    with pytest.warns(UserWarning, match=r"unit_ids=.*take windows that do not overlap"):
        tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8))
    with pytest.warns(UserWarning, match=r"of somebody else.*groupby"):
        tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(8), unit_ids=np.arange(len(x)) // 300)
    own, whose = own_windows(24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfdp.PrivateBatches(own, np.ones((len(own), 1)), tfdp.sampling.Poisson(8), unit_ids=whose)
