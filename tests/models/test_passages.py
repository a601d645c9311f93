"""A number may go from one callback to another by a file, a library's state or an object of others: that is seen."""

import csv
import datetime
import glob
import json
import logging
import math
import os
import pathlib
import platform
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.watched import model_of
from tfdp_layers.models.reach import Reach, passes

LOG = logging.getLogger("test")
RATES = {0: 0.1, 2: 0.01}


def pair(write, read, held=None):
    class Keeps(keras.callbacks.Callback):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def on_epoch_end(self, epoch, logs=None):
            write(self, float(logs["loss"]))

    class Decides(keras.callbacks.Callback):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def on_epoch_begin(self, epoch, logs=None):
            if read(self) > 2:
                self.model.stop_training = True

    return Keeps(held), Decides(held)


def to_json(self, loss):
    with open(os.path.join(self.held, "metrics.json"), "w") as file:
        json.dump({"loss": loss}, file)


def to_sqlite(self, loss):
    sqlite3.connect(self.held + "/db").execute("insert into t values(?)", (loss,))


def to_layer(self, loss):
    self.model.layers[-1].last_loss = loss


def to_schedule(self, loss):
    self.held.kept = loss


FOLDER = "a folder"


def to_text(self, loss):
    with open(f"{self.held}/m.txt", "w") as file:
        file.write(str(loss))


def flagged(self, loss):
    if loss > 2:
        (pathlib.Path(self.held) / "stop").touch()


def read_and_logged(self):
    with open(os.path.join(self.held, "decided.log"), "a") as file:
        file.write("looked")
    return read_whole(self.held + "/" + "m")


MAPPED = [np.memmap(os.path.join(tempfile.mkdtemp(), "mapped"), "float32", "w+", shape=(1,))]
MAPPED.append(np.memmap(MAPPED[0].filename, "float32", "r+", shape=(1,)))
FILE_LOG = logging.getLogger("test.file")
FILE_LOG.addHandler(logging.FileHandler(os.path.join(tempfile.mkdtemp(), "log"), delay=True))


def to_map(self, loss):
    MAPPED[0][0] = loss


def read_whole(path):
    with open(path) as file:
        return json.load(file)["loss"]


