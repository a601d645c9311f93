"""Values that a notebook shows as their text."""

from typing import Any


class Shown:
    """Mixin: a cell that ends with such a value shows what `print` would, and not the fields of a dataclass.

    IPython calls `_repr_pretty_`; elsewhere nothing changes.
    """

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
