"""Running a workload for real: the same policies, on engines that start processes."""
