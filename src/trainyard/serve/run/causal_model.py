"""A model of transformers that computes steps: tokens of many sequences go through it together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.device_attention import attention_for
from trainyard.serve.run.hf_attention import ATTENTION, FIRST_STEP, AttentionContext, connect, first_step
from trainyard.serve.run.kv_cache import CacheShape, KvCache
from trainyard.serve.run.linear import pack_linear_layers
from trainyard.serve.run.lora_adapter import read_lora_adapter
from trainyard.serve.run.lora_layers import LoraLayers
from trainyard.serve.run.paged_attention import PagedAttention, attention_batch
from trainyard.serve.run.pretrained import load_causal_pretrained, refusing
from trainyard.serve.run.rope import longest_alike
from trainyard.serve.run.step_inputs import StepInputs, step_inputs
from trainyard.serve.run.step_positions import needs_step_positions, step_positions
from trainyard.serve.run.step_requirements import own_attention, require_steps

__all__ = ["CausalModel", "load_causal_model"]


class CausalModel:
    """A model whose attention is over a paged KV cache.

    Parameters
    ----------
    model : of transformers, on the device that computes it; its attention is replaced.
    attention : that computes it; by default what its device has for its cache (`attention_for`).

    Attributes
    ----------
    name : of its folder, or of its class.
    context : the longest sequence that it was made for, in tokens.
    vocabulary : number of tokens that it knows.
    shapes : what each call of attention keeps of a token.

    Raises
    ------
    ServeError
        If its attention cannot be computed so.
    """

    def __init__(
        self, model: PreTrainedModel, name: str = "", attention: PagedAttention | None = None
    ) -> None:
        config = model.config.get_text_config()
        self.name = name or type(model).__name__
        alike = longest_alike(self.name, config)
        self._model = model.eval()
        self._device = model.device
        self._given_attention = attention
        require_steps(model)
        self.context = min(int(config.max_position_embeddings), alike or 2**31)
        self._attention = AttentionContext(self.context)
        connect(model, self._attention)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.shapes = self._shapes()
        self.vocabulary = int(config.vocab_size)
        self._cache = KvCache(CpuAttention(), self.shapes, 0, 1)
        if self._device.type == "cpu":
            pack_linear_layers(model)
        self._adapters = LoraLayers(model, self.name)

    def new_cache(self, num_blocks: int, block_tokens: int, num_host_blocks: int) -> None:
        """Keep keys and values in a new KV cache; see `trainyard.serve.run.step_model.StepModel`."""
        dtype, head_dims = self._model.dtype, (max(each.width, each.value_width) for each in self.shapes)
        attention = self._given_attention or attention_for(
            self._device, head_dims, num_blocks, block_tokens, dtype
        )
        self._cache = KvCache(
            attention, self.shapes, num_blocks, block_tokens, num_host_blocks, dtype, self._device
        )
        self._attention.attention, self._attention.layers = attention, self._cache.layers
        for length in attention.warm_up_tokens:
            used = -(-length // block_tokens)
            if used <= num_blocks and length <= self.context:
                places = np.arange(length)
                batch = attention_batch([0, length], [0], [np.arange(used)], num_blocks, block_tokens)
                self.compute(StepInputs(np.zeros_like(places), places, batch, {}), [length - 1])

    def apply(self, ops: Sequence[CacheOp]) -> None:
        """Do operations on the KV cache; see `trainyard.serve.run.step_model.StepModel`."""
        self._cache.apply(ops)

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Read an adapter; see `trainyard.serve.run.step_model.StepModel`."""
        if self._device.type != "cpu":
            raise ServeError(f"{self.name} is on {self._device.type}; adapters are computed on the CPU only")
        self._adapters.add(adapter, read_lora_adapter(folder, self._model.dtype, self._adapters.require))

    def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; see `trainyard.serve.run.step_model.StepModel`."""
        self._adapters.remove(adapter)

    def logits(
        self, items: Sequence[WorkItem], requests: Mapping[int, RequestState], rows: Sequence[int]
    ) -> Tensor:
        """Compute a step; see `trainyard.serve.run.step_model.StepModel`."""
        return self.compute(self.inputs(items, requests), rows)

    def inputs(self, items: Sequence[WorkItem], requests: Mapping[int, RequestState]) -> StepInputs:
        """The arrays of a step."""
        return step_inputs(items, requests, self._cache.num_blocks, self._cache.block_tokens)

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function for each layer; see `trainyard.serve.run.step_model.StepModel`."""
        self._attention.report = report

    def close(self) -> None:
        """Nothing was started."""

    @torch.inference_mode()
    def compute(self, inputs: StepInputs, rows: Sequence[int]) -> Tensor:
        """Compute a step of which the arrays are made.

        Parameters
        ----------
        inputs : of the items of the step.
        rows : numbers of the tokens after which scores are wanted.

        Returns
        -------
        As `logits`.
        """
        self._attention.inputs, self._attention.num_called = inputs, 0
        self._adapters.use_rows({name: torch.from_numpy(rows) for name, rows in inputs.adapter_rows.items()})
        keep = torch.tensor(rows, dtype=torch.int64, device=self._device)
        more: dict[str, Any] = {"logits_to_keep": keep} if self._keeps_logits else {}
        if self._needs_positions:
            more |= step_positions(self._model, inputs.positions)
        found: Tensor = self._model(
            input_ids=torch.from_numpy(inputs.token_ids)[None].to(self._device),
            position_ids=torch.from_numpy(inputs.positions)[None].to(self._device),
            use_cache=False,
            **more,
        ).logits[0]
        self._attention.require_all_calls()
        return (found if self._keeps_logits else found[keep]).float().cpu()

    def _shapes(self) -> tuple[CacheShape, ...]:
        """Compute a step of one token; return the shape of the keys and values of each call of attention."""
        self._model.set_attn_implementation(FIRST_STEP)
        token = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        with torch.inference_mode(), first_step(self._attention):
            self._model(input_ids=token, position_ids=token, use_cache=False)
        if not self._attention.calls:
            raise ServeError(own_attention(self._model))
        self._model.set_attn_implementation(ATTENTION)
        self._needs_positions = needs_step_positions(self._model, token)
        return tuple(call.shape for call in self._attention.calls)


def load_causal_model(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CausalModel:
    """Read a model in Hugging Face form: ``config.json`` and weights as safetensors. No code of the folder runs.

    Parameters
    ----------
    dtype : type of its weights.
    device : that computes it.

    Raises
    ------
    ServeError
        If the folder has no such model, or not all of its weights.
    """
    model: Any = load_causal_pretrained(folder, dtype)
    with refusing(folder, "cannot be computed"):
        return CausalModel(model.to(device), folder.name)
