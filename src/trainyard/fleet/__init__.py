"""Level 2: many jobs on one cluster."""
