"""The same records trained on by another ledger of the process: `fit` says so, and what they pay together."""

import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.several_ledgers import compiled, said
from helpers.variants import slow_but
from tfdp_layers.accounting import Statement, epsilon, sightings, together
from tfdp_layers.accounting.wording import rounded_up

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 3)).astype("float32"), np.ones((80, 1), "float32")
DELTA = 1e-3
QUANTILE = {"probabilities": [0.5], "lower": 0.0, "upper": 1.0, "noise_multiplier": 9.0}


def model_of(ledger=None):
    return compiled([keras.Input((3,)), keras.layers.Dense(1)], ledger)


def fit(x=X, model=None, **options):
    model = model_of() if model is None else model
    model.fit(x, Y[: len(x)], batch_size=10, verbose=0, **options)
    return model


def charged(x=X, ledger=None):
    """A release that needs no training."""
    ledger = tfdp.accounting.Ledger() if ledger is None else ledger
    tfdp.preprocessing.quantiles(x, ledger, **QUANTILE)
    return ledger


TENSOR = tf.constant(X)
PIPELINE = tf.data.Dataset.from_tensor_slices((X, Y))
RECORDS = tfdp.records(PIPELINE)
KNOWN = {
    "an array": (X, X.copy()),
    "a tensor": (TENSOR, TENSOR),
    "a tensor's numbers": (TENSOR, X.copy()),
    "columns by name": ({"a": X[:, 0], "b": X[:, 1:]}, {"b": X[:, 1:].copy(), "a": X[:, 0].copy()}),
    "records of a pipeline": (RECORDS, X.copy()),
    "a source, whose records are not read": (tfdp.records([*zip(X, Y, strict=True)]),) * 2,
}


@pytest.mark.parametrize("name", KNOWN)
def test_whatever_records_come_as_they_are_known_again(name):
    first, second = KNOWN[name]
    given = [(one, Y if isinstance(one, np.ndarray | tf.Tensor | dict) else None) for one in (first, second)]
    some, again = (tfdp.PrivateBatches(*one, tfdp.sampling.Poisson(9)).footprint() for one in given)
    assert some.overlaps(again)


def generated():
    spec = tf.TensorSpec((3,)), tf.TensorSpec((1,))
    records = tf.data.Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=spec)
    return records.apply(tf.data.experimental.assert_cardinality(80))


@pytest.mark.parametrize(("records", "known"), [(lambda: PIPELINE, True), (generated, False)])
def test_declared_pipelines_are_known_by_themselves_and_by_their_arrays(records, known):
    batches = records().batch(10)
    one, again, other = (
        tfdp.declare_sampling(each, tfdp.sampling.Partition(10), examples=80).footprint()
        for each in (batches, batches, records().shuffle(80).batch(10))
    )
    assert one.same_place(again)
    assert one.overlaps(other) is known


def test_so_are_tables_of_pandas_and_two_parts_of_one_table_are_not_one():
    table = pytest.importorskip("pandas").DataFrame(X)
    mine, part, rest, copy = (
        tfdp.PrivateBatches(one, Y[: len(one)], tfdp.sampling.Poisson(9)).footprint()
        for one in (table, table[:40], table[40:], X.copy())
    )
    assert mine.overlaps(part)
    assert mine.overlaps(copy)
    assert not part.overlaps(rest)


REPEATED = {
    "arrays": lambda: X,
    "batches": lambda: tfdp.PrivateBatches(X, Y, tfdp.sampling.Poisson(10)),
    "records": lambda: tfdp.records(PIPELINE),
}


@pytest.mark.parametrize("name", slow_but(["batches"], [*REPEATED]))
def test_a_model_that_is_gone_is_counted_up_to_its_last_step(name):
    """Equal releases go on in one entry, which an earlier look at it held less of."""
    data = REPEATED[name]()

    def fit_on(model):
        model.fit(data, Y if data is X else None, **({} if name == "batches" else {"batch_size": 10}), verbose=0)
        return model

    gone = model_of()
    steps = sum(fit_on(gone).ledger.steps - before for before in (0, 8))
    ledger = weakref.ref(gone.ledger)
    del gone
    keras.backend.clear_session()
    gc.collect()
    assert steps == 16
    assert ledger() is None
    assert together(charged(X.copy())).steps == steps + 1