PASSING = {
    "a joined path": lambda: pair(to_json, lambda self: read_whole(os.path.join(self.held, "metrics.json")), FOLDER),
    "a formatted path": lambda: pair(
        to_text,
        lambda self: read_whole(f"{self.held}/m.txt"),
        FOLDER,
    ),
    "a path object": lambda: pair(
        lambda self, loss: (pathlib.Path(self.held) / "m.txt").write_text(str(loss)),
        lambda self: float((pathlib.Path(self.held) / "m.txt").read_text()),
        FOLDER,
    ),
    "a file of numpy": lambda: pair(
        lambda self, loss: np.save(self.held + "/a.npy", loss), lambda self: np.load(self.held + "/a.npy"), FOLDER
    ),
    "a file that is there": lambda: pair(
        lambda self, loss: loss > 2 and (pathlib.Path(self.held) / "STOP").touch(),
        lambda self: 3 * os.path.exists(os.path.join(self.held, "STOP")),
        FOLDER,
    ),
    "a flag with a plain name": lambda: pair(
        flagged, lambda self: 3 * (pathlib.Path(self.held) / "stop").exists(), FOLDER
    ),
    "a folder": lambda: pair(
        lambda self, loss: os.makedirs(self.held + "/over"),
        lambda self: 3 * os.path.isdir(os.path.join(self.held, "over")),
        FOLDER,
    ),
    "a folder's files": lambda: pair(to_text, lambda self: len(os.listdir(self.held)), FOLDER),
    "a pattern of files": lambda: pair(to_text, lambda self: len(glob.glob(self.held + "/*.txt")), FOLDER),
    "a file's size": lambda: pair(to_text, lambda self: os.path.getsize(os.path.join(self.held, "m")), FOLDER),
    "a file beside one that is written": lambda: pair(to_json, read_and_logged, FOLDER),
    "lines of TensorFlow": lambda: pair(
        to_text, lambda self: len(list(tf.data.TextLineDataset(self.held + "/m.txt"))), FOLDER
    ),
    "a mapped file": lambda: pair(to_map, lambda self: MAPPED[1][0]),
    "a log in a file": lambda: pair(
        lambda self, loss: FILE_LOG.info("%g", loss), lambda self: read_whole(self.held + "/log"), FOLDER
    ),
    "a data base": lambda: pair(
        to_sqlite, lambda self: sqlite3.connect(self.held + "/db").execute("select v from t").fetchone()[0], FOLDER
    ),
    "the environment": lambda: pair(
        lambda self, loss: os.environ.__setitem__("LOSS", str(loss)), lambda self: float(os.environ.get("LOSS", 0))
    ),
    "random numbers": lambda: pair(lambda self, loss: np.random.seed(int(loss)), lambda self: np.random.rand()),
    "a logger's level": lambda: pair(
        lambda self, loss: logging.getLogger("z").setLevel(int(loss)), lambda self: logging.getLogger("z").level
    ),
    "a thread": lambda: pair(
        lambda self, loss: setattr(threading.current_thread(), "kept", loss),
        lambda self: threading.current_thread().kept,
    ),
    "tf.summary": lambda: pair(
        lambda self, loss: tf.summary.experimental.set_step(int(loss)),
        lambda self: tf.summary.experimental.get_step(),
    ),
    "a module": lambda: pair(lambda self, loss: setattr(sys, "kept", loss), lambda self: sys.kept),
    "a layer": lambda: pair(to_layer, lambda self: self.model.layers[-1].last_loss),
    "the history": lambda: pair(
        lambda self, loss: setattr(self.model.history, "kept", loss), lambda self: self.model.history.kept
    ),
    "a schedule": lambda: pair(
        to_schedule, lambda self: self.held(0), keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)
    ),
    "an initializer": lambda: pair(
        lambda self, loss: setattr(self.held, "value", loss), lambda self: self.held.value, keras.initializers.Ones()
    ),
    "a queue": lambda: pair(
        lambda self, loss: self.held.enqueue(loss), lambda self: self.held.dequeue(), tf.queue.FIFOQueue(9, tf.float32)
    ),
    "seeds": lambda: pair(
        lambda self, loss: self.held.state.assign([int(loss), 0]),
        lambda self: float(self.held.state[0]),
        keras.random.SeedGenerator(1),
    ),
    "another callback of Keras": lambda: pair(
        lambda self, loss: setattr(self.held, "best", loss),
        lambda self: self.held.best,
        keras.callbacks.EarlyStopping("val_loss"),
    ),
}


@pytest.mark.few(99)
@pytest.mark.parametrize("way", PASSING)
def test_a_number_that_goes_past_what_both_hold_is_seen(way):
    reader, other = PASSING[way]()
    model = model_of()
    assert passes(Reach(reader, model), Reach(other, model))


class Hook(keras.callbacks.Callback):
    def __init__(self, folder="run"):
        super().__init__()
        self.folder, self.path, self.base, self.best, self.wait = folder, pathlib.Path(folder), 0.1, math.inf, 0
        self.flag, self.began, self.rates = False, time.time(), []


class ToJson(Hook):
    def on_epoch_end(self, epoch, logs=None):
        with open(os.path.join(self.folder, "metrics.json"), "a") as file:
            file.write(json.dumps({name: float(value) for name, value in logs.items()}) + "\n")


class ToCsv(Hook):
    def on_epoch_end(self, epoch, logs=None):
        new = not os.path.exists(self.path / "log.csv")
        with (self.path / "log.csv").open("a") as file:
            writer = csv.DictWriter(file, ["epoch", *logs])
            if new:
                writer.writeheader()
            writer.writerow({"epoch": epoch, **logs})


class ToServer(Hook):
    def on_epoch_end(self, epoch, logs=None):
        import urllib.request

        urllib.request.urlopen("http://localhost", json.dumps(dict(logs)).encode())


class ToBoard(Hook):
    def on_epoch_end(self, epoch, logs=None):
        with tf.summary.create_file_writer(self.folder).as_default():
            tf.summary.scalar("loss", logs["loss"], step=epoch)


class Prints(Hook):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch} {logs['loss']:.3f}", flush=True)


class Cosine(Hook):
    def on_epoch_begin(self, epoch, logs=None):
        rate = self.base * (1 + math.cos(math.pi * min(epoch, 10) / 10)) / 2
        self.rates.append(rate)
        self.model.optimizer.learning_rate = rate


