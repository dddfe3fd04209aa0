"""A model's sizes from a Hugging Face ``config.json``: data only, no code of a repository is run.

Of a model that also sees or hears, the part that is a language model is read (``text_config``). How positions are scaled
beyond the context of pre-training is left out, and so are layers that predict a second token: the first changes values
and no shape, the second is not launched in a plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from trainyard.reading import Section, parse_json, read_text
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.gemma import GemmaConfig, gemma_windows
from trainyard.zoo.latent import LatentConfig
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.mixture import MixtureConfig

__all__ = ["MODEL_TYPES", "read_config"]

_MOST = 10_000_000  # of any size
_MOST_LAYERS = 1000
_GELU = "gelu_pytorch_tanh"
_GEMMA_3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
"""What published files leave out (transformers 5, ``Gemma3TextConfig``)."""


def read_config(path: Path) -> LlamaConfig:
    """The sizes of a model.

    Parameters
    ----------
    path : of a ``config.json``, or of the folder in which it is.

    Returns
    -------
    LlamaConfig
        A `DecoderConfig` for a model with mixtures of experts.

    Raises
    ------
    ReadingError
        If there is no such file, its ``model_type`` is none of `MODEL_TYPES`, or a size is missing or not allowed.
    """
    file = path / "config.json" if path.is_dir() else path
    given = _without_nulls(Section.of(parse_json(read_text(file), file), file))
    kind = given.get("model_type")
    if "text_config" in given and kind not in MODEL_TYPES:
        given = _without_nulls(given.section("text_config"))
        kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise given.error(
            "model_type", f"one of {', '.join(MODEL_TYPES)}; write other models as a Python file"
        )
    given = _with_fields(given, {**_GEMMA_3, **given}) if kind == "gemma3_text" else given
    activation, wanted = ("hidden_activation", _GELU) if kind == "gemma3_text" else ("hidden_act", "silu")
    if given.text(activation, wanted) != wanted:
        raise given.error(activation, repr(wanted))
    heads, kv_heads = given.whole("num_attention_heads", 1, _MOST), _kv_heads(given)
    if heads % kv_heads:
        raise given.error("num_key_value_heads", f"a divisor of the {heads} heads of queries")
    return MODEL_TYPES[kind](given)


def _without_nulls(given: Section) -> Section:
    """The same without fields that say nothing."""
    return _with_fields(given, {key: value for key, value in given.items() if value is not None})


def _with_fields(given: Section, values: Mapping[str, Any]) -> Section:
    """The same place of a file with other fields."""
    other = Section(given.source, given.line, dict(values))
    other.lines, other.what = given.lines, given.what
    return other


def _kv_heads(given: Section) -> int:
    return given.whole("num_key_value_heads", 1, _MOST, given.whole("num_attention_heads", 1, _MOST))


def _sizes(given: Section) -> dict[str, Any]:
    """What is said of all kinds alike."""
    positions = given.section("rope_parameters") if "rope_parameters" in given else given
    return {
        "vocab": given.whole("vocab_size", 1, _MOST),
        "context": given.whole("max_position_embeddings", 1, _MOST),
        "layers": given.whole("num_hidden_layers", 1, _MOST_LAYERS),
        "hidden": given.whole("hidden_size", 1, _MOST),
        "heads": given.whole("num_attention_heads", 1, _MOST),
        "kv_heads": _kv_heads(given),
        "ffn": given.whole("intermediate_size", 1, _MOST),
        "theta": positions.positive("rope_theta", 10000.0),
        "head_width": given.whole("head_dim", 1, _MOST, 0),
        "tied": given.flag("tie_word_embeddings", False),
        "epsilon": given.positive("rms_norm_eps", 1e-6),
    }


def _llama(given: Section) -> LlamaConfig:
    if given.flag("mlp_bias", False):
        raise given.error("mlp_bias", "false")
    bias = given.flag("attention_bias", False)
    return LlamaConfig(**_sizes(given), qkv_bias=bias, out_bias=bias)


def _mistral(given: Section) -> LlamaConfig:
    return LlamaConfig(**_sizes(given), window=given.whole("sliding_window", 0, _MOST, 0))


def _qwen2(given: Section) -> LlamaConfig:
    _refuse_window(given)
    return LlamaConfig(**_sizes(given), qkv_bias=True)


def _qwen3(given: Section) -> LlamaConfig:
    _refuse_window(given)
    bias = given.flag("attention_bias", False)
    return LlamaConfig(**_sizes(given), qk_norm="head", qkv_bias=bias, out_bias=bias)


def _refuse_window(given: Section) -> None:
    if given.flag("use_sliding_window", False):
        raise given.error("use_sliding_window", "false")


def _mixtral(given: Section) -> DecoderConfig:
    mixture = _mixture(given, "num_local_experts", "intermediate_size")
    return DecoderConfig(
        **_sizes(given), window=given.whole("sliding_window", 0, _MOST, 0), mixture=MixtureConfig(**mixture)
    )


def _qwen3_moe(given: Section) -> DecoderConfig:
    _refuse_window(given)
    # transformers 5 writes the number of experts under another name than the published files have.
    experts = "num_local_experts" if "num_local_experts" in given else "num_experts"
    mixture = _mixture(given, experts, "moe_intermediate_size")
    sizes, every = _sizes(given), given.whole("decoder_sparse_step", 1, _MOST_LAYERS, 1)
    named = given.items_of("mlp_only_layers", [])
    dense = tuple(n for n in range(sizes["layers"]) if n in named or (n + 1) % every)
    normalised = given.flag("norm_topk_prob", False)
    bias = given.flag("attention_bias", False)
    return DecoderConfig(
        **sizes,
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        mixture=MixtureConfig(**mixture, normalised=normalised),
        dense_layers=dense,
    )


def _gemma3(given: Section) -> GemmaConfig:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if name in given:
            raise given.error(name, "null")
    if given.flag("use_bidirectional_attention", False):
        raise given.error("use_bidirectional_attention", "false")
    theta, local_theta = 1e6, 10000.0
    if "rope_parameters" in given:  # as transformers 5 writes it
        by_kind = given.section("rope_parameters")
        theta = by_kind.section("full_attention").positive("rope_theta", theta)
        local_theta = by_kind.section("sliding_attention").positive("rope_theta", local_theta)
        given = _with_fields(given, {key: value for key, value in given.items() if key != "rope_parameters"})
    else:
        theta = given.positive("rope_theta", theta)
        local_theta = given.positive("rope_local_base_freq", local_theta)
    sizes, bias = _sizes(given) | {"theta": theta}, given.flag("attention_bias", False)
    pattern = given.whole("sliding_window_pattern", 1, _MOST_LAYERS, 6)
    usual = gemma_windows(sizes["layers"], 1, pattern)
    kinds = ["sliding_attention" if each else "full_attention" for each in usual]
    width, score_width = sizes["head_width"], given.whole("query_pre_attn_scalar", 1, _MOST)
    return GemmaConfig(
        **sizes,
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        windows=_windows(given, sizes["layers"], kinds, given.whole("sliding_window", 1, _MOST)),
        local_theta=local_theta,
        score_width=0 if score_width == width else score_width,
    )


def _windows(given: Section, layers: int, usual: list[str], window: int) -> tuple[int, ...]:
    """The window of each layer, 0 where it sees all tokens."""
    kinds = given.texts("layer_types", usual)
    if len(kinds) != layers:
        raise given.error("layer_types", f"a kind for each of {layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _minimax_m2(given: Section) -> DecoderConfig:
    if given.text("qk_norm_type", "per_layer") != "per_layer":
        raise given.error("qk_norm_type", "'per_layer'")
    if given.text("scoring_func", "sigmoid") != "sigmoid":
        raise given.error("scoring_func", "'sigmoid'")
    mixture = MixtureConfig(
        **_mixture(given, "num_local_experts", "intermediate_size"),
        scores="sigmoid",
        choice_bias=given.flag("use_routing_bias", False),
        shared=given.whole("shared_intermediate_size", 0, _MOST, 0),
    )
    sizes = _sizes(given)
    rotary = given.whole("rotary_dim", 2, sizes["head_width"] or _MOST, 0)
    norm: Literal["none", "all"] = "all" if given.flag("use_qk_norm", False) else "none"
    return DecoderConfig(**sizes, rotary=rotary, qk_norm=norm, mixture=mixture)


def _gpt_oss(given: Section) -> DecoderConfig:
    sizes, bias = _sizes(given), given.flag("attention_bias", True)
    usual = ["sliding_attention", "full_attention"] * (sizes["layers"] // 2)
    windows = _windows(given, sizes["layers"], usual, given.whole("sliding_window", 1, _MOST, 128))
    mixture = MixtureConfig(**_mixture(given, "num_local_experts", "intermediate_size"), bounded=True)
    return DecoderConfig(**sizes, qkv_bias=bias, out_bias=bias, mixture=mixture, windows=windows, sinks=True)


def _deepseek(given: Section) -> DecoderConfig:
    sizes = _sizes(given)
    if given.flag("attention_bias", False):
        raise given.error("attention_bias", "false")
    first = given.whole("first_k_dense_replace", 0, sizes["layers"], 0)
    every = given.whole("moe_layer_freq", 1, _MOST_LAYERS, 1)
    latent = LatentConfig(
        given.whole("q_lora_rank", 1, _MOST, 0),
        given.whole("kv_lora_rank", 1, _MOST),
        given.whole("qk_rope_head_dim", 2, _MOST),
        given.whole("qk_nope_head_dim", 1, _MOST),
        given.whole("v_head_dim", 1, _MOST),
    )
    return DecoderConfig(
        **sizes,
        mixture=_deepseek_mixture(given),
        dense_layers=tuple(n for n in range(sizes["layers"]) if n < first or n % every),
        latent=latent,
    )


def _deepseek_mixture(given: Section) -> MixtureConfig:
    sizes = _mixture(given, "n_routed_experts", "moe_intermediate_size")
    scores, method = given.text("scoring_func", "softmax"), given.text("topk_method", "greedy")
    if scores not in ("softmax", "sigmoid"):
        raise given.error("scoring_func", "'softmax' or 'sigmoid'")
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise given.error("topk_method", "'greedy', 'group_limited_greedy' or 'noaux_tc'")
    groups = 1 if method == "greedy" else given.whole("n_group", 1, sizes["experts"], 1)
    if sizes["experts"] % groups:
        raise given.error("n_group", f"a divisor of {sizes['experts']} experts")
    return MixtureConfig(
        **sizes,
        scores="softmax" if scores == "softmax" else "sigmoid",
        normalised=given.flag("norm_topk_prob", False),
        scale=given.positive("routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=given.whole("topk_group", 1, groups, 1) if groups > 1 else 1,
        group_best=2 if method == "noaux_tc" else 1,
        choice_bias=method == "noaux_tc",
        shared=sizes["width"] * given.whole("n_shared_experts", 0, _MOST, 0),
    )


def _mixture(given: Section, experts: str, width: str) -> dict[str, Any]:
    """Experts of a layer, of a token, and the width of one."""
    num = given.whole(experts, 1, _MOST)
    return {
        "experts": num,
        "top": given.whole("num_experts_per_tok", 1, num),
        "width": given.whole(width, 1, _MOST),
    }


MODEL_TYPES: Mapping[str, Callable[[Section], LlamaConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "minimax_m2": _minimax_m2,
}
"""What a ``model_type`` is read by."""
