"""Per-record gradients of ordinary Keras layers: their norms, weighted and filtered sums, seldom written out."""

from tfdp_layers.per_record import attention, embeddings, formulas, mixtures, recurrent, third_party
from tfdp_layers.per_record.contributions import Contribution
from tfdp_layers.per_record.recording import Recorder, recording
from tfdp_layers.per_record.registry import per_record_formulas

__all__ = [
    "Contribution",
    "Recorder",
    "attention",
    "embeddings",
    "formulas",
    "mixtures",
    "per_record_formulas",
    "recording",
    "recurrent",
    "third_party",
]
