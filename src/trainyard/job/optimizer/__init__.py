"""The optimizer that a user chooses before anything is planned: its options, rates and groups of parameters."""

from trainyard.job.optimizer.config import OptimizerConfig

__all__ = ["OptimizerConfig"]
