"""The discrete-event core and its Timeline."""
