"""The clipped sum is that of TensorFlow Privacy 0.9, which runs in an environment of its own (TensorFlow 2.15).

python3.11 -m venv tfp && tfp/bin/pip install "tensorflow==2.15.*" "tensorflow-privacy==0.9.0"
TFDP_TF_PRIVACY_PYTHON=tfp/bin/python pytest tests/per_record/test_tf_privacy.py
"""

import ast
import os
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

SCRIPT = Path(__file__).parents[1] / "helpers" / "tf_privacy_sums.py"
PYTHON = os.environ.get("TFDP_TF_PRIVACY_PYTHON")


def layers_of(name: str) -> list[Any]:
    """`layers` of the script, without importing TensorFlow Privacy."""
    (function,) = [n for n in ast.parse(SCRIPT.read_text()).body if getattr(n, "name", "") == "layers"]
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), str(SCRIPT), "exec"), namespace)
    return namespace["layers"](keras, name)


@pytest.mark.skipif(not PYTHON, reason="TFDP_TF_PRIVACY_PYTHON names no Python with TensorFlow Privacy 0.9")
@pytest.mark.parametrize("clip", [0.05, pytest.param(100.0, marks=pytest.mark.slow)], ids=["binding", "loose"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "text", "lstm"])
def test_the_clipped_sum_is_tensorflow_privacys(name: str, clip: float, tmp_path: Path) -> None:
    model = tfdp.make_private(keras.Sequential(layers_of(name)))
    rng = np.random.default_rng(0)
    shape = (8, *model.input_shape[1:])
    x = rng.integers(0, 11, shape) if name == "text" else rng.normal(size=shape).astype("float32")
    y = rng.integers(0, 3, 8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, clip), loss)
    weights = {f"w{i}": w for i, w in enumerate(model.get_weights())}
    np.savez(tmp_path / "in.npz", x=x, y=y, clip=clip, **weights)
    command = [PYTHON, SCRIPT, name, tmp_path / "in.npz", tmp_path / "out.npz"]
    subprocess.run(command, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"})
    theirs = list(np.load(tmp_path / "out.npz").values())
    size = np.sqrt(sum(np.sum(g**2) for g in theirs))
    for mine, other in zip(model.bounded_gradient_sums(x, y), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5 * size)
