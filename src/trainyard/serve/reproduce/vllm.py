"""vLLM: how many requests it batches, and how much of the cache they use, beside ORCA."""

from __future__ import annotations

from trainyard.serve.policies.vllm import vllm
from trainyard.serve.reproduce.cache_use import num_requests_table, used_table

TABLES = (num_requests_table(vllm()), used_table(vllm()))
