"""Nexus: sessions are packed on GPUs by batch size and duty cycle; a query's objective is split over its models.

References
----------
H. Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019. Section 6.1: squishy
bin packing, Algorithm 1 (``packing``), and sessions that stay where they are between epochs (``epochs``). Section 6.2:
how the objective of a query is split (``query``). Section 6.3: early drop (``dispatch``), and prefix batching
(``prefix``). ``simulate`` counts the requests that meet their objectives. ``admission`` follows the authors' program: it
says whether a GPU takes one more session between packings.

Fidelity: simplified. You give which models share a prefix, and how long it is; models are not compared. Between epochs no
session moves only to free a GPU.
"""
