"""Settings with which the command's models train well under a privacy budget. No TensorFlow here."""

from dataclasses import dataclass, replace

__all__ = ["METHODS", "MODELS", "Recipe", "recipe_for"]

METHODS = ("backprop_clipping",)
MODELS = ("cnn", "mlp")


@dataclass(frozen=True)
class Recipe:
    """Defaults for one model on one data set.

    They were tuned on the public benchmark sets themselves; a guarantee for other data assumes, as always, that
    settings were not chosen by looking at the private records.

    Attributes:
      epochs: passes over the data, on average.
      batch_size: expected number of records in a step.
      learning_rate: where the cosine decay starts.
      scales: norm that each record's input is brought to before each bounded layer.
      upstream_clips: bound on each record's upstream gradient, for each bounded layer.
      activation: of the hidden layers.
      noise_allocation: see `tfdp.optimizers.NoisyOptimizer`.
      bound: which pair of norms the convolutions clip; see `tfdp.layers.ClippedConv2D`.
      kernels, strides: of the convolutions.
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


_MLP = Recipe(100, 2048, 1e-3, scales=(10.0, 40.0), upstream_clips=(1.0, 0.2), activation="relu")
_CNN = Recipe(60, 2048, 1e-3, scales=(8.0, 8.0, 10.0, 40.0), upstream_clips=(1.0, 1.0, 1.0, 0.2), activation="relu")
_RECIPES = {
    ("mlp", "mnist"): _MLP,
    ("mlp", "fashion_mnist"): _MLP,
    ("mlp", "cifar10"): _MLP,
    ("mlp", "digits"): replace(_MLP, batch_size=256),
    ("cnn", "mnist"): _CNN,
    ("cnn", "fashion_mnist"): _CNN,
    ("cnn", "cifar10"): _CNN,
    ("cnn", "digits"): replace(_CNN, batch_size=256, kernels=(2, 2), strides=(2, 1)),
}


def recipe_for(model: str, dataset: str, method: str = "backprop_clipping") -> Recipe:
    """Returns the defaults of a model on a data set.

    Raises:
      ValueError: an unknown model, data set or method; the message lists the known ones.
    """
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}. Choose one of: {', '.join(METHODS)}.")
    if (model, dataset) not in _RECIPES:
        known = sorted({name for _, name in _RECIPES})
        raise ValueError(
            f"No recipe for model {model!r} on data set {dataset!r}. Models: {', '.join(MODELS)}; data sets:"
            f" {', '.join(known)}."
        )
    return _RECIPES[model, dataset]
