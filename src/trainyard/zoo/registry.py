"""The models by name: sizes as published, and a tiny one of each kind for tests."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.program.model import Model
from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError
from trainyard.reading.limits import MOST_ROWS
from trainyard.user_file import is_config
from trainyard.zoo import bert, decoder, dlrm, gemma, gpt, llama, lstm, moe, resnet, vgg
from trainyard.zoo.bert import BertConfig
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.dlrm import DLRMConfig
from trainyard.zoo.gemma import GemmaConfig, gemma_windows
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.hugging_face import read_config
from trainyard.zoo.latent import LatentConfig
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.lstm import LSTMConfig
from trainyard.zoo.mixture import MixtureConfig
from trainyard.zoo.moe import MoEConfig
from trainyard.zoo.resnet import ResNetConfig
from trainyard.zoo.vgg import VGGConfig


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes
    ----------
    builder : makes the model of a name, a config and a number of rows.
    config : its sizes.
    rows : rows of the example batch unless others are asked for.
    """

    builder: Callable[[str, Any, int], Model]
    config: Any
    rows: int


def _gpt(layers: int, hidden: int, heads: int, rows: int, vocab: int = 51200, context: int = 2048) -> Entry:
    return Entry(gpt.build, GPTConfig(vocab, context, layers, hidden, heads), rows)


def _moe(layers: int, hidden: int, experts: int, rows: int = 8) -> Entry:
    return Entry(moe.build, MoEConfig(layers=layers, hidden=hidden, experts=experts), rows)


def _wide(base: int, factor: int, third_stage: int = 6) -> Entry:
    blocks = (3, 4, third_stage, 3)
    config = ResNetConfig(base=base, width_factor=factor, wide_first=False, blocks=blocks)
    return Entry(resnet.build, config, 32)


def _qwen3(layers: int, hidden: int, heads: int, ffn: int) -> LlamaConfig:
    """Yang et al. 2025 (arXiv 2505.09388), table 1."""
    return LlamaConfig(
        151936, 40960, layers, hidden, heads, 8, ffn, 1e6, head_width=128, qk_norm="head", epsilon=1e-6
    )


def _gemma3(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, score_width: int = 0
) -> GemmaConfig:
    """Gemma Team 2025, google/gemma_pytorch ``gemma/config.py``; the vocabulary as config.json of the weights has it."""
    return GemmaConfig(
        *(262208, 131072, layers, hidden, heads, kv_heads, 4 * hidden, 1e6),
        head_width=width,
        qk_norm="head",
        tied=True,
        epsilon=1e-6,
        score_width=score_width,
        windows=gemma_windows(layers, 1024),
    )


def _decoder(config: LlamaConfig, rows: int = 4) -> Entry:
    builders: dict[type, Callable[[str, Any, int], Model]] = {
        DecoderConfig: decoder.build,
        GemmaConfig: gemma.build,
    }
    return Entry(builders.get(type(config), llama.build), config, rows)


def _qwen3_moe(layers: int, hidden: int, heads: int, width: int) -> Entry:
    """Yang et al. 2025 (arXiv 2505.09388), table 2."""
    sizes = (151936, 40960, layers, hidden, heads, 4, 3 * hidden, 1e6)
    mixture = MixtureConfig(128, 8, width)
    return _decoder(DecoderConfig(*sizes, head_width=128, qk_norm="head", epsilon=1e-6, mixture=mixture))


