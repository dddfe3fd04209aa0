"""Plan, simulate and run deep-learning work on PyTorch."""
