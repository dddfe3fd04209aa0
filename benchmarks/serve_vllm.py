"""vLLM for `serve.py`: reads prompts as lines of JSON, generates for them, and writes the processor-seconds of each.

`serve.py` starts it in vLLM's environment: `python serve_vllm.py FOLDER FD`, with the folder of a model and a file
descriptor to write to, since vLLM itself writes to the standard output. An answer has as many tokens as a prompt.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}

from record import not_here

try:
    from vllm import LLM, SamplingParams
except ImportError:
    not_here(
        "vLLM is not installed in this Python; `make vllm` makes an environment, with which serve.py starts this"
    )
import torch


def main() -> None:
    answers = os.fdopen(int(sys.argv[2]), "w")
    llm = LLM(
        sys.argv[1],
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        block_size=32,
        kv_cache_memory_bytes=2**30,
        enable_prefix_caching=False,
    )
    torch.set_num_threads(1)
    for line in sys.stdin:
        ids_of = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in ids_of]
        sampling = SamplingParams(
            temperature=0.0, max_tokens=len(ids_of[0]), ignore_eos=True, detokenize=False
        )
        start_s = time.process_time()
        found = llm.generate(prompts, sampling, use_tqdm=False)
        taken_s = time.process_time() - start_s
        assert all(len(each.outputs[0].token_ids) == sampling.max_tokens for each in found)
        print(json.dumps(taken_s), file=answers, flush=True)


if __name__ == "__main__":
    main()
