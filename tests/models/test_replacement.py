"""A model without BatchNormalization: the same network but for it, weights with what they cost; or a refusal."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normalized import MODELS, mobile, nested, sequential
from helpers.variants import slow_but
from tfdp_layers.models import replacement
from tfdp_layers.models.substitutes import groups_for

kl = keras.layers
RNG = np.random.default_rng(0)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
KINDS = {"group": kl.GroupNormalization, "layer": kl.LayerNormalization, "frozen": kl.BatchNormalization}


def records(model, size=5):
    return keras.tree.map_structure(
        lambda t: RNG.normal(size=(size, *t.shape[1:])).astype("float32"),
        model.inputs[0] if isinstance(model, keras.Sequential) else model.input,
    )


def trained(model):
    """With weights of no special values, and moving averages that are not those of a new layer."""
    for weight in model.weights:
        weight.assign(np.abs(RNG.normal(size=weight.shape)) + 0.1)
    return model


def normalizations(model):
    found = [layer for layer in model._flatten_layers() if isinstance(layer, tuple(KINDS.values()))]
    return {layer.name: layer for layer in found}


def predictions(model, x):
    return [np.asarray(p) for p in keras.tree.flatten(model(x, training=False))]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("name", slow_but(["sequential", "nested"], MODELS))
def test_every_layer_is_replaced_and_the_rest_is_copied(name, by, tmp_path):
    model = trained(MODELS[name]())
    x, before = records(model), [w.numpy() for w in model.weights]
    copy = tfdp.replace_batch_normalization(model, by)
    assert isinstance(copy, keras.Sequential) == isinstance(model, keras.Sequential)
    old, new = normalizations(model), normalizations(copy)
    assert old.keys() == new.keys()
    assert {type(layer) for layer in new.values()} == {KINDS[by]}
    assert all(layer.trainable == (by != "frozen") for layer in new.values())
    for layer, made in ((layer, new[layer.name]) for layer in old.values()):
        for weight in ("gamma", "beta"):
            mine, theirs = getattr(made, weight), getattr(layer, weight)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                np.testing.assert_array_equal(mine, theirs)
    theirs, ours = predictions(model, x), predictions(copy, x)
    assert [p.shape for p in ours] == [p.shape for p in theirs]
    if by == "frozen":
        assert_same(ours, theirs)
        assert len(copy.trainable_variables) == len(model.trainable_variables) - sum(
            len(layer.trainable_variables) for layer in old.values()
        )
    else:
        assert len(copy.trainable_variables) == len(model.trainable_variables)
        alone = predictions(copy, keras.tree.map_structure(lambda a: a[:1], x))
        for a, b in zip(alone, ours, strict=True):
            np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-4)
    for weight in copy.weights:
        weight.assign(weight + 1.0)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    if name != "nested":  # Keras itself cannot load a model that uses one layer both inside and outside of a nested one
        copy.save(tmp_path / "copy.keras")
        loaded = keras.models.load_model(tmp_path / "copy.keras")
        assert_same(predictions(loaded, x), predictions(copy, x))
        assert len(loaded.trainable_variables) == len(copy.trainable_variables)


def test_frozen_layers_that_forget_their_averages_are_seen(monkeypatch, tmp_path):
    """The planted bug: only weights with a gradient are copied."""
    kept = replacement._same_weights
    monkeypatch.setattr(
        replacement, "_same_weights", lambda a, b: [pair for pair in kept(a, b) if pair[0].name in ("gamma", "beta")]
    )
    with pytest.raises(AssertionError):
        test_every_layer_is_replaced_and_the_rest_is_copied("sequential", "frozen", tmp_path)


def test_what_is_used_twice_stays_one_and_frozen_layers_stay():
    model = nested()
    model.get_layer("tower").get_layer("of_tower").trainable = False
    copy = tfdp.replace_batch_normalization(model)
    assert len(copy.weights) == len(model.weights) - 2  # the inner normalization has no moving averages
    tower, inner = copy.get_layer("tower"), copy.get_layer("inner")
    assert tower.get_layer("inner") is inner
    assert type(tower.get_layer("of_tower")) is kl.BatchNormalization
    assert not tower.get_layer("of_tower").trainable
    model.trainable, model.get_layer("inner").trainable = False, True
    flags = [w.trainable for w in tfdp.replace_batch_normalization(model, "frozen").trainable_variables]
    assert flags == []
    model._trainable = True
    assert len(tfdp.replace_batch_normalization(model, "frozen").trainable_variables) == 2  # the shared Dense layer's


@pytest.mark.parametrize(
    ("channels", "positions", "groups"),
    [(64, 100, 32), (48, 100, 24), (37, 100, 1), (62, 100, 31), (32, 1, 2), (8, 1, 1), (8, 4, 2), (1280, 1, 32)],
)
def test_groups_divide_the_channels_and_hold_numbers_enough(channels, positions, groups):
    assert groups_for(channels, positions) == groups


def test_settings_go_over():
    layer = kl.BatchNormalization(epsilon=0.1, gamma_regularizer="l2", beta_constraint="non_neg", dtype="float64")
    inputs = keras.Input((None, None, 64))
    (made,) = normalizations(tfdp.replace_batch_normalization(keras.Model(inputs, layer(inputs)))).values()
    assert (made.groups, made.epsilon, made.dtype) == (32, 0.1, "float64")
    assert isinstance(made.gamma_regularizer, keras.regularizers.L2)
    assert isinstance(made.beta_constraint, keras.constraints.NonNeg)


def test_classes_and_functions_are_taken():
    for by, kind in (
        (kl.GroupNormalization, kl.GroupNormalization),
        (kl.LayerNormalization, kl.LayerNormalization),
        (lambda layer: kl.GroupNormalization(1, axis=layer.axis), kl.GroupNormalization),
        (lambda layer: tfdp.layers.ClippedGroupNormalization(2, axis=layer.axis), kl.GroupNormalization),
    ):
        copy = tfdp.replace_batch_normalization(mobile(), by)
        found = normalizations(copy)
        assert len(found) == 3
        assert all(isinstance(layer, kind) for layer in found.values())


@pytest.mark.parametrize(
    "by", ["batch", None, kl.BatchNormalization, kl.RMSNormalization, kl.GroupNormalization(2)], ids=str
)
def test_other_arguments_are_refused(by):
    with pytest.raises(ValueError, match=r"'group', 'layer', 'frozen'.*a function that takes.*Received"):
        tfdp.replace_batch_normalization(sequential(), by)


def test_functions_must_return_new_layers_that_are_not_as_before():
    one = kl.GroupNormalization(2)
    for by, message in (
        (lambda layer: layer, "must return a new Keras layer.*'linear'|must return a new Keras layer"),
        (lambda layer: "group", "must return a new Keras layer.*returned 'group'"),
        (lambda layer: one, "must return a new"),
        (lambda layer: kl.BatchNormalization(), "trainable, as before"),
    ):
        with pytest.raises(ValueError, match=message):
            tfdp.replace_batch_normalization(mobile(), by)


# Refusals -------------------------------------------------------------------------------------------------------------


class OwnCall(keras.Model):
    def call(self, x):
        return x


class Block(kl.Layer):
    def __init__(self):
        super().__init__(name="block")
        self.norm = kl.BatchNormalization(name="within")

    def call(self, x):
        return self.norm(x)


class Synchronized(kl.BatchNormalization):
    pass


class NoConfig(kl.Layer):
    def __init__(self, needed):
        super().__init__()
        self.needed = needed

    def call(self, x):
        return x


def around(*layers, shape=(4, 6)):
    return keras.Sequential([keras.Input(shape), *layers])


def masked():
    inputs, mask = keras.Input((4, 6)), keras.Input((4,), dtype="bool")
    return keras.Model([inputs, mask], kl.BatchNormalization(name="masked")(inputs, mask=mask))


REFUSED = {
    "subclassed": (OwnCall, r"OwnCall defines its own call\(\).*functional model"),
    "not built": (lambda: keras.Sequential([kl.BatchNormalization()]), "not built: give it a keras.Input"),
    "TimeDistributed": (
        lambda: around(kl.TimeDistributed(kl.BatchNormalization(name="bn"), name="steps")),
        "'steps/bn': it is inside of 'steps', a TimeDistributed.*Build the TimeDistributed without it",
    ),
    "own layer": (lambda: around(Block()), "'block/within': .*a Block.*trainable = False"),
    "nested": (
        lambda: around(keras.Sequential([keras.Input((4, 6)), Block()], name="inner")),
        "'inner/block/within': .*a Block",
    ),
    "model of one's own inside": (lambda: around(Wrapped()), "'wrapped/bn': .*a Wrapped"),
    "subclass": (lambda: around(Synchronized(name="sync")), "'sync': it is a Synchronized.*a function"),
    "mask": (masked, "'masked': it takes a mask.*by='layer'"),
    "one number": (
        lambda: around(kl.BatchNormalization(name="one"), shape=(1,)),
        "'one': .*one number.*Take the layer",
    ),
    "no configuration": (lambda: around(NoConfig(3)), r"\(NoConfig\) can't be copied from its get_config"),
}


class Wrapped(OwnCall):
    def __init__(self):
        super().__init__(name="wrapped")
        self.norm = kl.BatchNormalization(name="bn")

    def call(self, x):
        return self.norm(x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rewritten_is_named_with_the_fix(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        tfdp.replace_batch_normalization(make())


def test_all_that_cannot_be_rewritten_are_named():
    with pytest.raises(ValueError, match=r"(?s)'block/within'.*\n- 'sync'"):
        tfdp.replace_batch_normalization(around(Block(), Synchronized(name="sync")))


def test_frozen_inside_of_a_layer_is_no_matter():
    model = trained(around(kl.TimeDistributed(kl.BatchNormalization(trainable=False)), kl.BatchNormalization()))
    copy = tfdp.replace_batch_normalization(model, "frozen")
    x = records(model)
    assert_same(predictions(copy, x), predictions(model, x))


def test_layers_that_no_configuration_makes_again_are_shared():
    constants = kl.Normalization()
    constants.adapt(RNG.normal(size=(8, 6)))
    tfdp.public(constants).trainable = False
    model = around(kl.Lambda(lambda x: x + 1.0), constants, kl.BatchNormalization(), kl.Dense(2), shape=(6,))
    copy = tfdp.replace_batch_normalization(model, "frozen")
    x = records(model)
    assert_same(predictions(copy, x), predictions(model, x))
    assert copy.layers[1] is constants
    assert (constants.trainable, model.trainable) == (False, True)


@pytest.mark.slow
def test_a_mobile_net_is_rewritten():
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), alpha=0.35, classes=3)
    copy = tfdp.replace_batch_normalization(model, by=kl.GroupNormalization)
    assert not [one for one in copy._flatten_layers() if isinstance(one, kl.BatchNormalization)]
    assert copy.output_shape == model.output_shape
    assert len(copy.trainable_variables) == len(model.trainable_variables)
    np.testing.assert_array_equal(copy.layers[1].kernel, model.layers[1].kernel)
