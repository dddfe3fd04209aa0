"""Replicas: programs that authors published, repeated decision by decision where they do otherwise than their papers say.

They are evidence that the simulator does what theirs do: `trainyard.fleet.reproduce` runs them on the jobs of those
programs, beside what these print. Each says where it departs from the paper; most derive from the policy that follows it.
Nothing else imports them, and no name of the catalog stands for one; on the command line one is named by its file, as any
policy that is not of the catalog: ``replicas/gavel.py:MaxMinProgram(aware=False)``.
"""
