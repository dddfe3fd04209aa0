"""Verbs of level 2."""
