"""FlexAttention is captured as tensor ops: results and gradients are those of attention written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_capture import randomise, run_graph
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    noop_mask,
)

from trainyard.job.lower.split import split
from trainyard.program.capture import CaptureError, capture
from trainyard.program.model import Model

ROWS, LENGTH, WIDTH, HEADS = 4, 12, 16, 2
AT = torch.arange(LENGTH)
APART = AT[:, None] - AT
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BATCH = {
    "x": torch.linspace(0, 60, ROWS * LENGTH * WIDTH).sin().view(ROWS, LENGTH, WIDTH),
    "documents": torch.tensor([[0] * 4 + [1] * 8, [0] * 12, [0] * 2 + [1] * 5 + [2] * 5, [3] * 12]),
    "lengths": torch.tensor([12, 7, 3, 12]),
}


def causal(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def near(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query - key < 4


def blocks(mask: Any, rows: int | None = None) -> BlockMask:
    return create_block_mask(mask, rows, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=4)


CAUSAL, ALL = blocks(causal), blocks(noop_mask)
ONES, ZEROS = torch.ones(1, 1, 3, dtype=torch.int32), torch.zeros(1, 1, 3, 3, dtype=torch.int32)


def listed(mask: Any, whole: bool) -> BlockMask:
    """Of every four queries, the first four keys."""
    full = (ONES, ZEROS) if whole else (None, None)
    return BlockMask.from_kv_blocks(
        ONES * (not whole), ZEROS, *full, BLOCK_SIZE=4, mask_mod=mask, seq_lengths=(LENGTH, LENGTH)
    )


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    change: Callable[[Tensor], Tensor] = lambda s: s,
) -> Tensor:
    """Attention by its definition; a query that sees no key sees nothing."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    scores = change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


