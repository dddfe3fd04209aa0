"""Sia: its policy, and the integer program that it solves."""
