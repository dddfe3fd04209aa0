"""Costs: seconds of ops and collectives."""
