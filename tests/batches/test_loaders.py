"""Batches of loaders, sequences and data sets of Grain, declared to be drawn: what is seen of how they are."""

import functools
import itertools
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers import grain_like
from helpers.declared_words import said

N, B = 300, 30
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 5)).astype("float32"), RNG.normal(size=(N, 1)).astype("float32")
Poisson, FixedSize, Partition = tfdp.sampling.Poisson, tfdp.sampling.FixedSize, tfdp.sampling.Partition
ITEMS = [*zip(X, Y, strict=True)]
BASE = grain_like.source(ITEMS)


class Batch(grain_like.Batch):
    def __getitem__(self, index):
        below = self._parents[0]
        items = [below[i] for i in range(self._batch_size * index, min(len(below), self._batch_size * (index + 1)))]
        together = getattr(self, "_batch_fn", None)
        return (together or stacked)(items)

    def __iter__(self):
        return (self[i] for i in range(len(self)))


class Changed(grain_like.Map):
    def __getitem__(self, index):
        return self._map_fn(self._parents[0][index])

    def __iter__(self):
        return (self[i] for i in range(len(self)))


Batch.__name__, Changed.__name__ = "BatchMapDataset", "MapMapDataset"


def batched(dataset, size=B):
    return Batch(dataset, length=-(-len(dataset) // size), batch_size=size)


def then(dataset, function):
    return Changed(dataset, map_fn=function)


class Sequence(keras.utils.PyDataset):
    def __init__(self, size=B, noise=0.0):
        super().__init__()
        self.size, self.noise = size, noise

    def __len__(self):
        return -(-N // self.size)

    def __getitem__(self, index):
        part = slice(self.size * index, self.size * (index + 1))
        return X[part] + self.noise * np.random.default_rng().normal(size=X[part].shape).astype("float32"), Y[part]


class Loader:
    """As torch's DataLoader with a sampler of batches."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 10

    def __iter__(self):
        rows = self.draw()
        return ((X[one], Y[one]) for one in itertools.islice(rows, 10))


def shuffled():
    order = np.random.default_rng().permutation(N)
    return (order[B * i : B * (i + 1)] for i in range(10))


def poisson(seed=None):
    rng = np.random.default_rng(seed)
    return (np.flatnonzero(rng.random(N) < B / N) for _ in itertools.count())


def fixed():
    rng = np.random.default_rng()
    return (rng.choice(N, B, replace=False) for _ in itertools.count())


def padded():
    for rows in poisson():
        part = np.resize(rows, 80)
        yield X[part], Y[part], np.arange(80) < len(rows)


class Padded(Loader):
    def __iter__(self):
        return ((x, y, np.float32(w)) for x, y, w in itertools.islice(self.draw(), 10))


class Plain:
    """Starts what it is given again for each pass, and says nothing of how long one is."""

    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return ((X[one], Y[one]) for one in self.start())


class Counted:
    """Another seed in each pass, by a counter that moves where a pass ends."""

    def __init__(self, length):
        self.length, self.passes = length, 0

    def __iter__(self):
        yield from ((X[one], Y[one]) for one in itertools.islice(poisson(self.passes), self.length))
        self.passes += 1


class Epochs(keras.utils.PyDataset):
    """Draws by a seed that follows from `on_epoch_end`."""

    epoch = 0

    def __len__(self):
        return 10

    def on_epoch_end(self):
        self.epoch += 1

    def __getitem__(self, index):
        rows = np.random.default_rng((self.epoch, index)).choice(N, B, replace=False)
        return X[rows], Y[rows]


def cut(size):
    order = np.random.default_rng().permutation(N)
    return (order[i : i + size] for i in range(0, N, size))


def parts():
    rng = np.random.default_rng()
    return iter(np.split(rng.permutation(N), np.sort(rng.choice(np.arange(1, N), 9, replace=False))))


def stored(again, length=10):
    batches = [*itertools.islice(poisson(5), length)]
    return lambda: (batches[i] for i in (np.random.default_rng().permutation(length) if again else range(length)))


def weighted(start, share=0.8):
    some = (np.random.default_rng(1).random(N) < share).astype("float32")
    return lambda: ((X[one], Y[one], some[: len(one)]) for one in start())


class Weighted(Plain):
    def __iter__(self):
        return iter(self.start())


def stacked(items):
    return tuple(map(np.stack, zip(*items, strict=True)))


def centred(items):
    x, y = stacked(items)
    return x - x.mean(0), y


WRONG = {
    "Grain, shuffled and cut": (lambda: batched(grain_like.Shuffle(BASE, seed=0)), Poisson(B), "cuts passes over"),
    "Grain, cut, then changed": (lambda: then(batched(BASE), lambda b: (b[0] / 2, b[1])), FixedSize(B), "cuts passes"),
    "Grain, repeated": (lambda: batched(grain_like.Repeat(BASE, length=3 * N)), Partition(B), "each several times"),
    "Grain, behind itself": (
        lambda: batched(grain_like.Concatenate(BASE, BASE, length=2 * N)),
        Partition(B),
        "each several times",
    ),
    "Grain, a mean of the batch": (
        lambda: then(batched(BASE), lambda b: (b[0] - b[0].mean(0), b[1])),
        Partition(B),
        "Records meet in this Grain data set",
    ),
    "Grain, numbers by place": (lambda: batched(grain_like.RandomMap(BASE)), Partition(B), "depends on the others"),
    "slices": (Sequence, Poisson(B), "equally many records"),
    "slices, random changes": (lambda: Sequence(noise=0.1), Poisson(B), "equally many records"),
    "slices as FixedSize": (Sequence, FixedSize(B), "came again as the loader"),
    "a shuffling loader": (lambda: Loader(shuffled), Poisson(B), "equally many records"),
    "no length, a seed": (lambda: Plain(lambda: itertools.islice(poisson(3), 10)), Poisson(B), "came again"),
    "stored draws": (lambda: Plain(stored(False)), Poisson(B), "came again"),
    "stored draws in another order": (lambda: Plain(stored(True)), Poisson(B), "came again"),
    "three stored draws in another order": (lambda: Plain(stored(True, 3)), Poisson(B), "came again"),
    "seven stored draws in another order": (lambda: Plain(stored(True, 7)), Poisson(B), "came again"),
    "each batch twice": (lambda: Plain(lambda: (one for one in poisson() for _ in "ab")), Poisson(B), "came again"),
    "a seed by on_epoch_end": (Epochs, FixedSize(B), "nothing calls on_epoch_end"),
    "halves": (lambda: Plain(lambda: cut(150)), Poisson(150), "equally many records"),
    "thirds": (lambda: Plain(lambda: cut(100)), Poisson(100), "equally many records"),
    "a smaller last batch": (lambda: Plain(lambda: cut(45)), Poisson(45), "equally many records"),
    "passes in parts": (lambda: Plain(parts), Poisson(B), "have 300 records in each pass"),
    "some rows do not count": (lambda: Weighted(weighted(lambda: cut(B))), Poisson(B), "equally many records"),
    "a generator of slices": (
        lambda: ((X[one], Y[one]) for _ in range(4) for one in cut(B)),
        Poisson(B),
        "equally many records",
    ),
    "Grain, a mean in batch_fn": (
        lambda: Batch(BASE, length=10, batch_size=B, batch_fn=centred),
        Partition(B),
        "Records meet in this Grain data set",
    ),
    "Grain, a mean, then shuffled": (
        lambda: then(grain_like.Shuffle(then(batched(BASE), lambda b: (b[0] - b[0].mean(0), b[1])), seed=1), tuple),
        Partition(B),
        "Records meet in this Grain data set",
    ),
    "a loader with a seed": (lambda: Loader(lambda: poisson(3)), Poisson(B), "came again as the loader"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_seen_not_to_be_drawn_as_declared_brings_a_word(name):
    make, sampling, words = WRONG[name]
    dataset = make()
    examples = sampling.batch_size * len(dataset) if sampling.kind == "partition" else N
    (found,) = said(dataset, sampling, examples, 30)
    assert words in found


RIGHT = {
    "Grain as a partition": (lambda: batched(grain_like.Shuffle(BASE, seed=0)), Partition(B)),
    "Grain, each row changed by itself": (
        lambda: then(batched(BASE), lambda b: (b[0] / np.linalg.norm(b[0], axis=1, keepdims=True), b[1])),
        Partition(B),
    ),
    "Grain, noise for each row": (
        lambda: then(batched(BASE), lambda b: (b[0] + np.random.default_rng().normal(size=b[0].shape), b[1])),
        Partition(B),
    ),
    "slices as a partition": (Sequence, Partition(B)),
    "all records": (lambda: Sequence(N), Poisson(N)),
    "a Poisson loader": (lambda: Loader(poisson), Poisson(B)),
    "a padded Poisson loader": (lambda: Padded(padded), tfdp.sampling.TruncatedPoisson(B, 80)),
    "a counter that moves at the end": (lambda: Counted(10), Poisson(B)),
    "a pass that never ends here": (lambda: Counted(1000), Poisson(B)),
    "a long pass with a seed": (lambda: Plain(lambda: itertools.islice(poisson(3), 1000)), Poisson(B)),
    "an endless pass with a seed": (lambda: Plain(lambda: poisson(3)), Poisson(B)),
    "a generator that goes on": (lambda: Plain(functools.partial(itertools.islice, poisson(3), 10)), Poisson(B)),
    "few records": (
        lambda: Plain(lambda: (one[one < 40] for one in itertools.islice(poisson(), 10))),
        Poisson(4),
    ),
    "next to no records": (
        lambda: Plain(lambda: (one[:1] for one in itertools.islice(poisson(), 10))),
        tfdp.sampling.TruncatedPoisson(1, 4),
    ),
    "Grain, stacked by batch_fn": (
        lambda: Batch(
            BASE, length=10, batch_size=B, batch_fn=lambda items: (*map(np.stack, zip(*items, strict=True)),)
        ),
        Partition(B),
    ),
    "a loader of a fixed size": (lambda: Loader(fixed), FixedSize(B)),
    "a shuffling loader as a partition": (lambda: Loader(shuffled), Partition(B)),
    "a generator": (lambda: ((X[one], Y[one]) for one in poisson()), Poisson(B)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_be_drawn_as_declared_brings_no_word(name):
    make, sampling = RIGHT[name]
    examples = 40 if name == "few records" else N
    assert said(make(), sampling, examples, 30) == []


def test_records_that_cross_in_a_zip_of_grain_are_refused_when_they_are_declared():
    crossed = grain_like.Zip(BASE, grain_like.Shuffle(BASE, seed=1), length=N)
    with pytest.raises(ValueError, match="Records meet in this Grain data set"):
        tfdp.declare_sampling(batched(crossed), Partition(B), examples=N)


def test_a_generator_loses_no_batch_to_the_look():
    batches = ((X[B * i : B * i + B], Y[B * i : B * i + B]) for i in range(10))
    drawn = tfdp.declare_sampling(batches, FixedSize(B), examples=N)
    first = next(iter(drawn.dataset()))
    np.testing.assert_array_equal(first[0], X[:B])


def test_a_second_training_on_the_same_draws_brings_a_word_and_a_look_at_a_batch_none():
    def read(declared, *lengths):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for length in lengths:
                for _ in declared.dataset().take(length):
                    pass
        return len(caught)

    def made():
        return tfdp.declare_sampling(Counted(1000), Poisson(B), examples=N)

    assert read(made(), 1, 2, 40) == 0
    assert read(made(), 20, 20, 20) == 1


def test_nothing_is_read_beforehand_but_one_batch_and_no_reading_is_left_open():
    seen = []

    class Watched:
        def __iter__(self):
            try:
                for one in poisson():
                    seen.append("read")
                    yield X[one], Y[one]
            finally:
                seen.append("ended")

    tfdp.declare_sampling(Watched(), Poisson(B), examples=N)
    assert seen == ["read", "ended"]


def test_a_training_says_it_once():
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    declared = tfdp.declare_sampling(Plain(lambda: itertools.islice(poisson(3), 10)), Poisson(B), examples=N)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(declared, epochs=4, verbose=0)
    assert sum("came again" in str(one.message) for one in caught) == 1
