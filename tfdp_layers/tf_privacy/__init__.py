"""tensorflow-privacy's own optimizers and models, with a ledger (TensorFlow 2.15, Keras 2).

`pip install '.[tensorflow-privacy]'` makes that environment, in Python 3.10 or 3.11.
"""

from tfdp_layers.calls import explain
from tfdp_layers.tf_privacy.counted import with_ledger
from tfdp_layers.tf_privacy.draws import PoissonBatches

__all__ = ["PoissonBatches", "with_ledger"]

explain(globals(), __all__)
