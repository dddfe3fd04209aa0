"""Small models of transformers with random weights, and what they generate by themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 300
CONTEXT = 256
_NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    **_NO_ENDS,
}
_MADE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_LLAMA)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT, **_NO_ENDS)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_LLAMA)),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**_LLAMA, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    ),
    "mistral with a window": lambda: _mistral(),
}
NAMES = tuple(_MADE)
_MADE |= {
    "llama4": lambda: _llama4(),
    "phimoe": lambda: _phimoe(),
    "diffllama": lambda: _diffllama(),
}
_MADE["llama with wide heads"] = lambda: LlamaForCausalLM(
    LlamaConfig(**_LLAMA | {"hidden_size": 128, "head_dim": 32})  # that vLLM has kernels for
)


def _mistral() -> PreTrainedModel:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_LLAMA, sliding_window=24))


def _llama4() -> PreTrainedModel:
    """Attention in chunks, and with a scale that grows with the position."""
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    sizes = {"intermediate_size_mlp": 128, "num_local_experts": 4, "num_hidden_layers": 4, "head_dim": 16}
    lengths = {"attention_chunk_size": 20, "floor_scale": 8}
    return Llama4ForCausalLM(Llama4TextConfig(**_LLAMA | sizes | lengths, initializer_range=0.2))


def _phimoe() -> PreTrainedModel:
    """A window that stands in the mask only."""
    from transformers import PhimoeConfig, PhimoeForCausalLM

    return PhimoeForCausalLM(
        PhimoeConfig(**_LLAMA, sliding_window=24, num_local_experts=4, initializer_range=0.2)
    )


def _diffllama() -> PreTrainedModel:
    """Two calls of attention in each layer."""
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    return DiffLlamaForCausalLM(DiffLlamaConfig(**_LLAMA, initializer_range=0.2))


def made(name: str) -> PreTrainedModel:
    """A model, the same for each call."""
    torch.manual_seed(0)
    return _MADE[name]().eval()


def drawn_prompts(num: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of 3 to 60 tokens; two of three begin with one of two prefixes of 24 tokens."""
    rng = random.Random(seed)
    prefixes = [tuple(rng.randrange(VOCABULARY) for _ in range(24)) for _ in range(2)] + [()]
    return [
        prefixes[i % 3] + tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(3, 36)))
        for i in range(num)
    ]


@cache
def generated(
    name: str, prompts: tuple[tuple[int, ...], ...], num_tokens: int
) -> Sequence[tuple[list[int], list[float]]]:
    """What a model generates for each prompt; see `generated_by`."""
    return generated_by(made(name), prompts, num_tokens)


def generated_by(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], num_tokens: int
) -> Sequence[tuple[list[int], list[float]]]:
    """What a model generates for each prompt by itself, and by how much each token was better than the next best."""
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            best = [logits[0].topk(2).values for logits in out.logits]
            gaps = [float(two[0] - two[1]) for two in best]
            found.append((out.sequences[0, len(prompt) :].tolist(), gaps))
    return found
