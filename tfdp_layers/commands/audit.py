"""`tfdp audit`: attacks a private training, and compares what it finds with what is claimed."""

import dataclasses
import json
import warnings
from dataclasses import dataclass
from typing import Any

from absl import flags

from tfdp_layers.accounting import calibrate_noise_multiplier
from tfdp_layers.commands.command import Command, Refusal, definers, fraction, needed, positive, print_json, whole
from tfdp_layers.commands.quiet_import import quiet_import
from tfdp_layers.sampling import Poisson
from tfdp_layers.zoo import datasets
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import default_model, recipe_for

__all__ = ["COMMAND"]

_DESCRIPTION = """
Trains with canaries among the records, each put in or left out by a fair coin, reads every step
from inside, guesses which were there, and says which epsilon the guesses refute: a lower bound,
beside the upper bound that the training claims. Ends with status 1 if the lower exceeds the upper.

With --attack steps no data set is needed: many runs of one step on the worst two neighbouring data
sets for the method. It is the sharper audit of clips and noise, the training that of the whole.

Examples:
  tfdp audit --method backprop_clipping --dataset digits --epsilon 3 --canaries 500 --json
  tfdp audit --method dpsgd --attack steps --epsilon 1

An audit can refute a claim, never prove it: a bound near the claim says that the attack is strong.
"""
_LAYERS = ("backprop_clipping", "dfa", "dfa_hybrid")
METHODS = (*_LAYERS, "dpsgd", "tanh", "adadp")
_KINDS = ("gradient", "mislabelled", "noise")
_HIDDEN_UNITS = 64


@dataclass(frozen=True)
class Options:
    """What the user asked for, checked."""

    method: str
    attack: str
    dataset: str
    kind: str
    epsilon: float
    delta: float
    confidence: float
    canaries: int
    records: int
    epochs: int
    runs: int
    data_dir: str | None
    json: bool

    @classmethod
    def from_options(cls, values: flags.FlagValues) -> "Options":
        """Reads and checks the options. Raises Refusal for the first that is not valid."""
        needed("epsilon", values.epsilon, "what the audited training is to claim, for example --epsilon 3.")
        options = cls(
            method=values.method,
            attack=values.attack,
            dataset=values.dataset,
            kind=values.kind,
            epsilon=positive("epsilon", values.epsilon, "what the audited training is to claim"),
            delta=fraction("delta", values.delta, "the probability with which the guarantee may fail"),
            confidence=fraction("confidence", values.confidence, "how sure the lower bound is to be"),
            canaries=whole("canaries", values.canaries, "the number of records to guess about", 10, 10**6),
            records=whole("records", values.records, "the number of other records", least=10),
            epochs=whole("epochs", values.epochs, "the number of passes over the data"),
            runs=whole("runs", values.runs, "the number of runs on each data set", least=10),
            data_dir=values.data_dir,
            json=values.json,
        )
        if options.attack == "steps" and options.method == "dfa_hybrid":
            raise Refusal("--attack steps has no worst case for dfa_hybrid: its parts are audited as the other two.")
        return options


def _define(values: flags.FlagValues) -> None:
    define, choose = definers(values)
    choose("method", METHODS, "What bounds each record's influence.", METHODS[0])
    choose("attack", ("training", "steps"), "A whole training with canaries, or many runs of one step.", "training")
    choose("dataset", datasets.NAMES, "Images to train on beside the canaries.", "digits")
    choose("kind", _KINDS, "Canaries: records far out, wrong labels, or noise in the range of the data.", "gradient")
    define("float", "epsilon", "What the audited training claims: its noise is calibrated to it.")
    define("float", "delta", "Probability with which the guarantee may fail.", 1e-5)
    define("float", "confidence", "Probability with which the lower bound holds.", 0.95)
    define("integer", "canaries", "Records to guess about; about half take part.", 500)
    define("integer", "records", "Most other records to train on; fewer make a stronger attack.", 1000)
    define("integer", "epochs", "Passes over the data, four steps each.", 10)
    define("integer", "runs", "With --attack steps: runs on each of the two data sets.", 1000)
    define("string", "data_dir", "Folder with the data set (DATASET.npz, or its idx files).")
    define("bool", "json", "End with one JSON object on the last line.", False)


