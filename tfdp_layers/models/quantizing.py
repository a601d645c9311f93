"""What a quantization looks at beside the weights: records that it fits them to."""

from typing import Any

__all__ = ["refuse_calibration"]


def refuse_calibration(configs: Any, public: bool) -> None:
    """Raises ValueError where weights would be fitted to records, unless these are said to be public.

    Keras' modes "gptq" and "awq" choose the quantized weights by what a data set gives in each layer, without noise:
    whoever sees the weights sees what was computed from it.

    Args:
        configs: what `quantize` got, the configuration among it.
        public: whether the caller says that the data set is public.
    """
    if public or all(getattr(one, "dataset", None) is None for one in configs):
        return
    raise ValueError(
        "The config of quantize has a `dataset`, to which it fits the weights without noise: fitted to private records"
        " they would give these away, and no ledger counts that. Quantize by 'int8' or 'int4', which look at the"
        " weights alone; or give a public data set, and say so: quantize(..., public=True)."
    )