class Attention(nn.Module):
    """Attention by a function of this module, queries, keys, values and the batch."""

    def __init__(self, attend: Any, key_heads: int = HEADS) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 8 * n, bias=False) for n in (HEADS, key_heads, key_heads))
        self.distance = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH))
        self.attend = attend

    def forward(self, batch: Any) -> Tensor:
        q, k, v = (f(batch["x"]).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        result: Tensor = self.attend(self, q, k, v, batch)
        return result.transpose(1, 2).flatten(2)


def of_documents(_: Any, q: Tensor, k: Tensor, v: Tensor, batch: Any) -> Tensor:
    at = batch["documents"]
    mask = and_masks(causal, lambda row, _, query, key: at[row, query] == at[row][key])
    return flex_attention(q, k, v, block_mask=blocks(mask, len(q)))


def padded(_: Any, q: Tensor, k: Tensor, v: Tensor, batch: Any) -> Tensor:
    lengths = batch["lengths"]
    mask = blocks(lambda row, _, query, key: (query < lengths[row]) & (key < lengths[row]), len(q))
    return flex_attention(q, k, v, block_mask=mask, scale=0.25, enable_gqa=True)


def with_sums(_: Any, q: Tensor, k: Tensor, v: Tensor, batch: Any) -> Tensor:
    result, sums = flex_attention(q, k, v, block_mask=CAUSAL, return_aux=AuxRequest(lse=True))
    return result * sums.lse.sigmoid()[..., None]


def by_distance(m: Any, q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
    return flex_attention(q, k, v, score_mod=lambda s, row, head, i, j: s + m.distance[head, i - j + LENGTH])


WAYS: dict[str, tuple[Any, Any, bool]] = {
    "plain": (lambda m, q, k, v, b: flex_attention(q, k, v), lambda m, q, k, v, b: dense(q, k, v), True),
    "all blocks": (
        lambda m, q, k, v, b: flex_attention(q, k, v, block_mask=ALL),
        lambda m, q, k, v, b: dense(q, k, v),
        True,
    ),
    "compiled": (
        lambda m, q, k, v, b: torch.compile(flex_attention)(q, k, v, block_mask=CAUSAL),
        lambda m, q, k, v, b: dense(q, k, v, APART >= 0),
        True,
    ),
    "window": (
        lambda m, q, k, v, b: flex_attention(q, k, v, block_mask=blocks(and_masks(causal, near))),
        lambda m, q, k, v, b: dense(q, k, v, (APART >= 0) & (APART < 4)),
        True,
    ),
    "documents": (
        of_documents,
        lambda m, q, k, v, b: dense(
            q, k, v, (b["documents"][:, None, :, None] == b["documents"][:, None, None]) & (APART >= 0)
        ),
        True,
    ),
    "padded, grouped": (
        padded,
        lambda m, q, k, v, b: dense(
            q / math.sqrt(2),  # so that all are scaled by 0.25
            k,
            v,
            (AT[:, None] < b["lengths"][:, None, None, None]) & (b["lengths"][:, None, None, None] > AT),
        ),
        True,
    ),
    "trained distances": (
        by_distance,
        lambda m, q, k, v, b: dense(q, k, v, change=lambda s: s + m.distance[:, APART + LENGTH]),
        False,
    ),
    "capped": (
        lambda m, q, k, v, b: flex_attention(
            q, k, v, score_mod=lambda s, *_: torch.tanh(s), block_mask=CAUSAL
        ),
        lambda m, q, k, v, b: dense(q, k, v, APART >= 0, torch.tanh),
        False,
    ),
    "sums": (
        with_sums,
        lambda m, q, k, v, b: (
            dense(q, k, v, APART >= 0)
            * (q @ k.transpose(-1, -2) / math.sqrt(8))
            .masked_fill(APART < 0, -math.inf)
            .logsumexp(-1, keepdim=True)
            .sigmoid()
        ),
        True,
    ),
}


def loss(module: nn.Module, batch: Any) -> Tensor:
    result: Tensor = module(batch)
    return result.square().sum(-1).mean()


@pytest.mark.parametrize("way", WAYS)
def test_flex_attention_is_attention_written_by_hand(way: str) -> None:
    flex, by_hand, is_fused = WAYS[way]
    module = Attention(flex, key_heads=1 if "grouped" in way else HEADS)
    randomise(module)
    model = Model(way, module, loss, BATCH)
    program = capture(model)
    found = run_graph(program, model)
    module.attend = by_hand
    wanted = loss(module, BATCH)
    wanted.backward()
    torch.testing.assert_close(found["loss:loss"], wanted.detach(), rtol=1e-5, atol=1e-7)
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            assert f"grad:{name}" not in found
            continue
        difference = (found[f"grad:{name}"] - parameter.grad).norm() / parameter.grad.norm()
        assert float(difference) < 1e-5, name
    assert is_fused == (FUSED in {node.target for node in program.graph.nodes})
    assert split(program, 2).num_rows == ROWS // 2


def test_a_mask_has_the_dimensions_that_it_depends_on() -> None:
    def mask_of(attend: Any) -> tuple[int, ...]:
        graph = capture(Model("m", Attention(attend), loss, BATCH)).graph
        (fused,) = graph.find_nodes(op="call_function", target=FUSED)
        return tuple(fused.kwargs["attn_mask"].meta["val"].shape)

    assert mask_of(WAYS["compiled"][0]) == (1, 1, LENGTH, LENGTH)
    assert mask_of(of_documents) == (ROWS, 1, LENGTH, LENGTH)


def test_in_16_bits_scores_may_be_changed_by_numbers() -> None:
    def flat(_: Any, q: Tensor, k: Tensor, v: Tensor, batch: Any) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda score, row, head, i, j: score - (i - j).abs() * 0.1)

    module = Attention(flat)
    randomise(module)
    model = Model("flat", module.bfloat16(), loss, BATCH)
    program = capture(model, dtype=torch.bfloat16)
    found = run_graph(program, model)["loss:loss"]
    module.float().attend = lambda m, q, k, v, b: dense(q, k, v, change=lambda s: s - APART.abs() * 0.1)
    torch.testing.assert_close(found, loss(module, BATCH).detach(), rtol=0.02, atol=0.0)
    assert split(program, 2).num_rows == ROWS // 2


@pytest.mark.parametrize(("mask", "whole"), [(noop_mask, True), (noop_mask, False), (causal, False)])
def test_blocks_listed_by_hand_are_refused(mask: Any, whole: bool) -> None:
    by_blocks = listed(mask, whole)
    module = Attention(lambda m, q, k, v, b: flex_attention(q, k, v, block_mask=by_blocks))
    with pytest.raises(CaptureError, match=r"listed by hand.*create_block_mask"):
        capture(Model("m", module, loss, BATCH))


def test_models_of_hugging_face_attend_so() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install 'trainyard-ml[server]'"
    )
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "head_dim": 4, "use_cache": False}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 3}

    def made(attention: str) -> nn.Module:
        config = transformers.MistralConfig(attn_implementation=attention, **sizes, **heads)
        torch.manual_seed(0)
        return transformers.MistralForCausalLM(config)  # type: ignore[no-any-return]

    def of_words(module: nn.Module, batch: Any) -> Tensor:
        words, seen = batch["words"], batch["seen"]
        labels = words.masked_fill(seen == 0, -100)
        return module(input_ids=words, attention_mask=seen, labels=labels).loss  # type: ignore[no-any-return]

    # One token in each row is not seen: one that sees none would be treated otherwise by eager attention.
    seen = (torch.arange(8) != torch.tensor([3, 5, 2, 6])[:, None]).long()
    batch = {"words": (torch.arange(32) * 7 % 32).view(4, 8), "seen": seen}
    model = Model("mistral", made("flex_attention"), of_words, batch)
    found, eager = run_graph(capture(model), model), made("eager")
    of_words(eager, batch).backward()
    for name, parameter in eager.named_parameters():
        assert parameter.grad is not None
        difference = (found[f"grad:{name}"] - parameter.grad).norm()
        assert float(difference) <= 1e-5 * float(parameter.grad.norm()), name
