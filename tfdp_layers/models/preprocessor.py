"""What a model does to data before its layers see them: a task of KerasHub has a preprocessor, which is no layer."""

from typing import Any

from tfdp_layers.caller import warn

__all__ = ["warn_of_preprocessor"]


def warn_of_preprocessor(model: Any) -> None:
    """Warns where a model has a preprocessor: what is made private is its layers, which then meet data as they come."""
    found = getattr(model, "preprocessor", None)
    if found is None:
        return
    warn(
        f"{type(model).__name__} {model.name!r} has a preprocessor ({type(found).__name__}), which its fit and predict"
        " apply to the data. It is left out here, so the same data give other predictions. Apply it beforehand, for fit"
        " and for predict: x = task.preprocessor(x), or to each record of a pipeline. To see this line no more:"
        " task.preprocessor = None, before make_private. Where your data are preprocessed already, nothing is lost."
    )
