"""Checkpoints of private trainings that are restored through ordinary models which hold the same weights."""

import gc

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
KEPT = []
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def ordinary():
    x = keras.Input((6,))
    return keras.Model(x, keras.layers.Dense(2, name="o")(keras.layers.Dense(3, name="h")(x)), name="net")


def private(net):
    model = tfdp.make_private(net)
    model.compile(tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=4.0), loss=LOSS, run_eagerly=True)
    return model


def restore(net, path):
    tf.train.Checkpoint(model=net).restore(path).expect_partial()
    return net


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The path of a checkpoint of another process, the ledger of the training that wrote it, and a file of it."""
    model = private(ordinary())
    model.fit(X, Y, batch_size=10, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "o"))
    model.save_weights(tmp_path / "w.weights.h5")
    second = private(ordinary())
    second.fit(X, Y, batch_size=10, epochs=2, verbose=0)
    best = ordinary()
    best.set_weights(second.get_weights())
    forget_released(released_values(second))
    second.get_layer("h").trainable = False
    second.compile(tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=4.0), loss=LOSS, run_eagerly=True)
    second.fit(X, Y, batch_size=10, verbose=0)
    tf.train.Checkpoint(model=second, best=best).save(str(tmp_path / "second"))
    forget_released(released_values(second))
    forget_released(released_values(model))
    monkeypatch.setattr(released_numbers, "_passing", type(released_numbers._passing)())
    return path, model.ledger.copy(), tmp_path / "w.weights.h5", model.get_layer("h").kernel.numpy()


def before(path):
    return private(restore(ordinary(), path))


def after(path):
    net = ordinary()
    model = private(net)
    restore(net, path)
    return model


def gone(path):
    net = restore(ordinary(), path)
    model = private(net)
    del net
    gc.collect()
    return model


def ordinary_copy(path):
    model = private(ordinary())
    net = restore(model.to_keras(), path)
    return private(net)


def compiled_before(path):
    net = ordinary()
    net.compile("adam", LOSS)
    return private(restore(net, path))


def compiled_after(path):
    net = restore(ordinary(), path)
    net.compile("adam", LOSS)
    return private(net)


def within(path):
    x = keras.Input((6,))
    return private(keras.Model(x, keras.layers.Dense(2)(restore(ordinary(), path)(x))))


def frozen(path):
    net, x = restore(ordinary(), path), keras.Input((6,))
    net.trainable = False
    return private(keras.Model(x, keras.layers.Dense(2)(net(x))))


def part_of(path):
    net, x = restore(ordinary(), path), keras.Input((6,))
    return private(keras.Model(x, keras.layers.Dense(3)(net.get_layer("h")(x))))


def around(path):
    """A model that was made of layers of a private one, and restored later."""
    model = private(ordinary())
    model.other = keras.Model(model.inputs, model.outputs)
    restore(model.other, path)
    return model


def scaled(path):
    net = ordinary()
    net.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), LOSS)
    return private(restore(net, path))


def with_optimizer(path):
    net, optimizer = ordinary(), keras.optimizers.Adam()
    tf.train.Checkpoint(model=net, optimizer=optimizer).restore(path.replace("c-1", "o-1")).expect_partial()
    model = private(net)
    model.kept = optimizer
    return model


def compiled_later(path):
    """The baseline that is compiled anew for each setting throws away what waits for a private optimizer."""
    net = restore(ordinary(), path)
    model = private(net)
    for _ in range(2):
        net.compile(keras.optimizers.Adam(), LOSS)
    return model


def values(path):
    net, model = restore(ordinary(), path), private(ordinary())
    KEPT.append(net)
    tfdp.make_private(ordinary())  # somebody looked
    model.set_weights(net.get_weights())
    return model


def cloned(path):
    net = restore(ordinary(), path)
    clone = keras.models.clone_model(net)
    clone.set_weights(net.get_weights())
    KEPT.append(net)
    return private(clone)


def with_twins(path):
    return tfdp.make_private(restore(ordinary(), path), bounding="backprop_clipping")


WAYS = [before, after, gone, ordinary_copy, compiled_before, compiled_after, within, frozen, part_of, around]
WAYS += [scaled, with_optimizer, compiled_later, values, cloned]


@pytest.mark.parametrize("use", ["statement", "fit", "save"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_weights_of_a_private_training_cost_that_whichever_model_took_them(way, use, written, tmp_path):
    """Before, none of these ways said a word: 0 was stated, and 1.6 after an epoch, of 14."""
    model = way(written[0])
    uses = {
        "statement": lambda: model.privacy_statement(1e-3),
        "fit": lambda: model.fit(X, Y, batch_size=10, verbose=0),
        "save": lambda: model.save_weights(tmp_path / "n.weights.h5"),
    }
    with pytest.raises(ValueError, match="without what they cost"):
        uses[use]()


def test_copies_of_layers_say_so_or_are_not_made(written):
    with pytest.raises(ValueError, match="without what they cost"):
        with_twins(written[0]).privacy_statement(1e-3)
    with pytest.raises(ValueError, match="without what they cost"):
        tfdp.replace_batch_normalization(restore(ordinary(), written[0]), "layer")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_ledger_of_the_training_makes_it_good(way, written):
    model = way(written[0])
    model.ledger.merge(written[1])
    assert model.privacy_statement(1e-3).steps == 4
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.privacy_statement(1e-3).steps == 6


@pytest.mark.parametrize("way", [before, after, compiled_before])
def test_its_file_makes_it_good(way, written):
    model = way(written[0])
    np.testing.assert_array_equal(model.get_layer("h").kernel, written[3])
    model.load_weights(written[2])
    assert model.privacy_statement(1e-3).steps == 4


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoints_of_ordinary_trainings_cost_nothing(scaled, compiled, tmp_path, recwarn):
    net = ordinary()
    adam = keras.optimizers.Adam()
    net.compile(keras.optimizers.LossScaleOptimizer(adam) if scaled else adam, LOSS, run_eagerly=True)
    net.fit(X, Y, verbose=0)
    path = tf.train.Checkpoint(model=net).save(str(tmp_path / "c"))
    new = ordinary()
    if compiled:
        new.compile("adam", LOSS)
    model = private(restore(new, path))
    assert model.privacy_statement(1e-3).steps == 0
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.privacy_statement(1e-3).steps == 2


def test_what_this_process_trained_and_charged_is_counted_once(tmp_path):
    model = private(ordinary())
    model.fit(X, Y, batch_size=10, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    other = before(path)
    assert other.privacy_statement(1e-3).steps == 4
    other.fit(X, Y, batch_size=10, verbose=0)
    assert other.privacy_statement(1e-3).steps == 6


def test_models_that_share_nothing_owe_nothing(written):
    restored = restore(ordinary(), written[0])
    model = private(ordinary())
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.privacy_statement(1e-3).steps == 2
    assert restored.name == "net"


def thrown_away(path):
    net = restore(ordinary(), path)
    for _ in range(2):
        net.compile(keras.optimizers.Adam(), LOSS)
    return net


def layers_alone(path):
    net, x = restore(ordinary(), path), keras.Input((6,))
    new = keras.Model(x, keras.layers.Dense(3)(net.get_layer("h")(x)))
    del net
    gc.collect()
    return new


def weights_alone(path):
    return restore(ordinary(), tf.train.Checkpoint(model=ordinary()).save(path))


def said(model):
    return " ".join(str(model.privacy_statement(1e-3)).split())


def trained_before(path):
    """Trained whole, then the head alone: the optimizer that the checkpoint holds never trained the first layer."""
    return layers_of(restore(ordinary(), path.replace("c-1", "second-1")))


def layers_of(net):
    x = keras.Input((6,))
    KEPT.append(net)
    return keras.Model(x, keras.layers.Dense(3)(net.get_layer("h")(x)))


def clone_beside(path):
    best = ordinary()
    KEPT.append(tf.train.Checkpoint(best=best))
    KEPT[-1].restore(path.replace("c-1", "second-1")).expect_partial()
    return best


def replaced(path):
    return tfdp.replace_batch_normalization(weights_alone(path), "layer")


UNREAD = [thrown_away, layers_alone, weights_alone, trained_before, clone_beside, replaced]


@pytest.mark.parametrize("way", UNREAD, ids=lambda way: way.__name__)
def test_what_nobody_can_read_any_more_is_noted(way, written, tmp_path):
    net = way(written[0])
    gc.collect()
    model = private(net)
    assert "what they cost could not be read of it" in said(model)
    model.fit(X, Y, batch_size=10, verbose=0)
    model.save(tmp_path / "m.keras")
    assert all("could not be read of it" in said(one) for one in (model, tfdp.load_model(tmp_path / "m.keras")))


def test_what_quantization_replaced_is_noted_too(written):
    x = keras.Input((6,))

    def net():
        return keras.Model(x, keras.layers.Dense(2, use_bias=False)(keras.layers.Dense(3, use_bias=False)(x)))

    new = restore(net(), tf.train.Checkpoint(model=net()).save(written[0]))
    new.quantize("int8")
    assert "could not be read of it" in said(private(new))
    assert "could not be read of it" not in said(private(net()))


def test_a_file_of_the_training_ends_the_note(written):
    model = private(weights_alone(written[0]))
    assert "could not be read of it" in said(model)
    model.load_weights(written[2])
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.privacy_statement(1e-3).steps == 6
    assert "could not be read of it" not in said(model)


def test_another_training_on_the_ledger_does_not_end_it(written, tmp_path):
    ledger = Ledger(tmp_path / "l.json")
    first, second = private(weights_alone(written[0])), private(ordinary())
    first.ledger = second.ledger = ledger
    second.fit(X, Y, batch_size=10, verbose=0)
    assert "could not be read of it" in said(first)
    assert "could not be read of it" not in said(second)


def test_copies_by_the_model_s_own_methods_have_it(written):
    model = private(weights_alone(written[0]))
    for copy in (model.to_keras(), tfdp.replace_batch_normalization(model, "layer")):
        assert "could not be read of it" in said(private(copy))


def test_public_checkpoints_are_declared(written):
    net = tfdp.public(weights_alone(written[0]))
    assert "could not be read" not in said(private(net))
    with pytest.raises(ValueError, match="there is nothing to declare"):
        tfdp.public(restore(ordinary(), written[0]))  # of a private training


def test_a_public_checkpoint_takes_the_place_of_a_private_one(written, tmp_path):
    net = restore(ordinary(), written[0])
    public = ordinary()
    public.compile("adam", LOSS)
    public.fit(X, Y, verbose=0)
    restore(net, tf.train.Checkpoint(model=public).save(str(tmp_path / "p")))
    assert private(net).privacy_statement(1e-3).steps == 0


def test_a_checkpoint_that_is_gone_counts_more_than_any_ledger(written, tmp_path):
    net = ordinary()
    model = private(net)
    model.fit(X, Y, batch_size=10, epochs=3, verbose=0)
    restore(net, written[0])
    for file in tmp_path.glob("c-1*"):
        file.unlink()
    with pytest.raises(ValueError, match="an unknown number of releases"):
        model.privacy_statement(1e-3)


def test_optimizers_of_the_callers_own_are_left_in_peace(written):
    class Plain:
        releases = 3

    class Trainer(keras.Model):
        def __init__(self, net):
            super().__init__()
            self.net, self.optimizer = net, Plain()

    net = ordinary()
    model = private(net)
    trainer = Trainer(net)
    restored = restore(ordinary(), written[0])
    model.fit(X, Y, batch_size=10, verbose=0)
    assert model.privacy_statement(1e-3).steps == 2
    assert trainer.net is net
    assert restored is not net


def test_training_goes_on_from_its_own_checkpoints(tmp_path, recwarn):
    net = ordinary()
    model = private(net)
    model.fit(X, Y, batch_size=10, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    model.fit(X, Y, batch_size=10, verbose=0)
    for way in (lambda: restore(net, path), lambda: restore(model, path), lambda: restore(model.to_keras(), path)):
        way()
        steps = model.ledger.steps
        model.fit(X, Y, batch_size=10, verbose=0)
        assert model.privacy_statement(1e-3).steps == steps + 2
    assert "could not be read" not in said(model)
    assert model.privacy_statement(1e-3).steps == 12
