"""Slips of a first training that are refused in words of our own, with the fix, before anything is spent."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.batches.sources import as_store
from tfdp_layers.models.fit_arguments import refuse_unsound_fit, unwrap
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.whole_file import whole_file

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40)[:, None] % 2


def made(optimizer=None, loss="mse"):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, run_eagerly=True)
    return model


def assert_refused(model, says, kind=ValueError, x=X, y=Y, **options):
    with pytest.raises(kind, match=says):
        model.fit(x, y, **({"batch_size": 8, "verbose": 0} | options))
    assert model.ledger.steps == 0


@pytest.mark.parametrize("factors", ["balanced", [1.0, 2.0]])
def test_class_weights_that_are_no_mapping(factors):
    assert_refused(made(), r"must map integer classes.*\{0: 1.0, 1: 5.0\}", class_weight=factors)


@pytest.mark.parametrize("epochs", ["2", 2.0, True, None, -1])
def test_epochs_that_are_no_integer(epochs):
    assert_refused(made(), "epochs must be an integer", epochs=epochs)


class Missing:
    """As pandas' NA: neither true nor false."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def test_cells_that_are_missing_are_said_to_be():
    holes = np.where(X > 0, X, np.nan).astype(object)
    holes[np.isnan(holes.astype(float))] = Missing()
    assert_refused(made(), "x has dtype object, which layers cannot compute with", x=holes)
    assert_refused(made(), "20 of the 40 `unit_ids` are missing", unit_ids=np.array([Missing(), 1] * 20, object))


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


def test_errors_show_no_records():
    """An array in the place of a number: of validation data after x and y, say, where fit takes the batch size."""
    with pytest.raises(ValueError, match=r"batch_size must be an integer. Received: ndarray of shape \(40, 3\)"):
        made().fit(X, Y, X + 1)
    with pytest.raises(ValueError, match=r"examples must be an integer. Received: ndarray of shape \(40, 3\)"):
        tfdp.plan(X, epsilon=3.0, delta=1e-5)
    with pytest.raises(
        ValueError, match=r"examples must be an integer. Received: list \[\[.*\.\.\. of type list"
    ) as refusal:
        tfdp.plan(X.tolist(), epsilon=3.0, delta=1e-5)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("words", [["yes", "no"] * 20, [0, 1] * 20, [0.5] * 40])
def test_a_list_in_the_place_of_an_array(words):
    assert_refused(made(), rf"x is a list of 40 {type(words[0]).__name__}s.*numpy.asarray\(x\)", x=words)
    fix = "Number the classes.* Then numpy" if isinstance(words[0], str) else "Make an array of it: numpy"
    assert_refused(made(), rf"y is a list of 40 {type(words[0]).__name__}s.*{fix}.asarray\(y\)", y=words)


def test_what_preprocessing_takes():
    for given in (0.5, [50]):
        with pytest.raises(ValueError, match=r"a list of numbers strictly between 0 and 1, \[0.05, 0.5, 0.95\]"):
            tfdp.preprocessing.quantiles(X, tfdp.accounting.Ledger(), given, lower=0.0, upper=1.0, noise_multiplier=9.0)
    layer = tfdp.layers.PrivateNormalization(noise_multiplier=9.0, lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="It holds strings: turn words into numbers first"):
        layer.adapt(X.astype(str))


def test_a_ledger_at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tfdp.accounting.LedgerError, match="expanduser"):
        tfdp.accounting.Ledger("~/nowhere/ledger.json")


def test_epochs_of_numpy_are_taken():
    assert refuse_unsound_fit({"epochs": np.int64(2)}) is None


def test_a_list_of_records_is_named_in_one_line():
    with pytest.raises(ValueError, match=r"and 72 other arrays.*tfdp.records\(the_list\)") as refusal:
        tfdp.PrivateBatches(list(zip(X, Y, strict=True)), None, tfdp.sampling.Poisson(8))
    assert len(str(refusal.value)) < 400
    for pairs in (list(zip(X, Y, strict=True)), [(X[:20], Y[:20]), (X[20:], Y[20:])]):  # records, and batches
        assert_refused(
            made(), r"x is a list of \d+ tuples.*tfdp.records\(the_list\).*numpy.concatenate", x=pairs, y=None
        )
    assert len(as_store(tfdp.records(list(zip(X, Y, strict=True))))) == 40  # as it says


def test_numbers_as_objects_and_complex_numbers_and_sparse_matrices():
    class Sparse:
        nnz, shape = 3, (40, 3)

        def toarray(self):
            return X

        def __len__(self):
            return 40

        def __getitem__(self, index):
            return X[index]

    assert_refused(made(), r"entries are numbers: encode them by x.astype\('float32'\)", x=X.astype(object))
    assert_refused(made(), r"entries are numbers: encode them by y.astype", y=Y.astype(object))
    assert_refused(made(), "Encode complex numbers by two columns", x=X.astype("complex64"))
    assert_refused(made(), r"x is a Sparse, a sparse matrix. Make it dense: x.toarray\(\)", x=Sparse())


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


def test_a_metric_of_one_column():
    with pytest.raises(ValueError, match=r"give the column, values\[:, 0\]"):
        tfdp.release_metric(np.ones((40, 1)), tfdp.accounting.Ledger(), stddev=0.1)


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


def test_a_list_of_one_array_is_that_array():
    given = {"x": [X], "y": (Y,)}
    unwrap(given, made())
    assert given["x"] is X
    assert given["y"] is Y
    inputs = keras.Input((3,))
    of_lists = tfdp.make_private(keras.Model([inputs], [keras.layers.Dense(1)(inputs)]))
    given = {"x": [X], "y": [Y]}
    unwrap(given, of_lists)
    assert given == {"x": [X], "y": [Y]}


@pytest.mark.slow
def test_a_list_of_one_array_trains_without_the_warnings_of_keras():
    """It warns of the structure once for each trace of a training."""
    model = made()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The structure of `inputs`")
        model.fit([X], [Y], batch_size=20, verbose=0)
    assert model.ledger.steps == 2


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


class Squares(keras.losses.Loss):
    """A loss of one's own: Keras does not bring labels and predictions to one shape for it."""

    def call(self, y, p):
        return keras.ops.mean(keras.ops.square(y - p), axis=-1)


def test_labels_that_a_loss_of_ones_own_compares_with_all_records():
    assert_refused(made(loss=Squares()), r"Records are not independent.*Give y\[:, None\]", y=Y[:, 0])
    mixing = made(loss=lambda y, p: keras.ops.mean((y - p) ** 2, -1) / keras.ops.max(p))
    with pytest.raises(ValueError, match="not independent") as refusal:
        mixing.fit(X, Y, batch_size=8, verbose=0)
    assert "y[:, None]" not in str(refusal.value)


@pytest.mark.slow
def test_the_labels_that_are_named_in_their_place_train():
    model = made(loss=Squares())
    model.fit(X, Y[:, 0][:, None], batch_size=20, verbose=0)
    assert model.ledger.steps == 2


def test_a_generator_is_told_how_to_become_a_pipeline():
    def rows():
        yield from zip(X, Y, strict=True)

    for given in (rows, rows()):
        with pytest.raises(ValueError, match=r"tf.data.Dataset.from_generator\(function, output_signature"):
            tfdp.records(given)


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
