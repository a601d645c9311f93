"""Per-record gradients of ordinary Keras layers: their norms, weighted and filtered sums, seldom written out."""

from tfdp_layers.per_record import formulas, recurrent
from tfdp_layers.per_record.contributions import Contribution
from tfdp_layers.per_record.recording import Recorder, per_record_formulas, recording

__all__ = ["Contribution", "Recorder", "formulas", "per_record_formulas", "recording", "recurrent"]
