"""Constants of preprocessing layers: given, or declared public, or refused."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.private_models import private, product
from helpers.variants import slow_but
from tfdp_layers.certificates.mixing import mixing_reason

kl = keras.layers
X = np.arange(96, dtype="float32").reshape(32, 3) / 10
IDS = np.arange(128).reshape(32, 4) % 5
WORDS = np.array([["a b"], ["b c"]] * 16)


def set_lookup():
    layer = kl.IntegerLookup()
    layer.set_vocabulary([0, 1, 2, 3])
    return layer, (4,), "int64", IDS, lambda: layer.set_vocabulary([7, 8, 9, 10])


def adapted_discretization():
    layer = kl.Discretization(num_bins=4)
    layer.adapt(np.arange(10.0))
    return layer, (3,), "float32", X, lambda: layer.adapt(np.arange(100.0))


def set_normalization():
    layer = kl.Normalization()
    layer.build((None, 3))
    layer.load_own_variables({"0": np.ones(3), "1": np.full(3, 2.0), "2": 0})
    return layer, (3,), "float32", X, lambda: layer.adapt(X)


CASES = [set_lookup, adapted_discretization, set_normalization]


def model_around(layer, shape, dtype):
    return keras.Sequential([keras.Input(shape, dtype=dtype), layer, kl.Rescaling(0.1), kl.Dense(2)])


def train(model, x, *callbacks):
    return model.fit(x, np.ones((32, 2), "float32"), batch_size=16, verbose=0, callbacks=[*callbacks])


@pytest.mark.parametrize("case", slow_but(CASES[1:2], CASES), ids=lambda c: c.__name__)
def test_what_adapt_could_have_learned_is_refused_until_it_is_declared_public_and_again_when_it_changes(case):
    layer, shape, dtype, x, change = case()
    model = private(model_around(layer, shape, dtype))
    with pytest.raises(ValueError, match=r"tfdp\.public\(layer\)"):
        train(model, x)
    assert tfdp.public(layer) is layer
    train(model, x)
    change()
    with pytest.raises(ValueError, match=r"changed since tfdp\.public"):
        train(model, x)


@pytest.mark.slow
def test_a_model_is_declared_with_all_that_it_holds():
    base = model_around(set_normalization()[0], (3,), "float32")
    model = private(keras.Sequential([keras.Input((3,)), base, kl.Dense(2)]))
    assert tfdp.public(model) is model
    train(model, X)


def test_a_vectorization_is_declared_by_its_vocabulary():
    layer = kl.TextVectorization(output_mode="multi_hot", max_tokens=5, pad_to_max_tokens=True)
    layer.set_vocabulary(["a", "b"])
    tfdp.public(layer)
    model = keras.Sequential([keras.Input((1,), dtype="string"), layer, kl.Dense(2)])
    assert model.layers[0] is layer
    layer.adapt(WORDS)
    assert "changed" in mixing_reason(layer)


@pytest.mark.slow
def test_a_declaration_is_not_saved_with_the_model(tmp_path):
    """A file's word is not that of whoever trains it now."""
    model = private(model_around(tfdp.public(set_lookup()[0]), (4,), "int64"))
    train(model, IDS)
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras", {"product": product})
    np.testing.assert_allclose(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"tfdp\.public"):
        train(loaded, IDS)
    tfdp.public(loaded)
    train(loaded, IDS)


NOTHING = [kl.Dense(3), kl.Normalization(mean=0.0, variance=1.0), kl.StringLookup(vocabulary=["a"])]


@pytest.mark.parametrize("layer", NOTHING, ids=lambda layer: type(layer).__name__)
def test_nothing_else_can_be_declared(layer):
    with pytest.raises(ValueError, match="nothing to declare"):
        tfdp.public(layer)


def test_constants_must_be_set_before_they_are_declared():
    with pytest.raises(ValueError, match="not built"):
        tfdp.public(kl.Normalization())


def test_a_declaration_lifts_no_other_refusal():
    layer = set_normalization()[0]
    model = private(keras.Sequential([keras.Input((3,)), layer, kl.BatchNormalization(), kl.Dense(2)]))
    tfdp.public(model)
    with pytest.raises(ValueError, match="BatchNormalization"):
        train(model, X)


def overwritten_mean():
    layer = kl.Normalization(mean=[0.0, 1.0, 2.0], variance=[1.0, 1.0, 1.0])
    layer.build((None, 3))
    layer.mean = layer.mean + 0.5
    return layer


def overwritten_vocabulary():
    layer = kl.StringLookup(vocabulary=["a"])
    layer.set_vocabulary(["private", "words"])
    return layer


def overwritten_vectorization():
    layer = kl.TextVectorization(vocabulary=["a", "b"])
    layer.set_vocabulary(["private", "words"])
    return layer


def overwritten_boundaries():
    layer = kl.Discretization(bin_boundaries=[0.0, 1.0])
    layer.bin_boundaries = [2.0, 3.0]
    return layer


@pytest.mark.parametrize(
    "make", [overwritten_boundaries, overwritten_mean, overwritten_vocabulary, overwritten_vectorization]
)
def test_constants_that_were_given_and_set_to_others_later_are_refused(make):
    assert "set later" in mixing_reason(make())


GIVEN = {
    "mean": lambda: kl.Normalization(mean=[0.1, 1.0, 2.0], variance=[1.0, 0.3, 1.0]),
    "one mean": lambda: kl.Normalization(mean=0.1, variance=0.3),
    "axes": lambda: kl.Normalization(axis=(1, 2), mean=np.full((3, 2), 0.1), variance=np.full((3, 2), 0.7)),
    "middle axis": lambda: kl.Normalization(axis=1, mean=[0.1, 1.0, 2.0], variance=[1.0, 0.3, 1.0]),
    "integers": lambda: kl.IntegerLookup(vocabulary=[5, 6], num_oov_indices=2),
    "integers of NumPy": lambda: kl.IntegerLookup(vocabulary=np.array([5, 6])),
    "words": lambda: kl.StringLookup(vocabulary=["a", "b"], mask_token="[M]", output_mode="int"),
    "special words": lambda: kl.StringLookup(vocabulary=["[UNK]", "a", "b"]),
    "texts": lambda: kl.TextVectorization(vocabulary=["a", "b"]),
    "bins": lambda: kl.Discretization(bin_boundaries=[0.0, 1.0]),
    "loaded bins": lambda: kl.Discretization.from_config(kl.Discretization(bin_boundaries=(0.0, 1.0)).get_config()),
}


@pytest.mark.parametrize("make", GIVEN.values(), ids=GIVEN)
def test_constants_among_the_arguments_are_taken(make):
    layer = make()
    if isinstance(layer, kl.Normalization):
        assert mixing_reason(layer) is None
        layer.build((None, 3, 2) if len(layer.axis) == 2 or layer.axis == (1,) else (None, 3))
    assert mixing_reason(layer) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", slow_but([set_normalization], [adapted_discretization, set_normalization]), ids=lambda c: c.__name__
)
def test_constants_that_a_callback_changes_are_in_no_statement_and_no_file(case, tmp_path):
    layer, shape, dtype, x, change = case()
    model = private(model_around(tfdp.public(layer), shape, dtype))
    adapts = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: change())
    model.fit(x, np.ones((32, 2), "float32"), batch_size=16, verbose=0, callbacks=[adapts])
    for act in (lambda: model.privacy_statement(1e-3), lambda: model.save(tmp_path / "m.keras")):
        with pytest.raises(ValueError, match=r"constants changed since tfdp\.public"):
            act()
    assert not (tmp_path / "m.keras").exists()
    assert tfdp.public(layer) is layer
    assert model.privacy_statement(1e-3).steps == 2


def given_lookup():
    layer = kl.IntegerLookup(vocabulary=[0, 1, 2, 3])
    return layer, (4,), "int64", IDS, lambda: layer.set_vocabulary([7, 8, 9, 10])


def untouched_normalization():
    """As `keras.applications` have one (EfficientNet), without weights."""
    layer = kl.Normalization()
    layer.build((None, 3))
    return layer, (3,), "float32", X, lambda: layer.adapt(X)


def notes(model):
    return [note for note in model.privacy_statement(1e-3).notes if note.startswith("Constants of the layers")]


@pytest.mark.parametrize(
    ("case", "hook"),
    [(given_lookup, "on_train_begin"), (untouched_normalization, "on_epoch_end"), (given_lookup, "on_train_end")],
)
def test_constants_that_a_callback_sets_were_accepted_by_no_training(case, hook, tmp_path):
    """Those of the check count, not those that a hook left: the model's export holds the latter."""
    layer, shape, dtype, x, change = case()
    model, said = private(model_around(layer, shape, dtype)), []
    held = next(one for one in model.layers if isinstance(one, type(layer)))
    changes = keras.callbacks.LambdaCallback(
        **{hook: lambda *_: (held.set_vocabulary([7, 8]) if held is not layer else change(), said.extend(notes(model)))}
    )
    train(model, x)
    assert notes(model) == []
    train(model, x, changes)
    assert len(said) == len(notes(model)) == 1
    assert repr(held.name) in said[0]
    with pytest.raises(ValueError, match="set later"):
        train(model, x)


def test_a_normalization_that_nobody_adapted_holds_nothing():
    layer, *_, change = untouched_normalization()
    around = kl.Normalization(axis=(1, 2))
    around.build((None, 3, 2))
    for one in (layer, around):
        assert mixing_reason(one) is None
        assert tfdp.public(one) is one  # where weights are loaded, or not, by an argument
    change()
    assert "changed since" in mixing_reason(layer)
    assert mixing_reason(kl.Normalization()) is not None  # without numbers yet


@pytest.mark.parametrize("loaded", [("0", np.full(3, 1e-7)), ("1", np.full(3, 2.0)), ("2", 7)])
def test_one_with_a_number_of_its_own_is_refused_with_the_way_out_for_bases(loaded):
    layer = untouched_normalization()[0]
    layer.load_own_variables({"0": np.zeros(3), "1": np.ones(3), "2": 0, loaded[0]: loaded[1]})
    assert "keras.applications" in mixing_reason(layer)
    assert "tfdp.public(base)" in mixing_reason(layer)
    assert "keras.applications" not in mixing_reason(overwritten_boundaries())