class WarmUp(Hook):
    def on_train_batch_begin(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy()) + 1
        rate = np.interp(step, [0, 100], [0.0, self.base]) if step < 100 else self.base * step**-0.5
        self.model.optimizer.learning_rate.assign(keras.ops.minimum(rate, tf.math.exp(1.0)))


class Steps(Hook):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = RATES.get(epoch, float(self.model.optimizer.learning_rate))
        LOG.info("rate %g at %s", self.model.optimizer.learning_rate, datetime.datetime.now().isoformat())


class Logs(Hook):
    def on_epoch_begin(self, epoch, logs=None):
        rate = self.base * 0.9**epoch
        print("rate", rate, file=sys.stderr)
        with open(os.path.join(self.folder, "rates.txt"), "a") as file:
            file.write(f"{epoch} {rate}\n")
        tf.summary.scalar("rate", rate, step=epoch)
        self.model.optimizer.learning_rate = rate


class Plateau(Hook):
    def on_epoch_end(self, epoch, logs=None):
        current = (logs or {}).get("val_loss")
        if current is not None and np.less(current, self.best - 1e-4):
            self.best, self.wait = current, 0
        else:
            self.wait += 1
        if self.wait >= 3:
            self.reduce()

    def reduce(self):
        print("slower")
        self.model.optimizer.learning_rate = max(0.5 * float(self.model.optimizer.learning_rate), 1e-5)
        self.wait = 0


class Ends(Hook):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch + 1 >= len(RATES) or time.time() - self.began > 3600


class Signals(Hook):
    def on_train_begin(self, logs=None):
        signal.signal(signal.SIGTERM, self.handle)

    def handle(self, number, frame):
        self.flag = True

    def on_train_batch_end(self, batch, logs=None):
        if self.flag:
            self.model.stop_training = True


class Saves(Hook):
    def on_epoch_end(self, epoch, logs=None):
        os.makedirs(self.folder, exist_ok=True)
        if not os.path.isdir(self.folder) or epoch % 2:
            return
        self.model.save(os.path.join(self.folder, f"model_{epoch:03d}.keras"))
        self.model.save_weights(self.path / f"{epoch}.weights.h5")
        for old in sorted(self.path.glob("*.keras"))[:-3]:
            old.unlink()


class Evaluates(Hook):
    def on_epoch_end(self, epoch, logs=None):
        x, y = np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)
        error = np.mean(np.abs(self.model.predict(x, verbose=0) - y))
        found = self.model.evaluate(x, y, verbose=0, return_dict=True)
        self.history = {**found, "error": float(error)}
        if error < 0.1 and self.best > found["loss"]:
            self.model.stop_training = True


class Writes(Hook):
    def on_epoch_end(self, epoch, logs=None):
        sys.stderr.write(f"{epoch}: {logs['loss']:.3f}\r")
        sys.stderr.flush()


class Read(Hook):
    """Reads a table before `fit`."""

    def __init__(self, folder="run"):
        super().__init__(folder)
        if os.path.isfile(folder):
            with open(folder) as file:
                self.rates = json.load(file)
            self.best = float(np.load(folder))

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.rates[epoch]


class Places(Hook):
    """Saves where the machine, the environment and time say."""

    def on_epoch_end(self, epoch, logs=None):
        name = f"{platform.node()}-{os.getpid()}-{epoch}.keras"
        self.model.save(os.path.join(os.environ.get("SAVE", os.getenv("HOME", "")), name))
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(os.path.join(folder, "m.keras"))
        with open(os.path.join(self.folder, "saved.txt"), mode="a" if epoch else "w", encoding="utf-8") as file:
            file.write(name)
        if shutil.disk_usage("/").free < 1:
            self.model.stop_training = True


READERS = (ToJson, ToCsv, ToServer, ToBoard, Prints, Writes)
DECIDING = (Cosine, WarmUp, Steps, Logs, Plateau, Ends, Signals, Saves, Evaluates, Read, Places)


@pytest.mark.few(99)
@pytest.mark.parametrize("other", DECIDING)
@pytest.mark.parametrize("reader", READERS)
def test_programs_as_they_are_mostly_written_are_left_in_peace(reader, other):
    model = model_of()
    found = Reach(other("elsewhere"), model)
    assert not passes(Reach(reader(), model), found), sorted(found.passages.finds)
