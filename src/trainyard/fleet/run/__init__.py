"""Running a workload for real: the same policies, on backends that start processes."""
