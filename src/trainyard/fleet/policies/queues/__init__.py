"""Jobs in one order: the textbook queues, and backfilling between them."""

from trainyard.fleet.policies.queues.baselines import fifo, las, sjf, srtf

__all__ = ["fifo", "las", "sjf", "srtf"]
