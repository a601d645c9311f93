"""What bounds and noise were made from stays what an optimizer was made with; what it wraps may be another one."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.clipping.norm_clips import PerLayerClipping

X, Y = np.ones((20, 4), "float32"), np.ones((20, 1), "float32")
CLIPPED: Any = tfdp.optimizers.ClippedOptimizer
CHOICES = {
    CLIPPED: {
        "l2_norm_clip": 5.0,
        "clipping": "adaptive",
        "target_quantile": 0.9,
        "threshold_rate": 0.7,
        "allow_generic": True,
    },
    tfdp.optimizers.TanhFilteredOptimizer: {
        "l2_norm_clip": 5.0,
        "output_scale": 2.0,
        "active_range": 3.0,
        "bound": "dimension",
        "as_published": True,
        "allow_generic": True,
    },
    tfdp.optimizers.AdaDPOptimizer: {
        "clip_factor": 2.0,
        "l2_norm_clip": 5.0,
        "rate_decay": 0.3,
        "noise_decay": 0.3,
        "variance_threshold": 0.1,
        "adaptive_rate": False,
        "adaptive_noise": False,
        "as_published": True,
        "scale_estimator": "query",
        "allow_generic": True,
    },
    tfdp.optimizers.NoisyOptimizer: {},
}
CASES = [
    (kind, name, value) for kind, choices in CHOICES.items() for name, value in {**choices, "memory": None}.items()
]


def made(kind: Any, **options: Any) -> Any:
    wrapped = {} if kind is tfdp.optimizers.AdaDPOptimizer else {"optimizer": "sgd"}
    return kind(**wrapped, noise_multiplier=1.0, **options)


def compiled(optimizer: Any) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="head")]))
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_choice_that_a_bound_or_noise_was_made_from_cannot_be_assigned(kind: Any, name: str, value: Any) -> None:
    optimizer = made(kind)
    before = optimizer.get_config()
    with pytest.raises(AttributeError, match=f"{kind.__name__}.{name} stays what .* Make another"):
        setattr(optimizer, name, value)
    with pytest.raises(AttributeError, match="stays what"):
        delattr(optimizer, name)
    assert optimizer.get_config() == before


@pytest.mark.parametrize("kind", CHOICES, ids=lambda kind: kind.__name__)
def test_an_optimizer_says_what_it_was_made_with(kind: Any) -> None:
    for name, value in CHOICES[kind].items():
        assert getattr(made(kind, **{name: value}), name) == value


def test_every_choice_of_a_bound_is_listed_here() -> None:
    for kind, choices in CHOICES.items():
        assert set(kind._FIXED) == {*choices, "memory"}


def test_clips_of_layers_are_copied_and_pickled() -> None:
    for clips in ({"dense": 1.0}, 2.0):
        made = PerLayerClipping(clips)
        assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


def test_a_dict_of_clips_is_copied() -> None:
    clips = {"head": 0.5}
    optimizer = made(CLIPPED, l2_norm_clip=clips, clipping="per_layer")
    model = compiled(optimizer)
    model.fit(X, Y, batch_size=5, verbose=0)
    clips["head"] = 100.0
    with pytest.raises(TypeError):
        optimizer.l2_norm_clip["head"] = 100.0
    assert [group.bound for group in model.sensitivities()] == [0.5]
    for other in (copy.deepcopy(optimizer), CLIPPED.from_config(optimizer.get_config())):
        assert dict(other.l2_norm_clip) == {"head": 0.5}


INNER: dict[str, Callable[[], Any]] = {
    "scales losses": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    "gradient_accumulation_steps=4": lambda: keras.optimizers.SGD(gradient_accumulation_steps=4),
    "is private already": lambda: made(CLIPPED),
}


@pytest.mark.parametrize("said", INNER)
def test_what_the_constructor_does_not_wrap_cannot_be_assigned(said: str) -> None:
    optimizer = made(CLIPPED)
    inner = optimizer.inner_optimizer
    with pytest.raises(ValueError, match=said):
        optimizer.inner_optimizer = INNER[said]()
    assert optimizer.inner_optimizer is inner


@pytest.mark.parametrize("name", ["gradient_accumulation_steps", "loss_scale_factor"])
def test_what_it_does_not_wrap_is_not_advised(name: str) -> None:
    with pytest.raises(TypeError, match=rf"has no argument {name}, and wraps no optimizer that has it"):
        made(CLIPPED, **{name: 4})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("said", "name", "value"),
    [("scales losses", "loss_scale_factor", 8.0), ("accumulation", "gradient_accumulation_steps", 4)],
)
def test_nor_does_a_fit_begin_with_a_wrapped_optimizer_that_was_changed_so(said: str, name: str, value: Any) -> None:
    model = compiled(made(CLIPPED))
    setattr(model.optimizer.inner_optimizer, name, value)
    with pytest.raises(ValueError, match=said):
        model.fit(X, Y, batch_size=5, verbose=0)
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_what_a_step_adds_noise_with_is_what_a_stream_starts_anew() -> None:
    """A memory in another's place, put there past the rule: the next fit steps on it, and on no older one."""
    noise = tfdp.noise.Correlated(0.9)
    model = compiled(made(CLIPPED, noise=noise))
    for _ in range(2):
        model.fit(X, Y, sampling=tfdp.sampling.Cyclic(20), verbose=0)
        step, vars(model.optimizer)["memory"] = model.train_function, tfdp.noise.NoiseMemory()
    model.fit(X, Y, sampling=tfdp.sampling.Cyclic(20), verbose=0)
    assert model.train_function is not step
    assert model.optimizer.memory._last, "the step keeps its noise where the stream was started"


def test_how_many_streams_a_memory_started_is_for_nobody_to_say() -> None:
    with pytest.raises(AttributeError):
        tfdp.noise.NoiseMemory().streams = 0  # type: ignore[misc]
