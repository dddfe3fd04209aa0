"""vLLM with prompts first: its paper's batches, and what two programs put out that schedule so."""

from __future__ import annotations

from trainyard.serve.policies.vllm import PrefillFirst
from trainyard.serve.replicas.vidur import VidurVLLM
from trainyard.serve.reproduce.cache_use import num_requests_table, used_table
from trainyard.serve.reproduce.programs.nano_vllm import TABLES as NANO_VLLM
from trainyard.serve.reproduce.programs.vidur import VLLM_FOUR_S, VLLM_S, run_table

TABLES = (
    num_requests_table(PrefillFirst()),
    used_table(PrefillFirst()),
    *NANO_VLLM,
    run_table("vllm", VidurVLLM(), VLLM_S),
    run_table("vllm", VidurVLLM(), VLLM_FOUR_S, time_scale=0.1, num_replicas=4),
)
