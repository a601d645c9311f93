"""A training of two steps an epoch whose best epoch is the first, and what its files say."""

import json
import warnings

import keras
import numpy as np

import tfdp_layers as tfdp
from tfdp_layers.accounting import released
from tfdp_layers.commands import cli

X, Y = np.random.default_rng(0).normal(size=(16, 3)).astype("float32"), np.ones((16, 1), "float32")
PUBLIC = (np.full((4, 3), 2.0, "float32"), np.zeros((4, 1), "float32"))
DELTA = 1e-3


@keras.saving.register_keras_serializable()
class Same(keras.metrics.Metric):
    """Best at the first epoch: never better than that."""

    def __init__(self, name="same", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(initializer="zeros", name="value")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign(0.0)

    def result(self):
        return self.value + 0.0


def model_of(ledger=None):
    model = tfdp.PrivateSequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0), "mse", metrics=[Same()])
    if ledger is not None:
        model.ledger = ledger
    return model


def best(path, **options):
    """Keeps the first epoch: a metric that is the same in all of them is never better again."""
    return keras.callbacks.ModelCheckpoint(path, monitor="val_same", mode="max", save_best_only=True, **options)


def fit(model, *callbacks, epochs=3, **options):
    """Two steps an epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(
            X, Y, batch_size=8, epochs=epochs, verbose=0, validation_data=PUBLIC, callbacks=list(callbacks), **options
        )
    return model


def forget():
    """As another process sees it."""
    released._released.clear()
    released._passing = type(released._passing)()


def said(notes):
    """But for what other tests of this process make of the same records."""
    return " ".join(note for note in notes if not note.startswith("These records"))


def printed(path, capsys):
    """What `tfdp epsilon` says of a file: its steps, and all of its notes in one text."""
    capsys.readouterr()
    cli.main(["epsilon", "--ledger", str(path), "--delta", str(DELTA), "--json"])
    found = json.loads(capsys.readouterr().out)
    return found["steps"], found["epsilon"], said(found["statement"]["notes"])


def stated(model):
    statement = model.privacy_statement(DELTA)
    return statement.steps, statement.epsilon, said(statement.notes)


def load(path):
    """A model with a file's weights, in what is like another process."""
    forget()
    if str(path).endswith(".keras"):
        return tfdp.load_model(path)
    model = model_of()
    model.load_weights(path)
    return model
