"""What clients ask of models over time."""
