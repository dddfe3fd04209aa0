"""Real models, a screen each."""

from trainyard.zoo.registry import build

__all__ = ["build"]
