"""Weights that came without what they cost: what an optimizer counts says so, for as long as anybody holds them."""

import copy
import gc
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models.accounts import forget_released, released_values

_RNG = np.random.default_rng(0)
X, Y = _RNG.normal(size=(20, 6)).astype("float32"), _RNG.integers(0, 2, 20)


def compiled(model, noise=4.0):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=noise), loss=loss, run_eagerly=True)
    return model


def made():
    layers = [keras.Input((6,)), keras.layers.Dense(3, name="h"), keras.layers.Dense(2, name="o")]
    return compiled(tfdp.make_private(keras.Sequential(layers)))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The path of a checkpoint of another process, the ledger of the training that wrote it, and its state tree."""
    model = made()
    model.fit(X, Y, batch_size=10, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    tree = keras.tree.map_structure(np.array, model.get_state_tree())
    forget_released(released_values(model))
    monkeypatch.setattr(released_numbers, "_passing", type(released_numbers._passing)())
    return path, model.ledger.copy(), tree


def restored(path):
    model = made()
    tf.train.Checkpoint(model=model).restore(path)
    return model


def head(model):
    return keras.Sequential([keras.Input((6,)), model.get_layer("h"), keras.layers.Dense(3)])


def clone(model):
    other = keras.models.clone_model(model.to_keras())
    other.set_weights(model.get_weights())
    return other


def assigned(model):
    model.optimizer = tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0)
    return model


WAYS = {
    "as it is": lambda model: model,
    "compiled anew": compiled,
    "compiled twice": lambda model: compiled(compiled(model)),
    "another optimizer": assigned,
    "an ordinary model of it": lambda model: compiled(tfdp.make_private(model.to_keras())),
    "copied twice": lambda model: compiled(tfdp.make_private(clone(model))),
    "private again": lambda model: compiled(tfdp.make_private(model)),
    "a layer in another": lambda model: compiled(tfdp.make_private(head(model))),
    "its weights in another": lambda model: (lambda new: (new.set_weights(model.get_weights()), new)[1])(made()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("looked", [False, True])
def test_weights_without_their_cost_stay_that_whatever_is_called(way, looked, written):
    """Before, all but the first stated 0, and 0.41 after an epoch, of 36."""
    model = restored(written[0])
    if looked:
        with pytest.raises(ValueError, match="without what they cost"):
            model.privacy_statement(1e-3)
    other = WAYS[way](model)
    del model
    gc.collect()
    for use in (lambda: other.privacy_statement(1e-3), lambda: other.fit(X, Y, batch_size=10, verbose=0)):
        with pytest.raises(ValueError, match=r"without what they cost|copies of such weights"):
            use()


def uncompiled(layers=None):
    layers = layers or [keras.layers.Dense(3, name="h"), keras.layers.Dense(2, name="o")]
    return tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers]))


def test_they_are_not_copied_by_a_file(written):
    with pytest.raises(ValueError, match="without what they cost"):
        copy.deepcopy(restored(written[0]))


BEFORE_COMPILE = {
    "as it is": lambda model: model,
    "compiled": compiled,
    "an ordinary model of it": lambda model: compiled(tfdp.make_private(model.to_keras())),
    "a layer in another": lambda model: compiled(tfdp.make_private(head(model))),
    "its weights in another": WAYS["its weights in another"],
}


@pytest.mark.few(3)
@pytest.mark.parametrize("way", BEFORE_COMPILE)
def test_a_model_that_is_not_compiled_tells_of_it_too(way, written, tmp_path):
    """TensorFlow keeps the optimizer's part until there is one: to predict, nobody compiles. Before, 0 was stated."""
    model = uncompiled()
    tf.train.Checkpoint(model=model).restore(written[0]).expect_partial()
    other = BEFORE_COMPILE[way](model)
    with pytest.raises(ValueError, match="counts 4 releases and the ledger 0"):
        other.privacy_statement(1e-3)
    with pytest.raises(ValueError, match="counts 4 releases and the ledger 0"):
        other.save(tmp_path / "m.keras")
    other.ledger.merge(written[1])
    assert other.privacy_statement(1e-3).steps == 4


