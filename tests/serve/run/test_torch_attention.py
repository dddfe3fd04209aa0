"""Attention by torch, as on a GPU: the numbers of dense attention and of the CPU's kernels, and the tokens of `generate`.

What runs on a GPU runs on the CPU, too: FlexAttention by torch's own account of what its kernel computes, and in one slow
test by a compiled kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.run.attention_checks import SEQUENCES, check, chunks, copied
from tests.serve.run.exact_runs import RUNS, check_exact, served
from tests.serve.run.tiny_models import made

from trainyard.serve.errors import ServeError
from trainyard.serve.run.attention_window import Window
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.device_attention import attention_for
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.flex_attention import FlexAttention
from trainyard.serve.run.paged_attention import AttentionBatch, PagedAttention, attention_batch
from trainyard.serve.run.torch_attention import TorchAttention

CPU = torch.device("cpu")
CHOSEN = EngineOptions(num_blocks=12, block_tokens=16, num_host_blocks=40)
"""With blocks for which a GPU has FlexAttention."""
GARBAGE = 1e30
"""A value that another request has left, finite as all that `FlexAttention.write` leaves."""

on_a_gpu = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds none")
)


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """Few kernels may be compiled of one function."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def flex(device: str = "cpu") -> FlexAttention:
    return FlexAttention(torch.device(device), "eager" if device == "cpu" else "inductor")


@pytest.mark.parametrize("window", [None, 1, 9, chunks(13)], ids=["all", "1", "9", "chunks"])
@pytest.mark.parametrize("layout", [(1, 1, 16, 16), (2, 3, 64, 16), (5, 1, 24, 48)])
@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
def test_flex_attention_is_dense_attention(device: str, layout: Any, window: Window) -> None:
    check(flex(device), layout, SEQUENCES, window=window, unwritten=GARBAGE, tolerance=5e-6, device=device)


@pytest.mark.parametrize("window", [None, 1, 9, chunks(13)], ids=["all", "1", "9", "chunks"])
@pytest.mark.parametrize("layout", [(1, 1, 16, 16), (4, 2, 8, 5)])
@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
def test_attention_by_torch_is_dense_attention(device: str, layout: Any, window: Window) -> None:
    attention = TorchAttention(torch.device(device))
    check(attention, layout, SEQUENCES, window=window, tolerance=5e-6, device=device)


@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
@pytest.mark.parametrize("made_for", [TorchAttention, flex])
def test_scale_and_bfloat16(made_for: Any, device: str) -> None:
    attention = made_for(device if made_for is flex else torch.device(device))
    given: dict[str, Any] = {"unwritten": GARBAGE, "device": device}
    check(attention, (2, 3, 64, 16), [(30, 1), (0, 9)], scale=0.4, tolerance=2e-5, **given)
    check(attention, (2, 3, 64, 16), [(30, 1), (0, 29)], dtype=torch.bfloat16, tolerance=2e-2, **given)


@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
@pytest.mark.parametrize("made_for", [TorchAttention, flex])
def test_bounded_scores_sinks_and_values_of_another_size(made_for: Any, device: str) -> None:
    attention = made_for(device if made_for is flex else torch.device(device))
    sequences = [(30, 1), (0, 9), (3, 4), (0, 1), (7, 1)]
    given: dict[str, Any] = {"unwritten": GARBAGE, "device": device, "window": 7, "tolerance": 5e-6}
    check(attention, (2, 3, 64, 16), sequences, softcap=0.5, **given)
    check(attention, (2, 3, 64, 16), sequences, softcap=3.0, scale=0.5, has_sinks=True, **given)
    check(attention, (2, 3, 64, 16), sequences, has_sinks=True, **given)
    check(attention, (2, 3, 48, 16), sequences, value_dim=32, **given)
    check(attention, (2, 3, 48, 16), sequences, value_dim=64, softcap=2.0, has_sinks=True, **given)


