"""Strategies for tensors between the forward and the backward pass."""
