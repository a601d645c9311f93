"""What the checks beside share. They run in processes of their own: TensorFlow takes its devices when it starts."""

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

import tfdp_layers as tfdp
from helpers.normality import WRONG, is_normal

WEIGHTS, BATCH, SIGMA = 8_000, 4, 1.5


def run(check: Callable[..., Any], *args: Any) -> None:
    """Runs a check and prints its name, what went wrong, and its seconds, as one line of JSON."""
    started = time.process_time()
    try:
        check(*args)
        error = None
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([check.__name__, error, round(time.process_time() - started, 1)]), flush=True)


def example(name: str) -> Any:
    """The compiled example of that name in docs/growing.md."""
    text = (Path(__file__).parents[3] / "docs" / "growing.md").read_text()
    (_, after) = text.split(f"<!-- example: {name} -->\n```python\n")
    return compile(after.split("```")[0], name, "exec")


def weights(model: Any) -> np.ndarray:
    """All floating-point weights, (n,)."""
    return np.concatenate([w.ravel() for w in model.get_weights() if w.dtype.kind == "f"])


def still(model: Any) -> Any:
    """The model with its dropout switched off."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model


def wide_model(**options: Any) -> tuple[Any, Any, Any]:
    """A compiled model of many weights with one bounded layer of bound 1, and records whose gradient is zero."""
    layer = tfdp.layers.ClippedDense(WEIGHTS // 8, use_bias=False, input_clip=1.0, upstream_clip=1.0)
    model = tfdp.PrivateSequential([keras.Input((8,)), layer])
    model.compile(
        tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), SIGMA, **options), lambda y, p: p[:, 0] * 0.0
    )
    return model, np.ones((16, 8), "float32"), np.zeros(16, "float32")


def drawn_noise(model: Any, x: Any, y: Any) -> np.ndarray:
    """What one step added to the sum of all replicas, over the standard deviation that the ledger states, (n,)."""
    before = weights(model)
    model.fit(x, y, sampling=tfdp.sampling.FixedSize(BATCH), steps_per_epoch=1, verbose=0)
    (entry,) = model.ledger.entries
    assert entry.steps == 1
    ((noise,), (group,)) = entry.release.groups, model.sensitivities()
    assert noise.stddev == SIGMA * group.bound
    return (before - weights(model)) * BATCH / noise.stddev


def stream_noise(model: Any, x: Any, y: Any) -> np.ndarray:
    """What a pass over 16 records added in each of its steps, over the stated standard deviation, (steps, weights)."""
    after = [weights(model)]
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after.append(weights(model)))
    model.fit(x, y, sampling=tfdp.sampling.Cyclic(BATCH), epochs=1, verbose=0, callbacks=[note])
    (entry,) = model.ledger.entries
    assert entry.steps == len(x) // BATCH
    return -np.diff(np.stack(after), axis=0) * BATCH / entry.release.groups[0].stddev


def is_correlated(noise: np.ndarray, decay: float) -> bool:
    """Whether the covariance over the weights is that of z_t - decay z_(t-1), within six deviations."""
    steps = len(noise)
    wanted = np.eye(steps) - decay * np.eye(steps, k=-1)
    wanted, found = wanted @ wanted.T, noise @ noise.T / noise.shape[1]
    deviation = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / noise.shape[1])
    return bool(np.all(np.abs(found - wanted) < 6 * deviation))


def is_standard_normal(sample: np.ndarray) -> bool:
    """Kolmogorov and Smirnov's test; a sample of 2/3 or 3/2 the deviation fails it beyond doubt."""
    right = is_normal(sample)
    assert not (right and any(is_normal(sample, wrong) for wrong in WRONG))
    return right
