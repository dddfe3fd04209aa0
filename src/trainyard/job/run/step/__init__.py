"""One optimizer step on one rank: its part of the plan, executed."""
