"""Runs in rounds: what a job is owed, whose turn it is, and the clocks that published programs have."""
