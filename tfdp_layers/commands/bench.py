"""`tfdp bench`: what a private step costs on this machine, beside the same network's ordinary step."""

import logging
import statistics
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfdp_layers.commands.command import Command, Refusal, definers, print_json, whole
from tfdp_layers.commands.quiet_import import quiet_import

__all__ = ["COMMAND"]

_DESCRIPTION = """
Times training steps through `fit`, noise included, of a network trained privately in several ways,
and of the same network in ordinary Keras, in interleaved rounds on random records. Ratios are to the
ordinary step of the same round: they hold where the machine's speed changes; milliseconds do not.

Ways: in_layer (every layer that has a clipped twin normalises its records' gradients), flat,
per_layer and automatic (clipping of tfdp.optimizers.ClippedOptimizer), tanh, adadp. A network that a
way refuses is reported with the reason.

Examples:
  tfdp bench --network mlp
  tfdp bench --keras-model model.keras --ways flat,per_layer --batch-size 64
"""

WAYS = ("in_layer", "flat", "per_layer", "automatic", "tanh", "adadp")
_MOST_RECORDS = 10**6
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _define(values: flags.FlagValues) -> None:
    define, choose = definers(values)
    choose("network", ["cnn", "mlp"], "cnn: 28x28x1, 26k weights; mlp: 784-1000-10, 795k.", "cnn")
    define("string", "keras_model", "A .keras file of a Sequential or functional model, in place of --network.")
    define("string", "ways", f"Of {', '.join(WAYS)}.", "in_layer,flat,per_layer")
    define("integer", "batch_size", "Expected batch size.", 256)
    define("integer", "rounds", "Interleaved rounds.", 7)
    define("integer", "steps", "Timed steps of each in a round.", 12)
    choose("clock", list(_CLOCKS), "Time passed, or processor time of all threads (beside other work).", "wall")
    define("bool", "json", "Print one JSON object.", False)


def _run(values: flags.FlagValues) -> int:
    batch_size, rounds, steps = _sizes(values)
    ways = values.ways.split(",")
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise Refusal(f"--ways takes names of {', '.join(WAYS)}, with commas between them. Received: {unknown[0]!r}.")
    if values.keras_model is not None:
        _check_file(values.keras_model)
    with quiet_import():
        import keras

        from tfdp_layers.commands.timing import interleaved
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # that it traces each model anew
    network = _loaded(values.keras_model) if values.keras_model else _built(values.network)
    plain = keras.models.clone_model(network)
    plain.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    refused: dict[str, str] = {}
    models: dict[str, Any] = {"keras": plain}
    x, y = _records(plain, (steps + 3) * batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that so short a training learns nothing
        for way in ways:
            try:
                model = _private(way, keras.models.clone_model(network))
                model.fit(x, y, batch_size=batch_size, steps_per_epoch=1, verbose=0)
                models[way] = model
            except ValueError as error:
                refused[way] = str(error)
        found = interleaved(list(models.values()), x, y, batch_size, steps, rounds, _CLOCKS[values.clock])
    results = dict(zip(models, _summaries(found, batch_size), strict=True))
    if values.json:
        sizes = {"weights": plain.count_params(), "batch_size": batch_size, "clock": values.clock}
        print_json(sizes | {"ways": results, "refused": refused})
    else:
        print(f"{plain.count_params():,} weights, batch size {batch_size}, {rounds} rounds of {steps} steps")
        _print(results, refused)
    return 0


def _sizes(values: flags.FlagValues) -> tuple[int, int, int]:
    """Records in a step, rounds, and steps in a round. Raises Refusal for what is not valid."""
    batch_size = whole("batch-size", values.batch_size, "the expected number of records in a step")
    rounds = whole("rounds", values.rounds, "the number of rounds")
    steps = whole("steps", values.steps, "the number of timed steps in a round")
    if (steps + 3) * batch_size > _MOST_RECORDS:
        raise Refusal(
            f"--batch-size {batch_size:,} and --steps {steps:,} take more than {_MOST_RECORDS:,} random records, which"
            " are made before the timing. Give smaller ones."
        )
    return batch_size, rounds, steps


def _print(results: dict[str, dict[str, float]], refused: dict[str, str]) -> None:
    for name, one in results.items():
        ratio = "" if name == "keras" else "  {ratio:5.2f} times ({least:.2f}-{most:.2f})".format(**one)
        print(f"{name:10} {one['milliseconds']:9.2f} ms {one['examples_per_second']:11,.0f} examples/s{ratio}")
    for name, reason in refused.items():
        print(f"{name:10} refused: {reason}")


def _summaries(found: list[list[float]], batch_size: int) -> list[dict[str, float]]:
    """Of each model, from the rounds of all; the first is what the others are compared with."""
    summaries = []
    for own in zip(*found, strict=True):
        ratios = [mine / times[0] for mine, times in zip(own, found, strict=True)]
        middle = statistics.median(own)
        summaries.append(
            {
                "milliseconds": middle,
                "examples_per_second": 1e3 * batch_size / middle,
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
        )
    return summaries


def _built(name: str) -> Any:
    import keras

    kl = keras.layers
    if name == "mlp":
        return keras.Sequential([keras.Input((784,)), kl.Dense(1000, activation="relu"), kl.Dense(10)])
    first = kl.Conv2D(16, 8, strides=2, padding="same", activation="relu")
    second = kl.Conv2D(32, 4, strides=2, activation="relu")
    top = [kl.MaxPooling2D(2, 1), kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), first, kl.MaxPooling2D(2, 1), second, *top])


