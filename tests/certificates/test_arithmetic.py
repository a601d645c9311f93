"""Where float32 numbers are computed with otherwise than bounds take for given, nothing is released."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates import arithmetic

OPTIONS = ["auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16"]
VARIABLE = "ONEDNN_DEFAULT_FPMATH_MODE"


def made(noise: float = 1.0, compiled: bool = False) -> keras.Model:
    model = tfdp.PrivateSequential([keras.Input((2, 8)), keras.layers.Dense(8, use_bias=False)])
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), noise, 1.0)
    model.compile(optimizer, lambda y, out: tf.reduce_sum(y * out, axis=[1, 2]), jit_compile=compiled)
    return model


def trained(model: keras.Model, **options: object) -> None:
    model.fit(np.ones((4, 2, 8)), np.ones((4, 2, 8)), batch_size=2, epochs=2, verbose=0, **options)


@pytest.mark.parametrize("option", OPTIONS)
def test_float32_layers_are_not_rewritten_in_16_bits(option: str) -> None:
    model = made()
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        with pytest.raises(ValueError, match=f"has '{option}' on. Switch it off: tf.config.optimizer.set_experimental"):
            trained(model)
        assert model.ledger.updates == 0
    finally:
        tf.config.optimizer.set_experimental_options({option: False})
    trained(model)


def test_a_step_without_its_checks_is_refused() -> None:
    model = made()
    tf.config.optimizer.set_experimental_options({"debug_stripper": True})
    try:
        with pytest.raises(
            ValueError, match=r"'debug_stripper' on.*Switch it off: tf.config.optimizer.set_experimental"
        ):
            trained(model)
        assert model.ledger.updates == 0
    finally:
        tf.config.optimizer.set_experimental_options({"debug_stripper": False})
    trained(model)


@pytest.mark.few(1)
@pytest.mark.parametrize("variable", arithmetic._VARIABLES)
def test_what_the_environment_asks_for_is_refused_whatever_was_seen_of_it(monkeypatch, variable: str) -> None:
    """Of some processors and sizes only some products are rounded: 64 x 64 may not show it."""
    model = made()
    monkeypatch.setenv(variable, "1" if variable.startswith("NVIDIA") else "BF16")
    with pytest.raises(ValueError, match=f"the environment has {variable}.*Unset.*mixed_bfloat16"):
        trained(model)
    assert model.ledger.updates == 0
    monkeypatch.setenv(variable, arithmetic._VARIABLES[variable])
    trained(model)


def test_products_that_are_seen_to_be_rounded_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(arithmetic, "_rounded", lambda compiled: ("convolution",))
    with pytest.raises(ValueError, match="tried: convolution"):
        trained(made())


@pytest.mark.parametrize("change", ["TensorFloat-32", "debug_stripper", *OPTIONS])
def test_a_callback_does_not_have_products_rounded(change: str) -> None:
    def begin(_: int) -> None:
        if change == "TensorFloat-32":
            tf.config.experimental.enable_tensor_float_32_execution(True)
        else:
            tf.config.optimizer.set_experimental_options({change: True})

    model, callback = made(), keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begin(epoch))
    try:
        with pytest.raises(RuntimeError, match=r"how TensorFlow rounds products.*debug_stripper"):
            trained(model, callbacks=[callback])
        assert model.ledger.updates == 0
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.optimizer.set_experimental_options({name: False for name in ("debug_stripper", *OPTIONS)})


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [tf.bfloat16, tf.float16])
def test_every_kind_of_product_that_rounds_its_factors_is_noticed(monkeypatch, kind, compiled) -> None:
    """The planted bug: factors of 8 or 11 bits, their products summed in float32."""
    plain = arithmetic._products
    monkeypatch.setattr(arithmetic, "_products", lambda values: plain(tf.cast(tf.cast(values, kind), tf.float32)))
    assert len(arithmetic._rounded.__wrapped__(compiled)) == 4
    monkeypatch.setattr(arithmetic, "_products", plain)
    assert arithmetic._rounded.__wrapped__(compiled) == ()


WITNESS = """
import numpy as np, tensorflow as tf, sys
sys.path.insert(0, {folder!r})
from tfdp_layers.certificates import arithmetic
from test_arithmetic import made, trained
model = made(0.0)
x, y = np.ones((1, 2, 8), "float32"), np.zeros((1, 2, 8), "float32")
y[:, 0], y[:, 1] = 257, -256  # of 8 bits both are 256, and the gradient is 0
(moved,) = tf.function(model.bounded_gradient_sums)(x, y)
print("rounded", len(arithmetic._rounded(False)), "moved", np.linalg.norm(moved))
trained(model)
"""


@pytest.mark.slow
def test_a_process_whose_products_are_rounded_trains_nothing() -> None:
    """One record moves a sum by 1.3 times its bound: its norm comes from a difference of rounded products."""
    script = WITNESS.format(folder=os.path.dirname(__file__))
    environment = os.environ | {VARIABLE: "BF16"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    _, rounded, _, moved = done.stdout.split()
    if rounded == "0":
        pytest.skip("This processor has no products of 8 bits.")
    assert float(moved) > 1.25
    assert done.returncode == 1
    assert f"Unset {VARIABLE}" in done.stderr


CLUSTERS = {
    "asked for": (True, ""),
    "by itself": (False, "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", CLUSTERS)
def test_a_process_that_knows_no_nan_trains_nothing(way: str) -> None:
    """Under these flags a record of NaN made the sum of all NaN in a compiled step, and in parts that XLA compiles."""
    folder, (compiled, clusters) = os.path.dirname(__file__), CLUSTERS[way]
    script = (
        f"import sys; sys.path.insert(0, {folder!r}); import test_arithmetic as t; t.trained(t.made(1, {compiled}))"
    )
    flags = "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false --xla_cpu_fast_math_honor_infs=false"
    environment = os.environ | {"XLA_FLAGS": flags, "TF_XLA_FLAGS": clusters}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "from XLA_FLAGS before Python starts" in done.stderr


def test_xla_is_looked_at_wherever_it_may_compile(monkeypatch) -> None:
    monkeypatch.setattr(arithmetic, "_sees_what_is_not_finite", lambda: False)
    for flags in ("", "--tf_xla_auto_jit=0", "--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit"):
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        arithmetic.require_float32(False)
    for flags in ("--tf_xla_auto_jit=1", "--tf_xla_cpu_global_jit --tf_xla_auto_jit=fusible"):
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        with pytest.raises(ValueError, match="XLA_FLAGS"):
            arithmetic.require_float32(False)
    monkeypatch.delenv("TF_XLA_FLAGS")
    tf.config.optimizer.set_jit("autoclustering")
    try:
        with pytest.raises(ValueError, match="XLA_FLAGS"):
            arithmetic.require_float32(False)
    finally:
        tf.config.optimizer.set_jit(False)
    arithmetic.require_float32(False)
