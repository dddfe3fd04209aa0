"""Options of engines on this machine: cache, limits and threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from trainyard.cli.bounds import PROCESSES, TOKENS
from trainyard.cli.quantities import Size
from trainyard.cli.serve.cache_memory import cache_bytes
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.run.embedding_engine import EmbeddingEngineSpec
    from trainyard.serve.run.engine_process import EngineSpec

__all__ = ["BLOCK_TOKENS", "LocalEngineOptions"]

BLOCK_TOKENS = 16

_MOST_CACHE_BYTES = 4 * 2**30
_CACHE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class LocalEngineOptions:
    """Options of every command that computes a model for real."""

    heading = "engine"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and KV cache."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that computes each model; with cuda, say how large the KV cache is. Each replica has a device of its own."""
    cache_blocks: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """KV cache of each model, in blocks."""
    cache_memory: Size | None = None
    """KV cache of each model, such as 2GiB; by default all models share a quarter of the free memory, at most 4 GiB."""
    host_cache_memory: Size | None = None
    """Memory of each model for swapped-out requests, under policies that swap; by default none."""
    block_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Tokens per block of the KV cache; by default 16, with vLLM 32."""
    max_model_len: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Longest sequence, prompt and answer together; by default what the model and the KV cache allow."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="N"), PROCESSES] = None
    """Threads of each process that computes a model; by default these processes share all processors of this machine but
    one, which answers requests."""

    def spec(
        self,
        folder: Path,
        policy: str,
        num_processes: int = 1,
        tensor_parallel: int = 1,
        block_tokens: int = BLOCK_TOKENS,
        *,
        checks_weights: bool = True,
    ) -> EngineSpec:
        """How a model is computed.

        Parameters
        ----------
        folder : of the model, in Hugging Face form.
        policy : the name of one.
        num_processes : that share the machine, of all models and replicas.
        tensor_parallel : processes that share the model; its KV cache is that of all together.
        block_tokens : tokens per block where ``--block-tokens`` is not given.
        checks_weights : whether the folder has the weights, and this machine computes them.

        Raises
        ------
        ServeError
            If options do not go together, the cache is too small for a request, or the model cannot be cut so.
        """
        import torch

        from trainyard.serve.run.engine import EngineOptions
        from trainyard.serve.run.engine_process import EngineSpec
        from trainyard.serve.run.model_check import check_model
        from trainyard.serve.run.model_shards import model_shards
        from trainyard.serve.run.server.cache_size import block_bytes, longest_sequence

        self._check_device(tensor_parallel)
        dtype = getattr(torch, self.dtype)
        calls_per_layer = check_model(folder, "causal", dtype).calls_per_layer if checks_weights else 1.0
        size = self.block_tokens or block_tokens
        size_bytes = int(block_bytes(folder, size, dtype) * calls_per_layer)
        num_bytes, num_blocks = cache_bytes(self.cache_memory, self.cache_blocks), self.cache_blocks
        if num_blocks is None:
            num_bytes = _free_bytes() * tensor_parallel // num_processes if num_bytes is None else num_bytes
            num_blocks = num_bytes // size_bytes
        num_host_blocks = 0
        if self.host_cache_memory is not None:
            num_host_blocks = self.host_cache_memory // size_bytes
        length = longest_sequence(folder, num_blocks, size, self.max_model_len)
        threads = self._threads(num_processes)
        engine = EngineOptions(num_blocks, size, num_host_blocks, length)
        shards = model_shards(folder, tensor_parallel) if tensor_parallel > 1 else None
        return EngineSpec(folder, policy, engine, dtype, threads, shards, device=self.device)

    def embedding_spec(self, folder: Path, num_processes: int = 1) -> EmbeddingEngineSpec:
        """How a model that gives embeddings is computed; it has no cache.

        Parameters
        ----------
        folder : of the model, in the form of sentence-transformers.
        num_processes : that share the machine, of all models and replicas.
        """
        import torch

        from trainyard.serve.run.embedding_engine import EmbeddingEngineSpec
        from trainyard.serve.run.embedding_model import UNUSED_WEIGHTS
        from trainyard.serve.run.model_check import check_model

        if self.device != "cpu":
            raise ServeError(f"--device {self.device}: embeddings are computed on the CPU only; leave it out")
        dtype = getattr(torch, self.dtype)
        check_model(folder, "embedding", dtype, UNUSED_WEIGHTS)
        return EmbeddingEngineSpec(folder, self.max_model_len, dtype, self._threads(num_processes))

    def _check_device(self, tensor_parallel: int) -> None:
        import torch

        if self.device == "cpu":
            return
        if not torch.cuda.is_available():
            raise ServeError(
                "--device cuda: torch finds no such device; leave it out, or install torch for it"
            )
        if tensor_parallel > 1:
            raise ServeError("--device cuda computes each model on one device; leave --tp out")
        if self.cache_blocks is None and self.cache_memory is None:
            raise ServeError("--device cuda needs the size of the KV cache; give --cache-memory")

    def _threads(self, num_processes: int) -> int:
        return self.threads or max(1, (len(os.sched_getaffinity(0)) - 1) // num_processes)


def _free_bytes() -> int:
    """Return the bytes for the KV caches of all models if no option gives them."""
    import psutil

    return min(_MOST_CACHE_BYTES, int(psutil.virtual_memory().available * _CACHE_SHARE))
