"""What becomes of each tensor between the forward and the backward pass."""
