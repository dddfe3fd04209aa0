"""Plan a Hugging Face model: any module, a loss and an example batch are enough.

Nothing is downloaded: the configuration is written here, and no weight is ever made.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import trainyard as ty

config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
)
with torch.device("meta"):
    module = LlamaForCausalLM(config)


def loss(module, batch):
    """The model's own next-token loss."""
    return module(batch["tokens"], labels=batch["tokens"], use_cache=False).loss


batch = {"tokens": torch.zeros(16, 512, dtype=torch.int64)}
model = ty.Model("llama-of-hugging-face", module, loss, batch)
program = ty.capture(model)
print(f"{len(program.nodes)} ops, {program.num_params / 1e6:.0f} million parameters")

found = ty.plan(model, "1x4xRTX4090", dtype="bfloat16")
print(found.plan.explain())
print(f"predicted step: {1000 * found.simulation.step_s:.0f} ms")
