"""What must be proved, what must not, and random functions between them."""
