"""Descriptions of results in a session of Python and in a notebook, a module for each part of Trainyard."""
