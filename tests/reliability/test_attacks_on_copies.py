"""Files and copies by which released numbers lost what they cost bring it along, or are refused."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models import opening

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
Y = np.zeros((12, 4), "float32")


def ordinary(lora=False, name=None):
    layers = [keras.layers.Dense(6, use_bias=False), keras.layers.Dense(4, use_bias=False)]
    model = keras.Sequential([keras.Input((6,)), *layers], name=name)
    for layer in layers if lora else ():
        layer.enable_lora(2)
    return model


def fit(model):
    private = tfdp.make_private(model)
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    private.compile(tfdp.optimizers.ClippedOptimizer(inner, 1.0), "mse", run_eagerly=True)
    private.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0, accept_measured=True)
    assert private.ledger.updates == 2
    return private


@pytest.fixture(scope="module")
def trained():
    return fit(ordinary())


def set_to(arrays):
    """A new private model whose weights are these."""
    model = ordinary()
    model.set_weights([np.asarray(array) for array in arrays])
    return tfdp.make_private(model)


def moments(model):
    return model.optimizer.inner_optimizer.momentums


def kernels(model):
    return [layer.kernel for layer in model.layers if layer.weights]


def written_by_keras(model, path):
    """The weights of an ordinary model on the same layers, by way of a file of it."""
    keras.Sequential([keras.Input((6,)), *(layer for layer in model.layers if layer.weights)]).save_weights(path)
    copy = ordinary()
    copy.load_weights(path)
    return copy.get_weights()


def test_the_optimizers_state_costs_what_was_released_into_it(tmp_path):
    model, path = fit(ordinary()), tmp_path / "model.keras"
    assert set_to(moments(model)).ledger.updates == 2
    model.save(path)
    released_numbers._released.clear()  # as another process sees it
    assert set_to(moments(tfdp.load_model(path))).ledger.updates == 2


@pytest.mark.slow
def test_what_lora_learned_costs_the_same_once_it_is_merged(tmp_path):
    model = fit(ordinary(lora=True))
    assert set_to(kernels(model)).ledger.updates == 2
    assert set_to(written_by_keras(model, tmp_path / "w.weights.h5")).ledger.updates == 2
    model.save(tmp_path / "model.keras")
    released_numbers._released.clear()
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert tfdp.make_private(loaded.to_keras()).ledger.updates == 2
    assert set_to(kernels(loaded)).ledger.updates == 2


@pytest.mark.slow
def test_copies_of_state_and_of_merged_weights_would_be_seen_to_cost_nothing(monkeypatch, tmp_path):
    """The bug that the tests above are there for."""
    monkeypatch.setattr(opening, "released_by", lambda model: model.trainable_variables)
    assert set_to(moments(fit(ordinary()))).ledger.updates == 0
    assert set_to(kernels(fit(ordinary(lora=True)))).ledger.updates == 0


def test_a_private_model_does_not_go_into_a_file_without_a_ledger(trained, tmp_path):
    path = tmp_path / "model.h5"
    path.write_bytes(b"an earlier file")
    with pytest.raises(ValueError, match="holds no privacy ledger"):
        trained.save(path)
    assert path.read_bytes() == b"an earlier file"
    around = keras.Sequential([keras.Input((6,)), trained, keras.layers.Dense(2)])
    for model in (trained, around):
        with pytest.raises(ValueError, match="holds no privacy ledger"):
            keras.saving.save_model(model, tmp_path / "other.h5")
    trained.to_keras().save(path)  # to publish
    assert keras.models.load_model(path, compile=False).count_params() == trained.count_params()


def test_weights_of_a_file_that_is_asked_for_no_ledger_are_refused(tmp_path):
    path = tmp_path / "model.h5"
    ordinary(name="one").save(path)
    model = tfdp.make_private(ordinary(name="one"))
    before = model.get_weights()
    with pytest.raises(ValueError, match="saved without a privacy ledger"):
        model.load_weights(path)
    for value, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, was)
    model.load_weights(path, public=True)
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_a_private_model_of_an_older_file_is_refused(trained, tmp_path, monkeypatch):
    path = tmp_path / "model.h5"
    with monkeypatch.context() as before:
        before.setattr("tfdp_layers.models.weight_files.refuse_hdf5", lambda: None)
        keras.saving.save_model(trained, path)
    with pytest.raises(ValueError, match="holds no privacy ledger"):
        keras.models.load_model(path, {"PrivateModel": tfdp.PrivateModel}, compile=False)


def clipped(private_fit=True):
    """An ordinary model of layers that bound themselves, on which a private one was trained."""
    layers = [keras.layers.Dense(6), tfdp.layers.ClippedDense(4)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.layers[0].trainable = False
    if private_fit:
        fit(model)
    return model


def in_another_process(model, path):
    """What a private model states whose layers an ordinary one wrote to a file, whole or weights alone."""
    released_numbers._released.clear()
    if path.suffix == ".keras":
        model.save(path)
        return tfdp.make_private(keras.models.load_model(path, compile=False))
    model.save_weights(path)
    other = clipped(private_fit=False)
    other.load_weights(path)
    return tfdp.make_private(other)


def test_layers_that_bound_themselves_bring_their_cost_by_way_of_an_ordinary_model(tmp_path, monkeypatch):
    model = clipped()
    for name in ("m.keras", "m.weights.h5"):
        assert in_another_process(model, tmp_path / name).ledger.updates == 2
    with pytest.raises(ValueError, match="holds no privacy ledger"):
        model.save(tmp_path / "m.h5")
    paid = in_another_process(model, tmp_path / "again.keras")  # and from there on, copies of their values
    again = clipped(private_fit=False)
    again.set_weights(paid.get_weights())
    assert tfdp.make_private(again).ledger.updates == 2
    clipped(private_fit=False).save(tmp_path / "unpaid.h5")
    monkeypatch.setattr("tfdp_layers.layers.carried.write_stored_ledger", lambda store, ledger: None)
    assert in_another_process(model, tmp_path / "planted.keras").ledger.updates == 0  # what a mistake would show


def test_what_layers_brought_stays_with_weights_that_are_trained_on_in_public(tmp_path):
    clipped_file = tmp_path / "m.weights.h5"
    clipped().save_weights(clipped_file)
    released_numbers._released.clear()
    other = clipped(private_fit=False)
    other.load_weights(clipped_file)
    other.compile("sgd", "mse")
    other.fit(X, Y, verbose=0)  # as an ordinary model, on public records: the values are new ones
    assert tfdp.make_private(other).ledger.updates == 2


def test_a_file_that_is_refused_charges_nothing(tmp_path):
    clipped().save_weights(tmp_path / "m.weights.h5")
    released_numbers._released.clear()
    other = tfdp.make_private(clipped(private_fit=False))
    for options in ({}, {"skip_mismatch": True}):
        with pytest.raises(ValueError, match=r"without a privacy ledger|the ledger saved with them was not"):
            other.load_weights(tmp_path / "m.weights.h5", **options)
    assert other.ledger.updates == 0
    other.load_weights(tmp_path / "m.weights.h5", public=True)
    assert other.ledger.updates == 2


def test_a_private_model_saves_one_ledger(tmp_path):
    model = clipped()
    private = tfdp.make_private(model)
    private.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        names: list[str] = []
        file.visit(names.append)
    assert sum(name.endswith("privacy_ledger") for name in names) == 1
    other = clipped(private_fit=False)
    loaded = tfdp.make_private(other)
    loaded.load_weights(tmp_path / "m.weights.h5")
    assert loaded.ledger.updates == 2


def test_weights_are_not_fitted_to_records_that_nobody_says_are_public(trained, monkeypatch):
    kind = getattr(getattr(keras, "quantizers", None), "GPTQConfig", None)
    if kind is None:
        pytest.skip("this Keras fits no weights to records")
    config, given = kind(dataset=["a few words"], tokenizer=str.split), []
    monkeypatch.setattr(keras.Model, "quantize", lambda self, *args, **kwargs: given.append((args, kwargs["mode"])))
    for call in (lambda: trained.quantize("gptq", config), lambda: trained.quantize(config=config)):
        with pytest.raises(ValueError, match=r"without noise.*public=True"):
            call()
    assert not given, "nothing is changed"
    trained.quantize("gptq", config=config, public=True)
    trained.quantize("int8")
    assert given == [((), "gptq"), ((), "int8")]


def changed(model):
    return "something else changed them" in str(model.privacy_statement(1e-5))


@pytest.mark.slow
def test_a_change_by_something_else_is_stated_also_after_the_next_training():
    base = ordinary()
    private = fit(base)
    base.compile("sgd", "mse")
    assert not changed(private)
    base.fit(X, Y, verbose=0)
    assert changed(private)
    private.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0, accept_measured=True)
    assert changed(private), "the next training hid what the ordinary fit did"
    base = ordinary()
    private = fit(base)
    base.quantize("int8")  # the weights that were trained are replaced, and none of them changed
    assert changed(private)
    private = fit(ordinary())
    private.quantize("int8")
    assert not changed(private), "of what was released, and counted"


def test_the_tree_of_a_model_that_goes_to_files_holds_no_metrics(trained):
    assert trained.metrics_variables, "the sum of the training losses, for one"
    tree = trained.get_state_tree()
    assert {"trainable_variables", "optimizer_variables"} < set(tree)
    assert "metrics_variables" not in tree
    trained.set_state_tree(tree)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_a_copy_of_quantized_weights_costs_what_they_were_made_from(mode):
    """Without biases nothing of the copy was a released number: kernels of int8, and scales, stated 0 of 3.0."""
    model, twin = fit(ordinary()), tfdp.make_private(ordinary())
    model.quantize(mode)
    twin.quantize(mode)
    twin.set_weights(model.get_weights())
    assert twin.privacy_statement(1e-3).epsilon == model.privacy_statement(1e-3).epsilon > 0.0
    assert twin.ledger.updates == 2
    untrained = tfdp.make_private(ordinary())
    untrained.quantize(mode)
    assert untrained.privacy_statement(1e-3).epsilon == 0.0


def test_a_model_that_is_given_released_weights_has_their_cost_in_its_ledger_at_once():
    """Not only in its statement: epsilon of the ledger was 0."""
    trained = fit(ordinary())
    copy = tfdp.make_private(ordinary())
    assert copy.ledger.updates == 0
    copy.set_weights(trained.get_weights())
    assert copy.ledger.updates == 2
    assert tfdp.accounting.epsilon(copy.ledger, 1e-5) == tfdp.accounting.epsilon(trained.ledger, 1e-5)


def by_layers(copy, values, path):
    for layer, value in zip((one for one in copy.layers if one.weights), values, strict=True):
        layer.set_weights([value])


def by_assigning(copy, values, path):
    copy.layers[-1].kernel.assign(values[-1])


def by_a_state_tree(copy, values, path):
    copy.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    tree = copy.get_state_tree()["trainable_variables"]
    (layers,) = tree.values()
    for layer, value in zip(layers.values(), values, strict=True):
        layer["kernel"] = value
    copy.set_state_tree({"trainable_variables": tree})


def by_a_checkpoint(copy, values, path):
    tf.train.Checkpoint(kernels=[tf.Variable(value) for value in values]).write(str(path))
    kernels = [layer.kernel.value for layer in copy.layers if layer.weights]
    tf.train.Checkpoint(kernels=kernels).read(str(path)).assert_consumed()


@pytest.mark.few(3)
@pytest.mark.parametrize("way", [by_layers, by_assigning, by_a_state_tree, by_a_checkpoint])
def test_released_weights_in_single_layers_are_in_the_ledger_at_the_next_look(way, tmp_path):
    """`epsilon(model.ledger, delta)`, a released metric, and a merge lacked what they cost until the next statement."""
    model, copy = fit(ordinary()), tfdp.make_private(ordinary())
    assert copy.ledger.updates == 0
    way(copy, model.get_weights(), tmp_path / "checkpoint")
    assert tfdp.accounting.epsilon(copy.ledger, 1e-5) == tfdp.accounting.epsilon(model.ledger, 1e-5) > 0.0
    merged = tfdp.accounting.Ledger()
    merged.merge(copy.ledger)
    assert merged.updates == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("load", [tfdp.load_model, keras.saving.load_model])
def test_looks_at_ledgers_while_a_file_is_read_lose_nothing(load, tmp_path, monkeypatch):
    """Keras itself looks at every property of a model that it loads, when its layers have no numbers yet."""
    fit(ordinary()).save(tmp_path / "model.keras")
    released_numbers._released.clear()  # as another process sees it
    onlooker, looks = tfdp.make_private(ordinary()), []
    load_layer = keras.layers.Dense.load_own_variables

    def looking(layer, store):
        looks.append(onlooker.ledger.updates)
        load_layer(layer, store)

    monkeypatch.setattr(keras.layers.Dense, "load_own_variables", looking)
    loaded = load(tmp_path / "model.keras")
    assert looks == [0, 0]
    by_assigning(onlooker, loaded.get_weights(), None)
    if load is keras.saving.load_model:
        onlooker.privacy_statement(1e-5)  # nobody says before when that is done
    assert onlooker.ledger.updates == 2


def test_a_look_while_a_file_is_read_that_is_then_refused_charges_nothing(tmp_path, monkeypatch):
    model, copy, looks = fit(ordinary()), tfdp.make_private(ordinary()), []
    keras.Sequential([keras.Input((6,)), *(layer for layer in model.layers if layer.weights)]).save_weights(
        tmp_path / "unpaid.weights.h5"
    )
    load_layer = keras.layers.Dense.load_own_variables

    def looking(layer, store):
        load_layer(layer, store)
        looks.append(copy.ledger.updates)

    monkeypatch.setattr(keras.layers.Dense, "load_own_variables", looking)
    with pytest.raises(ValueError, match=r"without a privacy ledger|the ledger saved with them was not"):
        copy.load_weights(tmp_path / "unpaid.weights.h5", skip_mismatch=True)
    assert looks == [0, 0]
    assert copy.ledger.updates == 0
