"""nano-vllm's scheduler and block manager, step by step beside what the program put out."""

from __future__ import annotations

import hashlib

import pytest
from served import table
from shared_data import DATA, needs_data

from trainyard.serve.batch import Batch
from trainyard.serve.replicas.nano_vllm import NanoVLLM
from trainyard.serve.reproduce.programs.nano_vllm import Counts, counts


@needs_data(DATA)
@pytest.mark.parametrize("row", [0, 1])
def test_every_step_is_as_in_the_program(row):
    said = table(DATA / "reference/serve/nano_vllm.csv")[row]
    assert said["block_tokens"] == "16"
    trace = hashlib.md5()

    def seen(is_prefill: bool, batch: Batch) -> None:
        items = [(item.request, item.stop - item.start, item.start) for item in batch.items]
        trace.update(repr((is_prefill, items)).encode())

    policy = NanoVLLM(int(said["max_batched_tokens"]), int(said["max_sequences"]))
    found = counts(policy, int(said["blocks"]), seen)
    assert found == Counts(
        int(said["prefill_steps"]),
        int(said["decode_steps"]),
        int(said["prefill_tokens_computed"]),
        int(said["preemptions"]),
    )
    assert found.prefill_steps + found.decode_steps == int(said["steps"])
    assert trace.hexdigest() == said["trace_md5"]
