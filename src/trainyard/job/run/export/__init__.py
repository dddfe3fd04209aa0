"""Export of trained weights for other programs."""
