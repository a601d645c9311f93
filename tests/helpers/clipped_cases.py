"""A clipped layer under test, and the shape of one record's input."""

from dataclasses import dataclass
from typing import Any

from helpers.certify import built
from tfdp_layers.layers import BoundedLayer


@dataclass(frozen=True)
class Case:
    """A layer and the shape of one record's input."""

    layer_type: type
    shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    def layer(self, **changes: Any) -> BoundedLayer:
        clips = {"input_clip": 2.0, "upstream_clip": 0.5}
        return built(self.layer_type(**(clips | dict(self.options) | changes)), self.shape)

    def __str__(self) -> str:
        values = [f"{key}={value}" for key, value in self.options if key not in ("units", "filters")]
        return "-".join([self.layer_type.__name__, "x".join(map(str, self.shape)), *values])


def case(layer_type: type, shape: tuple[int, ...], **options: Any) -> Case:
    return Case(layer_type, shape, tuple(options.items()))
