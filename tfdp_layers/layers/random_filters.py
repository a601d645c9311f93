"""Random filters on images: fixed features, the same whatever the data, so that they cost no privacy."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_SHADE = 10.0 / 255.0
"""Standard deviation within a patch below which its contrast counts as noise, for images in [0, 1]."""
_REACH = 4.0
"""Pixels over which the correlation of two of them falls to 1 / e."""
_COLOURS = 0.9
"""Correlation of two colours at one pixel."""
_DAMPING = 0.1
"""Added to the variances before the root of their inverse is taken, beside a mean variance of about 1."""
_MOST = 2**14
_MOST_INPUTS = 2**12
"""Numbers in a patch: the covariance has their square."""
_MOST_ENTRIES = 2**25
"""Of the filters: a file of a model names their sizes, and should not take all memory."""


@keras.saving.register_keras_serializable(package="tfdp_layers")
class RandomFilters2D(keras.layers.Layer):
    """Responses of images to random filters, rectified and averaged over parts of the image: a layer without weights.

    With p a patch of kernel_size x kernel_size pixels less its mean over its standard deviation, W the inverse root of
    the covariance that patches of natural images have, and g random directions:
        h = g . W p;    max(0, h - threshold) and max(0, -h - threshold), averaged over each part of a grid.
    The covariance is a model: exp(-distance / 4 pixels), colours correlated by 0.9. No data are looked at.

    Args:
        filters: random directions; each gives two channels.
        grid: parts along each side of the image.
        kernel_size: of a patch, in pixels.
        threshold: of what counts as a response, in standard deviations (or so) of h.
        seed: of the directions: an integer, part of the model, no secret.

    Shapes: (batch, height, width, channels), best in [0, 1] -> (batch, grid, grid, 2 filters); where
        equal parts do not fill a side, those at its ends are smaller.
    Guarantee: none is needed; a record's features are its own, and nothing depends on other data.
    Raises: ValueError for arguments out of range, images whose size is not fixed or smaller than the grid needs,
        and filters of more than 2^12 numbers each or 2^25 in all.
    Source: Coates, Lee and Ng 2011 (AISTATS): whitened patches, many filters, two-sided rectifiers, pooled; there with
        filters and covariance learned of the data. Random directions: Rahimi and Recht 2007.
    """

    def __init__(
        self,
        filters: int,
        grid: int = 3,
        kernel_size: int = 6,
        threshold: float = 0.5,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("filters", filters), ("grid", grid), ("kernel_size", kernel_size)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= _MOST:
                raise ValueError(f"`{name}` must be an integer from 1 to {_MOST}. Received: {name}={value!r}.")
        if kernel_size < 2:
            raise ValueError("`kernel_size` must be 2 or more: one pixel less its own mean is nothing. Received: 1.")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
            raise ValueError(f"`seed` must be an integer from 0 to 2^31 - 1. Received: seed={seed!r}.")
        if (
            isinstance(threshold, bool)
            or not isinstance(threshold, int | float | np.number)
            or not 0.0 <= threshold < 100.0
        ):
            raise ValueError(f"`threshold` must be a number from 0 to 100. Received: threshold={threshold!r}.")
        self.filters, self.grid, self.kernel_size = int(filters), int(grid), int(kernel_size)
        self.threshold, self.seed = float(threshold), int(seed)
        self._kernel: np.ndarray | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        if len(input_shape) != 4:
            raise ValueError(f"Layer {self.name!r} takes (batch, height, width, channels). Received: {input_shape}.")
        least = self.kernel_size + self.grid - 1
        sides, channels = input_shape[1:3], input_shape[3]
        if channels is None or any(side is None or side < least for side in sides):
            raise ValueError(
                f"Layer {self.name!r} takes images of a fixed size, at least {least} x {least} for kernel_size="
                f"{self.kernel_size} and grid={self.grid}. Received: {tuple(input_shape)}. Resize them"
                " (keras.layers.Resizing), or take smaller ones."
            )
        if any(-(-places // -(-places // self.grid)) != self.grid for places in self.places(input_shape)):
            raise ValueError(
                f"Layer {self.name!r} cannot cut {self.places(input_shape)} places into {self.grid} parts a side of"
                " equal size but for those at the ends. Take another grid or kernel_size."
            )
        inputs = self.kernel_size**2 * channels
        if inputs > _MOST_INPUTS or inputs * self.filters > _MOST_ENTRIES:
            raise ValueError(
                f"Layer {self.name!r} would have {self.filters} filters of {inputs} numbers each (kernel_size^2 x"
                f" channels); at most {_MOST_INPUTS} numbers each, {_MOST_ENTRIES} in all, are made. Take a smaller"
                " kernel_size or fewer filters."
            )
        self._kernel = random_kernel(self.kernel_size, channels, self.filters, self.seed)
        self.input_spec = keras.layers.InputSpec(shape=(None, *sides, channels))
        self.built = True

    def places(self, input_shape: Sequence[int | None]) -> list[int]:
        """At how many places a patch lies, along each side."""
        return [(side or 0) - self.kernel_size + 1 for side in input_shape[1:3]]

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (input_shape[0], self.grid, self.grid, 2 * self.filters)

    def call(self, inputs: tf.Tensor) -> Any:
        images, size = tf.cast(inputs, tf.float32), self.kernel_size
        responses = tf.nn.conv2d(images, tf.constant(self._kernel), 1, "VALID")
        means, squares = (
            tf.nn.avg_pool2d(tf.reduce_mean(one, axis=-1, keepdims=True), size, 1, "VALID")
            for one in (images, tf.square(images))
        )
        variances = tf.maximum(squares - tf.square(means), 0.0)
        responses *= tf.math.rsqrt(variances + _SHADE**2)
        found = [tf.nn.relu(signed - self.threshold) for signed in (responses, -responses)]
        parts = [-(-places // self.grid) for places in self.places(inputs.shape)]
        outputs = tf.nn.avg_pool2d(tf.concat(found, axis=-1), parts, parts, "SAME")
        return tf.cast(outputs, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        own = ("filters", "grid", "kernel_size", "threshold", "seed")
        return super().get_config() | {name: getattr(self, name) for name in own}


def random_kernel(size: int, channels: int, filters: int, seed: int) -> np.ndarray:
    """(size, size, channels, filters): random directions of length 1, behind the whitening of patches.

    Each filter's entries sum to zero, so that a patch's mean does not count.
    """
    rows, columns, colours = (one.ravel() for one in np.mgrid[:size, :size, :channels])
    distances = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    covariance = np.exp(-distances / _REACH) * np.where(colours[:, None] == colours, 1.0, _COLOURS)
    centering = np.eye(len(rows)) - 1.0 / len(rows)
    covariance = centering @ covariance @ centering
    values, vectors = np.linalg.eigh(covariance / np.mean(np.diag(covariance)))
    whitening = (vectors * (np.maximum(values, 0.0) + _DAMPING) ** -0.5) @ vectors.T
    with tf.init_scope(), tf.device("CPU"):  # a generator whose numbers TensorFlow promises to keep
        drawn = tf.random.stateless_normal((len(rows), filters), [seed, 0], dtype=tf.float64, alg="philox")
    directions = np.asarray(drawn) / np.linalg.norm(drawn, axis=0)
    return (centering @ whitening @ directions).reshape(size, size, channels, filters).astype(np.float32)
