"""Workers sum a record at as many indices as it has on one of them: each compares what the others read first.

The two workers take turns here; `tests/models/test_replicas.py` has real processes.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches import stores
from tfdp_layers.batches.agreement import Agreement, _Table, share_key
from tfdp_layers.batches.held import Held
from tfdp_layers.batches.slices import Share
from tfdp_layers.batches.sources import SourceStore
from tfdp_layers.batches.stores import ArrayStore, summary_of

N, P = 300, 121
X = np.random.default_rng(0).normal(size=(N, 5)).astype("float32")
IN_ORDER = np.arange(N)
EXCHANGED = IN_ORDER.copy()
EXCHANGED[[P, P + 1]] = P + 1, P


class Files:
    """A worker's own copies of files, in an order of its own; counts what is read."""

    def __init__(self, rows, order, kind=lambda row: row):
        self.rows, self.order, self.kind, self.reads = rows, order, kind, 0

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        self.reads += 1
        return self.kind(self.rows[self.order[index]]), np.float32(1)


def sources(orders, rows=X, **how):
    return [SourceStore(Files(rows, order, **how), workers=0) for order in orders]


def of_one_key(workers):
    for one in workers:
        share_key(one, workers[0].held.key)
    return workers


def trained(workers, seed=0, steps=40, compares=True, together=1):
    """The draws of a training until it was refused: for each, what every worker read, as (indices, first leaf).

    A step that was refused ends it behind as many steps as are made together.
    """
    agreements = [Agreement(store, 2 * number) for number, store in enumerate(of_one_key(workers))]
    random, read, refused = np.random.default_rng(seed), [], None
    for number in range(steps):
        if refused is not None and number % together == 0:
            break
        drawn = np.flatnonzero(random.random(len(workers[0])) < 0.2)
        random.shuffle(drawn)
        rows = -(-len(drawn) // len(workers))
        parts = [drawn[number * rows : (number + 1) * rows] for number in range(len(workers))]
        found = [agreement.read(part, rows) for agreement, part in zip(agreements, parts, strict=True)]
        told = np.concatenate([one for _, one in found])
        asked = [agreement.compare(told) for agreement in agreements]
        assert all(np.array_equal(asked[0], one) for one in asked)  # else one would wait for the other
        if compares and len(asked[0]):
            differs = sum(agreement.verify(asked[0]) for agreement in agreements)
            if not agreements[0].conclude(differs):
                assert not any(agreement.conclude(differs) for agreement in agreements[1:])
                refused = refused or [str(agreement.refusal()) for agreement in agreements]
                continue
        read.append([(part, leaves[0][: len(part)]) for part, (leaves, _) in zip(parts, found, strict=True)])
    if refused is None:
        assert not any(agreement.refusal() for agreement in agreements) or not compares
        return read, []
    assert refused == [str(agreement.refusal()) for agreement in agreements]
    return read, refused


def most_in_a_step(read, row):
    """How often a record was summed in one step at most."""
    return max((sum(int((leaf == row).all(1).sum()) for _, leaf in step) for step in read), default=0)


def exchanged_sources():
    return sources([IN_ORDER, EXCHANGED])


def exchanged_texts():
    return sources([IN_ORDER, EXCHANGED], kind=lambda row: np.array([f"patient {row[0]}"], object))


def moved_by_one():
    return sources([IN_ORDER, np.roll(IN_ORDER, 1)])


def one_twice():
    order = IN_ORDER.copy()
    order[P] = P + 1
    return sources([IN_ORDER, order])


def exchanged_arrays():
    return [ArrayStore(X[order], np.ones(N)) for order in (IN_ORDER, EXCHANGED)]


def of_three_workers():
    return sources([IN_ORDER, IN_ORDER, EXCHANGED])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "workers",
    [exchanged_sources, exchanged_texts, moved_by_one, one_twice, exchanged_arrays, of_three_workers],
    ids=lambda one: one.__name__,
)
def test_who_stands_elsewhere_on_one_worker_is_not_summed_twice(workers, seed):
    read, refusals = trained(workers(), seed)
    assert any("this worker holds another record at index" in one for one in refusals)
    assert all("sort files by their names" in one for one in refusals)
    if workers is not exchanged_texts:
        assert max(most_in_a_step(read, row) for row in X[P : P + 2]) <= 1


@pytest.mark.parametrize("workers", [exchanged_sources, of_three_workers], ids=lambda one: one.__name__)
def test_of_steps_that_are_made_together_none_is_released_after_one_that_was_refused(workers):
    for seed in range(4):
        alone, together = (trained(workers(), seed, together=number)[0] for number in (1, 20))
        assert len(alone) == len(together)
        assert max(most_in_a_step(together, row) for row in X[P : P + 2]) <= 1


