"""Public rows of a step: they come after the noise, count as no records, and may not be private records."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.loops import LOSS, RNG, X, Y, model_of, settings
from helpers.variants import slow_but
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
        terms = self._public_gradients(public, 1)
        return original(self, [s + t for s, t in zip(sums, terms, strict=True)] if public else sums)

    monkeypatch.setattr(PrivateTraining, "_release", planted)
    with pytest.raises(AssertionError):
        test_public_rows_come_after_the_noise_and_count_as_no_records()


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
