"""Files and copies of private models: a layer in two places stays one, weights keep their flags, layers their LoRA."""

import json
import warnings
import zipfile
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.left import CHANGED_ELSEWHERE
from tfdp_layers.accounting.released import is_paid_for
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.rebuilding import written_twice

kl = keras.layers
X = np.random.default_rng(0).integers(0, 7, (8, 4))


def parts() -> tuple[Any, Any, Any, Any]:
    """Inputs; a table; a model that embeds by it; logits by the same table."""
    x, table = keras.Input((4,), dtype="int32"), kl.ReversibleEmbedding(7, 3, name="table")
    body = keras.Model(x, kl.Dense(3, activation="tanh", name="inner")(table(x)), name="body")
    return x, table, body, table(body(x), reverse=True)


@keras.saving.register_keras_serializable("test_rebuilding")
class Task(keras.Model):
    """As KerasHub's tasks are: a functional model that its class makes from numbers, with a preprocessor."""

    def __init__(self, size: int = 3, preprocessor: Any = None, name: str = "task") -> None:
        x, _, body, logits = parts()
        super().__init__(x, logits, name=name)
        self.size, self.body, self.preprocessor = size, body, preprocessor

    def get_config(self) -> dict[str, Any]:
        return {"size": self.size, "preprocessor": None, "name": self.name}


