"""Importing tfdp_layers from its source folder: two of its packages lie beside it there, where Python would not look.

An installation has them inside. Where the package is installed as well, Python would go on to look for them, and for
whatever else it misses, in that installation: parts of two copies would run together.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["find_all_here"]

_BESIDE = ("accounting", "callbacks")


def find_all_here(package: str, folder: Path) -> None:
    """Makes all modules of the package come from its source folder and the two folders beside it, and nowhere else.

    Raises:
        ImportError: the folders beside it are missing.
    """
    root = folder.parent
    if not all((root / name).is_file() for name in ("setup.cfg", *(f"{name}/__init__.py" for name in _BESIDE))):
        raise ImportError(
            f"{package} was imported from {folder}, which lacks {' and '.join(_BESIDE)}: in an installation they lie in"
            " that folder, in the sources beside it, and here they do neither. Install the package again, copy the"
            " sources whole, or run Python where it does not find this folder.",
            name=package,
            path=str(folder),
        )
    sys.meta_path.insert(0, _SourceFinder(package, root))


class _SourceFinder(MetaPathFinder):
    """Answers for the modules below the package as long as that is the one of this source folder."""

    def __init__(self, package: str, root: Path) -> None:
        self._package = package
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if parent.split(".")[0] != self._package or not path:
            return None
        if not all(Path(place).absolute().is_relative_to(self._root) for place in path):
            return None
        beside = parent == self._package and name in _BESIDE
        spec = PathFinder.find_spec(fullname, [str(self._root)] if beside else path, target)
        if spec is None:  # Finders after this one know the installation.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec
