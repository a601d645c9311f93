"""Slips of a first training that are refused in words of our own, with the fix, before anything is spent."""

import concurrent.futures
import os
import time
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.slips import X, Y, assert_refused, made
from tfdp_layers.accounting import half_files
from tfdp_layers.models.fit_arguments import refuse_unsound_fit
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.whole_file import whole_file


@pytest.mark.parametrize("factors", ["balanced", [1.0, 2.0]])
def test_class_weights_that_are_no_mapping(factors):
    assert_refused(made(), r"must map integer classes.*\{0: 1.0, 1: 5.0\}", class_weight=factors)


@pytest.mark.parametrize("epochs", ["2", 2.0, True, None, -1])
def test_epochs_that_are_no_integer(epochs):
    assert_refused(made(), "epochs must be an integer", epochs=epochs)


def test_what_is_no_callback():
    assert_refused(made(), r"One of callbacks is a function.*LambdaCallback", callbacks=[lambda epoch, logs: None])
    assert_refused(
        made(), r"One of callbacks is a str, and no keras.callbacks.Callback\.$", callbacks=["EarlyStopping"]
    )


def test_a_budget_without_delta_asks_for_it():
    with pytest.raises(ValueError, match=r"Give delta, the probability .* well below 1 / number of records"):
        tfdp.callbacks.PrivacyBudget(3.0)


@pytest.mark.parametrize(
    ("thing", "name", "says"),
    [
        (made, "epsilon", r"tfdp.accounting.epsilon\(model.ledger, delta=1e-5\)"),
        (made, "get_epsilon", r"model.privacy_statement\(delta=1e-5\)"),
        (lambda: made().ledger, "epsilon", r"tfdp.accounting.epsilon\(ledger, delta=1e-5\)"),
        (lambda: made().ledger, "privacy_statement", "Statement.from_ledger"),
        (lambda: made().ledger, "delta", "chosen by who asks"),
        (lambda: tfdp.callbacks.PrivacyBudget(3.0, 1e-5), "spent", r"epsilon\(model.ledger, budget.delta\)"),
    ],
)
def test_a_name_that_a_newcomer_looks_for_says_where_it_is(thing, name, says):
    found = thing()
    assert not hasattr(found, name)
    assert not callable(getattr(type(found), name))
    with pytest.raises(AttributeError, match=f"object has no attribute '{name}'.*{says}"):
        getattr(found, name)
    setattr(found, name, 1.0)  # what the caller keeps there is the caller's
    assert getattr(found, name) == 1.0


@pytest.mark.slow
def test_a_learning_rate_in_the_place_of_the_noise():
    """It is the second argument of Keras' optimizers by habit, and here the noise multiplier."""
    with pytest.warns(UserWarning, match=r"noise multiplier of 0.01.*ClippedOptimizer\(keras.optimizers.Adam\(0.01\)"):
        made(tfdp.optimizers.ClippedOptimizer("adam", 0.01)).fit(X, Y, batch_size=8, epochs=0, verbose=0)
    for number in (0.0, 0.1):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*noise multiplier of")
            made(tfdp.optimizers.ClippedOptimizer("adam", number)).fit(X, Y, batch_size=8, epochs=0, verbose=0)


def test_a_ledger_at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tfdp.accounting.LedgerError, match="expanduser"):
        tfdp.accounting.Ledger("~/nowhere/ledger.json")


def test_epochs_of_numpy_are_taken():
    assert refuse_unsound_fit({"epochs": np.int64(2)}) is None


def test_nothing_to_train():
    model = made()
    model.trainable = False
    assert_refused(model, "has no weights to train")


def test_a_call_of_ones_own():
    class Own(tfdp.PrivateModel):
        def __init__(self):
            super().__init__()

    with pytest.raises(ValueError, match=r"Own needs inputs and outputs.*make_private"):
        Own()


@pytest.mark.parametrize("loss", ["hinge", keras.losses.SquaredHinge()])
def test_hinges_of_keras_look_at_all_labels(loss):
    assert_refused(made(loss=loss), "depends on the others' labels.*keras.ops.maximum")


@pytest.mark.slow
def test_the_hinge_that_is_named_in_its_place_trains():
    model = made(loss=lambda y, p: keras.ops.mean(keras.ops.maximum(1 - y * p, 0), axis=-1))
    model.fit(X, 2.0 * Y - 1.0, batch_size=20, verbose=0)
    assert model.ledger.steps == 2


@pytest.mark.slow
def test_an_optimizer_for_two_models():
    first = made()
    first.fit(X, Y, batch_size=20, verbose=0)
    assert_refused(made(first.optimizer), "another model was trained with this optimizer")


