"""Verbs of level 3."""
