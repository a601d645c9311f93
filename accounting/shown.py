"""Values that a notebook shows as their text."""

from typing import Any


class Shown:
    """Mixin: a cell that ends with such a value shows what `print` would, and not the fields of a dataclass.

    IPython calls `_repr_pretty_`; elsewhere nothing changes. It looks for the name in the class itself before it looks
    at what that derives from, and takes a `__repr__` that it finds there first, as every dataclass has one.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