def test_the_older_format_of_keras_has_no_ledger(tmp_path):
    model = made()
    for name in ("model.h5", "model.hdf5"):
        with pytest.raises(ValueError, match=r"holds no privacy ledger.*model\.keras"):
            model.save(tmp_path / name)
        assert not list(tmp_path.iterdir())
        (tmp_path / name).touch()
        with pytest.raises(ModelFileError, match="holds no ledger"):
            tfdp.load_model(tmp_path / name)
        (tmp_path / name).unlink()


def test_a_folder_that_is_missing(tmp_path):
    for save, name in ((made().save, "m.keras"), (made().save_weights, "m.weights.h5")):
        with pytest.raises(FileNotFoundError, match=f"The folder .*nowhere of {name} does not exist"):
            save(tmp_path / "nowhere" / name)


@pytest.mark.slow
def test_the_budget_of_a_data_set_is_called_so(tmp_path):
    ledger = tfdp.accounting.Ledger(tmp_path / "loans.json", dataset="loans", budget=(1.0, 1e-3))
    assert "budget=(1, 0.001)" in repr(ledger)
    for turn in range(2):
        model = made(tfdp.optimizers.ClippedOptimizer("sgd"))
        model.ledger = ledger
        budget = tfdp.callbacks.PrivacyBudget(1.0 + turn, 1e-3)
        if turn:
            with pytest.raises(tfdp.accounting.BudgetExhausted, match="of the data set 'loans', epsilon=1 at"):
                model.fit(X, Y, batch_size=20, callbacks=[budget], verbose=0)
        else:
            model.fit(X, Y, batch_size=20, callbacks=[budget], verbose=0)
    ledger.close()


def test_noise_too_small_for_the_budget_and_a_spent_one():
    budget = tfdp.callbacks.PrivacyBudget(0.1, 1e-3)
    assert_refused(
        made(),
        r"epsilon=0.1 .*smaller than what one release costs",
        tfdp.accounting.BudgetExhausted,
        callbacks=[budget],
    )
    model = made(tfdp.optimizers.ClippedOptimizer("sgd"))
    tfdp.release_metric(np.ones(40), model.ledger, stddev=0.02, name="accuracy")
    spent = float(tfdp.accounting.epsilon(model.ledger, 1e-3))
    # A hair is left, for which no noise is large enough: the search's own error, with other advice, is not shown.
    with pytest.raises(tfdp.accounting.BudgetExhausted, match="Nothing is left") as refusal:
        model.fit(X, Y, batch_size=8, callbacks=[tfdp.callbacks.PrivacyBudget(spent * 1.0001, 1e-3)], verbose=0)
    assert refusal.value.__suppress_context__
    assert model.ledger.steps == 1


@pytest.mark.parametrize("named", [True, False])
def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path, named):
    file = tmp_path / "model.keras"
    file.write_text("the older one")

    def written():
        with whole_file(file) as partial:
            partial.write_text("half")
            raise OSError(28, "No space left on device", *([str(partial)] if named else []))

    with pytest.raises(OSError, match=r"No space left on device: '.*/model\.keras'") as refusal:
        written()
    assert ".partial." not in str(refusal.value)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("model.keras", "the older one")]


@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_two_writers_of_one_file_each_leave_it_whole(name, tmp_path):
    """Folds in processes, each with ModelCheckpoint("best.keras"): one ended in FileNotFoundError."""
    file = tmp_path / name
    with whole_file(file) as first:
        first.write_text("the first, ")
        with whole_file(file) as second:
            second.write_text("the second")
        assert file.read_text() == "the second"
        with first.open("a") as more:
            more.write("whole")
    assert file.read_text() == "the first, whole"
    assert list(tmp_path.iterdir()) == [file]


def test_models_that_are_saved_to_one_path_at_once_are_whole(tmp_path):
    file, models = tmp_path / "best.keras", [made() for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        saves = [threads.submit(model.save, file) for model in models for _ in range(5)]
        for one in saves:
            one.result()
    assert tfdp.load_model(file).count_params() == models[0].count_params()
    assert list(tmp_path.iterdir()) == [file]


def test_what_killed_writers_left_is_removed_once_nobody_writes_it(tmp_path):
    file, old = tmp_path / "best.keras", time.time() - 7200
    names = [f".partial.{'a' * 16}.best.keras", f".partial.{'b' * 16}.best.keras", f".partial.{'a' * 16}.other.keras"]
    for name in (*names, ".partial.best.keras", "best.keras.old"):
        (tmp_path / name).write_text("half")
        if name != names[1]:  # whose writer is at it
            os.utime(tmp_path / name, (old, old))
    with whole_file(file) as partial:
        partial.write_text("whole")
    assert {one.name for one in tmp_path.iterdir()} == {*names[1:], "best.keras.old", file.name}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_a_saved_file_keeps_the_rights_of_the_one_that_it_replaces(name, mode, tmp_path):
    model, file = made(), tmp_path / name
    save = model.save if name.endswith(".keras") else model.save_weights
    save(file)
    assert file.stat().st_mode & 0o400
    file.chmod(mode)
    save(file)
    assert file.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.parametrize("letter", ["a", "\u00e9"])
def test_the_longest_name_that_a_file_may_have_can_be_written_and_what_is_left_of_it_removed(
    letter, ending, tmp_path, monkeypatch
):
    """Half files had names 26 bytes longer than the file's: "File name too long"."""
    length = (255 - len(ending)) // len(letter.encode())
    file, left = tmp_path / (letter * length + ending), []
    for _ in range(2):
        monkeypatch.setattr(half_files, "_LOOKED", {})  # as in another process, or an hour later
        with whole_file(file) as partial:
            partial.write_text("whole")
            assert partial.name.endswith(ending)
            left.append(partial.with_name(partial.name))
        left[-1].write_text("half")
        os.utime(left[-1], (time.time() - 7200,) * 2)
    assert file.read_text() == "whole"
    assert [one.exists() for one in left] == [False, True]
    with whole_file(tmp_path / ("b" * length + ending)) as partial:
        partial.write_text("another")
    assert left[-1].exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"units_ids": X}, "fit got an unexpected argument 'units_ids'. Did you mean 'unit_ids'"),
        ({"batchsize": 8}, "Did you mean 'batch_size'"),
        ({"epsilon": 3.0}, r"'epsilon'. A budget is a callback: callbacks=\[tfdp"),
        ({"workers": 4}, r"unexpected argument 'workers'\.$"),
    ],
)
def test_an_argument_that_fit_does_not_have(given, says):
    assert_refused(made(), says, TypeError, **given)
    with pytest.raises(TypeError, match=says), made().private_run(X, Y, **given):
        pass


def test_what_is_no_model_and_what_is_one_already():
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    for private in (tfdp.PrivateModel, tfdp.PrivateSequential):
        with pytest.raises(ValueError, match=r"is a model already. Write tfdp.make_private\(model\)"):
            private(plain)
    assert tfdp.PrivateSequential([plain]).layers == [plain]  # a model within a model
    with pytest.raises(ValueError, match=r"Received: list. Make one: keras.Sequential\(layers\)"):
        tfdp.make_private(plain.layers)
    with pytest.raises(ValueError, match=r"Received: str. Make one: keras.models.load_model\(path\)"):
        tfdp.make_private("plain.keras")


def test_a_name_that_is_elsewhere():
    for name, place in (("PrivacyBudget", "callbacks"), ("Ledger", "accounting"), ("ClippedDense", "layers")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'. It is in .*: tfdp.{place}.{name}$"):
            getattr(tfdp, name)
    for name in ("Nowhere", "_private"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(tfdp, name)


def test_a_model_with_a_lambda_as_loss_is_loaded_without_it(tmp_path):
    model, file = made(loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p), axis=-1)), tmp_path / "m.keras"
    tfdp.release_metric(np.ones(40), model.ledger, stddev=0.1)
    model.save(file)
    with pytest.raises(ModelFileError, match=r"holds code .__lambda__.*load_model\(path, compile=False\)"):
        tfdp.load_model(file)
    loaded = tfdp.load_model(file, compile=False)
    assert not loaded.compiled
    assert loaded.ledger.updates == 0
    assert [entry.steps for entry in loaded.ledger.entries] == [1]
    within = made()  # code in a layer is code whatever is left out
    hidden = tfdp.make_private(
        keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x), *within.layers[1:]])
    )
    hidden.save(file)
    with pytest.raises(ModelFileError, match="holds code"):
        tfdp.load_model(file, compile=False)


def test_groups_are_shown_without_their_numbers_and_none_is_no_optimizer():
    (group,) = made().sensitivities()
    assert repr(group).startswith(
        "SensitivityGroup(name='layers clipped together', bound=1, role=OPTIMIZER, variables: "
    )
    assert "dense" in repr(group)
    assert "array" not in repr(group)
    with pytest.raises(ValueError, match="got None"):
        tfdp.optimizers.ClippedOptimizer(None)


def test_a_run_that_was_not_entered():
    run = made().private_run(X, Y, batch_size=8)
    with pytest.raises(TypeError, match=r"Enter it: with model.private_run\(...\) as run"):
        iter(run)
    with pytest.raises(AttributeError, match=r"no 'step' yet. Enter it"):
        _ = run.step
