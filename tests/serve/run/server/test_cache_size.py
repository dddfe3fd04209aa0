"""The size of a KV cache, from the configuration of its model."""

from __future__ import annotations

import pytest
import torch
from tests.serve.run.server.served_api import CONTEXT
from tests.serve.run.tiny_models import made

from trainyard.serve.errors import ServeError
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.kv_cache import KvCache
from trainyard.serve.run.server.cache_size import block_bytes, longest_sequence


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_a_block_has_as_many_bytes_as_the_cache_has_for_it(tmp_path, name, dtype):
    model = made(name)
    model.save_pretrained(tmp_path)
    cache = KvCache(CpuAttention(), CausalModel(model).shapes, 3, 8, dtype=dtype)
    held = sum(each.nbytes for layer in cache.layers for each in layer)
    assert held == 3 * block_bytes(tmp_path, 8, dtype)


def test_one_request_fits_or_it_is_said_what_to_do(folder):
    assert longest_sequence(folder, 10, 8, None) == 80
    assert longest_sequence(folder, 1000, 8, None) == CONTEXT
    assert longest_sequence(folder, 10, 8, 80) == 80
    for blocks, length, says in (
        (10, 81, "--cache-blocks 11"),
        (0, None, "--cache-blocks 1"),
        (999, 513, "at most 512"),
    ):
        with pytest.raises(ServeError, match=says):
            longest_sequence(folder, blocks, 8, length)


def test_folders_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(ServeError, match=r"no config\.json"):
        longest_sequence(tmp_path, 1, 8, None)
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ServeError, match="cannot be read"):
        block_bytes(tmp_path, 8, torch.float32)
