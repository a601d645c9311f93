"""What mixins for Keras classes derive from: nothing at run time, and for type checkers the Keras class to come."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    KerasMixin = Any
else:

    class KerasMixin:
        """Says that the class is to be mixed with a Keras layer or model, whose attributes it uses."""
