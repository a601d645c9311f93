"""What an optimizer may do with per-record gradients before it sums them."""
