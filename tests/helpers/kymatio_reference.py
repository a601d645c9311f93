"""Writes tests/data/scattering.npz: images and kymatio's scattering coefficients of them.

Run: pip install kymatio==0.3.0 && PYTHONPATH=tests python -m helpers.kymatio_reference
"""

from pathlib import Path

import numpy as np
import scipy.special

FILE = Path(__file__).resolve().parent.parent / "data" / "scattering.npz"
SETTINGS = [
    (28, 28, 2, 8, 2),
    (32, 32, 3, 8, 2),
    (16, 24, 2, 4, 2),
    (8, 8, 1, 8, 2),
    (8, 8, 3, 8, 2),
    (16, 16, 2, 6, 1),
]
"""Height, width, J, L, max_order."""


def main() -> None:
    if not hasattr(scipy.special, "sph_harm"):  # kymatio 0.3.0 imports it for its 3D transform; SciPy 1.17 dropped it
        scipy.special.sph_harm = None
    from kymatio.numpy import Scattering2D

    arrays = {}
    for height, width, scale, angles, order in SETTINGS:
        images = np.random.default_rng(0).random((2, height, width)).astype(np.float32)
        name = f"{height} {width} {scale} {angles} {order}"
        found = Scattering2D(scale, (height, width), L=angles, max_order=order)(images)
        arrays |= {f"x {name}": images, f"y {name}": found.astype(np.float32)}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
