"""ORCA: how many requests it batches where it reserves what they may need, as the paper of vLLM reports."""

from __future__ import annotations

from trainyard.serve.reproduce.cache_use import num_requests_table, used_table

TABLES = (num_requests_table(), used_table())
