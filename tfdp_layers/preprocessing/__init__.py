"""What data must be prepared by: learned privately, charged before it is released; or chosen by what is public."""

from tfdp_layers.calls import explain
from tfdp_layers.preprocessing.ranks import quantiles
from tfdp_layers.preprocessing.sharing import LimitedOwners, limit_owners
from tfdp_layers.preprocessing.splitting import folds, held_out
from tfdp_layers.preprocessing.tokens import vocabulary

__all__ = ["LimitedOwners", "folds", "held_out", "limit_owners", "quantiles", "vocabulary"]

explain(globals(), __all__)
