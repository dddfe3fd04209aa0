"""Nexus: sessions packed on GPUs by their batches and duty cycles, and objectives of queries split over their models.

References
----------
H. Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019. Section 6.1: squishy
bin packing (Algorithm 1). Section 6.2: how the objective of a query is split. Section
6.3: early drop (``dispatch``).

Fidelity: simplified. Prefix batching is left out, and so is moving sessions between epochs.
"""
