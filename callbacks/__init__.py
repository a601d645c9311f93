"""Keras callbacks that enforce a privacy budget and show what was spent. They read the ledger; they never spend."""

from tfdp_layers.callbacks.budget import BudgetExhausted, PrivacyBudget
from tfdp_layers.callbacks.tensorboard import PrivacyTensorBoard
from tfdp_layers.calls import explain

__all__ = ["BudgetExhausted", "PrivacyBudget", "PrivacyTensorBoard"]

explain(globals(), __all__)