def _run(values: flags.FlagValues) -> int:
    options = Options.from_options(values)
    with quiet_import():
        import tensorflow  # noqa: F401
    warnings.filterwarnings("ignore", "This fit can learn next to nothing")  # nor is it to: it is attacked
    try:
        audit = audit_training_of(options) if options.attack == "training" else _audit_steps(options)
    except (ValueError, FloatingPointError, NotImplementedError, datasets.DatasetNotFound) as error:
        raise Refusal(str(error)) from error
    print(audit, flush=True)
    if options.json:
        asked = {name: getattr(options, name) for name in ("method", "attack", "dataset", "kind")}
        print_json(asked | json.loads(audit.to_json()))
    return 1 if audit.refuted else 0


def audit_training_of(options: Options) -> Any:
    """A training with canaries that claims `options.epsilon`, audited."""
    from tfdp_layers.audit import audit_training

    data = datasets.load(options.dataset, options.data_dir)
    kept = slice(0, options.records)
    data = dataclasses.replace(data, x_train=data.x_train[kept], y_train=data.y_train[kept])
    examples = len(data.y_train) + options.canaries
    sampling = Poisson(max(1, examples // 4))
    steps = options.epochs * sampling.steps_per_epoch(examples)
    noise = calibrate_noise_multiplier(options.epsilon, options.delta, sampling, examples, steps)
    return audit_training(
        compiled(options.method, data, noise),
        data.x_train,
        data.y_train,
        options.canaries,
        kind=options.kind,
        sampling=sampling,
        delta=options.delta,
        confidence=options.confidence,
        epochs=options.epochs,
    )


def _audit_steps(options: Options) -> Any:
    from tfdp_layers.audit import audit_steps
    from tfdp_layers.zoo.worst_cases import worst_case

    sampling = Poisson(2)
    noise = calibrate_noise_multiplier(options.epsilon, options.delta, sampling, 2, 1)
    case = worst_case(options.method, noise)
    return audit_steps(
        case.model,
        case.present,
        case.absent,
        sampling,
        examples=2,
        runs=options.runs,
        delta=options.delta,
        confidence=options.confidence,
    )


def compiled(method: str, data: Dataset, noise_multiplier: float) -> Any:
    """A classifier for the data, compiled with a method and Adam (AdaDP: its own steps)."""
    import keras

    from tfdp_layers import optimizers
    from tfdp_layers.models.model import PrivateSequential
    from tfdp_layers.zoo import networks

    if method in _LAYERS:
        name = default_model(method)
        if method == "backprop_clipping":
            name = "mlp"
        recipe = recipe_for(name, data.name, method)
        model: Any = networks.build(name, data, method, recipe)
    else:
        hidden = keras.layers.Dense(_HIDDEN_UNITS, activation="relu")
        shape = keras.Input(data.x_train.shape[1:])
        model = PrivateSequential([shape, keras.layers.Flatten(), hidden, keras.layers.Dense(data.classes)])
    adam = keras.optimizers.Adam(1e-3)
    optimizer: Any = {
        "dpsgd": lambda: optimizers.ClippedOptimizer(adam, noise_multiplier, l2_norm_clip=1.0),
        "tanh": lambda: optimizers.TanhFilteredOptimizer(adam, noise_multiplier, l2_norm_clip=1.0),
        "adadp": lambda: optimizers.AdaDPOptimizer(1e-3, noise_multiplier),
    }.get(method, lambda: optimizers.NoisyOptimizer(adam, noise_multiplier))()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


COMMAND = Command("audit", _DESCRIPTION, _define, _run)
