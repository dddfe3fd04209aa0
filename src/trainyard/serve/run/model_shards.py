"""How a model of transformers is cut over ranks: level 1's plan, made for the model's own graph and parameters.

Transformers describes such a cut, too, for some models (``base_model_tp_plan``). Level 1's is of every model whose graph
can be captured, such as GPT-2, and says which heads and vocabularies cannot be cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from trainyard.job.lower.resolve import resolve
from trainyard.job.plan import Plan
from trainyard.job.remesh import TENSOR
from trainyard.program import spmd
from trainyard.program.grouped_product import grouped_product
from trainyard.program.model import Model
from trainyard.program.placement import Shard
from trainyard.program.program import Program
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.split_plan import split_plan, tensor_shards
from trainyard.serve.errors import ServeError
from trainyard.serve.run.pretrained import refusing

__all__ = ["ModelShards", "model_shards"]

_EXPERTS = "trainyard_grouped"
_MOST_TOKENS = 157


@dataclass(frozen=True)
class ModelShards:
    """How each rank has a part of a model.

    Attributes
    ----------
    plan : of level 1, with one stage.
    placements : of the parameters that are cut, by name.
    summed : modules whose results are terms of a sum over the ranks, by name.
    """

    plan: Plan
    placements: Mapping[str, Shard]
    summed: frozenset[str]

    @property
    def num_ranks(self) -> int:
        """Processes that share the model."""
        return self.plan.num_ranks


def model_shards(folder: Path, num_ranks: int) -> ModelShards:
    """Cut a model in Hugging Face form; its weights are not read.

    Parameters
    ----------
    num_ranks : processes that share it.

    Raises
    ------
    ServeError
        If it cannot be cut so.
    """
    program = _program(folder)
    plan = split_plan(program, tensor_parallel=num_ranks)
    placed = resolve(program, plan).placed_along(TENSOR)
    collectives = [
        node for node in tensor_shards(program, plan).program.graph.nodes if node.target in spmd.COLLECTIVES
    ]
    for node in collectives:
        if node.target is not spmd.all_reduce:
            raise ServeError(
                f"{program.name} cannot be served in {num_ranks} shards: {node.meta['layer']} needs the results of all "
                "of them; serve it with --tp 1"
            )
    return ModelShards(
        plan,
        {name: each for name, each in placed.items() if isinstance(each, Shard)},
        frozenset(node.meta["layer"] for node in collectives),
    )


def _program(folder: Path) -> Program:
    """The forward graph of a model, with transformers' names."""
    with refusing(folder, "cannot be served in shards", "serve it with --tp 1"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False, attn_implementation="sdpa", experts_implementation=_EXPERTS
            )
        length = min(_MOST_TOKENS, int(config.get_text_config().max_position_embeddings))
        tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
        return forward_program(Model(folder.name, module, _forward, tokens))


def _forward(model: nn.Module, tokens: Tensor) -> Tensor:
    found: Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


def _grouped_experts(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Gated experts without biases, as ops that level 1 knows."""
    experts, order = top_k_index.flatten().sort(stable=True)
    rows = hidden_states[order // top_k_index.shape[1]]
    gate, up = grouped_product(experts, rows, module.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
    found = grouped_product(experts, module.act_fn(gate) * up, module.down_proj.transpose(1, 2))
    back = found[order.argsort()].unflatten(0, top_k_index.shape)
    mixed: Tensor = (back * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)
    return mixed


ALL_EXPERTS_FUNCTIONS.register(_EXPERTS, _grouped_experts)
