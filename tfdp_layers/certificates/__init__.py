"""Proofs about a whole model: what covers each weight, how often a layer is used, and that records do not mix."""
