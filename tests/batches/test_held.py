"""What is drawn by its index stays there while it is trained on: a record that changed ends the training."""

import copy
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting.remarks import AFRESH
from tfdp_layers.batches import held
from tfdp_layers.batches.held import Held, Marks

N, BATCH, WIDE = 96, 16, 6
X = np.random.default_rng(0).normal(size=(N, WIDE)).astype("float32")
Y = np.float32(X[:, :1] > 0)
CHANGED = "is not what it was when it was first read"


class Pool:
    """A source whose items somebody may choose anew."""

    def __init__(self, change=lambda record: record):
        self.pool, self.change = np.arange(N), change

    def __len__(self):
        return N

    def __getitem__(self, index):
        k = self.pool[index % len(self.pool)]
        return self.change((X[k], Y[k]))

    def harder(self):
        self.pool = np.arange(8)

    def shuffle(self):
        np.random.default_rng().shuffle(self.pool)


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise_multiplier=1.0), loss="mae")
    return model


def a_source():
    pool = Pool()
    return pool, {}, pool.harder


def its_records():
    pool = Pool()
    return tfdp.records(pool), {}, pool.harder


def of_persons():
    pool = Pool()
    return tfdp.records(pool, unit_ids=np.arange(N) // 2), {"batch_size": 8}, pool.harder


def batches():
    pool = Pool()
    return tfdp.PrivateBatches(pool, None, tfdp.sampling.Poisson(BATCH)), {"batch_size": None}, pool.harder


def a_list():
    items = [(X[i], Y[i]) for i in range(N)]
    return tfdp.records(items), {}, lambda: items.__setitem__(slice(None), items[:8] * (N // 8))


def in_place():
    items = [(X[i].copy(), Y[i]) for i in range(N)]
    return tfdp.records(items, workers=0), {}, lambda: [np.copyto(item[0], X[0]) for item in items[:48]]


def of_text_fields():
    items = [{"x": X[i], "y": float(Y[i, 0])} for i in range(N)]
    records = tfdp.records(items, lambda item: (item["x"], item["y"]))
    return records, {}, lambda: [item.update(items[0]) for item in items[1:]]


def what_a_transform_reads():
    state = {"k": N}
    return tfdp.records(range(N), lambda i: (X[i % state["k"]], Y[i])), {}, lambda: state.update(k=8)


def below_a_random_transform():
    pool = Pool()
    random = np.random.default_rng()
    records = tfdp.records(pool, lambda item: (item[0] + random.normal(size=WIDE).astype("float32"), item[1]))
    return records, {}, pool.harder


def reshuffled(sampling):
    pool = Pool()
    return pool, {"sampling": sampling}, pool.shuffle


SOURCES = {
    "a source": a_source,
    "its records": its_records,
    "of persons": of_persons,
    "batches": batches,
    "a list": a_list,
    "arrays of a list": in_place,
    "dicts": of_text_fields,
    "what a transform reads": what_a_transform_reads,
    "items below a random transform": below_a_random_transform,
    "shuffled, Partition": lambda: reshuffled(tfdp.sampling.Partition(BATCH)),
    "shuffled, Cyclic": lambda: reshuffled(tfdp.sampling.Cyclic(BATCH)),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SOURCES)
def test_records_that_change_under_their_index_end_the_training(name):
    x, options, change = SOURCES[name]()
    options = options or {"batch_size": BATCH}
    model = model_of()
    hook = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch == 1 and change())
    with pytest.raises(tf.errors.OpError, match=CHANGED):
        model.fit(x, epochs=3, verbose=0, callbacks=[hook], **options)
    assert model.ledger.steps <= 2 * N // BATCH + 1
    assert any("ended by an error" in note for note in model.privacy_statement(1e-5).notes)


@pytest.mark.parametrize("mode", ["r+", "r"])
@pytest.mark.parametrize("of", ["x", "y"])
def test_mapped_files_and_labels_beside_them_that_change_end_the_training(tmp_path, mode, of):
    np.save(tmp_path / "x.npy", X)
    written, y = np.load(tmp_path / "x.npy", mmap_mode="r+"), Y.copy()
    x = written if mode == "r+" else np.load(tmp_path / "x.npy", mmap_mode="r")
    change = (lambda: written.__setitem__(slice(None), X[::-1])) if of == "x" else (lambda: y.__setitem__(0, 1 - y[0]))
    hook = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch == 1 and change())
    with pytest.raises(tf.errors.OpError, match=CHANGED):
        model_of().fit(x, y, batch_size=BATCH, epochs=6 if of == "x" else 60, verbose=0, callbacks=[hook])


def test_a_record_is_known_before_it_is_drawn_the_first_time():
    """One person at two indices that no batch held so far: only who read all beforehand sees it."""
    pool = Pool()
    batches = tfdp.PrivateBatches(pool, None, tfdp.sampling.Cyclic(BATCH), seed=0)
    draws = batches._pass
    next(batches.stream())
    pool.pool[draws[1][:2]] = pool.pool[draws[0][0]]
    stream = batches.stream()
    next(stream)
    with pytest.raises(ValueError, match=rf"Record ({draws[1][0]}|{draws[1][1]}) {CHANGED}"):
        next(stream)


def test_arrays_in_memory_that_are_read_row_by_row_hold_still_too():
    x = X.copy()
    batches = tfdp.PrivateBatches(x, Y, tfdp.sampling.FixedSize(N))
    next(batches.stream())
    x[3] = x[4]
    with pytest.raises(ValueError, match="Record 3 is not"):
        next(batches.stream())


def test_arrays_that_were_copied_may_change():
    x = X.copy()
    hook = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: np.copyto(x, X[0]))
    model = model_of()
    model.fit(x, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[hook])
    assert model.ledger.steps == 2 * N // BATCH
    assert (x == X[0]).all()