@keras.saving.register_keras_serializable("test_rebuilding")
class Block(kl.Layer):
    """A layer whose configuration does not tell what is frozen in it, nor of LoRA."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = kl.Dense(4), kl.Dense(4)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build((*shape[:-1], 4))

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def compiled(model: Any, loss: Any) -> Any:
    private = tfdp.make_private(model)
    private.compile(tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=1.0), loss)
    return private


def tied(model: Any) -> Any:
    return compiled(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def plain() -> Any:
    x, _, _, logits = parts()
    return keras.Model(x, logits)


def test_a_model_of_a_class_of_its_own_is_saved_and_copied_with_its_ties(tmp_path):
    model = tied(Task())
    model.fit(X, X, batch_size=4, verbose=0)
    assert list(written_twice(model)) == ["table"]
    for _ in range(2):  # what was loaded is saved as well
        model.save(tmp_path / "model.keras")
        loaded = tfdp.load_model(tmp_path / "model.keras")
        assert len(loaded.weights) == len(model.weights) == 3
        assert loaded.ledger.steps == model.ledger.steps == 2
        np.testing.assert_array_equal(loaded(X), model(X))
        model = loaded
    copy = model.to_keras()
    assert type(copy) is Task
    assert len(copy.weights) == 3
    np.testing.assert_array_equal(copy(X), model(X))
    assert tfdp.make_private(copy).ledger.steps == 2
    copy.save(tmp_path / "copy.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "copy.keras")(X), model(X))


def test_a_tie_that_no_file_keeps_is_refused_before_anything_is_written(tmp_path):
    model = tied(plain())
    with pytest.raises(ValueError, match=r"'table' is in 'body/table' and in 'table'.*save_weights"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"'table' is in 'body/table' and in 'table'"):
        model.fit(X, X, callbacks=[keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))])
    assert not list(tmp_path.iterdir())
    assert not model.ledger.steps
    model.save_weights(tmp_path / "model.weights.h5")
    other = tfdp.make_private(plain())
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(X), model(X))
    copy = model.to_keras()
    assert len(copy.weights) == 3
    np.testing.assert_array_equal(copy(X), model(X))


def test_a_file_that_is_whole_is_not_called_damaged_and_its_weights_are_loaded(tmp_path):
    model, path = tfdp.make_private(plain()), tmp_path / "model.keras"
    keras.Model.save(model, path)
    with pytest.raises(ModelFileError, match=r"(?s)is whole, and no model can be made.*model\.load_weights\(path\)"):
        tfdp.load_model(path)
    other = tfdp.make_private(plain())
    other.load_weights(path)
    np.testing.assert_array_equal(other(X), model(X))


def two_uses() -> Any:
    x = keras.Input((4, 3))
    layer, inner = kl.Dense(3), keras.Sequential([keras.Input((4, 3)), kl.Dense(3)])
    return keras.Model(x, inner(layer(inner(layer(x)))))


ORDINARY = {
    "a layer and a nested model, used twice": two_uses,
    "Bidirectional": lambda: keras.Sequential([keras.Input((4, 3)), kl.Bidirectional(kl.LSTM(2))]),
    "a task within another model": lambda: keras.Sequential([keras.Input((4,), dtype="int32"), Task(), kl.Dense(2)]),
    "TimeDistributed": lambda: keras.Sequential([keras.Input((4, 3)), kl.TimeDistributed(kl.Dense(2)), kl.Dense(1)]),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_models_are_saved_and_loaded_as_before(name, tmp_path):
    model = tfdp.make_private(ORDINARY[name]())
    assert not written_twice(model)
    model.save(tmp_path / "model.keras")
    assert len(tfdp.load_model(tmp_path / "model.keras", public=True).weights) == len(model.weights)


def with_lora() -> Any:
    block = Block(name="block")
    model = keras.Sequential([keras.Input((3,)), block, kl.Dense(2)])
    block.second.trainable = block.first.bias.trainable = False
    block.first.enable_lora(2, lora_alpha=3)
    return model


def trained(model: Any) -> list[tuple[int, ...]]:
    return [tuple(v.shape) for v in model.trainable_variables]


@pytest.mark.slow
def test_weights_keep_their_flags_and_layers_their_lora_with_the_state_of_the_optimizer(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model = compiled(with_lora(), "mse")
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert len(trained(model)) == 4
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns of an optimizer of other weights
        loaded = tfdp.load_model(tmp_path / "model.keras")
    assert trained(loaded) == trained(model)
    block = loaded.get_layer("block")
    assert block.first.lora_alpha == 3
    assert not block.second.kernel.trainable
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)
    before = block.second.kernel.numpy()
    loaded.fit(x, x[:, :2], batch_size=4, verbose=0)
    np.testing.assert_array_equal(block.second.kernel, before)


def rewritten(path: Any, change: Any) -> Any:
    """The file with another configuration of its model."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(held["config.json"])
    change(config["config"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in {**held, "config.json": json.dumps(config)}.items():
            archive.writestr(name, value)
    return path


def test_files_without_flags_are_loaded_as_before_and_those_of_other_layers_warn(tmp_path):
    model = tfdp.make_private(with_lora())
    model.save(tmp_path / "model.keras")
    path = rewritten(tmp_path / "model.keras", lambda config: config["trained"]["weights"].pop())
    with pytest.warns(UserWarning, match=r"other layers or weights than when it was saved"):
        tfdp.load_model(path, public=True)
    path = rewritten(path, lambda config: config.pop("trained"))
    assert len(tfdp.load_model(path, public=True).weights) == 6


DAMAGED = {
    "flag of a layer": lambda trained: trained["layers"][0].__setitem__(1, 0),
    "flag of a weight": lambda trained: trained["weights"].__setitem__(0, "no"),
    "rank of zero": lambda trained: trained["lora"][0].__setitem__(1, 0),
    "rank True": lambda trained: trained["lora"][0].__setitem__(1, True),
    "rank in words": lambda trained: trained["lora"][0].__setitem__(1, "7"),
    "place before the first": lambda trained: trained["lora"][0].__setitem__(0, -4),
    "place of a block": lambda trained: trained["lora"][0].__setitem__(0, 0),
    "alpha in words": lambda trained: trained["lora"][0].__setitem__(2, "3"),
    "alpha past all numbers": lambda trained: trained["lora"][0].__setitem__(2, 10**400),
    "no weights": lambda trained: trained.pop("weights"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_flags_and_lora_that_nobody_writes_are_refused(damage, tmp_path):
    model = tfdp.make_private(with_lora())
    model.save(tmp_path / "model.keras")
    path = rewritten(tmp_path / "model.keras", lambda config: DAMAGED[damage](config["trained"]))
    with pytest.raises(ModelFileError, match=r"frozen weights and LoRA is nothing that model\.save writes"):
        tfdp.load_model(path, public=True)


LORA = {
    "Dense": lambda: [keras.Input((4, 3)), kl.Dense(2, name="lora")],
    "int8": lambda: [keras.Input((4, 3)), kl.Dense(2, name="lora")],
    "EinsumDense": lambda: [keras.Input((4, 3)), kl.EinsumDense("abc,cde->abde", (4, 2, 2), name="lora")],
    "Embedding": lambda: [keras.Input((4,), dtype="int32"), kl.Embedding(7, 3, name="lora")],
    "Conv1D": lambda: [keras.Input((4, 3)), kl.Conv1D(2, 2, name="lora")],
}


def lora_model(kind: str) -> Any:
    model = keras.Sequential([*LORA[kind](), kl.Flatten(), kl.Dense(1)])
    if kind == "int8":
        model.get_layer("lora").quantize("int8")
    model.get_layer("lora").enable_lora(2)
    return compiled(model, "mse")


def factors(model: Any) -> list[Any]:
    return [weight for weight in model.get_layer("lora").weights if "lora" in weight.name]


@pytest.mark.parametrize("kind", LORA)
def test_lora_that_comes_back_from_a_file_has_gradients(kind, tmp_path):
    x = X if kind == "Embedding" else np.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32")
    model = lora_model(kind)
    factors(model)[1].assign(np.full(factors(model)[1].shape, 0.5))
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    first, second = factors(loaded)
    assert np.all(np.any(first, axis=-2))
    assert not np.any(second)
    np.testing.assert_allclose(loaded(x), model(x), atol=0.1 if kind == "int8" else 1e-5)  # int8 rounds what is merged
    sums = dict(zip(map(id, loaded.trainable_variables), loaded.bounded_gradient_sums(x, np.ones((8, 1))), strict=True))
    assert np.any(sums[id(second)])


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["load_model", "load_weights"])
def test_lora_that_comes_back_from_a_file_costs_what_it_cost_and_trains_on(whole, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32"), np.ones((8, 1), "float32")
    model, path = lora_model("Dense"), tmp_path / ("model.keras" if whole else "model.weights.h5")
    model.fit(x, y, batch_size=4, verbose=0)
    (model.save if whole else model.save_weights)(path)
    loaded = tfdp.load_model(path) if whole else model
    if not whole:
        loaded.load_weights(path)
    first, second = factors(loaded)
    assert np.any(first)
    assert not np.any(second)
    assert loaded.ledger.steps == model.ledger.steps == 2
    assert CHANGED_ELSEWHERE not in loaded.privacy_statement(1e-5).notes
    assert not is_paid_for(keras.Variable(first.numpy()).value)  # what was drawn costs nothing
    assert is_paid_for(keras.Variable(loaded.get_layer("lora")._kernel.numpy()).value)
    loaded.fit(x, y, batch_size=4, verbose=0)
    assert np.any(second)
    assert CHANGED_ELSEWHERE not in loaded.privacy_statement(1e-5).notes
    assert is_paid_for(keras.Variable(first.numpy()).value)


def within_and_outside(layer: Any) -> Any:
    x = keras.Input((3,))
    nested = keras.Sequential([keras.Input((3,)), layer, kl.Dense(3)])
    return keras.Model(x, kl.Add()([layer(x), nested(x)]))


WITHOUT_WEIGHTS = {
    "Dropout": lambda: kl.Dropout(0.1, name="one"),
    "Normalization": lambda: kl.Normalization(mean=0.0, variance=1.0, name="one"),
}


@pytest.mark.parametrize("kind", WITHOUT_WEIGHTS)
def test_a_layer_without_weights_in_two_places_is_refused_where_no_file_could_be_loaded(kind, tmp_path):
    model = tfdp.make_private(within_and_outside(WITHOUT_WEIGHTS[kind]()))
    with pytest.raises(ValueError, match=r"Layer 'one' is in .*could not be loaded"):
        model.save(tmp_path / "model.keras")
    assert not list(tmp_path.iterdir())


@keras.saving.register_keras_serializable("test_rebuilding")
class Shifted(kl.Layer):
    def call(self, x: Any) -> Any:
        return x + 1


class Unknown(Shifted):
    """No registered class: whoever loads it gives it."""


@pytest.mark.parametrize("kind", [kl.ReLU, Shifted, Unknown])
def test_a_layer_without_weights_in_two_places_is_saved_with_its_flags_where_it_comes_back(kind, tmp_path):
    x, y, one = keras.Input((3,)), keras.Input((3,)), kind()
    nested = keras.Model(y, one(kl.Dense(3, name="frozen")(y)))
    nested.get_layer("frozen").trainable = False
    model = tfdp.make_private(keras.Model(x, kl.Dense(2)(one(nested(x)))))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has other layers or weights")
        model.save(tmp_path / "model.keras")
        loaded = tfdp.load_model(tmp_path / "model.keras", {"Unknown": Unknown}, public=True)
    assert trained(loaded) == trained(model)
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT2CausalLM", "BertMaskedLM"])
def test_tied_tasks_of_kerashub_are_saved_and_loaded(name, tmp_path):
    hub = pytest.importorskip("keras_hub", reason="KerasHub is not installed", exc_type=ImportError).models
    sizes = {"vocabulary_size": 12, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    kind, backbone = getattr(hub, name), hub.GPT2Backbone if name == "GPT2CausalLM" else hub.BertBackbone
    model = tfdp.make_private(kind(backbone(max_sequence_length=6, **sizes), preprocessor=None))
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras", public=True)
    assert len(loaded.weights) == len(model.to_keras().weights) == len(model.weights)
    for one, other in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
