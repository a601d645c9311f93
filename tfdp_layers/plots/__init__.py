"""Pictures of what a private training spends and gets. Needs matplotlib: `pip install '.[plots]'` in the checkout.

Each function returns a matplotlib `Figure`, which no window shows and no global state remembers: `save(figure, path)`
writes it with its alternative text, `alt_text(figure)` gives that. Lines differ in dash and marker and not in colour
alone, on white: legible in print, in grey, and as a card on a dark page.
"""

from tfdp_layers.calls import explain
from tfdp_layers.plots.curves import accuracy, epsilon, noise, plan, profile
from tfdp_layers.plots.details import audit, groups
from tfdp_layers.plots.figures import alt_text, save

__all__ = ["accuracy", "alt_text", "audit", "epsilon", "groups", "noise", "plan", "profile", "save"]

explain(globals(), __all__)