RANDOM = np.random.default_rng()


def noisy(record):
    return record[0] + RANDOM.normal(size=WIDE).astype("float32"), record[1]


def flipped(share):
    return lambda record: (record[0][::-1] if RANDOM.random() < share else record[0], record[1])


def notes_of(records, epochs=3, **options):
    model = model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Other ledgers|.*learn next to nothing|.*__array__")
        model.fit(records, batch_size=BATCH, epochs=epochs, verbose=0, **options)
    return [note for note in model.privacy_statement(1e-5).notes if "ledgers" not in note and "ledger of" not in note]


@pytest.mark.parametrize("change", [noisy, flipped(0.5), flipped(0.1)], ids=["noise", "half", "a tenth"])
def test_sources_that_are_random_by_themselves_train_and_statements_say_so(change):
    assert notes_of(Pool(change)) == [AFRESH]


ORDINARY = {
    "a source": Pool,
    "a list": lambda: tfdp.records([(X[i], Y[i]) for i in range(N)]),
    "of float64 and dicts": lambda: tfdp.records(
        [{"x": X[i].astype("float64"), "y": Y[i]} for i in range(N)], lambda item: (item["x"] / 2, item["y"])
    ),
    "tensors": lambda: Pool(lambda record: tuple(map(tf.constant, record))),
    "a random transform": lambda: tfdp.records(Pool(), noisy),
    "a transform that is random at times": lambda: tfdp.records(Pool(), flipped(0.1)),
    "of numbers": lambda: tfdp.records(range(N), lambda i: (X[i], Y[i])),
    "few values": lambda: tfdp.records([(X[i], Y[i]) for i in range(N)], lambda item: (np.sign(item[0]), item[1])),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_sources_train_without_a_word(name):
    assert notes_of(ORDINARY[name](), epochs=2) == []


@pytest.mark.parametrize("numbers", [range(N), [np.int64(i) for i in range(N)]], ids=["range", "list"])
def test_of_records_that_numbers_name_and_chance_changes_statements_say_that_nothing_is_compared(numbers):
    pool = np.arange(N)
    assert notes_of(tfdp.records(numbers, lambda i: noisy((X[pool[i]], Y[pool[i]]))), epochs=2) == [AFRESH]


def test_a_copy_of_records_is_read_by_itself():
    records = tfdp.records(Pool(), lambda item: item, workers=0)
    copied = copy.deepcopy(records)
    assert copied.held is not records.held
    assert notes_of(records, epochs=1) == notes_of(copied, epochs=1) == notes_of(copy.deepcopy(copied), epochs=1) == []


def test_one_records_object_trains_again_and_another_one_may_hold_others():
    pool = Pool()
    records = tfdp.records(pool)
    assert notes_of(records, epochs=1) == notes_of(records, epochs=1) == []
    pool.harder()
    with pytest.raises((ValueError, tf.errors.OpError), match=CHANGED):
        model_of().fit(records, batch_size=BATCH, verbose=0)
    model_of().fit(tfdp.records(pool), batch_size=BATCH, verbose=0)


def test_what_is_slow_to_read_is_looked_at_for_a_second_at_most(monkeypatch):
    monkeypatch.setattr(held, "_SECONDS", 0.05)
    read = []

    def slow(places):
        read.extend(places.tolist())
        time.sleep(0.002 * len(places))
        return Marks(0, places.astype(np.uint64) + 1)

    found = Held(10_000, random=True)
    found.begin(slow)
    assert len(read) < 200
    count = len(read)
    found.begin(slow)
    assert len(read) == count
    everything = Held(300, whole=True)
    everything.begin(slow)
    assert len(read) == count + 300


def test_many_threads_take_at_once():
    batches = tfdp.PrivateBatches(Pool(), None, tfdp.sampling.Poisson(BATCH))
    errors = []

    def draw():
        try:
            for _ in range(30):
                batches[0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []


TYPES = ["float32", "float64", "int8", "uint8", "int64", "bool", "float16", "U3", "S5", "bfloat16"]


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7)])
def test_each_byte_counts_and_equal_rows_are_equal(kind, shape):
    digests, rng = Held(1), np.random.default_rng(0)
    whole = rng.integers(0, 2, (30, *shape))
    rows = tf.cast(whole, tf.bfloat16).numpy() if kind == "bfloat16" else whole.astype(kind)
    found = digests.rows([rows], 30)
    same = (whole.reshape(30, -1)[:, None] == whole.reshape(30, -1)[None]).all(-1)
    assert ((found[:, None] == found[None]) == same).all()
    assert np.array_equal(found[:7], digests.rows([np.asfortranarray(rows[:9])], 7))
    assert found.all()


