"""Real models, a screen each."""
