"""What a private step of BERT costs, in time and in memory, over the ordinary Keras step.

Run: pip install keras-hub; python benchmarks/hub_time.py [--heads classifier,masked_lm] [--ways full,lora]
         [--clock cpu] [--rounds 5] [--steps 8]

KerasHub's BERT of two layers: vocabulary 30,000, width 128, two heads, 128 tokens, dropout 0.1, at batch 32, flat
clipping, SGD, through `fit`'s compiled step with noise. `masked_lm` has 20 masked positions and logits tied to the
embedding. Times are of interleaved rounds in one process; peak resident memory is of one process for each, whose memory
before training is given as well.
"""

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.commands.timing import interleaved

FLAGS = flags.FLAGS
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
flags.DEFINE_integer("rounds", 5, "Interleaved rounds.", lower_bound=1)
flags.DEFINE_integer("steps", 8, "Timed steps a round.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Expected batch size.", lower_bound=1)
flags.DEFINE_enum("clock", "wall", list(CLOCKS), "Time passed, or processor time of all threads (beside other work).")
flags.DEFINE_list("heads", ["classifier", "masked_lm"], "What is on top of the backbone.")
flags.DEFINE_list("ways", ["full", "lora"], "What is trained: all weights, or `enable_lora(4)` and the head.")
flags.DEFINE_bool("memory", True, "Measure memory as well.")
flags.DEFINE_enum("only", None, ["keras", "private"], "Train one of them and print the memory before and at the peak.")
VOCABULARY, LENGTH, MASKED = 30_000, 128, 20


def network(head: str, way: str) -> keras.Model:
    """BERT with a head, built."""
    import keras_hub

    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 128, "intermediate_dim": 512}
    backbone = keras_hub.models.BertBackbone(VOCABULARY, max_sequence_length=LENGTH, **sizes)
    kind = keras_hub.models.BertTextClassifier if head == "classifier" else keras_hub.models.BertMaskedLM
    model = kind(backbone=backbone, preprocessor=None, **({"num_classes": 2} if head == "classifier" else {}))
    if way == "lora":
        backbone.enable_lora(4)
    return model


def records(head: str, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (count, LENGTH)
    x = {
        "token_ids": rng.integers(0, VOCABULARY, shape),
        "segment_ids": np.zeros(shape),
        "padding_mask": np.ones(shape),
    }
    y = rng.integers(0, 2, count)
    if head == "masked_lm":
        x["mask_positions"] = rng.integers(0, LENGTH, (count, MASKED))
        y = rng.integers(0, VOCABULARY, (count, MASKED))
    return {name: values.astype("int32") for name, values in x.items()}, y


def compiled(head: str, way: str, private: bool) -> Any:
    """The model, compiled with SGD."""
    model, loss = network(head, way), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if private:
        model = tfdp.make_private(model)
        model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.01), 1.0), loss)
    else:
        model = keras.Model(model.inputs, model.outputs)
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    return model


def resident(which: str) -> float:
    """GiB now (VmRSS) or at the peak of this process (VmHWM; what `resource` tells counts the parent's in)."""
    return int(re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**20  # type: ignore[index]


def memory(head: str, way: str, which: str) -> tuple[float, float]:
    """GiB before training, and at the peak, in a process of its own."""
    options = ["--heads", head, "--ways", way, "--only", which, "--steps", "4"]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split()[-2:])
    return before, after


def train_alone(head: str, way: str, which: str) -> None:
    """Trains one model and prints the memory."""
    model = compiled(head, way, which == "private")
    x, y = records(head, FLAGS.batch_size * FLAGS.steps)
    before = resident("VmRSS")
    model.fit(x, y, batch_size=FLAGS.batch_size, steps_per_epoch=FLAGS.steps, verbose=0)
    print(before, resident("VmHWM"))


def main(_: list[str]) -> None:
    for head in FLAGS.heads:
        for way in FLAGS.ways:
            if FLAGS.only:
                train_alone(head, way, FLAGS.only)
                continue
            models = [compiled(head, way, private) for private in (False, True)]
            x, y = records(head, FLAGS.batch_size * (FLAGS.steps + 2))
            rounds = interleaved(models, x, y, FLAGS.batch_size, FLAGS.steps, FLAGS.rounds, CLOCKS[FLAGS.clock])
            ratios = [own / plain for plain, own in rounds]
            middle = [statistics.median(times) for times in zip(*rounds, strict=True)]
            spread = f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            print(f"{head} {way}: keras {middle[0]:.0f} ms, private {middle[1]:.0f} ms, {spread}", flush=True)
            if FLAGS.memory:
                (before, keras_peak), (_, private_peak) = (memory(head, way, which) for which in ("keras", "private"))
                found = f"keras {keras_peak:.2f} GiB, private {private_peak:.2f} GiB, before {before:.2f} GiB"
                extra = (private_peak - before) / (keras_peak - before)
                print(
                    f"  {found}: ratio {private_peak / keras_peak:.2f}, of what training adds {extra:.2f}", flush=True
                )


if __name__ == "__main__":
    app.run(main)
