"""Pollux: its policy, and the genetic search that it makes."""
