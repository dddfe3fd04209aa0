"""Models from a Hugging Face config.json: the sizes that are published, and clear errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from trainyard.cli.main import main
from trainyard.job.planning import load_model
from trainyard.reading import ReadingError
from trainyard.zoo import build
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.hugging_face import read_config
from trainyard.zoo.mixture import MixtureConfig
from trainyard.zoo.registry import ENTRIES


def sizes(model_type: str, hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, **more):
    """A config as the named organisation publishes it, without what is not read."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        **more,
    }


LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_shared_experts": 1,
}
V2_LITE = LATENT | {
    "q_lora_rank": None,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
}
KIMI = LATENT | {"n_routed_experts": 384, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
PUBLISHED = {
    "TinyLlama": (1.1001, sizes("llama", 2048, 22, 32, 4, 5632, 32000)),
    "Mistral 7B v0.1": (7.2417, sizes("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096)),
    "Qwen2.5 7B": (7.6156, sizes("qwen2", 3584, 28, 28, 4, 18944, 152064, use_sliding_window=False)),
    "Qwen2.5 0.5B": (0.4940, sizes("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True)),
    "Qwen3 0.6B": (
        0.5960,
        sizes("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True),
    ),
    "Mixtral 8x22B": (
        140.62,
        sizes("mixtral", 6144, 56, 48, 8, 16384, 32768, num_local_experts=8, num_experts_per_tok=2),
    ),
    "Qwen3 30B-A3B": (
        30.532,
        sizes("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
              moe_intermediate_size=768, norm_topk_prob=True),
    ),
    "DeepSeek-V2-Lite": (15.706, sizes("deepseek_v2", 2048, 27, 16, 16, 10944, 102400, **V2_LITE)),
    "Kimi K2": (1026.4, sizes("kimi_k2", 7168, 61, 64, 64, 18432, 163840, **KIMI)),
    "MiniMax-M2.5": (
        228.69,
        sizes("minimax_m2", 3072, 62, 48, 8, 1536, 200064, head_dim=128, rotary_dim=64, num_local_experts=256,
              num_experts_per_tok=8, scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True,
              qk_norm_type="per_layer", shared_intermediate_size=0),
    ),
    "gpt-oss-20b": (
        20.915,
        sizes("gpt_oss", 2880, 24, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
              attention_bias=True, sliding_window=128,
              layer_types=["sliding_attention", "full_attention"] * 12),
    ),
}  # fmt: skip


def written(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_has_the_published_number_of_parameters(name, tmp_path):
    billions, values = PUBLISHED[name]
    with torch.device("meta"):
        model = build(str(written(tmp_path, values)), 1)
    assert sum(p.numel() for p in model.module.parameters()) / 1e9 == pytest.approx(billions, rel=2e-4)
    assert model.batch["tokens"].shape == (1, 4096)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2-70b", 68.977),
        ("llama3.1-8b", 8.0303),
        ("llama3.1-70b", 70.554),
        ("llama3.1-405b", 405.85),
        ("mistral-small", 23.572),
        ("codellama-34b", 33.744),
        ("mistral-7b", 7.2480),
        ("qwen3-8b", 8.1907),
        ("qwen3-32b", 32.762),
        ("mixtral-8x7b", 46.703),
        ("qwen3-30b-a3b", 30.532),
        ("qwen3-235b-a22b", 235.09),
        ("gpt-oss-20b", 20.915),
        ("gpt-oss-120b", 116.83),
        ("deepseek-v3", 671.03),
    ],
)
def test_what_is_served_has_the_published_number_of_parameters(name, billions):
    with torch.device("meta"):
        model = build(name, 1)
    assert sum(p.numel() for p in model.module.parameters()) / 1e9 == pytest.approx(billions, rel=2e-4)


def test_a_mixture_has_the_parameters_of_transformers_to_the_last_bias():
    """As GptOssForCausalLM with 24 layers of 32 experts has them."""
    with torch.device("meta"):
        model = build("gpt-oss-20b", 1)
    assert sum(p.numel() for p in model.module.parameters()) == 20_914_757_184


@pytest.mark.parametrize(
    ("name", "kib"),
    [  # Of 16 bits, as the published config.json gives: 2 x layers x heads of keys x width of a head x 2 bytes.
        ("llama3.1-8b", 128),
        ("llama3.1-70b", 320),
        ("llama3.1-405b", 504),
        ("qwen3-8b", 144),
        ("qwen3-32b", 256),
        ("qwen3-235b-a22b", 188),
        ("gemma3-1b", 26),
        ("gemma3-4b", 136),
        ("gemma3-12b", 384),
        ("gemma3-27b", 496),
        ("mistral-small", 160),
    ],
)
def test_what_is_served_has_the_published_cache_of_a_token(name, kib):
    config = ENTRIES[name].config
    assert 2 * config.layers * config.kv_heads * config.width * 2 == kib * 1024


def test_all_that_is_said_of_a_mixture_is_read(tmp_path):
    values = PUBLISHED["Kimi K2"][1] | {"n_group": 8, "topk_group": 4, "rms_norm_eps": 1e-6}
    config = read_config(written(tmp_path, values))
    assert isinstance(config, DecoderConfig)
    assert config.mixture == MixtureConfig(
        384, 8, 2048, "sigmoid", scale=2.827, groups=8, top_groups=4, choice_bias=True, shared=2048
    )
    assert config.dense_layers == (0,)


def test_a_config_of_a_model_of_the_zoo_is_that_model(tmp_path):
    more = {"head_dim": 128, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960}
    values = sizes("qwen3", 5120, 64, 64, 8, 25600, 151936) | more
    assert read_config(written(tmp_path, values)) == ENTRIES["qwen3-32b"].config
    # The language model of one that also sees, and where newer versions write wavelengths.
    theta = values.pop("rope_theta")
    nested = {"model_type": "sees", "text_config": values | {"rope_parameters": {"rope_theta": theta}}}
    assert read_config(written(tmp_path, nested)) == ENTRIES["qwen3-32b"].config


def test_windows_are_those_of_the_layers(tmp_path):
    config = read_config(written(tmp_path, PUBLISHED["gpt-oss-20b"][1]))
    assert isinstance(config, DecoderConfig)
    assert config.windows == (128, 0) * 12
    assert config.sinks
    assert read_config(written(tmp_path, PUBLISHED["Mistral 7B v0.1"][1])).window == 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "got 'mamba', allowed is one of llama, mistral, .*gpt_oss, .*; write other models"),
        ({"model_type": None}, "field 'model_type' is missing; allowed is one of"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"num_hidden_layers": 10**9}, "a whole number from 1 to 1,000"),
        ({"num_key_value_heads": 5}, "allowed is a divisor of the 32 heads"),
        ({"hidden_act": "gelu"}, "allowed is 'silu'"),
        ({"mlp_bias": True}, "allowed is false"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(change, message, tmp_path):
    path = written(tmp_path, PUBLISHED["TinyLlama"][1] | change)
    with pytest.raises(ReadingError, match=re.escape(str(path)) + ".*" + message):
        read_config(path)


def test_a_command_takes_a_config_or_its_folder(tmp_path, capsys):
    path = written(tmp_path, sizes("llama", 64, 2, 4, 2, 128, 128) | {"max_position_embeddings": 16})
    plan = tmp_path / "plan.yaml"
    arguments = ("--cluster", "1x2xA100-80G", "--strategies", "data_parallel", "--rows", "4")
    assert main(["plan", str(path), *arguments, "--save", str(plan)]) == 0
    assert main(["plan", str(tmp_path), *arguments]) == 0
    assert main(["simulate", str(plan)]) == 0  # a plan names its sizes, which run no code
    capsys.readouterr()
    assert load_model(str(tmp_path), 3).batch["tokens"].shape == (3, 16)
    assert main(["plan", str(tmp_path / "other.json"), *arguments]) == 2
    assert "other.json" in capsys.readouterr().err
