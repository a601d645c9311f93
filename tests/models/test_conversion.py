"""From ordinary layers to their clipped twins and back: the same weights and settings, but for the clips, in copies."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.layers.base import UpstreamBoundedLayer
from tfdp_layers.layers.conv import BoundedConvolution
from tfdp_layers.models import conversion
from tfdp_layers.models.conversion import TWINS, clip_operations, clipped_twin, plain_layer, plain_model

kl, tl = keras.layers, tfdp.layers
CLIPS = {"input_clip": 0.5, "upstream_clip": 0.25}
LAYERS = {
    "dense": (kl.Dense(3, "tanh", kernel_regularizer="l2", name="mine"), (4,)),
    "einsum": (kl.EinsumDense("abc,cd->abd", (4, 3), bias_axes="d"), (4, 2)),
    "conv1d": (kl.Conv1D(3, 2, padding="causal", dilation_rate=2), (6, 2)),
    "conv2d": (kl.Conv2D(3, (2, 3), strides=2, padding="same"), (6, 5, 2)),
    "conv3d": (kl.Conv3D(2, 2, use_bias=False), (3, 3, 3, 1)),
    "depthwise": (kl.DepthwiseConv2D(2, depth_multiplier=2), (4, 4, 2)),
    "layer norm": (kl.LayerNormalization(epsilon=1e-2), (4, 3)),
    "group norm": (kl.GroupNormalization(2, center=False), (4, 4)),
}
TOKENS = kl.Embedding(7, 3)


def around(layer, shape):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


def attention():
    inputs = keras.Input((4, 3))
    return keras.Model(inputs, kl.MultiHeadAttention(2, 2)(inputs, inputs))


def models():
    """An ordinary model for each kind of layer that has a twin, by name."""
    made = {name: lambda layer=layer, shape=shape: around(layer, shape) for name, (layer, shape) in LAYERS.items()}
    tokens = lambda: keras.Sequential([keras.Input((5,), dtype="int32"), TOKENS])  # noqa: E731
    return made | {"embedding": tokens, "attention": attention}


def records(model):
    rng = np.random.default_rng(0)
    shape = (6, *model.inputs[0].shape[1:])
    return rng.integers(0, 7, shape) if model.inputs[0].dtype == "int32" else rng.normal(size=shape).astype("float32")


def clipped(model, **options):
    return tfdp.make_private(model, bounding="backprop_clipping", **(CLIPS | options))


def settings(layer):
    return {name: value for name, value in layer.get_config().items() if name not in (*CLIPS, "bound", "build_config")}


def test_every_twin_is_tried_below():
    kinds = {type(layer) for make in models().values() for layer in make().layers}
    assert kinds - {kl.InputLayer} == set(TWINS)


@pytest.mark.parametrize("name", models())
def test_a_twin_and_back_have_the_layers_settings_and_weights(name):
    model = models()[name]()
    private = clipped(model)
    back = private.to_keras()
    (plain,), (twin,) = ([layer for layer in one.layers if layer.weights] for one in (model, private))
    assert type(twin) is TWINS[type(plain)]
    assert settings(twin) == settings(plain)
    assert twin.upstream_clip == CLIPS["upstream_clip"]
    limit = None if isinstance(twin, UpstreamBoundedLayer) else CLIPS["input_clip"]
    assert getattr(twin, "input_clip", None) == limit
    (again,) = [layer for layer in back._flatten_layers() if type(layer) is type(plain)]
    assert settings(again) == settings(plain)
    for one in (private, back):
        for ours, theirs in zip(one.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    x = records(model)
    np.testing.assert_allclose(back(x), private(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", models())
def test_twins_and_plain_layers_hold_copies(name):
    """What is trained afterwards moves neither the model that it came from, nor the one that is served."""
    model = models()[name]()
    private = clipped(model)
    back = private.to_keras()
    before = [w.copy() for w in model.get_weights()]
    private.set_weights([w + 1.0 for w in private.get_weights()])
    for one in (model, back):
        for now, then in zip(one.get_weights(), before, strict=True):
            np.testing.assert_array_equal(now, then)


@pytest.mark.slow
def test_convolutions_take_the_bound_that_was_asked_for():
    for name, (layer, shape) in LAYERS.items():
        for bound in ("patch", "spatial_l1"):
            (twin,) = [one for one in clipped(around(layer, shape), bound=bound).layers if one.weights]
            assert getattr(twin, "bound", None) == (bound if isinstance(twin, BoundedConvolution) else None), name


class Mine(kl.Layer):
    """A layer of somebody's own, with a weight."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale * self.factor

    def get_config(self):
        return super().get_config() | {"factor": self.factor}


def subclass(*args):
    """A subclass may compute otherwise: it has no twin."""
    return type("OfTheRecord", (kl.Dense,), {})(*args)


def frozen():
    layer = kl.Dense(3)
    layer.trainable = False
    return layer