def _check_file(name: str) -> None:
    """Raises Refusal for what is no model's file, before TensorFlow is loaded."""
    if not Path(name).is_file():
        raise Refusal(f"--keras-model {name}: there is no such file.")
    if Path(name).suffix != ".keras":
        raise Refusal(f"--keras-model takes a file that model.save('model.keras') wrote. Received: {name}.")


def _loaded(name: str) -> Any:
    import keras

    try:
        model = keras.models.load_model(name, compile=False)
    except (KeyError, OSError, TypeError, ValueError) as error:
        last = str(error).strip().split("\n\n")[-1].removeprefix("Exception encountered: ")
        said = textwrap.shorten(last, 300, placeholder=" ...")
        raise Refusal(
            f"--keras-model {name} cannot be loaded: {said} What a file names must be Keras' or this library's:"
            " a model with layers of your own is timed in Python, by benchmarks of yours around fit."
        ) from error
    return model.to_keras() if hasattr(model, "to_keras") else model


def _private(way: str, network: Any) -> Any:
    """A private model of this network, compiled."""
    import keras

    import tfdp_layers as tfdp

    sgd = keras.optimizers.SGD(0.01)
    if way == "in_layer":
        optimizer: Any = tfdp.optimizers.NoisyOptimizer(sgd, 1.0)
    elif way == "tanh":
        optimizer = tfdp.optimizers.TanhFilteredOptimizer(sgd, 1.0)
    elif way == "adadp":
        optimizer = tfdp.optimizers.AdaDPOptimizer(0.001, 1.0)
    else:
        optimizer = tfdp.optimizers.ClippedOptimizer(sgd, 1.0, clipping=way)
    model = tfdp.make_private(network, bounding="backprop_clipping" if way == "in_layer" else None)
    model.compile(optimizer, "mse")
    return model


def _records(model: Any, count: int) -> tuple[Any, Any]:
    """Random numbers in the shapes of a model's inputs, and zeros in those of its outputs."""
    import keras

    from tfdp_layers.structure import inputs_of, outputs_of

    rng = np.random.default_rng(0)

    def like(tensor: Any) -> Any:
        if None in tensor.shape[1:]:
            raise Refusal(f"Input {tensor.name!r} leaves sizes open ({tensor.shape}): build the model with fixed ones.")
        if keras.backend.standardize_dtype(tensor.dtype) == "string":
            raise Refusal(
                f"Input {tensor.name!r} takes strings, and made-up records are numbers: save the model without the"
                " layer that turns words into numbers, which runs before fit (docs/recipe_text.md)."
            )
        shape = (count, *tensor.shape[1:])
        if keras.backend.is_int_dtype(tensor.dtype):
            return rng.integers(0, 2, shape).astype(tensor.dtype)
        return rng.normal(size=shape).astype("float32")

    x = keras.tree.map_structure(like, inputs_of(model))
    return x, keras.tree.map_structure(lambda t: np.zeros((count, *t.shape[1:]), "float32"), outputs_of(model))


COMMAND = Command("bench", _DESCRIPTION, _define, _run)
