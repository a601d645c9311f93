"""Public rows of a step: they come after the noise, count as no records, and may not be private records."""

import time
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.loops import LOSS, RNG, X, Y, model_of, settings
from helpers.variants import slow_but
from tfdp_layers.models.public_rows import PrivateRows
from tfdp_layers.models.training import PrivateTraining

PUBLIC = (RNG.normal(size=(5, 4)).astype("float32"), np.ones(5, "int32"))


@pytest.fixture
def run():
    with model_of().private_run(X, Y, **settings()) as running:
        yield running


def released(public, **options):
    """What each step released before its public rows, the weights after, and the logs; all seeded."""
    model, seen, logs = model_of(**options), [], []
    model.optimizer.observe(lambda means: seen.append([np.array(m) for m in means]))
    with model.private_run(X, Y, **settings(epochs=1)) as run:
        for batch in run:
            logs.append(dict(run.step(batch, public)))
    return seen, model, logs


@pytest.mark.slow
def test_public_rows_come_after_the_noise_and_count_as_no_records():
    eager = {"run_eagerly": True}
    (alone, _, plain), (beside, model, logs) = released(None, **eager), released(PUBLIC, **eager)
    for a, b in zip(alone[0], beside[0], strict=True):  # the first step: later ones start from other weights
        np.testing.assert_array_equal(a, b)
    assert logs[0] == plain[0]  # the loss of the records alone
    assert not np.allclose(alone[1][0], beside[1][0])
    (entry,) = model.ledger.entries
    assert entry.steps == 4
    assert entry.release.groups[0].bound == 0.5


@pytest.mark.slow
def test_public_rows_among_the_records_would_be_seen(monkeypatch):
    """The planted bug: their part is in the sums that get the noise."""
    original = PrivateTraining._release

    def planted(self, sums, public=None):
        terms = self._public_sums(public) if public else [0.0 * s for s in sums]
        return original(self, [s + t for s, t in zip(sums, terms, strict=True)])

    monkeypatch.setattr(PrivateTraining, "_release", planted)
    with pytest.raises(AssertionError):
        test_public_rows_come_after_the_noise_and_count_as_no_records()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", slow_but(["graph"], ["graph", {"jit_compile": True}, {"layers": [keras.layers.Dropout(0.5)]}]), ids=str
)
def test_public_rows_move_the_weights_as_clipped_records_do(options):
    """Without noise a step of SGD is the clipped sum of records and public rows, over the expected batch size."""
    options = {} if options == "graph" else options
    model = model_of(**options)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 0.5, "flat"), LOSS)
    before = model.get_weights()
    if "layers" not in options:
        expected = model.bounded_gradient_sums(*PUBLIC)
    with model.private_run(X, Y, **settings(physical_batch_size=8)) as run:
        batch = next(run)
        if "layers" not in options:
            x, y, weight = batch.records()
            sums = model.bounded_gradient_sums(x, y, weight)
        run.step(batch, PUBLIC)
    if "layers" not in options:
        for was, now, a, b in zip(before, model.get_weights(), sums, expected, strict=True):
            np.testing.assert_allclose(was - now, (np.asarray(a) + np.asarray(b)) / 16, rtol=1e-4, atol=1e-6)
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())


# Units: k public rows move the weights as k such records do, whatever the optimizer measures its sums in --------------

WIDTH, ROWS, ALL = 6, 8, 40
ROWS_X = RNG.normal(size=(ROWS, WIDTH)).astype("float32")
ROWS_Y = (3.0 * RNG.normal(size=(ROWS, 2))).astype("float32")
SGD = keras.optimizers.SGD
OPT = tfdp.optimizers


def adadp(clip, **options):
    return OPT.AdaDPOptimizer(1.0, 0.0, 1.2, clip, adaptive_rate=False, **options)


