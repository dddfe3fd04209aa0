"""Models that `trainyard train` trained, as folders that can be served."""
