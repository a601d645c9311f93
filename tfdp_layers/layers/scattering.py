"""Wavelet scattering of images: fixed features, the same whatever the data, so that they cost no privacy."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.layers.wavelets import Wavelets, wavelets

_NUMBERS_OF_A_WAVELET = 50
"""For each pixel, while one is computed: 25 copies of the image, complex."""
_MOST_NUMBERS = 2**29
"""Of a bank of filters: 2 GiB of float32. A model file names the size, and no variable is made that would count."""

_PIECES = 4
"""Along an axis, that a transform is cut into at once; more in several rounds, so that the graph stays small."""

_MOST = 1000  # scales or angles; a scale halves the image


@keras.saving.register_keras_serializable(package="tfdp_layers")
class Scattering2D(keras.layers.Layer):
    """Scattering coefficients of images, of order 0, 1 and 2: a layer without weights.

    With psi Morlet wavelets of scales 2^j < 2^J and L angles, phi a Gaussian of scale 2^J, and * the convolution of the
    image, reflected at its borders:
        x * phi,  |x * psi_1| * phi,  ||x * psi_1| * psi_2| * phi  (scale of psi_2 above that of psi_1),
    each read at every 2^J-th pixel. Arguments, filters, borders and the order of the paths are those of kymatio 0.3.

    Args:
        J: log2 of the scale; height and width must be divisible by 2^J.
        L: number of angles.
        max_order: 1 or 2.

    Shapes: (batch, height, width, channels) -> (batch, height / 2^J, width / 2^J, channels * paths), each input
        channel's paths side by side; paths = 1 + J L, and J (J - 1) / 2 L^2 more with order 2.
    Guarantee: none is needed; a record's features are its own, and no weight depends on data.
    Raises: ValueError for arguments out of range, or images whose size is not fixed, not divisible, or so
        large that their filters would take gigabytes.
    Source: Bruna and Mallat 2013, arXiv:1203.1513; Andreux et al. 2020, arXiv:1812.11214 (kymatio); as features for
        private training Tramer and Boneh 2021, arXiv:2011.11660.
    """

    def __init__(self, J: int, L: int = 8, max_order: int = 2, **kwargs: Any) -> None:  # noqa: N803 (kymatio's names)
        super().__init__(**kwargs)
        for name, value in (("J", J), ("L", L)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= _MOST:
                raise ValueError(f"`{name}` must be an integer from 1 to {_MOST}. Received: {name}={value!r}.")
        if max_order not in (1, 2):
            raise ValueError(f"`max_order` must be 1 or 2. Received: max_order={max_order!r}.")
        self.J, self.L, self.max_order = int(J), int(L), int(max_order)
        self._wavelets: Wavelets | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        step = 2**self.J
        if len(input_shape) != 4:
            raise ValueError(f"Layer {self.name!r} takes (batch, height, width, channels). Received: {input_shape}.")
        height, width = input_shape[1:3]
        if height is None or width is None or height % step or width % step:
            raise ValueError(
                f"Layer {self.name!r} with J={self.J} takes images whose height and width are fixed and divisible by"
                f" {step}. Received: {tuple(input_shape)}. Pad them (keras.layers.ZeroPadding2D), or take a smaller J."
            )
        numbers = (height + 2 * step) * (width + 2 * step) * max(_NUMBERS_OF_A_WAVELET, self.J * self.L)
        if numbers > _MOST_NUMBERS:
            raise ValueError(
                f"The filters of layer {self.name!r} for images of {height} x {width} take too much memory, at least"
                f" {4 * numbers / 2**30:.0f} GiB. Resize the images (keras.layers.Resizing), or scatter their parts."
            )
        self._wavelets = wavelets(height, width, self.J, self.L)
        self.input_spec = keras.layers.InputSpec(shape=(None, height, width, input_shape[3]))
        self.built = True

    @property
    def paths(self) -> int:
        """Coefficients of each input channel at each place."""
        second = self.J * (self.J - 1) // 2 * self.L**2 if self.max_order == 2 else 0
        return 1 + self.J * self.L + second

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        batch, *image = input_shape
        height, width, channels = (size or 0 for size in image)
        return (batch, height >> self.J, width >> self.J, channels * self.paths)

    def call(self, inputs: tf.Tensor) -> Any:
        bank = self._wavelets
        assert bank is not None  # built
        height, width, channels = inputs.shape[1:]
        planes = tf.reshape(tf.transpose(tf.cast(inputs, tf.float32), [0, 3, 1, 2]), [-1, 1, height, width])
        planes = tf.gather(tf.gather(planes, bank.rows, axis=2), bank.columns, axis=3)
        found = [smoothed(planes, bank, 0)]
        first, second = [], []
        waves = tf.signal.fft2d(tf.cast(planes, tf.complex64))
        for j in range(self.J):
            moduli = filtered(waves, bank.psi[0][j], 2**j)
            first.append(smoothed(moduli, bank, j))
            if self.max_order == 2 and j + 1 < self.J:
                second.append(self.of_order_two(moduli, bank, j))
        outputs = tf.concat([*found, *first, *second], axis=1)
        outputs = tf.reshape(outputs, [-1, channels * self.paths, height >> self.J, width >> self.J])
        return tf.cast(tf.transpose(outputs, [0, 2, 3, 1]), self.compute_dtype)

    def of_order_two(self, moduli: tf.Tensor, bank: Wavelets, j: int) -> tf.Tensor:
        """The paths that begin at scale j: (planes, paths, height, width), by angle, then by the second wavelet."""
        waves = tf.signal.fft2d(tf.cast(moduli, tf.complex64))[:, :, tf.newaxis]
        every = []
        for second in range(j + 1, self.J):
            found = filtered(waves, bank.psi[j][second], 2 ** (second - j))
            every.append(smoothed(found, bank, second))
        stacked = tf.concat(every, axis=2)
        return tf.reshape(stacked, [-1, stacked.shape[1] * stacked.shape[2], *stacked.shape[3:]])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"J": self.J, "L": self.L, "max_order": self.max_order}


def filtered(waves: tf.Tensor, filters: np.ndarray, step: int) -> tf.Tensor:
    """|x * psi| at every step-th pixel. waves: Fourier transforms (..., 1, m, n); filters: (L, m, n), real."""
    real, imaginary = (folded(part, filters, step) for part in (tf.math.real(waves), tf.math.imag(waves)))
    return tf.abs(tf.signal.ifft2d(tf.complex(real, imaginary)))


def folded(waves: tf.Tensor, filters: np.ndarray, step: int) -> tf.Tensor:
    """The transform of every step-th pixel of x * psi: the mean over the step * step copies that are in that of all.

    Each piece of the filters meets its piece of the waves alone, real and imaginary parts apart. A complex product of
    the whole, cut up afterwards, takes 1.4 times as long if XLA compiles it, and twice as long if not.
    """
    pieces = min(step, _PIECES)
    m, n = waves.shape[-2] // pieces, waves.shape[-1] // pieces
    cuts = [(..., slice(a * m, a * m + m), slice(b * n, b * n + n)) for a in range(pieces) for b in range(pieces)]
    psi = [tf.constant(filters[cut] / pieces**2, tf.float32) for cut in cuts]
    found = tf.add_n([waves[cut] * one for cut, one in zip(cuts, psi, strict=True)])
    return found if pieces == step else folded(found, np.ones((m, n)), step // pieces)


def smoothed(images: tf.Tensor, bank: Wavelets, j: int) -> tf.Tensor:
    """x * phi within the borders, at every 2^J-th pixel of the image: (..., m, n) -> (..., height, width)."""
    down, across = (tf.constant(matrix, tf.float32) for matrix in bank.phi[j])
    shape = images.shape[1:-2]
    flat = tf.reshape(images, [-1, images.shape[-1]])
    narrow = tf.reshape(tf.matmul(flat, across, transpose_b=True), [-1, images.shape[-2], across.shape[0]])
    return tf.reshape(tf.einsum("hm,bmw->bhw", down, narrow), [-1, *shape, down.shape[0], across.shape[0]])