def test_sign_bits_and_whole_numbers_beyond_float32_count():
    """With odd factors two changed highest bits of words would cancel, whatever the factors are."""
    digests = Held(1)
    rows = np.ones((3, 4), "float32")
    rows[1, [1, 3]] = -1.0
    rows[2, [0, 1]] = -1.0
    assert len(set(digests.rows([rows], 3).tolist())) == 3
    assert len(set(digests.rows([np.array([[2**53], [2**53 + 1]])], 2).tolist())) == 2
    assert len(set(digests.rows([np.zeros((2, 1)), np.array([0, 1])], 2).tolist())) == 2


def test_long_rows_and_empty_ones():
    digests = Held(1)
    rows = np.zeros((3, 300_001), "uint8")
    rows[1, -1] = rows[2, 0] = 1
    assert len(set(digests.rows([rows], 3).tolist())) == 3
    assert all(len(factors) <= held._WORDS for factors in digests._factors.values())
    assert len(set(digests.rows([np.zeros((3, 0), "float32")], 3).tolist())) == 1


def test_items_are_told_by_what_they_hold():
    digests = Held(1)
    items = [
        1, "1", b"1", 1.0, None, True, (1,), [1], (1, 2), {"a": 1}, {"b": 1}, {"a": (1,)}, np.float32(1), np.int64(1),
        np.zeros(2), np.zeros((2, 1)), np.zeros(2, "float32"), np.array(["a", "b"]), np.array(["a", b"c"], object),
    ]  # fmt: skip
    found = [digests.item(one) for one in items]
    assert len(set(found)) == len(items)
    assert all(found)
    assert found[-5] == digests.item(np.zeros(2)) == digests.item(tf.zeros(2, tf.float64))
    assert digests.item(object()) == digests.item((1, object())) == digests.item(np.array([object()])) == 0


def test_items_that_do_not_say_what_they_hold_are_not_compared():
    class Item:
        def __init__(self, index):
            self.index = index

    items = [Item(i) for i in range(N)]
    assert notes_of(tfdp.records(items, lambda item: noisy((X[item.index], Y[item.index])))) == [AFRESH]