@pytest.mark.parametrize("make", [lambda: kl.Dropout(0.3), lambda: Mine(3.0), frozen, lambda: kl.PReLU(), subclass])
def test_layers_without_a_twin_are_copied_as_they_are(make):
    layer = make(3) if make is subclass else make()
    twin = clipped_twin(layer, CLIPS, "patch")
    assert type(twin) is type(layer)
    assert twin is not layer
    assert twin.get_config() == layer.get_config()
    assert twin.trainable == layer.trainable
    again = plain_layer(layer)
    assert (type(again), again.get_config()) == (type(layer), layer.get_config())


def test_weights_of_layers_without_a_twin_are_copied_and_they_are_refused_by_name():
    own = Mine(2.0, name="mine")
    model = keras.Sequential([keras.Input((4,)), own, kl.Dense(3)])
    own.scale.assign([1.0, 2.0, 3.0, 4.0])
    private = clipped(model)
    np.testing.assert_array_equal(private.get_layer("mine").scale, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"'mine' \(Mine\) has trainable weights and no bound"):
        private.sensitivities()


def test_a_layer_used_twice_stays_one():
    shared, inputs = kl.Dense(4), keras.Input((4,))
    private = clipped(keras.Model(inputs, shared(shared(inputs))))
    assert len(private.trainable_variables) == 2
    (group,) = private.sensitivities()
    (once,) = clipped(around(kl.Dense(4), (4,))).sensitivities()
    assert group.bound == pytest.approx(2 * once.bound)
    assert len(private.to_keras().trainable_variables) == 2


def test_a_model_that_is_not_built_has_nothing_to_convert():
    with pytest.raises(ValueError, match="not built: there is nothing to convert yet"):
        plain_model(tfdp.PrivateSequential([tl.ClippedDense(2, **CLIPS)]))


# The input clip, served -----------------------------------------------------------------------------------------------

SERVED = [
    (tl.ClippedDense(3, **CLIPS), (4,)),
    (tl.ClippedDense(3, **CLIPS), (5, 4)),
    (tl.ClippedConv2D(2, 3, strides=2, padding="same", **CLIPS), (5, 6, 2)),
    (tl.ClippedConv2D(2, 3, padding="same", bound="patch", **CLIPS), (5, 6, 2)),
    (tl.ClippedConv1D(2, 3, bound="patch", data_format="channels_first", **CLIPS), (2, 9)),
    (tl.ClippedDepthwiseConv2D(3, bound="patch", **CLIPS), (5, 5, 2)),
]


def largest_difference(layer, shape):
    """Between what the private layer computes and what is served, on records of every size, over the outputs' size."""
    private = tfdp.PrivateSequential([keras.Input(shape), layer])
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype("float32")
    x[1], x[2], x[3] = 1e-3 * x[1], 1e4 * x[2], 0.0
    x[4].flat[0], x[5].flat[-1] = np.nan, np.inf
    ours, theirs = np.asarray(private(x)), np.asarray(private.to_keras()(x))
    return np.abs(ours - theirs).max() / np.abs(ours).max()


@pytest.mark.parametrize(("layer", "shape"), SERVED, ids=lambda v: getattr(v, "name", str(v)))
def test_what_is_served_clips_its_input_as_training_did(layer, shape):
    assert largest_difference(layer, shape) < 1e-5


@pytest.mark.parametrize("bug", ["no clip", "multiplicity forgotten"])
def test_another_clip_is_seen(bug, monkeypatch):
    def forgets(layer, inputs):
        with monkeypatch.context() as patch:
            patch.setattr(layer, "count_patches", lambda space: np.ones(space, np.float32))
            return clip_operations(layer, inputs)

    wrong = {"no clip": lambda layer, inputs: inputs, "multiplicity forgotten": forgets}[bug]
    monkeypatch.setattr(conversion, "clip_operations", wrong)
    layer = tl.ClippedConv2D(2, 3, padding="same", bound="patch", **CLIPS)
    assert not largest_difference(layer, (5, 6, 2)) < 1e-2


def test_the_cost_of_an_adapted_layer_goes_with_its_copy():
    layer = tl.DPPCA(2, 3.0, name="pca")
    layer.adapt(np.random.default_rng(0).normal(size=(20, 4)).astype("float32"))
    twin = clipped_twin(layer, CLIPS, "patch")
    assert twin.ledger is not layer.ledger
    assert twin.ledger.holds(layer.ledger)
    assert twin.ledger.steps == 1


class Block(keras.layers.Layer):
    """A layer of two, as the blocks of published models are: its configuration knows of no LoRA inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.normed = keras.layers.Dense(4), keras.layers.LayerNormalization()

    def build(self, shape):
        self.inner.build(shape)
        self.normed.build((*shape[:-1], 4))

    def call(self, x):
        return self.normed(self.inner(x))


@pytest.mark.slow
def test_lora_inside_of_a_layer_is_in_the_plain_model_and_its_cost_is_known():
    block = Block()
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), block, keras.layers.Dense(2)]))
    block.inner.enable_lora(2, lora_alpha=3)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model.fit(x, x[:, :2], batch_size=8, verbose=0)
    plain = model.to_keras()
    assert np.any(block.inner.lora_kernel_b)
    np.testing.assert_array_equal(plain(x), model(x))
    assert plain.layers[1].inner.lora_alpha == 3
    assert tfdp.make_private(plain).ledger.steps == 1