OPTIMIZERS = {
    "flat": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 10.0),
    "per layer": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 0.1, "per_layer"),
    "automatic": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 10.0, "automatic"),
    "adaptive 0.1": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 0.1, "adaptive"),
    "adaptive 1": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 1.0, "adaptive"),
    "adaptive 10": lambda: OPT.ClippedOptimizer(SGD(1.0), 0.0, 10.0, "adaptive"),
    "tanh": lambda: OPT.TanhFilteredOptimizer(SGD(1.0), 0.0, 10.0),
    "tanh by dimension": lambda: OPT.TanhFilteredOptimizer(SGD(1.0), 0.0, bound="dimension", output_scale=0.1),
    "AdaDP 0.1": lambda: adadp(0.1),
    "AdaDP 10": lambda: adadp(10.0),
    "AdaDP query 10": lambda: adadp(10.0, scale_estimator="query"),
    "AdaDP coordinate 10": lambda: adadp(10.0, scale_estimator="coordinate"),
    "AdaDP one noise 10": lambda: adadp(10.0, adaptive_noise=False),
    "AdaDP clamped 10": lambda: adadp(10.0, scale_estimator="coordinate"),
    "AdaDP clamped 0.1": lambda: adadp(0.1),
    "noisy": lambda: OPT.NoisyOptimizer(SGD(1.0), 0.0),
}
QUICK = ["flat", "adaptive 0.1", "adaptive 10", "tanh", "AdaDP 10", "AdaDP clamped 0.1", "noisy"]


def dot(y_true, y_pred):
    """Records of label zero have gradient zero."""
    return keras.ops.sum(y_true * y_pred, axis=-1)


def linear(name, given=None, **options):
    keras.utils.set_random_seed(0)
    kind = tfdp.layers.ClippedDense if name == "noisy" else keras.layers.Dense
    model = tfdp.make_private(keras.Sequential([keras.Input((WIDTH,)), kind(4), kind(2)]))
    model.compile(given or OPTIMIZERS[name](), dot, **options)
    if "clamped" in name:
        model.optimizer.build(model.trainable_variables)
        model.optimizer._switch.assign(1.0)
        for moment in model.optimizer._moments.values():
            moment.assign(np.random.default_rng(6).uniform(1e-4, 1e-2, moment.shape))
    return model


def step_on_all(model, x, y, beside):
    """One step on all records, and public rows beside them."""
    settings = {"sampling": tfdp.sampling.FixedSize(ALL), "epochs": 1, "steps_per_epoch": 1, "verbose": 0}
    with model.private_run(x, y, **settings) as run:
        for batch in run:
            run.step(batch, beside)


def moves(name, beside, records=None, **options):
    """What a step on all records, zero but for `records`, moves the weights by."""
    x, y = np.zeros((ALL, WIDTH), "float32"), np.zeros((ALL, 2), "float32")
    if records is not None:
        x[:ROWS], y[:ROWS] = records
    model = linear(name, **options)
    before = model.get_weights()
    step_on_all(model, x, y, beside)
    return [a - b for a, b in zip(model.get_weights(), before, strict=True)]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(QUICK, OPTIMIZERS))
