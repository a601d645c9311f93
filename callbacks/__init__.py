"""Keras callbacks that enforce a privacy budget and show what was spent. They read the ledger; they never spend."""

from tfdp_layers.callbacks.budget import BudgetExhausted, PrivacyBudget
from tfdp_layers.callbacks.tensorboard import PrivacyTensorBoard

__all__ = ["BudgetExhausted", "PrivacyBudget", "PrivacyTensorBoard"]
