"""DP-SGD whose steps move only those rows of an embedding that a noisy count selects: fit, ledger, file, refusals."""

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import tfdp_layers as tfdp
from helpers.empty_draws import empty_batches
from helpers.normality import assert_normal
from helpers.variants import slow_but
from tfdp_layers.clipping.row_counts import RowCounts

kl = keras.layers
ROWS, UNITS, LENGTH, RECORDS = 60, 3, 5, 24
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MODES = [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}]
MODE_NAMES = [next(iter(mode), "graph") for mode in MODES]
SELECTION = tfdp.noise.SparsityPreserving(noise_share=0.2, threshold=0.0, smallest_table=50)


def data():
    rng = np.random.default_rng(0)
    return rng.integers(0, 20, (RECORDS, LENGTH)), rng.integers(0, 3, RECORDS)


def classifier(**options):
    """An embedding that is counted, one that is too small for it, and a head."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    mean = kl.GlobalAveragePooling1D()
    large = mean(kl.Embedding(ROWS, UNITS, name="large", **options)(inputs))
    small = mean(kl.Embedding(20, 2, name="small")(inputs))
    return keras.Model(inputs, kl.Dense(3, name="head")(kl.Concatenate()([large, small])))


def optimizer(noise=1.0, selection=SELECTION, inner=None, **options):
    inner = keras.optimizers.SGD(1.0) if inner is None else inner
    return tfdp.optimizers.ClippedOptimizer(inner, noise, sparsity_preserving=selection, **options)


def private(given=None, model=None, **mode):
    keras.utils.set_random_seed(1)
    made = tfdp.make_private(classifier() if model is None else model)
    made.compile(optimizer() if given is None else given, LOSS, **mode)
    return made


class Moves(keras.callbacks.Callback):
    """Keeps what each step moves each weight by."""

    def on_train_begin(self, logs=None):
        self.before, self.moves = self.model.get_weights(), []

    def on_train_batch_end(self, batch, logs=None):
        after = self.model.get_weights()
        self.moves.append([b - a for a, b in zip(after, self.before, strict=True)])
        self.before = after


def moves(model, *args, **options):
    keeper = Moves()
    model.fit(*args, verbose=0, callbacks=[keeper], **options)
    return [np.stack(each) for each in zip(*keeper.moves, strict=True)]


# A step ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noise_alone():
    """A model and the moves of 40 steps on no record: half of the rows are above a threshold of 0, by noise alone."""
    model = private()
    return model, moves(model, empty_batches(*data()), steps_per_epoch=40)


def test_selected_rows_move_by_the_stated_noise_and_others_not_at_all(noise_alone):
    model, found = noise_alone
    assert model._privacy.independence.proved
    stated = {noise.name: noise.stddev for noise in model.ledger.entries[0].release.groups}
    table, others = found[0], np.concatenate([np.ravel(each) for each in found[1:]])
    selected = np.any(table != 0.0, axis=2)
    np.testing.assert_array_equal(selected, np.all(table != 0.0, axis=2))
    assert abs(selected.mean() - 0.5) < 5 * 0.5 / np.sqrt(selected.size)
    assert_normal(4.0 * table[selected], stated["layers clipped together"])
    assert_normal(4.0 * others, stated["layers clipped together"])


@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES), ids=MODE_NAMES)
def test_a_step_without_noise_is_that_of_dp_sgd(mode):
    """Without noise the rows that a record looks up are selected, and only they have gradients."""
    model = private(optimizer(0.0), **mode)
    x, y = data()
    wanted = [np.asarray(total) / RECORDS for total in model.bounded_gradient_sums(x, y)]
    steps = mode.get("steps_per_execution", 1)
    sampling = tfdp.sampling.FixedSize(RECORDS)
    found = moves(model, x, y, sampling=sampling, physical_batch_size=7, steps_per_epoch=steps)
    assert int(model.optimizer.releases) == steps
    for moved, expected in zip(found, wanted, strict=True):
        if steps == 1:
            np.testing.assert_allclose(moved[0], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["adam", keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0)])
def test_any_keras_optimizer_steps_on_selected_rows(inner):
    given = optimizer(inner=inner, selection=tfdp.noise.SparsityPreserving(0.2, 1.0, 50))
    model = private(given, classifier(embeddings_regularizer="l2"))
    found = moves(model, *data(), batch_size=8, epochs=2)
    assert all(np.all(np.isfinite(each)) and np.any(each) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"noise_source": "secure"}, {"clipping": "adaptive"}])
def test_it_goes_with_other_options(options):
    model = private(optimizer(selection=tfdp.noise.SparsityPreserving(0.2, 2.0, 50), **options))
    seen = []
    model.optimizer.observe(lambda means: seen.append([tuple(mean.shape) for mean in means]))
    table, *others = moves(model, *data(), batch_size=8, epochs=4)
    assert not np.any(table, axis=2).all()
    assert all(np.any(each) for each in others)
    assert seen[0][0] == (ROWS, UNITS)
    assert model.ledger.entries[0].release.noise_multiplier == pytest.approx(1.0)


def test_the_counts_of_a_fit_are_those_of_its_records():
    model, (x, y) = private(), data()
    found = model._sums_and_losses(tf.constant(x), tf.constant(y), tf.ones(RECORDS))[0][-1]
    expected = np.zeros(ROWS)
    for record in x:
        expected[np.unique(record)] += 1 / np.sqrt(len(np.unique(record)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# What it costs --------------------------------------------------------------------------------------------------------


def test_the_groups_share_the_precision_as_stated():
    model, z, share = private(optimizer(0.7)), 0.7, SELECTION.noise_share
    groups = model.sensitivities()
    stddevs = dict(zip([g.name for g in groups], model.optimizer.stddevs(groups), strict=True))
    assert [g.name for g in groups] == ["layers clipped together", RowCounts.STATISTIC + "large"]
    assert [g.bound for g in groups] == [1.0, 1.0]
    assert stddevs["layers clipped together"] == pytest.approx(z / np.sqrt(1 - share))
    assert stddevs[RowCounts.STATISTIC + "large"] == pytest.approx(z / np.sqrt(share))


def test_the_ledger_costs_what_dp_accounting_says_of_both_mechanisms(noise_alone):
    model, _ = noise_alone
    (entry,) = model.ledger.entries
    assert entry.steps == 40

    def over(kind, *multipliers):
        mechanisms = [dp_accounting.GaussianDpEvent(z) for z in multipliers]
        event = dp_accounting.ComposedDpEvent(mechanisms) if len(mechanisms) > 1 else mechanisms[0]
        return kind().compose(dp_accounting.PoissonSampledDpEvent(4 / RECORDS, event), entry.steps).get_epsilon(1e-5)

    # Two mechanisms on one draw: Renyi's accountant composes them before it samples, that of PLD takes one alone.
    both = [group.stddev / group.bound for group in entry.release.groups]
    joint = entry.release.noise_multiplier
    assert over(RdpAccountant, *both) == pytest.approx(over(RdpAccountant, joint), rel=1e-6)
    assert float(tfdp.accounting.epsilon(model.ledger, 1e-5)) == pytest.approx(over(PLDAccountant, joint), rel=1e-3)
    # The planted bug: counts that cost nothing.
    assert over(RdpAccountant, both[0]) < 0.95 * over(RdpAccountant, *both)
    assert RowCounts.STATISTIC + "large" in str(model.privacy_statement(delta=1e-5))


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_is_kept_saved_and_resumed(tmp_path):
    model, (x, y) = private(optimizer("calibrate")), data()
    budget = tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-3)
    model.fit(x, y, batch_size=6, epochs=2, verbose=0, callbacks=[budget])
    spent = float(tfdp.accounting.epsilon(model.ledger, 1e-3))
    assert 2.9 < spent <= 3.0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.optimizer.selection == SELECTION
    assert [g.name for g in loaded.sensitivities()] == [g.name for g in model.sensitivities()]
    loaded.fit(x, y, batch_size=6, epochs=1, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(4.0, 1e-3)])
    assert spent < float(tfdp.accounting.epsilon(loaded.ledger, 1e-3)) <= 4.0


def test_the_config_says_it_only_where_it_was_given():
    config = optimizer().get_config()
    again = tfdp.optimizers.ClippedOptimizer.from_config(config)
    assert again.selection == SELECTION
    assert again.bounding.of_gradients == optimizer().bounding.of_gradients
    assert "sparsity_preserving" not in optimizer(selection=False).get_config()
    assert optimizer(selection=True).selection == tfdp.noise.SparsityPreserving()


# Refusals -------------------------------------------------------------------------------------------------------------


def test_what_is_not_proved_or_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"correlated noise takes back"):
        tfdp.optimizers.ClippedOptimizer("sgd", 1.0, noise=tfdp.noise.Correlated(), sparsity_preserving=True)
    later = optimizer()
    later.noise = tfdp.noise.Correlated(0.5)  # it was stated, and the noise was independent
    with pytest.raises(ValueError, match=r"correlated noise takes back"):
        private(later).fit(*data(), sampling=tfdp.sampling.Cyclic(8), verbose=0)
    for kind in (tfdp.optimizers.TanhFilteredOptimizer, tfdp.optimizers.NoisyOptimizer):
        with pytest.raises(TypeError, match=rf"{kind.__name__} does not select rows"):
            kind("sgd", sparsity_preserving=True)
    with pytest.raises(TypeError, match="AdaDPOptimizer does not select rows"):
        tfdp.optimizers.AdaDPOptimizer(sparsity_preserving=True)


def test_a_model_without_a_large_table_is_refused_before_anything_is_spent():
    model = private(optimizer(selection=True))
    with pytest.raises(ValueError, match=r"no table of at least 1000 rows.*'large', 60"):
        model.fit(*data(), batch_size=6, verbose=0)
    assert model.ledger.steps == 0


class Tokens(kl.Layer):
    """A layer made of an embedding."""

    def __init__(self, **options):
        super().__init__(**options)
        self.table = kl.Embedding(ROWS, UNITS, name="table")

    def call(self, inputs):
        return self.table(inputs)


@pytest.mark.slow
def test_tables_in_layers_of_ones_own_are_counted():
    inputs = keras.Input((LENGTH,), dtype="int32")
    model = private(model=keras.Model(inputs, kl.Dense(3)(kl.Flatten()(Tokens(name="tokens")(inputs)))))
    assert [g.name for g in model.sensitivities() if not g.variables] == [RowCounts.STATISTIC + "tokens/table"]
    assert not np.any(moves(model, *data(), batch_size=8, epochs=2)[0], axis=2).all()


@pytest.mark.skipif(not hasattr(kl, "ReversibleEmbedding"), reason="this Keras has none")
def test_a_tied_table_is_refused_before_anything_is_spent():
    inputs, table = keras.Input((LENGTH,), dtype="int32"), kl.ReversibleEmbedding(ROWS, UNITS)
    model = private(model=keras.Model(inputs, table(kl.GlobalAveragePooling1D()(table(inputs)), reverse=True)))
    with pytest.raises(ValueError, match="is not only looked up"):
        model.fit(*data(), batch_size=6, verbose=0)
    assert model.ledger.steps == 0


def test_a_strategy_is_refused():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = private()
    with pytest.raises(ValueError, match="sparsity_preserving is for one device"):
        model.fit(*data(), batch_size=6, verbose=0)