def test_public_rows_move_the_weights_as_the_same_records_do(name):
    public, private = moves(name, (ROWS_X, ROWS_Y)), moves(name, None, (ROWS_X, ROWS_Y))
    assert max(np.abs(move).max() for move in private) > 1e-4
    for a, b in zip(public, private, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": True}], ids=["eager", "xla"])
@pytest.mark.parametrize("name", ["adaptive 10", "AdaDP clamped 0.1"])
def test_the_same_in_other_modes(name, options):
    """Eagerly a state that moves before the public rows are bounded by it would be seen."""
    public, private = (moves(name, *rows, **options) for rows in [((ROWS_X, ROWS_Y),), (None, (ROWS_X, ROWS_Y))])
    for a, b in zip(public, private, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


@pytest.mark.slow
def test_public_rows_meet_the_weights_of_their_own_step():
    """In a graph some met weights that the same step had moved, in one of four trainings."""
    private = moves("noisy", None, (ROWS_X, ROWS_Y))
    for _ in range(12):
        for a, b in zip(moves("noisy", (ROWS_X, ROWS_Y)), private, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["adaptive 0.1", "AdaDP 10"])
def test_public_rows_left_in_the_units_of_the_sums_would_be_seen(name, monkeypatch):
    """The planted bug: they never come back to the units of the gradient."""
    kind = type(OPTIMIZERS[name]())
    original, calls = kind.in_units, iter([True])  # of a step with public rows theirs come first

    def planted(self, means, variables, groups):
        return means if next(calls, False) else original(self, means, variables, groups)

    private = moves(name, None, (ROWS_X, ROWS_Y))
    monkeypatch.setattr(kind, "in_units", planted)
    public = moves(name, (ROWS_X, ROWS_Y))
    ratio = np.linalg.norm(public[0]) / np.linalg.norm(private[0])
    assert ratio == pytest.approx(10.0 if name == "adaptive 0.1" else 0.1, rel=1e-3)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(["adaptive", "layer"], ["adaptive", "layer", "query", "coordinate"]))
def test_what_an_optimizer_learns_it_learns_from_records_alone(name):
    """With the same noise its state is the same after a step, whatever public rows came with it."""
    states = []
    for beside in (None, (100.0 * ROWS_X, ROWS_Y)):
        source = tfdp.noise.SeededNoise(7)
        model = linear(
            "",
            OPT.ClippedOptimizer(SGD(0.01), 1.0, 0.1, "adaptive", noise_source=source)
            if name == "adaptive"
            else OPT.AdaDPOptimizer(0.01, 1.0, scale_estimator=name, noise_source=source),
        )
        x, y = np.random.default_rng(1).normal(size=(ALL, WIDTH)), np.ones((ALL, 2), "float32")
        step_on_all(model, x, y, beside)
        inner = {id(v) for v in model.optimizer.inner_optimizer.variables}
        own = [v for v in model.optimizer.variables if id(v) not in inner]
        states.append([np.array(v) for v in own])
    assert len(states[0]) > 1
    for a, b in zip(*states, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("clipping", slow_but(["adaptive"], ["adaptive", "flat"]))
def test_public_rows_of_a_table_whose_rows_are_selected_move_as_records_do(clipping):
    """Selected rows come as slices: what public rows add is dense, in the same units."""
    tokens = np.arange(ROWS, dtype="int32")[:, None] % 3
    found = []
    for private in (False, True):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((1,), dtype="int32"), keras.layers.Embedding(60, 2), keras.layers.Flatten()]
        model = tfdp.make_private(keras.Sequential(layers))
        selection = tfdp.noise.SparsityPreserving(noise_share=0.2, threshold=2.0, smallest_table=50)
        given = OPT.ClippedOptimizer(SGD(1.0), 1e-9, 0.1, clipping, sparsity_preserving=selection)
        model.compile(given, dot)
        x, y = np.full((ALL, 1), 59, "int32"), np.zeros((ALL, 2), "float32")
        if private:
            x[:ROWS], y[:ROWS] = tokens, ROWS_Y
        before = model.get_weights()[0]
        step_on_all(model, x, y, None if private else (tokens, ROWS_Y))
        found.append(model.get_weights()[0] - before)
    assert np.abs(found[1][:3]).max() > 1e-4
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-7)


# What cannot be -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_public_rows_that_cannot_be_are_refused_and_the_draw_is_kept(run):
    batch = next(run)
    x, y, _ = batch.records()
    wrong = {
        "holds private records": [(X[:4], Y[:4]), (x, y), (x[1:], y[1:])],
        "must be \\(x, y\\)": [X, (X + 1.0,), "rows"],
        "like the records": [(X[:4, :2] + 1.0, Y[:4]), ({"a": X + 1.0}, Y), (np.array([["a"] * 4]), np.ones(1))],
        "as many rows": [(np.ones((3, 4)), np.ones(2)), (np.ones((0, 4)), np.ones(0))],
    }
    for why, values in wrong.items():
        for public in values:
            with pytest.raises(ValueError, match=why):
                run.step(batch, public)
    run.step(batch, PUBLIC)
    assert run.made == 1


# Copies of records ----------------------------------------------------------------------------------------------------

CLASSES = np.random.default_rng(4).integers(0, 6, (64, 4)).astype("float32")


def stepped(x, public, **options):
    """One step on these records and public rows."""
    with model_of().private_run(x, Y[: len(x)], **settings(epochs=1) | options) as running:
        running.step(next(running), public)
        return running.made