def test_without_the_comparison_that_record_is_summed_twice():
    """The planted bug: 64 records, evenly spaced, were compared before, and no others."""
    read = [step for seed in range(5) for step in trained(exchanged_sources(), seed, compares=False)[0]]
    assert max(most_in_a_step(read, row) for row in X[P : P + 2]) == 2
    one, other = (b"".join(store.summary()) for store in exchanged_sources())
    assert one == other


def rounded():
    return np.round(X[:, :2]), lambda row: row


def all_equal():
    return np.zeros_like(X), lambda row: row


def seldom_random():
    random = np.random.default_rng()
    return X, lambda row: row + np.float32(random.normal()) if random.random() < 0.02 else row


def always_random():
    random = np.random.default_rng()
    return X, lambda row: row + np.float32(random.normal())


def texts():
    return X, lambda row: np.array([f"é {row[0]:.0f}", b"\xff"], object)


@pytest.mark.parametrize(
    "made", [rounded, all_equal, seldom_random, always_random, texts], ids=lambda one: one.__name__
)
def test_ordinary_sources_go_on(made):
    """Copies that all workers hold are no evidence; nor are random changes, which differ on each."""
    rows, kind = made()
    assert trained(sources([IN_ORDER] * 2, rows, kind=kind))[1] == []


def test_each_record_is_read_once_more_at_most_for_its_copies():
    workers = sources([IN_ORDER] * 2, np.zeros_like(X))
    before = [store._source.reads for store in workers]
    drawn = sum(len(part) for step in trained(workers)[0] for part, _ in step)
    begun = 2 * (2 * 8 + N)  # as a training begins, and again by the key of all
    assert sum(store._source.reads for store in workers) - sum(before) <= drawn + begun + 2 * N


def test_records_that_nobody_holds_twice_are_read_by_nobody_else():
    workers = of_one_key(sources([IN_ORDER] * 2))
    agreements = [Agreement(store, number) for number, store in enumerate(workers)]
    for start in range(0, N, 20):
        told = [one.read(np.arange(start + 10 * k, start + 10 * k + 10), 12)[1] for k, one in enumerate(agreements)]
        assert [len(one.compare(np.concatenate(told))) for one in agreements] == [0, 0]


def test_a_record_that_cannot_be_read_is_an_answer():
    store = SourceStore(Files(X, IN_ORDER), workers=0)
    agreement = Agreement(store, 0)
    store._source = []
    assert not agreement.conclude(agreement.verify(np.array([4])))
    assert str(agreement.refusal()).startswith("This worker cannot read record 4 once more")
    assert isinstance(agreement.refusal().__cause__, Exception)
    assert "not hold the same records" not in str(agreement.refusal())


def texts_of(worker, folder=""):
    return [f"{folder}/machine{worker}/p{i:03d}.npy" for i in range(N)]


def random_transform(worker):
    random = np.random.default_rng(3)  # seeded alike: the first record is random, and the same on all
    return lambda item: np.float32(random.normal(size=5))


@pytest.mark.parametrize("kind", [str, Path, lambda path: (path, 3), lambda path: {"image": path, "mask": path[:-4]}])
def test_files_may_lie_in_another_folder_on_each_machine(kind):
    def of(exchanged):
        found = []
        for worker, order in enumerate((IN_ORDER, EXCHANGED if exchanged else IN_ORDER)):
            paths = texts_of(worker, "/data")
            found.append(SourceStore([kind(paths[i]) for i in order], random_transform(worker), workers=0))
        return found

    assert trained(of(False))[1] == []
    assert any("this worker holds another record at index" in one for one in trained(of(True))[1])


@pytest.mark.parametrize("depths", [(0, 1), (1, 0)])
def test_who_finds_out_that_records_are_random_lets_the_others_compare_their_items(depths):
    """A worker that compared records, and one that compared items, compared nothing with each other."""
    workers = [SourceStore([f"p{i}" for i in order], random_transform(0), workers=0) for order in (IN_ORDER, EXCHANGED)]
    for store, depth in zip(of_one_key(workers), depths, strict=True):
        store.held._begun, store.held.depth = True, depth
    agreements = [Agreement(store, number) for number, store in enumerate(workers)]
    told = np.concatenate([one.read(np.arange(3 * k, 3 * k + 3), 3)[1] for k, one in enumerate(agreements)])
    assert [len(one.compare(told)) for one in agreements] == [0, 0]
    assert [store.held.depth for store in workers] == [1, 1]


