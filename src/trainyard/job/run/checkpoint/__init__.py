"""Checkpoints: what they hold, and how they are written, found and read."""