@pytest.mark.slow
def test_a_replay_buffer_of_earlier_draws_is_refused_and_the_draw_is_kept():
    with model_of().private_run(X, Y, **settings(epochs=1)) as running:
        first = next(running)
        x, y = (np.array(part) for part in first.records()[:2])
        running.step(first, PUBLIC)
        second = next(running)
        with pytest.raises(ValueError, match="holds private records: rows of it equal some"):
            running.step(second, (x, y))
        running.step(second, PUBLIC)
        assert running.made == 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("x", "given"),
    [
        (X, X[:1].copy()),
        (X, np.r_[PUBLIC[0], X[7:8]]),
        (X.astype("float64"), X[3:5].copy()),
        (CLASSES, CLASSES[:40].copy()),
    ],
    ids=["one", "one among others", "in double precision", "few values"],
)
def test_copies_of_records_are_refused(x, given):
    with pytest.raises(ValueError, match="rows of it equal some, number by number"):
        stepped(x, (given, np.ones(len(given), "int32")))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("x", "given"),
    [
        (X, np.zeros((9, 4), "float32")),
        (np.r_[X[:63], np.zeros((1, 4), "float32")], np.zeros((9, 4), "float32")),
        (CLASSES, np.random.default_rng(5).integers(0, 6, (40, 4)).astype("float32")),
        (X, X[:8] + 1e-3),
    ],
    ids=["zeros", "a record of zeros", "few values, by chance", "near"],
)
def test_rows_that_equal_records_by_chance_are_taken(x, given):
    assert stepped(x, (given, np.ones(len(given), "int32"))) == 1


def test_texts_come_back_as_bytes_and_are_known_all_the_same():
    known = PrivateRows([np.array([[f"note {number}", f"ward {number % 7}, {number}"] for number in range(64)])])
    with pytest.raises(ValueError, match="rows of it equal some"):
        known.refuse(np.array([[b"note 3", b"ward 3, 3"]], object))
    known.refuse(np.array([[b"note 3", b"ward 4, 3"]], object))


def test_records_that_are_not_in_memory_are_not_compared():
    with pytest.raises(ValueError, match="rows of it equal some"):
        PrivateRows([X]).refuse(X)
    assert PrivateRows([]).refuse(X) is None


def test_rows_that_come_with_each_step_cost_little():
    """4 KB a row: what looks for copies takes less than the gradients of one Dense layer would."""
    known, rows = PrivateRows([RNG.random((20_000, 1024), "float32")]), RNG.random((256, 1024), "float32")
    known.refuse(rows)
    began = time.perf_counter()
    for _ in range(20):
        known.refuse(rows)
    assert time.perf_counter() - began < 1.0


def of_two_inputs():
    inputs = [keras.Input((4,), name="a"), keras.Input((3,), name="b")]
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(inputs))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


@pytest.mark.parametrize("kind", [list, tuple])
def test_rows_of_two_inputs_are_given_as_a_list_or_a_tuple(kind):
    records, y = [np.full((64, 4), 7.0, "float32"), np.full((64, 3), 7.0, "float32")], np.ones((64, 1), "float32")
    a, b, ones = np.zeros((5, 4), "float32"), np.zeros((5, 3), "float32"), np.ones((5, 1), "float32")
    with of_two_inputs().private_run(records, y, **settings(epochs=1)) as run:
        batch = next(run)
        for wrong, told in [
            (kind([a]), f"expected a list or tuple of 2, received a {kind.__name__} of 1"),
            ({"a": a, "b": b}, r"expected a list or tuple of 2, received a dict of \['a', 'b'\]"),
            (a, "expected a list or tuple of 2, received a ndarray"),
            (kind([a, object()]), "expected an array, received a object"),
            (kind([a, a]), r"expected shape \('rows', 3\), received \(5, 4\)"),
        ]:
            with pytest.raises(ValueError, match=told) as error:
                run.step(batch, (wrong, ones))
            assert "7." not in str(error.value)
        run.step(batch, (kind([a, b]), ones))
        for batch in run:
            run.step(batch, ((a, b), [[1.0]] * 5))


READS = {"logs": lambda logs, batch: logs["loss"] > 0, "records": lambda logs, batch: len(batch.records()[0])}


@pytest.mark.few(1)
@pytest.mark.parametrize("read", [*READS, None])
def test_rows_that_a_loop_gives_after_it_read_private_numbers_are_reported(read):
    """As many rows as were drawn, say, or rows with the labels that were drawn."""
    model, generator = model_of(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with model.private_run(X, Y, **settings(epochs=1)) as run:
            run.feeds(generator)
            for batch in run:
                logs = run.step(batch, PUBLIC)
                if read is not None:
                    READS[read](logs, batch)
    said = [str(one.message) for one in caught if "The loop read" in str(one.message)]
    assert ["and then gave public rows" in one for one in said] == [True] * (read is not None)
    for one in (model, tfdp.make_private(generator)):
        assert ("and then gave public rows" in str(one.privacy_statement(1e-5))) == (read is not None)