def test_records_that_are_random_are_not_compared_before_the_first_step():
    """Augmentation that each worker draws for itself was refused."""
    random = np.random.default_rng()
    one, other = (
        b"".join(store.summary()) for store in sources([IN_ORDER] * 2, kind=lambda row: row * random.random())
    )
    assert one == other
    one, other = (b"".join(store.summary()) for store in sources([IN_ORDER, np.roll(IN_ORDER, 1)]))
    assert one != other


def test_copies_are_found_by_what_they_hold_in_the_time_of_a_step():
    """All records were looked through for each; here the table is as large as two million records are."""
    table, begins = _Table(2_000_000), time.perf_counter()
    for step in range(200):
        first = np.arange(64) + 64 * step
        digests = np.arange(1, 65, dtype=np.uint64) + np.uint64(32 * step)
        asked = table.add(first, digests, np.full(64, step % 2))
        assert len(np.unique(asked)) == (step > 0) * 64
    assert time.perf_counter() - begins < 1.5  # 200 * 20 ms
    assert np.flatnonzero(table._verified).tolist() == [*range(32, 64 * 200 - 32)]


def test_what_was_told_is_found_again():
    store = SourceStore(Files(X, IN_ORDER), workers=0)
    drawn = np.array([5, 299, 5])
    told = Agreement(store, 40_000).read(drawn, 4)[1].reshape(4, 2)
    assert (told[:3, 0] >> 18).tolist() == drawn.tolist()
    assert (told[:3, 0] >> 2 & 65535).tolist() == [40_000] * 3
    assert told[0, 1] == told[2, 1] != 0
    assert told[3].tolist() == [0, 0]


def test_texts_have_the_same_digests_in_all_processes():
    program = (
        "import numpy as np; from tfdp_layers.batches.held import Held; held = Held(1); held.take_key(7);"
        "print(held.rows([np.array([['a', 'é'], [b'b', 3]], object)], 2).tolist(), held.item('a'))"
    )
    env = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=env)
    held = Held(1)
    held.take_key(7)
    mine = held.rows([np.array([["a", "é"], [b"b", 3]], object)], 2).tolist(), held.item("a")
    assert run.stdout.strip() == " ".join(map(str, mine))


def test_a_key_that_is_taken_again_forgets_nothing():
    held, read = Held(1), np.array([5], np.uint64)
    held._first[:] = read
    held.take_key(held.key)
    assert held.known().tolist() == [5]
    held.take_key(held.key + 1)
    assert held.known().tolist() == [0]


def test_texts_have_digests_of_all_processes_once_a_key_was_taken():
    """Before, Python's own, which take half the time; what was read by them is read again, on the chief, too."""
    held, words = Held(1), [np.array([["a", "bc"], ["ab", "c"]], object)]
    held._first[:] = before = held.rows(words, 2)[:1]
    held.take_key(held.key)
    assert held.known().tolist() == [0]
    again = held.rows(words, 2)
    assert before != again[0] != again[1]


# What is compared before the first step -------------------------------------------------------------------------------


def test_ids_are_compared_whole_and_records_where_they_are_few(monkeypatch):
    """Of ids above 1 GiB every k-th was compared, and nothing of them in training."""
    monkeypatch.setattr(stores, "COPY_BYTES", 512)
    ids, others = np.arange(N) // 3, np.arange(N) // 3
    others[[121, 122]] = others[[122, 121]] + 7
    assert list(summary_of([ids])) != list(summary_of([others]))
    assert list(summary_of([X], sampled=True)) == list(summary_of([X[:]], sampled=True))
    assert ArrayStore(X).sampled
    monkeypatch.undo()
    assert not ArrayStore(X).sampled
    assert SourceStore(Files(X, IN_ORDER), workers=0).sampled


@pytest.mark.parametrize("share", [Share(0, 2, 2), Share(1, 1, 2)], ids=["one process", "two"])
@pytest.mark.parametrize("each", [1, 2])
def test_slices_tell_what_they_read_where_there_are_other_workers(share, each):
    ids = {"unit_ids": np.arange(N) // 3, "records_per_unit": 2} if each > 1 else {}
    for source, told in ((tfdp.records(Files(X, IN_ORDER), workers=0), True), (X, False)):
        batches = tfdp.PrivateBatches(source, sampling=tfdp.sampling.Poisson(20), **ids)
        (x, *_), stamp = next(iter(batches.slices(share, pad=False)))
        compared = told and share.count < share.of
        assert len(stamp) == 2 + 2 * len(np.reshape(x, (-1, 5))) * compared
        assert (batches.agreement is not None) == compared
        if compared:
            codes = stamp[2:].numpy().reshape(-1, 2)[:, 0]
            rows = np.reshape(x, (-1, 5))[codes > 0]
            np.testing.assert_array_equal(rows, X[codes[codes > 0] >> 18])