@st.composite
def batches(draw: st.DrawFn) -> AttentionBatch:
    """Sequences of any lengths, whose blocks lie anywhere and are those of others, too, in the same order or not."""
    num_blocks, block_tokens = draw(st.sampled_from([(12, 16), (30, 4)]))
    room = num_blocks * block_tokens
    lengths = draw(st.lists(st.one_of(st.just(1), st.integers(0, 40)), min_size=1, max_size=6).filter(sum))
    before = [draw(st.integers(0, room - length)) for length in lengths]
    tables = [draw(st.permutations(range(num_blocks))) for _ in lengths]
    return attention_batch(np.cumsum([0, *lengths]), before, tables, num_blocks, block_tokens)


@pytest.mark.parametrize("attention", [TorchAttention(CPU), flex()], ids=["torch", "flex"])
def test_any_batch_has_the_numbers_of_the_kernels_of_the_cpu(attention: PagedAttention) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(batches(), st.one_of(st.none(), st.integers(1, 60), st.integers(1, 50).map(chunks)))
    def check_batch(batch: AttentionBatch, window: Window) -> None:
        cpu = CpuAttention()
        cache = cpu.new_cache(batch.num_blocks, 2, 16, batch.block_tokens)
        cache.keys.normal_()
        cache.values.normal_()
        query = torch.randn(batch.num_tokens, 6, 16)
        wanted = cpu.attend(query, cache, batch, window=window)
        found = attention.attend(query, copied(cache, attention), batch, window=window)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)

    torch.manual_seed(0)
    check_batch()


@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
def test_what_is_no_number_reaches_those_that_see_it_only(device: str) -> None:
    """A request leaves values that are not finite; the next one has its blocks and writes a part of them."""
    attention = flex(device)
    cache = attention.new_cache(4, 1, 16, 16, device=torch.device(device))
    first = attention_batch([0, 20], [0], [[2, 0]], 4, 16)
    numbers = torch.ones(20, 1, 16, device=device)
    broken = numbers.clone()
    broken[18, 0, 3], broken[19] = torch.inf, torch.nan
    attention.write(numbers, broken, cache, first)
    found = attention.attend(numbers, cache, first)
    torch.testing.assert_close(found[:18], numbers[:18])
    assert not found[18:, 0, 3].isfinite().any()
    other = attention_batch([0, 2], [0], [[0]], 4, 16)
    attention.write(numbers[:2], numbers[:2], cache, other)
    torch.testing.assert_close(attention.attend(numbers[:2], cache, other), numbers[:2])


def test_a_mask_is_made_once_a_step_for_each_window() -> None:
    attention = flex()
    batch, later = (attention_batch([0, 1], [at], [[1, 2]], 4, 16) for at in (7, 8))
    mask = attention.mask(batch, None, 64)
    assert attention.mask(batch, None, 64) is mask
    windowed = attention.mask(batch, 5, 64)
    assert windowed is not mask
    assert attention.mask(batch, 5, 64) is windowed
    assert attention.mask(later, None, 64) is not mask


def test_a_block_of_rows_reads_what_it_sees() -> None:
    """Of a decode and a part of a prompt; behind them are blocks of rows that read nothing."""
    tables = [[5, 3, 9, 0], [1, 8, 2, 7]]
    batch = attention_batch([0, 1, 34], [40, 20], tables, 10, 16)
    mask = flex().mask(batch, None, 16)
    assert mask.num_blocks.flatten().tolist() == [3, 3, 4, 4, 0, 0, 0, 0]
    listed = [
        row[:count].tolist() for row, count in zip(mask.blocks[0, 0], mask.num_blocks.flatten(), strict=True)
    ]
    assert listed[:4] == [[5, 3, 9], [1, 8, 2], [1, 8, 2, 7], [1, 8, 2, 7]]
    windowed = flex().mask(batch, 8, 16)
    assert windowed.num_blocks.flatten()[:4].tolist() == [1, 3, 3, 2]
    assert windowed.blocks[0, 0, 3, :2].tolist() == [2, 7]