def test_a_checkpoint_that_is_gone_tells_of_it_too(written):
    model = uncompiled()
    tf.train.Checkpoint(model=model).restore(written[0]).expect_partial()
    for file in Path(written[0]).parent.glob("c-1*"):
        file.unlink()
    with pytest.raises(ValueError, match="counts an unknown number of releases and the ledger 0"):
        model.privacy_statement(1e-3)


@pytest.mark.parametrize("scaled", [False, True])
def test_checkpoints_and_trees_of_ordinary_models_cost_nothing(scaled, tmp_path):
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="h"), keras.layers.Dense(2, name="o")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()) if scaled else "adam"
    plain.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    plain.fit(X, Y, verbose=0)
    path = tf.train.Checkpoint(model=plain).save(str(tmp_path / "p"))
    model = uncompiled()
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    assert model.privacy_statement(1e-3).steps == 0
    model = uncompiled()
    model.set_state_tree(plain.get_state_tree())
    assert compiled(model).privacy_statement(1e-3).steps == 0


@pytest.mark.parametrize("model", [made, uncompiled, lambda: compiled(made())])
def test_a_state_tree_tells_of_it(model, written):
    """Keras reads a folder of OrbaxCheckpoint so; what it finds no variable for, by its path, it leaves out."""
    model = model()
    model.set_state_tree(written[2])
    with pytest.raises(ValueError, match="counts 4 releases and the ledger 0"):
        compiled(model).privacy_statement(1e-3)
    model.ledger.merge(written[1])
    assert model.privacy_statement(1e-3).steps == 4


def test_state_trees_of_this_process_cost_what_their_trainings_did():
    model = made()
    model.fit(X, Y, batch_size=10, verbose=0)
    tree = model.get_state_tree()
    model.fit(X, Y, batch_size=10, verbose=0)
    model.set_state_tree(tree)
    assert compiled(model).privacy_statement(1e-3).steps == 4
    other = made()
    given = {other.name: tree["trainable_variables"][model.name]}
    other.set_state_tree({"trainable_variables": given, "optimizer_variables": tree["optimizer_variables"]})
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    assert other.privacy_statement(1e-3).steps == 4


def backbone():
    layer = keras.layers.Dense(5, kernel_initializer=keras.initializers.GlorotUniform(seed=7), name="b")
    layer.trainable = False
    return [layer, keras.layers.Dense(2, name="o")]


@pytest.mark.parametrize("look", ["privacy_statement", "get_weights", "to_keras"])
def test_a_public_backbone_of_a_restored_model_is_that_of_others_too(look, tmp_path, monkeypatch):
    """Before, whoever had the same frozen layers was refused, or charged for what the head cost."""
    trained = compiled(uncompiled(backbone()))
    trained.fit(X, Y, batch_size=10, verbose=0)
    path = tf.train.Checkpoint(model=trained).save(str(tmp_path / "b"))
    cost = trained.ledger.copy()
    forget_released(released_values(trained))
    monkeypatch.setattr(released_numbers, "_passing", type(released_numbers._passing)())
    model = compiled(uncompiled(backbone()))
    tf.train.Checkpoint(model=model).restore(path)
    if look == "privacy_statement":
        with pytest.raises(ValueError, match="without what they cost"):
            model.privacy_statement(1e-3)
    else:
        getattr(model, look)()
    fresh = compiled(uncompiled(backbone()))
    assert fresh.privacy_statement(1e-3).steps == 0
    model.ledger.merge(cost)
    assert model.privacy_statement(1e-3).steps == 2
    assert compiled(uncompiled(backbone())).privacy_statement(1e-3).steps == 0


@pytest.mark.parametrize("first", ["the copy", "the original"])
def test_the_ledger_makes_copies_good_and_their_original(first, written, tmp_path):
    """Before, the copy was flagged for good, and then the original, too."""
    Ledger(tmp_path / "ledger.json").merge(written[1])
    model = restored(written[0])
    copied, third = (WAYS["its weights in another"](model) for _ in range(2))
    for one in (copied, model, third, copied):
        with pytest.raises(ValueError, match="counts 4 releases and the ledger 0"):
            one.privacy_statement(1e-3)
    for one in (copied, model) if first == "the copy" else (model, copied):
        one.ledger.merge(written[1])
        assert one.privacy_statement(1e-3).steps == 4
    third.ledger = Ledger(tmp_path / "ledger.json")
    for one in (model, copied, third, WAYS["its weights in another"](model)):
        assert compiled(one).privacy_statement(1e-3).steps == 4


