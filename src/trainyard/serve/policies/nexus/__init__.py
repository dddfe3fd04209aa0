"""Nexus: sessions packed on GPUs by their batches and duty cycles, and objectives of queries split over their models.

References
----------
H. Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019. Section 6.1: squishy
bin packing, Algorithm 1 (``packing``), and sessions that stay where they are between epochs (``epochs``). Section 6.2:
how the objective of a query is split (``query``). Section 6.3: early drop (``dispatch``), and prefix batching
(``prefix``). ``simulate`` tells how many requests keep their objectives. ``admission`` is of the authors' program:
whether a GPU takes one more session between packings.

Fidelity: simplified. Which models share a prefix, and how long it is, has to be given: models are not compared. Between
epochs no session is moved only to give up a GPU.
"""
