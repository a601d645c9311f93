"""Trainings in which hooks are set, or replaced, while they run: ways to do it, and what they put in."""

import functools

import keras
import numpy as np

import tfdp_layers as tfdp

EARLIER, NOW, FITTED = 6, 4, 2
kc = keras.callbacks
VALIDATION = (np.zeros((6, 4), "float32"), np.ones((6, 1), "float32"))


def model_of():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model = tfdp.make_private(network)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 1.0), "mse")
    return model


def trained(steps, callbacks=(), model=None, seed=0, call="fit"):
    model, rng = model or model_of(), np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 4)).astype("float32"), rng.normal(size=(24, 1)).astype("float32")
    options = {"batch_size": 12, "epochs": steps // 2, "verbose": 0, "callbacks": list(callbacks)}
    if call == "fit":
        model.fit(x, y, validation_data=VALIDATION, **options)
        return model
    with model.private_run(x, y, **options) as run:
        for batch in run:
            run.step(batch)
    return model


def weights_of(earlier):
    """What puts its weights into another model."""
    held = [v.numpy() for v in earlier.trainable_variables]

    def puts(model):
        for variable, value in zip(model.trainable_variables, held, strict=True):
            variable.assign(value)

    return puts


def from_now_on(do, name, when=0):
    """A callback that sets its own hook as the training begins."""

    class Phases(kc.Callback):
        calls = 0

        def on_train_begin(self, logs=None):
            setattr(self, name, self.second)

        def second(self, *args, **kwargs):
            if self.calls == when:
                do(self.model)
            self.calls += 1

    return [Phases()]


def of_another(make):
    """A callback that sets a hook of another one, which is behind it."""

    def callbacks(do):
        other = make()

        class Sets(kc.Callback):
            def on_epoch_end(self, epoch, logs=None):
                target = self.model.history if other is None else other
                if epoch == 0:
                    target.on_epoch_end = lambda *args: do(self.model)

        return [Sets()] if other is None else [Sets(), other]

    return callbacks


def of_its_class(do):
    class Ours(kc.Callback):
        def on_train_begin(self, logs=None):
            type(self).on_epoch_begin = lambda self, epoch, logs=None: do(self.model) if epoch == 1 else None

    return [Ours()]


class Second(kc.Callback):
    """Has a hook that does nothing, and one that does it in the first epoch."""

    def __init__(self, do):
        super().__init__()
        self.do = do

    def on_epoch_end(self, epoch, logs=None):
        pass

    def second(self, epoch, logs=None):
        if epoch == 0:
            self.do(self.model)


def replaced(do):
    class Ours(Second):
        def on_epoch_begin(self, epoch, logs=None):
            self.on_epoch_end = self.second

    return [Ours(do)]


def outside_of_hooks(name):
    """Hooks that `set_model` or `set_params` set: no hook runs around them."""

    def callbacks(do):
        class Sets(kc.Callback):
            def later(self, epoch, logs=None):
                if epoch == 0:
                    do(self.model)

        def sets(self, given):
            getattr(kc.Callback, name)(self, given)
            self.on_epoch_end = self.later

        setattr(Sets, name, sets)
        return [Sets()]

    return callbacks


def that_wraps(do):
    """Around the hook that is there, which is what this library put there, and named as it."""

    class Ours(kc.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            there = self.on_epoch_end

            @functools.wraps(there)
            def second(epoch, logs=None):
                there(epoch, logs)
                if epoch == 0:
                    do(self.model)

            if epoch == 0:
                self.on_epoch_end = second

        def on_epoch_end(self, epoch, logs=None):
            pass

    return [Ours()]


def of_an_earlier_training(do):
    """What this library put around a hook in another training: nobody watches in it now."""

    class Ours(kc.Callback):
        kept, busy = None, False

        def on_epoch_begin(self, epoch, logs=None):
            if self.kept is None:
                self.kept = vars(self)["on_epoch_end"]
            elif epoch == 0:
                self.on_epoch_end = self.kept

        def on_epoch_end(self, epoch, logs=None):
            if self.busy and epoch == 0:
                do(self.model)

    callback = Ours()
    trained(FITTED, [callback], seed=2)
    callback.busy = True
    return [callback]


def after_a_training_within(do):
    """Another training in a hook, with the same callback, in which its own hook is set."""

    class Ours(Second):
        outer = True

        def on_epoch_begin(self, epoch, logs=None):
            if self.outer and epoch == 0:
                self.outer, there = False, self.model
                x = np.ones((24, 4), "float32")
                with model_of().private_run(x, x[:, :1], batch_size=12, verbose=0, callbacks=[self]):
                    self.on_epoch_end = functools.wraps(self.on_epoch_end)(lambda *args: self.second(*args))
                self.set_model(there)

    return [Ours(do)]


LATE = {
    "its own, which wraps another": that_wraps,
    "one of an earlier training": of_an_earlier_training,
    "its own, in a training within": after_a_training_within,
    "its own, by set_model": outside_of_hooks("set_model"),
    "its own, by set_params": outside_of_hooks("set_params"),
    "its own on_epoch_end": lambda do: from_now_on(do, "on_epoch_end"),
    "its own on_epoch_begin": lambda do: from_now_on(do, "on_epoch_begin", 1),
    "its own on_train_batch_end": lambda do: from_now_on(do, "on_train_batch_end"),
    "its own on_train_batch_begin": lambda do: from_now_on(do, "on_train_batch_begin", 1),
    "its own on_test_end": lambda do: from_now_on(do, "on_test_end"),
    "History's": of_another(kc.History),
    "History's, which Keras adds": of_another(lambda: None),
    "LambdaCallback's": of_another(kc.LambdaCallback),
    "a plain one's": of_another(kc.Callback),
    "its class's": of_its_class,
    "its own, again": replaced,
}
QUICK = [
    "its own, which wraps another",
    "one of an earlier training",
    "its own, in a training within",
    "its own, by set_model",
    "its own on_epoch_end",
    "its own on_train_batch_begin",
    "History's, which Keras adds",
    "its class's",
]
