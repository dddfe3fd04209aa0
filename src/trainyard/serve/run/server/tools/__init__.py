"""Tools that models call: how their answers are made to be calls, and how calls are read from text."""