def test_what_is_charged_again_and_again_is_kept_once():
    ledger = tfdp.accounting.Ledger()
    for _ in range(5):
        charged(X.copy(), ledger)
    assert len(sightings._sightings) == 1
    assert together(charged()).steps == 6


def test_of_many_data_sets_the_oldest_are_known_by_their_places_alone(monkeypatch):
    monkeypatch.setattr(sightings, "_MOST_SKETCHES", 3)
    kept, gone, *others = (RNG.normal(size=(80, 3)) for _ in range(6))
    copies = kept.copy(), gone.copy(), others[-1].copy()
    charged(kept)
    charged(gone)
    del gone
    for one in others:
        charged(one)
    assert len(sightings._sightings) == 5
    assert [len(said(lambda one=one: charged(one))) for one in (*copies[:2], kept)] == [0, 0, 1]
    assert len(said(lambda: charged(copies[2]))) == 1


@pytest.mark.parametrize("kind", ["quantiles", "a layer", "fit"])
def test_where_warnings_are_errors_nothing_is_charged(kind):
    charged()
    ledger, model, layer = tfdp.accounting.Ledger(), model_of(), tfdp.layers.DPCentering(1.0)
    do = {"quantiles": lambda: charged(ledger=ledger), "a layer": lambda: layer.adapt(X)}
    do["fit"] = lambda: fit(model=model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Other ledgers")
        with pytest.raises(UserWarning, match="Other ledgers"):
            do[kind]()
    assert (ledger.steps, model.ledger.steps, layer.ledger.steps) == (0, 0, 0)


@pytest.mark.slow
def test_a_new_model_on_a_shuffled_part_warns_though_the_first_one_is_gone():
    assert said(fit) == []
    gc.collect()
    (warning,) = said(lambda: fit(X[RNG.permutation(80)[:40]]))
    assert warning.filename == __file__
    assert "for records with equal rows, so for these, it seems, or for some of them: 1." in str(warning.message)
    assert str(warning.message).endswith("Where these are other people, nothing is lost.")


def test_what_to_do_is_said_in_full_once_in_a_process_and_the_cost_each_time():
    budget = tfdp.callbacks.PrivacyBudget(50.0, DELTA)
    found = [said(lambda: fit(callbacks=[budget])) for _ in range(3)]
    (first,), (later,) = (map(str, (one.message for one in each)) for each in found[1:])
    assert "ledger = tfdp.accounting.Ledger" in first
    assert "ledger = tfdp.accounting.Ledger" not in later
    assert len(later) < len(first) - 300
    assert "some of them: 2. With this fit it will be up to epsilon" in later
    assert later.endswith("see the first such warning.")


def test_one_object_is_no_guess():
    charged()
    (warning,) = said(charged)
    assert "charged for these records, or for some of them: 1." in str(warning.message)
    assert "other people" not in str(warning.message)


@pytest.mark.slow
def test_the_sum_is_said_before_it_is_spent_and_holds():
    budget = tfdp.callbacks.PrivacyBudget(50.0, DELTA)
    fit()
    second = model_of()
    (warning,) = said(lambda: fit(model=second, callbacks=[budget]))
    whole, alone = epsilon(together(second.ledger), DELTA), epsilon(second.ledger, DELTA)
    assert f"up to epsilon {rounded_up(whole)} at delta 0.001" in str(warning.message)
    assert f"will state {rounded_up(alone)}:" in str(warning.message)
    assert whole > 1.2 * alone
    second.ledger.merge(together(second.ledger))
    assert epsilon(second.ledger, DELTA) == whole
    assert said(lambda: fit(model=second)) == []


@pytest.mark.slow
def test_one_ledger_for_both_is_silent(tmp_path):
    ledger = tfdp.accounting.Ledger(tmp_path / "ledger.json", dataset="people")
    first, second = model_of(ledger), model_of(ledger)
    assert said(lambda: [fit(model=one) for one in (first, second)]) == []
    ledger.close()
    again = tfdp.accounting.Ledger(tmp_path / "ledger.json")  # as a cell that is run again opens it
    assert said(lambda: charged(ledger=again)) == []
    assert first.privacy_statement(DELTA).notes == second.privacy_statement(DELTA).notes


@pytest.mark.slow
def test_a_clone_warns_and_a_copy_that_takes_its_cost_along_does_not():
    first = fit()
    assert said(lambda: fit(model=compiled([*first.layers]))) == []
    clone = keras.models.clone_model(first)
    clone.compile(tfdp.optimizers.ClippedOptimizer("sgd", 2.0), "mse")
    assert len(said(lambda: fit(model=clone))) == 1


@pytest.mark.slow
def test_a_file_from_the_middle_of_a_training_does_not_hold_its_rest(tmp_path):
    model = fit()
    model.save(tmp_path / "early.keras")
    fit(model=model)
    assert len(said(lambda: charged(ledger=tfdp.load_model(tmp_path / "early.keras").ledger))) == 1


def test_each_new_ledger_is_told_of_however_many_others_there_are():
    """Models of 1 to 8 hospitals, then one of all: also of 3, 5, 6 and 7."""
    ledgers = [tfdp.accounting.Ledger() for _ in range(9)]
    found = [said(lambda one=one: charged(ledger=one)) for one in ledgers]
    assert [len(each) for each in found] == [0] + [1] * 8
    assert [f"some of them: {count}." in str(one.message) for count, (one,) in enumerate(found[1:], 1)] == [True] * 8
    assert said(lambda: charged(ledger=ledgers[-1])) == []


def test_one_ledger_is_told_again_whenever_the_others_have_doubled():
    mine, others = tfdp.accounting.Ledger(), [tfdp.accounting.Ledger() for _ in range(8)]
    charged(ledger=mine)
    warned = [len(said(lambda one=one: (said(lambda: charged(ledger=one)), charged(ledger=mine)))) for one in others]
    assert warned == [1, 1, 0, 1, 0, 0, 0, 1]


def test_one_that_was_first_told_of_three_is_told_again_at_six():
    mine, others = tfdp.accounting.Ledger(), [tfdp.accounting.Ledger() for _ in range(6)]
    for one in others[:3]:
        charged(ledger=one)
    warned = [len(said(lambda: charged(ledger=mine)))]
    for one in others[3:]:
        charged(ledger=one)
        warned.append(len(said(lambda: charged(ledger=mine))))
    assert warned == [1, 0, 0, 1]


OTHER = {
    "other records": lambda: charged(RNG.normal(size=(80, 3))),
    "other rows": lambda: (charged(X[:40].copy()), charged(X[40:].copy())),
    "equal rows alone": lambda: (charged(np.ones((80, 3))), charged(np.ones((70, 3)))),
    "no step": lambda: (charged(), fit(epochs=0)),
    "an audit": lambda: (charged(), model_of().audit(X, Y, 20)),
    "after an audit": lambda: (model_of().audit(X, Y, 20), charged()),
}


@pytest.mark.slow
def test_what_a_callback_trains_beside_an_audit_is_known():
    other = model_of()
    beside = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: fit(model=other))
    model_of().audit(X, Y, 20, epochs=1, callbacks=[beside])
    assert len(said(charged)) == 1
    assert together(charged()).steps == other.ledger.steps + 2


