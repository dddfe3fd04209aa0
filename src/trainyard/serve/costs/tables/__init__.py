"""Measured times of kernels, from tables."""
