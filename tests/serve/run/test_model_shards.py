"""How models are cut over ranks: as level 1 says, whatever transformers calls their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.serve.run.tiny_models import CONTEXT, made
from transformers import StableLmConfig, StableLmForCausalLM

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_shards import model_shards
from trainyard.serve.run.tensor_parallel import TensorParallelModel

_LLAMA = {
    "self_attn.q_proj.weight": "S0",
    "self_attn.k_proj.weight": "S0",
    "self_attn.v_proj.weight": "S0",
    "self_attn.o_proj.weight": "S1",
}
_OF_LAYER = {
    "llama": {
        **_LLAMA,
        "mlp.gate_proj.weight": "S0",
        "mlp.up_proj.weight": "S0",
        "mlp.down_proj.weight": "S1",
    },
    "mixtral": {**_LLAMA, "mlp.experts.gate_up_proj": "S1/2", "mlp.experts.down_proj": "S2"},
    "gpt2": {
        "attn.c_attn.weight": "S1/3",
        "attn.c_attn.bias": "S0/3",
        "attn.c_proj.weight": "S0",
        "mlp.c_fc.weight": "S1",
        "mlp.c_fc.bias": "S0",
        "mlp.c_proj.weight": "S0",
    },
}
_SUMMED = {
    "llama": {"mlp.down_proj", "self_attn.o_proj"},
    "mixtral": {"mlp.experts", "self_attn.o_proj"},
    "gpt2": {"attn.c_proj", "mlp.c_proj"},
}


@pytest.mark.parametrize("name", _OF_LAYER)
def test_products_are_cut_by_columns_and_then_by_rows(tmp_path: Path, name: str):
    made(name).save_pretrained(tmp_path)
    shards = model_shards(tmp_path, 2)
    start = "transformer.h.1." if name == "gpt2" else "model.layers.1."
    of_layer = {path.removeprefix(start): str(p) for path, p in shards.placements.items() if start in path}
    assert of_layer == _OF_LAYER[name]
    assert {path.removeprefix(start) for path in shards.summed if start in path} == _SUMMED[name]
    others = {
        path.rpartition(".")[0] for path in shards.placements if ".1." not in path and ".0." not in path
    }
    table = "transformer.wte" if name == "gpt2" else "model.embed_tokens"
    assert others == {table} | ({"lm_head"} if name != "gpt2" else set())
    assert shards.num_ranks == 2


@pytest.mark.parametrize(
    ("num_ranks", "why"), [(4, "its heads of keys and values do not divide"), (3, "neither its heads nor")]
)
def test_what_does_not_divide_is_refused(tmp_path: Path, num_ranks: int, why: str):
    made("llama").save_pretrained(tmp_path)
    with pytest.raises(ServeError, match=why):
        model_shards(tmp_path, num_ranks)


@pytest.mark.slow
def test_modules_that_know_the_size_of_the_whole_are_refused(tmp_path: Path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = StableLmConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT
    )
    StableLmForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ServeError, match="its modules do not run there"):
        TensorParallelModel(tmp_path, torch.float32, model_shards(tmp_path, 2))
