"""Nexus: sessions packed on GPUs by their batches and duty cycles, and objectives of queries split over their models.

References
----------
H. Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019. Section 6.1: squishy
bin packing, Algorithm 1 (``packing``). Section 6.2: how the objective of a query is split (``query``). Section 6.3: early
drop (``dispatch``). ``admission`` is of the authors' program: whether a GPU takes one more session between packings.

Fidelity: simplified. Prefix batching is left out, and so is moving sessions between epochs.
"""
