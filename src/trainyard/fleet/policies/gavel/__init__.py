"""Gavel: policies for clusters of several types of device, each a linear program over fractions of time.

References
----------
D. Narayanan, K. Santhanam, F. Kazhamiaka, A. Phanishayee, M. Zaharia. "Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads", OSDI 2020.
"""