def _gpt_oss(layers: int, experts: int) -> Entry:
    """OpenAI 2025 (arXiv 2508.10925), section 2: every other layer has a window, beginning with the first."""
    return _decoder(
        DecoderConfig(
            *(201088, 131072, layers, 2880, 64, 8, 2880, 150000.0),
            head_width=64,
            qkv_bias=True,
            out_bias=True,
            windows=(128, 0) * (layers // 2),
            sinks=True,
            mixture=MixtureConfig(experts, 4, 2880, bounded=True),
        )
    )


_MIXTRAL = DecoderConfig(32000, 32768, theta=1e6, mixture=MixtureConfig(8, 2, 14336))
# DeepSeek-AI 2024 (arXiv 2412.19437), section 4.2; without the layer that predicts a second token.
_DEEPSEEK_V3 = DecoderConfig(
    *(129280, 163840, 61, 7168, 128, 128, 18432, 10000.0),
    epsilon=1e-6,
    mixture=MixtureConfig(
        *(256, 8, 2048, "sigmoid"), scale=2.5, groups=8, top_groups=4, choice_bias=True, shared=2048
    ),
    dense_layers=(0, 1, 2),
    latent=LatentConfig(query_rank=1536, kv_rank=512, rotary=64, plain=128, value=128),
)
_LLAMA_2_7B = LlamaConfig(32000, 4096, kv_heads=32, ffn=11008, theta=10000.0)
_LLAMA_2_70B = LlamaConfig(32000, 4096, 80, 8192, 64, 8, 28672, 10000.0)
# Roziere et al. 2023 (arXiv 2308.12950), section 2.4: wavelengths of base 10^6, sequences of 16,384 in fine-tuning.
_CODE_LLAMA_34B = LlamaConfig(32000, 16384, 48, 8192, 64, 8, 22016, 1e6)
# Version 0.3, whose attention has no window and whose vocabulary is larger than that of Jiang et al. 2023.
_MISTRAL_7B = LlamaConfig(32768, 32768, 32, 4096, 32, 8, 14336, 1e6)
_LLAMA_3_70B = LlamaConfig(layers=80, hidden=8192, heads=64, ffn=28672)
# Grattafiori et al. 2024 (arXiv 2407.21783), table 3.
_LLAMA_3_405B = LlamaConfig(layers=126, hidden=16384, heads=128, ffn=53248)
_LLAMA_3_1_CONTEXT = 131072
# Mistral AI 2025, config.json of Mistral-Small-24B-Base-2501: version 3.
_MISTRAL_SMALL = LlamaConfig(131072, 32768, 40, 5120, 32, 8, 32768, 1e8, head_width=128)
_GEMMA_3_1B = replace(
    _gemma3(26, 1152, 4, 1, 256), vocab=262144, context=32768, ffn=6912, windows=gemma_windows(26, 512)
)
_BERT_LARGE = BertConfig(layers=24, hidden=1024, heads=16)

TINY: dict[str, Entry] = {
    "gpt-tiny": _gpt(2, 64, 4, rows=4, vocab=128, context=16),
    "llama-tiny": Entry(llama.build, LlamaConfig(128, 16, 2, 64, 4, 2, 128), 4),
    "bert-tiny": Entry(bert.build, BertConfig(128, 16, 2, 64, 4, predictions=4), 4),
    "resnet-tiny": Entry(resnet.build, ResNetConfig(32, 10, (1, 1), base=8, bottleneck=False), 4),
    "wide-resnet-tiny": Entry(resnet.build, ResNetConfig(32, 10, (1, 1), base=8, width_factor=2), 4),
    "vgg-tiny": Entry(vgg.build, VGGConfig(32, 10, ((1, 8), (2, 16)), hidden=32), 4),
    "gnmt-tiny": Entry(lstm.build, LSTMConfig(64, 4, 3, 32), 4),
    "moe-tiny": Entry(moe.build, MoEConfig(128, 16, 2, 64, 4, experts=4), 4),
    "dlrm-tiny": Entry(dlrm.build, DLRMConfig(4, (50, 20, 7), 8, (16,), (16,)), 4),
}
"""Small enough to train a step in milliseconds; one per architecture."""

ENTRIES: dict[str, Entry] = {
    **TINY,
    # Bytes as tokens: what a laptop trains in minutes.
    "gpt-small-cpu": _gpt(6, 256, 8, rows=8, vocab=256, context=128),
    # Radford et al. 2019, table 2.
    "gpt2": _gpt(12, 768, 12, rows=8, vocab=50257, context=1024),
    "gpt2-medium": _gpt(24, 1024, 16, rows=8, vocab=50257, context=1024),
    "gpt2-large": _gpt(36, 1280, 20, rows=8, vocab=50257, context=1024),
    "gpt2-xl": _gpt(48, 1600, 25, rows=8, vocab=50257, context=1024),
    # Brown et al. 2020, table 2.1; the vocabulary padded as in Megatron-LM. The table's 24 heads of 128 for
    # 1.3B do not make 2048, and its 5140 for 13B is no multiple of its 40 heads.
    "gpt3-1.3b": _gpt(24, 2048, 16, rows=8),
    "gpt3-2.7b": _gpt(32, 2560, 32, rows=8),
    "gpt3-6.7b": _gpt(32, 4096, 32, rows=8),
    "gpt3-13b": _gpt(40, 5120, 40, rows=8),
    "gpt3-175b": _gpt(96, 12288, 96, rows=64),
    # Korthikanti et al. 2022 (arXiv 2205.05198), table 3, with its batch sizes.
    "megatron-22b": _gpt(48, 6144, 64, rows=4),
    "megatron-175b": _gpt(96, 12288, 96, rows=64),
    "megatron-530b": _gpt(105, 20480, 128, rows=280),
    "megatron-1t": _gpt(128, 25600, 160, rows=512),
    "llama2-7b": Entry(llama.build, _LLAMA_2_7B, 4),
    "llama2-70b": Entry(llama.build, _LLAMA_2_70B, 4),
    "codellama-34b": Entry(llama.build, _CODE_LLAMA_34B, 4),
    "llama3-8b": Entry(llama.build, LlamaConfig(), 4),
    "llama3-70b": Entry(llama.build, _LLAMA_3_70B, 4),
    "llama3.1-8b": Entry(llama.build, LlamaConfig(context=_LLAMA_3_1_CONTEXT), 4),
    "llama3.1-70b": Entry(llama.build, replace(_LLAMA_3_70B, context=_LLAMA_3_1_CONTEXT), 4),
    "llama3.1-405b": Entry(llama.build, replace(_LLAMA_3_405B, context=_LLAMA_3_1_CONTEXT), 4),
    "mistral-7b": Entry(llama.build, _MISTRAL_7B, 4),
    "mistral-small": Entry(llama.build, _MISTRAL_SMALL, 4),
    "qwen3-8b": Entry(llama.build, _qwen3(36, 4096, 32, 12288), 4),
    "qwen3-32b": Entry(llama.build, _qwen3(64, 5120, 64, 25600), 4),
    "gemma3-1b": _decoder(_GEMMA_3_1B),
    "gemma3-4b": _decoder(_gemma3(34, 2560, 8, 4, 256)),
    "gemma3-12b": _decoder(_gemma3(48, 3840, 16, 8, 256)),
    "gemma3-27b": _decoder(_gemma3(62, 5376, 32, 16, 128, score_width=5376 // 32)),
    "mixtral-8x7b": _decoder(_MIXTRAL),
    "qwen3-30b-a3b": _qwen3_moe(48, 2048, 32, 768),
    "qwen3-235b-a22b": _qwen3_moe(94, 4096, 64, 1536),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "deepseek-v3": _decoder(_DEEPSEEK_V3),
    "bert-base": Entry(bert.build, BertConfig(), 16),
    "bert-large": Entry(bert.build, _BERT_LARGE, 16),
    "resnet18": Entry(resnet.build, ResNetConfig(blocks=(2, 2, 2, 2), bottleneck=False), 32),
    "resnet50": Entry(resnet.build, ResNetConfig(), 32),
    "wide-resnet50-2": Entry(resnet.build, ResNetConfig(width_factor=2), 32),
    # Zheng et al. 2022 (Alpa), the Wide-ResNet and the mixture-of-experts series of its evaluation.
    "wide-resnet-250m": _wide(160, 2),
    "wide-resnet-500m": _wide(224, 2),
    "wide-resnet-1b": _wide(320, 2),
    "wide-resnet-2b": _wide(448, 2),
    "wide-resnet-4b": _wide(640, 2),
    "wide-resnet-6.8b": _wide(320, 16),
    "wide-resnet-13b": _wide(320, 16, third_stage=23),
    "moe-380m": _moe(8, 768, 8),
    "moe": _moe(16, 768, 16),
    "moe-2.4b": _moe(16, 1024, 16),
    "moe-10b": _moe(16, 1536, 32),
    "moe-27b": _moe(16, 2048, 48),
    "moe-70b": _moe(32, 2048, 64),
    "vgg16": Entry(vgg.build, VGGConfig(), 32),
    "gnmt": Entry(lstm.build, LSTMConfig(), 64),
    "dlrm": Entry(dlrm.build, DLRMConfig(), 128),
}


def names() -> tuple[str, ...]:
    """Names that ``build`` knows."""
    return tuple(ENTRIES)


def config_of(name: str) -> Any:
    """The sizes of a model, by its name as `build` takes it.

    Raises
    ------
    WrongValueError
        If the name is unknown, or a file cannot be read.
    """
    return _entry(name).config


def build(name: str, batch_rows: int | None = None) -> Model:
    """Build a model of the zoo.

    Within ``torch.device("meta")`` or ``FakeTensorMode`` this takes no memory, however large the model.

    Parameters
    ----------
    name : one of ``names()``, or the path of a Hugging Face ``config.json`` or its folder.
    batch_rows : rows of the example batch; by default as listed here.

    Raises
    ------
    WrongValueError
        If the name is unknown (the message lists the known ones, close ones first), a file cannot be read, or there are
        no rows.
    """
    entry = _entry(name)
    rows = entry.rows if batch_rows is None else batch_rows
    if not 1 <= rows <= MOST_ROWS:
        raise WrongValueError(f"a batch of {name} has from 1 to {MOST_ROWS:,} rows; given batch_rows={rows}")
    return entry.builder(name, entry.config, rows)


def _entry(name: str) -> Entry:
    if name in ENTRIES:
        return ENTRIES[name]
    if is_config(name):
        return _decoder(read_config(Path(name)))
    close = difflib.get_close_matches(name, ENTRIES, n=5, cutoff=0.4)
    others = [n for n in ENTRIES if n not in close]
    raise WrongValueError(f"unknown model {shown(name)}; known: {', '.join([*close, *others])}")