@pytest.mark.parametrize("way", [one for one in WAYS if one != "as it is"])
@pytest.mark.parametrize("first", ["the ledger", "the weights"])
def test_copies_of_what_was_paid_for_before_anybody_looked_cost_that(first, way, written):
    """Before, values were remembered only as long as nobody had paid: 0 was stated of copies that came behind it."""
    model = made()
    if first == "the ledger":
        model.ledger.merge(written[1])
    tf.train.Checkpoint(model=model).restore(written[0])
    if first == "the weights":
        model.ledger.merge(written[1])
    other = WAYS[way](model)
    assert other.privacy_statement(1e-3).steps == 4
    other.fit(X, Y, batch_size=10, verbose=0)
    assert other.privacy_statement(1e-3).steps == 6


REFUSED = "counts 4 releases and the ledger 0"


def assert_refused(model):
    with pytest.raises(ValueError, match=REFUSED):
        model.privacy_statement(1e-3)


@pytest.mark.parametrize("way", ["no file", "another network", "other heads"])
@pytest.mark.parametrize("came", ["checkpoint", "tree"])
def test_a_load_that_does_not_replace_all_weights_pays_for_none(came, way, written, tmp_path):
    """Before, one that failed, or left some as they were, ended what the others owed: 0 was stated of them."""
    model = made()
    if came == "tree":
        names = iter(model.get_state_tree()["trainable_variables"])
        model.set_state_tree({**written[2], "trainable_variables": dict(zip(names, trained(written), strict=True))})
    else:
        tf.train.Checkpoint(model=model).restore(written[0])
    head = model.get_layer("o").kernel.numpy()
    compiled(model)
    gc.collect()
    assert_refused(model)
    path = tmp_path / "other.weights.h5"
    wide = [keras.Input((6,)), keras.layers.Dense(3, name="h"), keras.layers.Dense(5, name="o")]
    compiled(tfdp.make_private(keras.Sequential(wide))).save_weights(path)
    if way == "other heads":
        model.load_weights(path, skip_mismatch=True)
    else:
        with pytest.raises((FileNotFoundError, ValueError)):
            model.load_weights(path if way == "another network" else tmp_path / "none.weights.h5")
    assert np.array_equal(model.get_layer("o").kernel, head)
    assert_refused(model)
    model.ledger.merge(written[1])
    assert model.privacy_statement(1e-3).steps == 4


def trained(written):
    return written[2]["trainable_variables"].values()


@pytest.mark.parametrize("public", [True, False])
def test_a_file_of_one_model_pays_for_no_other_on_its_base(public, written, tmp_path):
    model = restored(written[0])
    layers = [keras.Input((6,)), keras.layers.Dense(3, name="h"), keras.layers.Dense(3, name="q")]
    source = keras.Sequential(layers) if public else compiled(tfdp.make_private(keras.Sequential(layers)))
    source.save_weights(tmp_path / "q.weights.h5")
    new = keras.layers.Dense(3, name="q")
    other = compiled(tfdp.make_private(keras.Sequential([keras.Input((6,)), model.get_layer("h"), new])))
    for one in (model, other):
        assert_refused(one)
    other.load_weights(tmp_path / "q.weights.h5", public=public)
    compiled(model)
    gc.collect()
    assert_refused(model)


def test_a_tree_that_does_not_fit_in_the_end_is_owed(written):
    model = made()
    (name,) = model.get_state_tree()["trainable_variables"]
    (tree,) = trained(written)
    wrong = tree | {"o": {"kernel": np.zeros((3, 5)), "bias": np.zeros(5)}}
    with pytest.raises(ValueError, match="shape"):
        model.set_state_tree({**written[2], "trainable_variables": {name: wrong}})
    assert np.array_equal(model.get_layer("h").kernel, tree["h"]["kernel"])
    assert_refused(model)


@pytest.mark.parametrize("look", [True, False])
def test_a_public_part_restored_over_it_pays_for_none(look, written, tmp_path):
    layers = [keras.Input((6,)), keras.layers.Dense(3, name="h"), keras.layers.Dense(2, name="o")]
    model, base = tfdp.make_private(keras.Sequential(layers)), keras.Sequential([keras.Input((6,))])
    tf.train.Checkpoint(model=model).restore(written[0]).expect_partial()
    if look:
        assert_refused(model)
    base.add(keras.layers.Dense(3, name="h"))
    base.compile("adam", "mse")
    base.fit(X, np.zeros((20, 3)), verbose=0)
    path = tf.train.Checkpoint(model=base).save(str(tmp_path / "base"))
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    assert_refused(model)


def test_what_a_model_made_itself_does_not_pay_for_its_copies_of_others(written):
    model, other = restored(written[0]), made()
    other.fit(X, Y, batch_size=10, epochs=3, verbose=0)
    other.set_weights(model.get_weights())
    with pytest.raises(ValueError, match="counts 10 releases and the ledger 6"):
        other.privacy_statement(1e-3)
    other.ledger.merge(written[1])
    assert other.privacy_statement(1e-3).steps == 10
    other.fit(X, Y, batch_size=10, verbose=0)
    assert other.privacy_statement(1e-3).steps == 12


def test_the_ledger_of_the_training_makes_it_good(written):
    path, ledger, _ = written
    model = compiled(restored(path))
    model.ledger.merge(ledger)
    assert model.privacy_statement(1e-3).steps == 4
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.ledger.updates == 6


def test_its_file_makes_it_good(written, tmp_path):
    path, ledger, _ = written
    Ledger(tmp_path / "ledger.json").merge(ledger)
    model = restored(path)
    model.ledger = Ledger(tmp_path / "ledger.json")
    compiled(model).fit(X, Y, batch_size=10, verbose=0)
    assert model.ledger.updates == 6


def test_weights_with_their_ledger_take_the_place_of_such(written, tmp_path):
    trained = made()
    trained.fit(X, Y, batch_size=10, verbose=0)
    trained.save_weights(tmp_path / "w.weights.h5")
    model = restored(written[0])
    model.load_weights(tmp_path / "w.weights.h5")
    assert compiled(model).privacy_statement(1e-3).steps == 2


def test_they_do_so_whoever_holds_the_optimizer_that_counts(written, tmp_path):
    """Before, a model that was compiled anew stayed refused for as long as anything held the first optimizer."""
    trained = made()
    trained.fit(X, Y, batch_size=10, verbose=0)
    trained.save_weights(tmp_path / "w.weights.h5")
    model = restored(written[0])
    held = model.optimizer
    compiled(model).load_weights(tmp_path / "w.weights.h5")
    assert model.privacy_statement(1e-3).steps == 2
    assert int(held.releases.numpy()) == 4


def test_programs_that_pay_are_taken_without_a_word(recwarn, tmp_path):
    """Compiled anew, gone back to a checkpoint, one optimizer for two models, a file, a copy."""
    model = made()
    model.fit(X, Y, batch_size=10, verbose=0)
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(str(tmp_path / "c"))
    model.fit(X, Y, batch_size=10, verbose=0)
    checkpoint.restore(path)
    assert compiled(model).privacy_statement(1e-3).steps == 4
    model.fit(X, Y, batch_size=10, verbose=0)
    model.save(tmp_path / "m.keras")
    assert compiled(tfdp.load_model(tmp_path / "m.keras")).privacy_statement(1e-3).steps == 6
    other = made()
    other.compile(model.optimizer, loss=model.loss)
    assert compiled(other).privacy_statement(1e-3).steps == 0
    assert compiled(tfdp.make_private(model.to_keras())).privacy_statement(1e-3).steps == 6
    assert not [one for one in recwarn if "cost" in str(one.message) and "ledger" not in str(one.message)]