@pytest.mark.parametrize("name", slow_but([one for one in OTHER if "audit" not in one], [*OTHER]))
def test_what_is_no_second_charge_of_them_is_silent(name):
    assert said(OTHER[name]) == []


def test_a_fit_that_was_refused_left_nothing():
    with pytest.raises(tfdp.callbacks.BudgetExhausted):
        fit(callbacks=[tfdp.callbacks.PrivacyBudget(1e-3, 1e-9)])
    assert said(charged) == []


def test_statements_tell_of_the_same_object_and_of_no_equal_rows():
    """Whether rows are equal is computed from them without noise; which object was given is in the program."""
    first, second, third = (charged(one) for one in (X, X[5:], X.copy()))
    assert Statement.from_ledger(third, DELTA).notes == ()
    for one in (first, second):
        statement = Statement.from_ledger(one, DELTA)
        (note,) = statement.notes
        assert "given to 1 other ledger of the same process" in note
        assert note in " ".join(str(statement).split())
        assert note in statement.to_json()
        assert statement.epsilon == epsilon(one, DELTA)
    assert together(third).steps == 3


def test_features_are_of_the_records_that_they_were_computed_from():
    charged()
    (note,) = Statement.from_ledger(charged(tfdp.features(keras.layers.Lambda(lambda x: x * x), X)), DELTA).notes
    assert "given to 1 other ledger" in note


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("predict", ["predict", "predict_on_batch"])
def test_what_a_private_model_predicts_is_of_the_records_that_it_predicts_for(predict):
    """A head on it adds to what these people paid for the model."""
    base, head = fit(), compiled([keras.Input((1,)), keras.layers.Dense(1)])
    found = getattr(base, predict)(X)
    (warning,) = said(lambda: fit(found, head))
    assert "for some of them: 1." in str(warning.message)
    assert "given to 1 other ledger" in head.privacy_statement(DELTA).notes[0]
    assert together(head.ledger).steps == base.ledger.steps + head.ledger.steps
    assert said(lambda: fit(base.predict(X.copy() + 1.0), compiled([keras.Input((1,)), keras.layers.Dense(1)]))) == []


