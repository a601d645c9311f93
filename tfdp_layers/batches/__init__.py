"""Records, checked, and drawn in batches as they are accounted for."""
