"""Settings with which the command's models train well under a privacy budget. No TensorFlow here."""

import math
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "METHODS",
    "MODELS",
    "ON_FEATURES",
    "OWN_STEPS",
    "PER_RECORD",
    "RECIPES",
    "Measured",
    "NamedRecipe",
    "Recipe",
    "check_method",
    "default_model",
    "recipe_for",
]

OWN_STEPS = ("adadp", "adal", "adan")
"""Methods that bring their steps; the others wrap Adam or gradient descent."""
PER_RECORD = ("dpsgd", "tanh", *OWN_STEPS)
"""Methods that bound each record's gradient of ordinary layers."""
METHODS = ("backprop_clipping", "dfa", "dfa_hybrid", *PER_RECORD)
MODELS = ("cnn", "mlp", "tanh_cnn")
ON_FEATURES = ("scattering",)
"""Models that are trained on fixed features of the images, computed once."""


@dataclass(frozen=True)
class Recipe:
    """Defaults for one model on one data set.

    They were tuned on the public benchmark sets themselves; a guarantee for other data assumes, as always, that
    settings were not chosen by looking at the private records.

    Attributes:
        epochs: passes over the data, on average.
        batch_size: expected number of records in a step.
        learning_rate: where the cosine decay starts; the constant rate with `momentum` or `ema_momentum`.
        scales: norm that each record's input is brought to before each bounded layer; inside a feedback stack, the
            clips of the activations.
        upstream_clips: bound on each record's upstream gradient, for each bounded layer; in a feedback stack on delta,
            and the last one on the error.
        activation: of the hidden layers.
        noise_allocation: see `tfdp.optimizers.NoisyOptimizer`.
        bound: which pair of norms the convolutions clip; see `tfdp.layers.ClippedConv2D`.
        kernels, strides: of the convolutions.
        feedback_norm: spectral norm of the feedback matrices, where there are any.
        l2_norm_clip: bound on each record's gradient, for the methods of `PER_RECORD`; after the filter for "tanh".
        active_range: of the tanh filter; see `tfdp.optimizers.TanhFilteredOptimizer`.
        gradient_clip: bound on each record's gradient by its own norm, or "automatic"; of "tanh_cnn" and `ON_FEATURES`.
        feature_scales: J of the scatterings whose features are side by side.
        random_filters: how many filters of `tfdp.layers.RandomFilters2D` stand beside them.
        mirrored: whether features are the mean over an image and its mirror image.
        centering_noise: above 0 the features are centered by a mean that is released with this noise multiplier.
        whitening_noise: above 0 the channels of the features are whitened by second moments that are released with this
            noise multiplier, for each scale.
        views: how often a record enters a step, each time moved and mirrored anew; of models of images.
        shift: part of the height and width by which images are moved at random in training, at most.
        flips: whether images are mirrored at random in training.
        momentum: above 0 the steps are gradient descent with it, at a constant rate, in place of Adam's.
        ema_momentum: above 0 the weights that are tested and saved are the exponential mean of the released ones.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    scales: tuple[float, ...]
    upstream_clips: tuple[float, ...]
    activation: str = "tanh"
    noise_allocation: str = "uniform"
    bound: str = "patch"
    kernels: tuple[int, int] = (4, 3)
    strides: tuple[int, int] = (4, 2)
    feedback_norm: float = 0.9
    l2_norm_clip: float = 1.0
    active_range: float = 0.01
    gradient_clip: float | str | None = None
    feature_scales: tuple[int, ...] = ()
    random_filters: int = 0
    mirrored: bool = False
    centering_noise: float = 0.0
    whitening_noise: float = 0.0
    views: int = 1
    shift: float = 0.0
    flips: bool = False
    momentum: float = 0.0
    ema_momentum: float = 0.0

    @property
    def feature_blocks(self) -> int:
        """How many kinds of features stand side by side, each of which is whitened by itself."""
        return len(self.feature_scales) + (self.random_filters > 0)


@dataclass(frozen=True)
class Measured:
    """What a named recipe reached: test accuracy at the end, delta 1e-5, by the command.

    Attributes:
        dataset, epsilon: of the runs.
        accuracy, spread: mean and standard deviation over the seeds.
        seeds: how many runs.
        minutes: of one run on two processor cores that other programs shared, with the features at hand.
    """

    dataset: str
    epsilon: float
    accuracy: float
    spread: float
    seeds: int
    minutes: float


@dataclass(frozen=True)
class NamedRecipe:
    """A method and a model under one name, as `tfdp train --recipe` takes it."""

    method: str
    model: str
    summary: str
    measured: tuple[Measured, ...] = ()


RECIPES = {
    "scattering": NamedRecipe(
        "backprop_clipping",
        "scattering",
        "wavelet features (CIFAR-10: random filters, too), and one dense layer that clips each record's gradient",
        (
            Measured("mnist", 1.0, 0.9884, 0.0005, 3, 0.3),
            Measured("mnist", 2.93, 0.9918, 0.0005, 3, 0.5),
            Measured("mnist", 8.0, 0.9921, 0.0004, 3, 0.7),
            Measured("fashion_mnist", 0.1, 0.8410, 0.0006, 3, 1.1),
            Measured("fashion_mnist", 0.2, 0.8636, 0.0027, 3, 1.2),
            Measured("fashion_mnist", 0.5, 0.8838, 0.0011, 3, 2.6),
            Measured("fashion_mnist", 1.0, 0.8948, 0.0017, 3, 0.6),
            Measured("fashion_mnist", 2.7, 0.9087, 0.0011, 3, 1.1),
            Measured("fashion_mnist", 8.0, 0.9174, 0.0014, 3, 0.8),
            Measured("cifar10", 1.0, 0.7005, 0.0053, 3, 3.8),
            Measured("cifar10", 3.0, 0.7339, 0.0023, 3, 5.5),
            Measured("cifar10", 8.0, 0.7507, 0.0034, 3, 3.3),
            Measured("digits", 2.7, 0.9583, 0.0028, 3, 0.1),
        ),
    ),
    "exact": NamedRecipe(
        "backprop_clipping",
        "tanh_cnn",
        "a small network from scratch, each layer bounds gradients by their own norms",
        (Measured("fashion_mnist", 2.7, 0.8708, 0.0008, 3, 6.7),),
    ),
    "cnn": NamedRecipe("backprop_clipping", "cnn", "two convolutions and two dense layers, clipped in the layers"),
    "mlp": NamedRecipe("backprop_clipping", "mlp", "two dense layers, clipped in the layers"),
    "dpsgd": NamedRecipe("dpsgd", "cnn", "DP-SGD: the same network of ordinary layers, each record's gradient clipped"),
    "dfa": NamedRecipe("dfa", "mlp", "direct feedback alignment on two dense layers"),
}
"""The choices of `tfdp train --recipe`, best first."""


_MLP = Recipe(100, 2048, 1e-3, scales=(10.0, 40.0), upstream_clips=(1.0, 0.2), activation="relu")
_CNN = Recipe(60, 2048, 1e-3, scales=(8.0, 8.0, 10.0, 40.0), upstream_clips=(1.0, 1.0, 1.0, 0.2), activation="relu")
_TANH_CNN = Recipe(40, 2048, 4e-3, (), (), noise_allocation="dimension", gradient_clip="automatic", ema_momentum=0.95)
_DFA = Recipe(60, 2048, 1e-3, scales=(10.0, 12.0), upstream_clips=(0.1, 0.1), feedback_norm=2.0)
_HYBRID = replace(
    _CNN, scales=(8.0, 8.0, 10.0, 8.0), upstream_clips=(0.1, 0.1, 0.1, 0.1), activation="tanh", feedback_norm=2.0
)
# Batch size, momentum and clip of Tramer and Boneh 2021, arXiv:2011.11660; three scales instead of one, centered.
_SCATTERING = Recipe(
    30,
    8192,
    16.0,
    (),
    (),
    gradient_clip=0.1,
    feature_scales=(1, 2, 3),
    centering_noise=30.0,
    whitening_noise=20.0,
    momentum=0.9,
    ema_momentum=0.9,
)
_MNIST: dict[str, Any] = {"feature_scales": (2, 3), "batch_size": 4096}
_CIFAR: dict[str, Any] = {
    "feature_scales": (2, 3),
    "random_filters": 512,
    "mirrored": True,
    "gradient_clip": 5.0,
    "batch_size": 4096,
}
_MIDDLE = 2.7
_AT_EPSILON: dict[tuple[str, str], dict[float, dict[str, Any]]] = {
    ("scattering", "mnist"): {
        1.0: _MNIST | {"learning_rate": 1.0, "epochs": 20, "whitening_noise": 40.0},
        2.93: _MNIST | {"gradient_clip": 0.5, "learning_rate": 0.4, "epochs": 40},
        8.0: _MNIST | {"learning_rate": 5.0, "epochs": 60},
    },
    ("scattering", "cifar10"): {
        1.0: _CIFAR | {"learning_rate": 0.012, "whitening_noise": 45.0},
        3.0: _CIFAR | {"learning_rate": 0.025},
        8.0: _CIFAR | {"learning_rate": 0.04, "whitening_noise": 10.0},
    },
    ("scattering", "fashion_mnist"): {
        1.0: {"gradient_clip": 2.5, "learning_rate": 0.12, "whitening_noise": 40.0},
        2.7: {"gradient_clip": 2.5, "learning_rate": 0.14, "epochs": 45},
        8.0: {"gradient_clip": 6.0, "learning_rate": 0.13, "whitening_noise": 8.0},
    },
}
"""What differs by budget, of models by backpropagation clipping."""

# Ordinary layers: nothing brings the records to a norm. Rates and clips are those of the sources, or Adam's.
_PER_RECORD = Recipe(60, 2048, 2e-3, scales=(), upstream_clips=(), activation="tanh")


def _of_optimizer(method: str) -> Recipe:
    """The recipe of a method of `PER_RECORD`. AdaDP's clip and its rates are those of Xu et al. 2019."""
    rates = {"adadp": 2e-3, "adal": 1e-3, "adan": 0.1}
    if method not in rates:
        return _PER_RECORD
    return replace(_PER_RECORD, learning_rate=rates[method], l2_norm_clip=4.0)