TABLES = {
    "as labels": lambda made, other: (other, made),
    "beside others": lambda made, other: (np.concatenate([other, made], 1), Y),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLES)
def test_so_is_what_it_predicts_as_labels_or_beside_other_columns(name):
    base, other = fit(), RNG.normal(size=(80, 2)).astype("float32")
    x, y = TABLES[name](base.predict(X), other)
    head = compiled([keras.Input((x.shape[1],)), keras.layers.Dense(1)])
    assert len(said(lambda: head.fit(x, y, batch_size=10, verbose=0))) == 1
    assert together(head.ledger).steps == base.ledger.steps + head.ledger.steps


@pytest.mark.slow
def test_scaled_features_are_of_the_same_people_by_their_labels():
    labels = RNG.integers(0, 2, (80, 1)).astype("float32")
    for features, warned in ((X, 0), (X * 2.0 - 1.0, 1)):
        model = model_of()
        assert len(said(lambda: model.fit(features, labels, batch_size=10, verbose=0))) == warned  # noqa: B023
        assert model.privacy_statement(DELTA).notes == ()


def test_layers_that_adapt_are_charged_with_their_model():
    def adapted():
        layer = tfdp.layers.DPCentering(1.0)
        layer.adapt(X)
        return layer

    model = compiled([keras.Input((3,)), adapted(), keras.layers.Dense(1)])
    assert said(lambda: fit(model=model)) == []
    assert said(lambda: charged(ledger=model.ledger)) == []
    (warning,) = said(adapted)
    assert "for some of them: 1." in str(warning.message)


def test_words_are_charged_too():
    texts = [f"word{place} of them" for place in range(40)]
    ledgers = tfdp.accounting.Ledger(), tfdp.accounting.Ledger()
    words = {"noise_multiplier": 9.0, "failure": 1e-6}
    assert said(lambda: tfdp.preprocessing.vocabulary(texts, ledgers[0], **words)) == []
    assert len(said(lambda: tfdp.preprocessing.vocabulary(texts[20:], ledgers[1], **words))) == 1


@pytest.mark.slow
def test_guarantees_of_different_kinds_have_no_sum():
    fit(sampling=tfdp.sampling.FixedSize(10))
    second = model_of()
    (warning,) = said(lambda: fit(model=second, callbacks=[tfdp.callbacks.PrivacyBudget(50.0, DELTA)]))
    assert "have no sum" in str(warning.message)
    assert "have no sum" in second.privacy_statement(DELTA).notes[0]
    with pytest.raises(ValueError, match="an epsilon over both would mean nothing"):
        together(second.ledger)
