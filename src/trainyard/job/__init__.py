"""Level 1: one model on many devices."""
