"""How often a layer that bounds itself is used, what leaves a use, and which uses no bound covers."""
