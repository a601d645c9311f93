"""The filters of wavelet scattering, in the Fourier domain: Morlet wavelets and Gaussians, as kymatio's."""

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Wavelets:
    """The filters for images of one size.

    Attributes:
        rows, columns: the pixels of the image that its reflected border repeats.
        psi: of images at every 2^i-th pixel, of scale j: psi[i][j], (L, m, n), the real Fourier transforms.
        phi: phi[j], two matrices that smooth the rows' and the columns' axis of images at every 2^j-th pixel, and read
            them at every 2^J-th inside of the border.
    """

    rows: np.ndarray
    columns: np.ndarray
    psi: tuple[dict[int, np.ndarray], ...]
    phi: tuple[tuple[np.ndarray, np.ndarray], ...]


@functools.lru_cache(maxsize=16)
def wavelets(height: int, width: int, scale: int, angles: int) -> Wavelets:
    """The filters for scale J, L angles. Source of the constants: kymatio 0.3, scattering2d/filter_bank.py."""
    step = 2**scale
    # A border of 2^J on each side: what is cut off behind the smoothing is one coefficient.
    padded = (height + 2 * step, width + 2 * step)
    psi: tuple[dict[int, np.ndarray], ...] = tuple({} for _ in range(scale))
    for j in range(scale):
        bank = [morlet(padded, j, angle, angles) for angle in range(angles)]
        for coarse in range(max(j, 1)):  # images at every 2^coarse-th pixel meet the wavelets of larger scales
            psi[coarse][j] = np.stack([periodized(one, coarse) for one in bank])
    phi = tuple((smoothing(padded[0], scale, j), smoothing(padded[1], scale, j)) for j in range(scale))
    return Wavelets(reflected(height, step), reflected(width, step), psi, phi)


def reflected(size: int, border: int) -> np.ndarray:
    """Indices of a signal with a border that mirrors it, the outermost sample not repeated, as often as needed."""
    place = np.abs(np.arange(-border, size + border)) % max(2 * (size - 1), 1)
    return np.minimum(place, 2 * (size - 1) - place).astype(np.int32)


def gabor(shape: tuple[int, int], sigma: float, theta: float, xi: float, slant: float) -> np.ndarray:
    """A Gaussian times a wave, summed over the image's neighbours on each side so that it is periodic."""
    rotation = np.array([[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]])
    curve = rotation @ np.diag([1.0, slant * slant]) @ rotation.T / (2 * sigma * sigma)
    height, width = shape
    x, y = np.mgrid[-2 * height : 3 * height, -2 * width : 3 * width]
    quadratic = curve[0, 0] * x * x + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y * y
    values = np.exp(-quadratic + 1j * xi * (x * np.cos(theta) + y * np.sin(theta)))
    return values.reshape(5, height, 5, width).sum(axis=(0, 2)) / (2 * 3.1415 * sigma * sigma / slant)


def morlet(shape: tuple[int, int], j: int, angle: int, angles: int) -> np.ndarray:
    """The Fourier transform of the wavelet of scale 2^j: a Gabor function less as much Gaussian as makes its sum 0."""
    sigma, xi, slant = 0.8 * 2**j, 0.75 * np.pi / 2**j, 4.0 / angles
    theta = (int(angles - angles / 2 - 1) - angle) * np.pi / angles
    wave, bump = gabor(shape, sigma, theta, xi, slant), gabor(shape, sigma, theta, 0.0, slant)
    return np.fft.fft2(wave - wave.sum() / bump.sum() * bump).real


def periodized(spectrum: np.ndarray, coarse: int) -> np.ndarray:
    """The filter for images at every 2^coarse-th pixel: frequencies that those lack are left out, the rest added."""
    for axis, size in enumerate(spectrum.shape):
        kept = np.ones(size)
        start = int(size * 2.0 ** (-coarse - 1))
        kept[start : start + int(size * (1 - 2.0**-coarse))] = 0.0
        spectrum = spectrum * np.expand_dims(kept, 1 - axis)
    height, width = (size >> coarse for size in spectrum.shape)
    return spectrum.reshape(1 << coarse, height, 1 << coarse, width).sum(axis=(0, 2))


def smoothing(size: int, scale: int, j: int) -> np.ndarray:
    """The Gaussian of scale 2^J along one axis of images at every 2^j-th pixel, as a matrix: (kept, size / 2^j)."""
    spectrum = np.fft.fft2(gabor((size, size), 0.8 * 2 ** (scale - 1), 0.0, 0.0, 1.0)).real
    spectrum = periodized(spectrum, j)
    alone = spectrum[:, 0] / np.sqrt(spectrum[0, 0])  # a Gaussian is a product of one along each axis
    matrix = np.fft.ifft(alone[:, np.newaxis] * np.fft.fft(np.eye(size >> j), axis=0), axis=0).real
    return matrix[:: 1 << (scale - j)][1:-1]
