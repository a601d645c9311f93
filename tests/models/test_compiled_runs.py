"""Whether XLA compiles a step is asked once for a training: its batches are padded, and its step made, by that."""

from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

RECORDS, EXPECTED, PIECE = 40, 17, 8
X, Y = np.eye(RECORDS, dtype="float32"), np.zeros((RECORDS, 1), "float32")


class Contributions(keras.callbacks.Callback):
    """How much of each record is in the sum of each step, in units of its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[np.ndarray] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.before = self.model.get_weights()[0]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        after = self.model.get_weights()[0]
        self.steps.append((self.before - after)[:, 0] * EXPECTED)
        self.before = after


def compiled(jit_compile: bool) -> Any:
    """Each record's clipped gradient is of its own weight, of norm 1: what moves a weight shows how often it counts."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tfdp.make_private(keras.Sequential([keras.Input((RECORDS,)), dense]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1.0)
    model.compile(optimizer, lambda y, p: keras.ops.abs(p + 1e6 - y)[:, 0], jit_compile=jit_compile)
    return model


def settings(*callbacks: Any) -> dict[str, Any]:
    sampling = tfdp.sampling.Poisson(EXPECTED)
    return {"sampling": sampling, "physical_batch_size": PIECE, "verbose": 0, "callbacks": [*callbacks]}


def largest(look: Contributions) -> float:
    assert look.steps
    return float(np.max(look.steps))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_compiled_otherwise_between_two_fits_counts_each_record_once(first: bool) -> None:
    model, look = compiled(first), Contributions()
    model.fit(X, Y, epochs=1, **settings())
    model.jit_compile = not first
    model.fit(X, Y, epochs=4, **settings(look))
    assert largest(look) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.slow
def test_the_loop_of_another_run_is_compiled_as_the_model_says_by_then() -> None:
    model, look = compiled(True), Contributions()
    for _ in range(2):
        with model.private_run(X, Y, epochs=2, **settings(look)) as run:
            for batch in run:
                run.step(batch)
        model.jit_compile = False
    assert largest(look) == pytest.approx(1.0, abs=1e-2)


class Sets(keras.callbacks.Callback):
    """Sets `jit_compile` in one hook, and in another one sets it back."""

    def __init__(self, hook: str, value: bool, back: str = "") -> None:
        super().__init__()
        self._hook, self._value, self._back = hook, value, back

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._do("set_model")

    def on_train_begin(self, logs: Any = None) -> None:
        self._do("on_train_begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self._do("on_epoch_begin")

    def _do(self, hook: str) -> None:
        if hook in (self._hook, self._back):
            self.model.jit_compile = self._value if hook == self._hook else not self._value


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("first", "sets"),
    [
        (True, Sets("on_train_begin", False)),
        (False, Sets("set_model", True, back="on_train_begin")),
        (True, Sets("set_model", False, back="on_train_begin")),
    ],
    ids=["off", "on and off again", "off and on again"],
)
def test_a_callback_that_sets_it_before_the_first_step_is_refused_and_nothing_is_released(
    first: bool, sets: Sets
) -> None:
    model = compiled(first)
    with pytest.raises(RuntimeError, match="jit_compile or steps_per_execution was changed while fit runs"):
        model.fit(X, Y, epochs=2, **settings(sets))
    assert model.ledger.steps == int(model.optimizer.releases.numpy()) == 0


def test_a_callback_that_sets_it_later_is_refused_before_the_next_step() -> None:
    model, look = compiled(False), Contributions()
    with pytest.raises(RuntimeError, match="jit_compile or steps_per_execution was changed while fit runs"):
        model.fit(X, Y, epochs=3, **settings(look, Sets("on_epoch_begin", True)))
    assert model.ledger.steps == len(look.steps) == 3
    assert largest(look) == pytest.approx(1.0, abs=1e-2)


def test_a_loop_that_sets_it_is_refused_before_the_next_step() -> None:
    model = compiled(False)
    with model.private_run(X, Y, epochs=2, **settings()) as run:
        run.step(next(run))
        model.jit_compile = True
        with pytest.raises(RuntimeError, match="jit_compile or steps_per_execution was changed while fit runs"):
            run.step(next(run))
    assert model.ledger.steps == 1


class ActsWhereItIsBuilt(keras.layers.Layer):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def build(self, shape: Any) -> None:
        self.act()

    def call(self, x: Any) -> Any:
        return x


def test_a_layer_that_sets_it_after_the_batches_were_made_is_refused() -> None:
    layer = ActsWhereItIsBuilt(lambda: setattr(model, "jit_compile", True))
    model = tfdp.PrivateSequential([layer, keras.layers.Dense(1, use_bias=False)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "mse", jit_compile=False)
    with pytest.raises(RuntimeError, match="jit_compile"):
        model.fit(X, Y, epochs=1, **settings())
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_an_eager_model_is_compiled_again_where_it_is_eager_no_more() -> None:
    model, look = compiled(False), Contributions()
    model.run_eagerly = True
    model.fit(X, Y, epochs=1, **settings())
    eager = model.train_function
    model.run_eagerly = False
    model.fit(X, Y, epochs=2, **settings(look))
    assert model.train_function is not eager
    assert largest(look) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.slow
def test_two_fits_with_the_same_settings_are_traced_once() -> None:
    model = compiled(True)
    model.fit(X, Y, epochs=1, **settings())
    step = model.train_function
    model.fit(X, Y, epochs=1, **settings())
    assert model.train_function is step


ROWS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
BY_ENTRIES = {
    "AdaDP": lambda: tfdp.optimizers.AdaDPOptimizer(0.1, noise_multiplier=2.0),
    "the tanh filter": lambda: tfdp.optimizers.TanhFilteredOptimizer("sgd", noise_multiplier=2.0),
}


@pytest.mark.parametrize("name", BY_ENTRIES)
def test_pieces_of_one_record_that_xla_cannot_compile_are_refused_before_a_step(name: str) -> None:
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]))
    model.compile(BY_ENTRIES[name](), "mse", jit_compile=True)
    with pytest.raises(ValueError, match="physical_batch_size=2"):
        model.fit(ROWS, ROWS[:, :1], batch_size=4, physical_batch_size=1, verbose=0)
    assert model.ledger.steps == 0
    model.fit(ROWS, ROWS[:, :1], batch_size=4, physical_batch_size=2, verbose=0)
    assert model.ledger.steps == 4
