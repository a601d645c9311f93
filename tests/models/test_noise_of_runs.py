"""No value of noise comes twice: not in a second fit, not in another model, not after a run was killed."""

import gc

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.clipped_models import compiled, mlp
from helpers.empty_draws import empty_batches
from tfdp_layers.noise import NoiseSource


class Steps(keras.callbacks.Callback):
    """What each step on nothing moved the weights by: its noise. Ends the process' work after `until` of them."""

    def __init__(self, until=None):
        super().__init__()
        self.until, self.noise, self.keys = until, [], set()

    def on_train_begin(self, logs=None):
        self.last = self.weights()

    def on_train_batch_end(self, batch, logs=None):
        now = self.weights()
        self.noise.append(now - self.last)
        self.last = now
        generator = getattr(self.model.optimizer.noise_source, "_generator", None)
        self.keys.add(b"" if generator is None else generator.state.numpy().tobytes()[16:])
        if len(self.noise) == self.until:
            raise KeyboardInterrupt

    def weights(self):
        return np.concatenate([w.ravel() for w in self.model.get_weights()])


def made(**options):
    keras.utils.set_random_seed(3)
    return compiled(mlp(), noise=1.0, **options)


def run(model, x, y, steps, *callbacks, until=None):
    seen = Steps(until)
    try:
        model.fit(empty_batches(x, y), steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[*callbacks, seen])
    except KeyboardInterrupt:
        assert until
    return seen


def share(*parts):
    """The largest share of their numbers that two of all these steps have in common, as far as weights tell them."""
    steps = np.stack([step for part in parts for step in part.noise])
    close = np.isclose(steps[:, None], steps[None], rtol=1e-3) & ~np.eye(len(steps), dtype=bool)[:, :, None]
    return close.mean(axis=2).max()


@pytest.mark.few(1)
@pytest.mark.parametrize("source", ["default", "secure"])
def test_fits_of_one_model_and_of_others_share_no_noise(source):
    model, x, y = made(noise_source=source)
    first, second = run(model, x, y, 2), run(model, x, y, 2)
    third = run(*made(noise_source=source), 2)
    assert share(first, second, third) < 0.1
    assert source == "secure" or len(first.keys | second.keys | third.keys) == 3  # a key for each


def killed_and_gone_on(folder):
    """A run that ends without a word, as if killed; and another process' run, which goes on from what it left."""
    model, x, y = made()
    model.ledger = tfdp.accounting.Ledger(folder / "ledger.json")
    killed = run(model, x, y, 3, keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1), until=2)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    model.ledger.close()
    del model
    gc.collect()
    again, x, y = made()
    again.ledger = tfdp.accounting.Ledger(folder / "ledger.json")
    return killed, run(again, x, y, 3, keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1))


@pytest.mark.slow
def test_a_killed_runs_noise_is_never_used_again(tmp_path):
    killed, gone_on = killed_and_gone_on(tmp_path)
    assert len(killed.noise) == 2
    assert len(gone_on.noise) >= 3
    assert share(killed, gone_on) < 0.1
    assert not killed.keys & gone_on.keys


@pytest.mark.slow
def test_no_file_holds_what_noise_is_made_of(tmp_path):
    killed, _ = killed_and_gone_on(tmp_path)
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    for key in killed.keys:
        assert len(key) == 8
        assert not any(
            key in data or repr(int.from_bytes(key, "little", signed=True)).encode() in data for data in files
        )


# Planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_key_that_comes_again_is_seen(monkeypatch, tmp_path):
    """As of a generator seeded by Keras' seed, or restored from a checkpoint."""
    monkeypatch.setattr(NoiseSource, "_fresh_state", lambda self: np.arange(3, dtype=np.int64))
    killed, gone_on = killed_and_gone_on(tmp_path)
    assert share(killed, gone_on) > 0.9
    assert killed.keys & gone_on.keys
