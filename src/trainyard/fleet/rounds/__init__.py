"""Runs in rounds: what a job is owed, and whose turn it is."""
