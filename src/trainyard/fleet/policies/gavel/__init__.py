"""Gavel: policies for clusters of several types of device, each a linear program over fractions of time.

The problem is T, the throughput of every job on every type of device; X, the fraction of time that every job should have
every type, is sought, and rounds bring it about.

- `problem` : T, scale factors, devices, and what follows from X; `pairs`, `estimate` : how fast jobs are beside others.
- `objectives`, `water_filling`, `finish_time` : what X is to be best for; each is a policy, whose shell is `policy`.
- `solver` : linear programs of X, in HiGHS or, faster where no two jobs share devices, by prices of the types.

References
----------
D. Narayanan, K. Santhanam, F. Kazhamiaka, A. Phanishayee, M. Zaharia. "Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads", OSDI 2020.
"""
