"""AlpaServe: models are split into pipelines over shared devices, so a burst for one model can use all devices.

References
----------
Z. Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving", OSDI 2023,
arXiv:2302.11665. Section 4.2: Algorithm 1 (``greedy``), Algorithm 2 (``enumeration``), and the simulator that guides
them (``simulate``).

Fidelity: simplified. Models are not sorted into buckets by size before groups are made, and requests are not batched.
``local`` is not in the paper: it also tries groups of different shapes, and moves models between groups.
"""