def _for_images(model: str, recipe: Recipe, **digits: Any) -> dict[tuple[str, str], Recipe]:
    """The recipe of a model on each data set; the digits are few and small, and an epoch has few steps on them."""
    small = digits | ({"kernels": (2, 2), "strides": (2, 1)} if model == "cnn" else {})
    large = {(model, name): recipe for name in ("mnist", "fashion_mnist", "cifar10")}
    return large | {(model, "digits"): replace(recipe, batch_size=256, **small)}


_RECIPES = {
    "backprop_clipping": _for_images("mlp", _MLP, learning_rate=4e-3)
    | _for_images("cnn", _CNN, learning_rate=4e-3)
    | _for_images("tanh_cnn", _TANH_CNN)
    | _for_images("scattering", _SCATTERING, learning_rate=4.0, epochs=10, centering_noise=0.0, whitening_noise=0.0),
    "dfa": _for_images("mlp", _DFA),
    "dfa_hybrid": _for_images("cnn", _HYBRID),
} | {
    method: _for_images("mlp", _of_optimizer(method)) | _for_images("cnn", _of_optimizer(method))
    for method in PER_RECORD
}


def default_model(method: str, on_features: bool = False) -> str:
    """The model that a method trains if none is named; with `on_features` also one that needs those.

    Raises ValueError for an unknown method.
    """
    check_method(method)
    if on_features and method == "backprop_clipping":
        return ON_FEATURES[0]
    return "mlp" if method == "dfa" else "cnn"