def test_nothing_is_compiled_after_the_warm_up() -> None:
    attention = flex()
    cache = attention.new_cache(64, 2, 16, 16)

    def attend(*sequences: tuple[int, int], window: int | None = None) -> None:
        lengths = [length for _, length in sequences]
        tables = np.arange(64)[None].repeat(len(sequences), 0)
        before = [each for each, _ in sequences]
        batch = attention_batch(np.cumsum([0, *lengths]), before, tables, 64, 16)
        attention.attend(torch.zeros(sum(lengths), 4, 16), cache, batch, window=window)

    for length in attention.warm_up_tokens:
        attend((0, length))
    with torch._dynamo.config.patch(error_on_recompile=True):
        attend(*[(at, 1) for at in range(40)])
        attend((100, 1), (700, 90), (3, 5), window=50)
        attend((0, 300))
        attend(*[(1000, 16)] * 9)


def test_a_block_may_not_be_in_a_sequence_twice() -> None:
    attention = flex()
    batch = attention_batch([0, 1, 2], [3, 20], [[3, 0], [3, 3]], 4, 16)
    with pytest.raises(ServeError, match="block 3 is in sequence 1 twice"):
        attention.attend(torch.ones(2, 1, 16), attention.new_cache(4, 1, 16, 16), batch)


@pytest.mark.slow
def test_a_compiled_kernel_on_the_cpu_has_these_numbers() -> None:
    """On the CPU, the kernel wants as many blocks listed as there are."""
    attention = FlexAttention(CPU)
    with torch.inference_mode():
        for sequences in ([(70, 1), (3, 2)], [(9, 1), (50, 30)], [(64, 2)]):
            check(attention, (3, 2, 16, 16), sequences, unwritten=GARBAGE, tolerance=1e-5)
        more: Any = {"softcap": 2.0, "value_dim": 32}  # of sums, torch tells on GPUs only
        check(attention, (3, 2, 16, 16), [(70, 1), (3, 2)], unwritten=GARBAGE, tolerance=1e-5, **more)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, FlexAttention),
        ({"head_dims": (80, 128)}, FlexAttention),
        ({"dtype": torch.float32}, FlexAttention),
        ({"head_dims": (8, 128)}, TorchAttention),
        ({"head_dims": (1024,)}, TorchAttention),
        ({"block_tokens": 24}, TorchAttention),
        ({"num_blocks": 1}, TorchAttention),
        ({"num_blocks": 1 << 20}, TorchAttention),
        ({"device": torch.device("mps")}, TorchAttention),
        ({"device": CPU}, CpuAttention),
    ],
)
def test_the_device_and_the_cache_choose(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], kind: type
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    given: dict[str, Any] = {
        "device": torch.device("cuda"),
        "head_dims": (128,),
        "num_blocks": 1000,
        "block_tokens": 16,
        "dtype": torch.bfloat16,
    }
    assert type(attention_for(**given | changed)) is kind


def test_an_older_gpu_has_the_attention_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    found = attention_for(torch.device("cuda"), (128,), 1000, 16, torch.float32)
    assert type(found) is TorchAttention


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral with a window", "llama4"])
def test_tokens_of_attention_by_torch_are_those_of_generate(name: str) -> None:
    found, _ = served(CausalModel(made(name), name, TorchAttention(CPU)), *RUNS["chunks"], num=8)
    check_exact(name, found)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("llama", "vllm_v0(preempt='swap')"),
        ("gpt2", "sarathi(chunk_tokens=24)"),
        pytest.param("mistral with a window", "sarathi(chunk_tokens=24)", marks=pytest.mark.slow),
        pytest.param("llama4", "sarathi(chunk_tokens=24)", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("device", ["cpu", on_a_gpu])
def test_tokens_of_flex_attention_are_those_of_generate(device: str, name: str, policy: str) -> None:
    model: Any = made(name)
    given = flex() if device == "cpu" else None  # a GPU chooses it by itself
    found, steps = served(CausalModel(model.to(device), name, given), policy, CHOSEN, num=8)
    check_exact(name, found)
    ops = {op.kind for step in steps for op in step.batch.cache_ops}
    assert ("swap in" in ops) == ("swap" in policy)
    assert "share" in ops
