"""Small models with random weights that give embeddings, in the form of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

ENCODER_VOCABULARY, ENCODER_CONTEXT, WIDTH = 300, 96, 64
_SIZES: dict[str, Any] = {
    "vocab_size": ENCODER_VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,  # with less, all texts are alike
}
_MADE = {
    "bert": lambda: BertModel(BertConfig(**_SIZES, max_position_embeddings=ENCODER_CONTEXT)),
    "xlm-roberta": lambda: XLMRobertaModel(  # whose positions begin at 2
        XLMRobertaConfig(**_SIZES, max_position_embeddings=ENCODER_CONTEXT + 2, pad_token_id=1)
    ),
    "qwen3": lambda: Qwen3Model(
        Qwen3Config(**_SIZES, max_position_embeddings=ENCODER_CONTEXT, num_key_value_heads=2, head_dim=16)
    ),
}
ENCODERS = tuple(_MADE)


def made_encoder(name: str) -> PreTrainedModel:
    """A model, the same for each call."""
    torch.manual_seed(0)
    return _MADE[name]().eval()


def save_encoder(
    folder: Path,
    name: str = "bert",
    mode: str = "mean",
    *,
    is_normalized: bool = True,
    max_tokens: int | None = None,
    **config: Any,
) -> Path:
    """Save a model with a kind of pooling, and fields of its configuration; return the folder."""
    model = made_encoder(name)
    model.config.update(config)
    model.save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *["Normalize"] * is_normalized]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths[: len(kinds)], kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    flag = (
        "pooling_mode_lasttoken"
        if mode == "lasttoken"
        else f"pooling_mode_{mode.removesuffix('_tokens')}_tokens"
    )
    flag = flag.replace("cls_tokens", "cls_token")
    off = dict.fromkeys(
        ["pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens"], False
    )
    pooling = {"word_embedding_dimension": WIDTH, **off, flag: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if max_tokens is not None:
        limits = {"max_seq_length": max_tokens, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder
