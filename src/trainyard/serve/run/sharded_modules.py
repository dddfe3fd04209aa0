"""A rank's part of a model of transformers: modules with a part of their weights, and sums over the ranks between."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainyard.job.remesh import TENSOR
from trainyard.job.run.step.process_groups import ProcessGroups
from trainyard.program import spmd
from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_shards import ModelShards

__all__ = ["shard_model"]

_PROBE_TOKENS = 8
_CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Relative difference of a row of scores that another order of sums may cause."""


@torch.no_grad()
def shard_model(model: PreTrainedModel, name: str, shards: ModelShards, groups: ProcessGroups) -> None:
    """Take all but a rank's part from a model; all ranks do so together.

    Parameters
    ----------
    model : that is changed; whole, in evaluation mode.
    name : by which errors call it.
    shards : the parts.
    groups : of the plan of the shards, with this rank's place in them.

    Raises
    ------
    ServeError
        If its modules do not compute with parts of their weights what they compute with all.
    """
    whole = _scores(model)
    head = model.get_output_embeddings()
    uncut = head.weight
    _cut_parameters(model, shards, groups)
    for path in shards.summed:
        module = model.get_submodule(path)
        if type(module) is nn.Embedding:
            model.set_submodule(path, _EmbeddingPart(module, groups))
        elif type(module) in (nn.Linear, Conv1D) or _has_experts(module):
            model.set_submodule(path, _Summed(module, groups))
        else:
            raise _refusal(name, shards, f"{path}, a {type(module).__name__}, needs sums over all of them")
    if head.weight is not uncut:
        model.set_output_embeddings(_Gathered(head, groups))
    # Some modules use sizes of the whole. A few rows may differ by another choice of experts.
    try:
        difference = (_scores(model) - whole).norm(dim=1) / whole.norm(dim=1)
    except Exception as error:  # of modules of transformers, that look for what was replaced
        raise _refusal(name, shards, f"its modules do not run there ({error})") from error
    if not difference.median() < _CLOSE[whole.dtype]:
        raise _refusal(name, shards, "its modules compute something else there")


def _refusal(name: str, shards: ModelShards, why: str) -> ServeError:
    return ServeError(
        f"{name} cannot be served in {shards.num_ranks} shards: {why}; serve it without tensor parallelism"
    )


def _scores(model: PreTrainedModel) -> Tensor:
    """Return the scores of all words after each of a few tokens."""
    found: Tensor = model(input_ids=torch.arange(_PROBE_TOKENS)[None], use_cache=False).logits[0]
    return found


def _has_experts(module: nn.Module) -> bool:
    """Whether some parameters are matrices of experts, one on the other."""
    return any(param.dim() == 3 for param in module.parameters())


def _cut_parameters(model: PreTrainedModel, shards: ModelShards, groups: ProcessGroups) -> None:
    """Put a part in the place of each parameter that is cut, in all modules that use it."""
    uses: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for leaf, param in module.named_parameters(recurse=False):
            uses[id(param)].append((module, leaf))
    for path, placement in shards.placements.items():
        dim, blocks = placement.dim, placement.blocks
        param = model.get_parameter(path)
        part = spmd.take_part(param, groups.index(TENSOR), dim, blocks, shards.num_ranks)
        mine = nn.Parameter(part, requires_grad=False)
        for module, leaf in uses[id(param)]:
            setattr(module, leaf, mine)
            _resize(module)
        parent: Any = model.get_submodule(path.rpartition(".")[0].rpartition(".")[0])
        if blocks > 1 and hasattr(parent, "split_size"):  # of GPT-2: the width of its queries
            parent.split_size = part.shape[dim] // blocks


def _resize(module: nn.Module) -> None:
    """Let a product tell the sizes of its weight."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, Conv1D):
        module.nx, module.nf = module.weight.shape


class _Summed(nn.Module):
    """A module whose results are terms of a sum over the ranks."""

    def __init__(self, module: nn.Module, groups: ProcessGroups) -> None:
        super().__init__()
        self.module, self._groups = module, groups
        bias = getattr(module, "bias", None)
        if bias is not None:  # one term has it
            kept = spmd.keep_on_first(bias, groups.index(TENSOR))
            module.bias = nn.Parameter(kept, requires_grad=False)

    def forward(self, *given: Tensor) -> Tensor:
        return _sum(self.module(*given), self._groups)


class _EmbeddingPart(nn.Module):
    """Rows of an embedding table on one rank, as many as on each other rank."""

    def __init__(self, module: nn.Embedding, groups: ProcessGroups) -> None:
        super().__init__()
        self.weight, self._groups = module.weight, groups

    def forward(self, token_ids: Tensor) -> Tensor:
        num_rows = self.weight.shape[0]
        first_row = self._groups.axis_offset(TENSOR, num_rows)
        num_all = num_rows * self._groups.size(TENSOR)
        return _sum(spmd.embed_part(self.weight, token_ids, first_row, num_all), self._groups)


class _Gathered(nn.Module):
    """A product whose columns are put together from all ranks."""

    def __init__(self, module: nn.Module, groups: ProcessGroups) -> None:
        super().__init__()
        self.module, self._groups = module, groups

    def forward(self, x: Tensor) -> Tensor:
        part: Tensor = self.module(x)
        return self._groups.wait(self._groups.start_all_gather(part, TENSOR, part.dim() - 1, 1))


def _sum(term: Tensor, groups: ProcessGroups) -> Tensor:
    return groups.wait(groups.start_all_reduce(term, TENSOR, "sum"))