def recipe_for(model: str, dataset: str, method: str = "backprop_clipping", epsilon: float | None = None) -> Recipe:
    """Returns the defaults of a model on a data set; where they differ by budget, those of the nearest one.

    Below the smallest of these budgets the rate falls with epsilon, and the noise of what is released before the
    training rises with 1 / epsilon, so that its share of the budget stays what it was.

    Args:
        model, dataset, method: as in the command.
        epsilon: the budget; the middle one of those that were tuned if left out.

    Raises:
        ValueError: an unknown model, data set or method; the message lists the known ones.
    """
    check_method(method, model)
    recipes = _RECIPES[method]
    if (model, dataset) not in recipes:
        known = sorted({name for _, name in recipes})
        raise ValueError(
            f"No recipe for model {model!r} on data set {dataset!r}. Models: {', '.join((*MODELS, *ON_FEATURES))};"
            " data sets:"
            f" {', '.join(known)}."
        )
    tuned = _AT_EPSILON.get((model, dataset), {}) if method == "backprop_clipping" else {}
    nearest = min(tuned, key=lambda one: abs(math.log(one / (epsilon or _MIDDLE))), default=None)
    if nearest is None:
        return recipes[model, dataset]
    found = replace(recipes[model, dataset], **tuned[nearest])
    share = min(1.0, (epsilon or _MIDDLE) / min(tuned))
    return replace(
        found,
        learning_rate=found.learning_rate * share,
        centering_noise=found.centering_noise / share,
        whitening_noise=found.whitening_noise / share,
    )


def check_method(method: str, model: str | None = None) -> None:
    """Raises ValueError for an unknown method, or one that does not train the model."""
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}. Choose one of: {', '.join(METHODS)}.")
    if model in ON_FEATURES and method != "backprop_clipping":
        raise ValueError(
            f"Model {model!r} is one layer that clips each record's gradient itself: method 'backprop_clipping'."
            f" Received: {method!r}."
        )
    if model == "tanh_cnn" and method != "backprop_clipping":
        raise ValueError(
            f"Model 'tanh_cnn' bounds gradients in its layers: method 'backprop_clipping'. Not {method!r}."
        )
    if model == "cnn" and method == "dfa":
        raise ValueError("Method 'dfa' trains dense layers only. Choose method 'dfa_hybrid' for a cnn, or model 'mlp'.")
    if model == "mlp" and method == "dfa_hybrid":
        raise ValueError("Method 'dfa_hybrid' has convolutions below. Choose method 'dfa' for an mlp, or model 'cnn'.")
