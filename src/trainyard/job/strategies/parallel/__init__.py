"""Strategies that split one step over devices."""
