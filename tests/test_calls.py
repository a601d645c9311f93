"""A call that lacks an argument, or has one too many, is told so in a sentence, by everything that is public."""

import inspect
import pickle

import keras
import pytest

import tfdp_layers as tfdp
from tfdp_layers import (
    accounting,
    audit,
    callbacks,
    datasets,
    federated,
    layers,
    noise,
    optimizers,
    plots,
    preprocessing,
    rules,
    sampling,
    tuning,
)
from tfdp_layers.calls import explained

ROOMS = [accounting, audit, callbacks, datasets, federated, layers, noise, optimizers, plots, preprocessing, rules]
ROOMS += [sampling, tuning, tfdp]


def made_here(kind):
    """Whether users make no objects of a class, or none with arguments."""
    return issubclass(kind, Exception | float) or inspect.isabstract(kind) or kind.__init__ is object.__init__


def public():
    found = {}
    for room in ROOMS:
        for name in (name for name in dir(room) if name[0] != "_" and name in room.__all__):
            thing = getattr(room, name)
            ours = str(getattr(thing, "__module__", "")).startswith("tfdp_layers.")
            if ours and callable(thing) and not (isinstance(thing, type) and made_here(thing)):
                found[f"{room.__name__}.{name}"] = thing
    return found


def parameters(thing):
    kinds = inspect.Parameter
    given = list(inspect.signature(thing).parameters.values())
    needed = [one.name for one in given if one.default is one.empty and one.kind not in (4, kinds.VAR_POSITIONAL)]
    needed = [one for one in needed if one not in [p.name for p in given if p.kind is kinds.VAR_KEYWORD]]
    return needed, {one.kind for one in given}


def said(call):
    with pytest.raises(TypeError) as error:
        call()
    assert error.value.__cause__ is None
    assert error.value.__context__ is None  # one error, and not a second one above it
    return str(error.value)


def test_everything_public_says_what_it_needs_what_is_too_much_and_what_it_does_not_know():
    looked = 0
    for name, thing in public().items():
        needed, kinds = parameters(thing)
        short = thing.__name__
        if needed:
            assert said(thing).startswith(f"{short} needs "), name
            assert all(one in said(thing) for one in needed), name
            looked += 1
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            assert said(lambda: thing(nonsense=1)).startswith(f"{short} has no argument 'nonsense'."), name  # noqa: B023
        if inspect.Parameter.VAR_POSITIONAL not in kinds and not issubclass(type(thing), type(keras.Model)):
            assert f"{short} takes " in said(lambda: thing(*range(60))), name  # noqa: B023
    assert looked > 60


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: accounting.Ledger("a.json", "patients"),
            "only path by place, and got 2.* Write Ledger.path, dataset=",
        ),
        (lambda: tfdp.release_metric([1.0], accounting.Ledger()), "needs stddev. stddev: of the noise on the mean"),
        (lambda: optimizers.ClippedOptimizer(), "needs optimizer. optimizer: any Keras optimizer, a name"),
        (lambda: layers.ClippedDense(), "^ClippedDense needs units"),  # which Keras' Dense says of itself
        (lambda: callbacks.PrivacyBudget(epsilom=3.0, delta=1e-5), "no argument 'epsilom'. Did you mean 'epsilon'"),
        (lambda: audit.audit_training(), "needs model, x and y"),
        (lambda: type("Mine", (sampling.Poisson,), {})(), "^Mine needs batch_size"),
    ],
)
def test_the_sentence(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_what_fits_is_called_as_it_is_and_errors_from_within_pass():
    def inner(one):
        return one

    assert explained(inner) is inner  # nothing of others is changed
    with pytest.raises(TypeError, match="got an unexpected argument 'ledger'"):
        tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), ledger=5)
    for thing in (tfdp.release_metric, accounting.epsilon, layers.ClippedDense, sampling.Poisson):
        assert pickle.loads(pickle.dumps(thing)) is thing
    assert list(inspect.signature(layers.DPPCA).parameters)[:2] == ["components", "noise_multiplier"]
    assert layers.DPPCA(2, 9.0).get_config()["components"] == 2
    assert "epsilon" in inspect.getfullargspec(callbacks.PrivacyBudget.__init__).args  # as Keras reads signatures
