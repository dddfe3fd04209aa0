"""Serve prompts with vLLM under a policy, in vLLM's environment; what it is told and what it tells is JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams


def main() -> None:
    told: dict[str, Any] = json.load(sys.stdin)
    llm = LLM(
        told["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=told["max_model_len"],
        num_gpu_blocks_override=told["num_blocks"] + 1,  # one of them stands for none
        block_size=told["block_tokens"],
        kv_cache_memory_bytes=50_000_000,
        max_num_batched_tokens=16_384,
        enable_prefix_caching=told["prefix_caching"],
        enforce_eager=True,
        async_scheduling=False,
        scheduler_cls="trainyard.serve.run.vllm.scheduler.PolicyScheduler",
        additional_config={"trainyard_policy": told["policy"]},
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, steps = scheduler.schedule, []

    def recorded(*given: Any) -> Any:
        output = schedule(*given)
        steps.append(
            {
                "items": [list(item) for item in scheduler.batch.items],
                "preempted": list(scheduler.batch.preempted),
                "of_vllm": list(output.num_scheduled_tokens.values()),
            }
        )
        return output

    scheduler.schedule = recorded
    sampling = [
        SamplingParams(
            temperature=0, max_tokens=told["num_tokens"], ignore_eos=True, detokenize=False, extra_args=extra
        )
        for extra in told["extra_args"]
    ]
    found = llm.generate([{"prompt_token_ids": ids} for ids in told["prompts"]], sampling, use_tqdm=False)
    told_back = {
        "tokens": [list(each.outputs[0].token_ids) for each in found],
        "cached": [each.num_cached_tokens for each in found],
        "steps": [each for each in steps if each["items"]],
        "num_free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
    }
    Path(sys.argv[1]).write_text(json.dumps(told_back))


if __name__ == "__main__":
    main()
