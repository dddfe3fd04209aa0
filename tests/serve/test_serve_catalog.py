"""The catalog of level 3, and policies as text."""

from __future__ import annotations

import doctest
import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.serve import catalog
from trainyard.serve.catalog import CATALOG, Entry, parse_policies, with_chunks
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.policies.vtc import VTC

ROOT = Path(__file__).parents[2]
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)


@ENTRIES
def test_entry_is_complete(entry: Entry) -> None:
    file = ROOT / entry.claim_test
    assert file.exists(), f"write {entry.claim_test}, a test of what the paper of {entry.name} claims"
    assert re.search(r"\b(19|20)\d\d\b", entry.paper)
    assert entry.left_out or entry.fidelity != "simplified", f"say what {entry.name} leaves out, and why"
    module = importlib.import_module(entry.module)
    if module.__doc__ is None or "Fidelity" not in module.__doc__:  # a folder says it once
        module = importlib.import_module(entry.module.rpartition(".")[0])
    note = re.search(r"^Fidelity: (\w+)", module.__doc__ or "", re.MULTILINE)
    assert note is not None, f"{entry.module} has no fidelity note"
    assert note[1] == entry.fidelity
    if entry.decides in ("batches", "admission"):
        for variant in entry.variants.values():
            entry.factory(**variant)


def test_names_are_unique() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)


def test_examples() -> None:
    results = doctest.testmod(catalog)
    assert results.attempted
    assert not results.failed


def test_a_policy_is_of_batches_and_of_admission() -> None:
    (one, first), (other, second), (alone, third) = parse_policies(
        "vllm_v0(watermark=0.05), vtc(output_weight=3)+ sarathi(chunk_tokens=256), vtc"
    )
    assert (one, other, alone) == (
        "vllm_v0(watermark=0.05)",
        "vtc(output_weight=3) + sarathi(chunk_tokens=256)",
        "vtc",
    )
    assert first == PrefillFirst(watermark=0.05)
    assert second == sarathi(256, admission=VTC(output_weight=3))
    assert third == vllm(admission=VTC())


@pytest.mark.parametrize("entry", [each for each in CATALOG if each.chunk_option], ids=lambda e: e.name)
def test_a_chunk_is_an_option_of_each_policy_that_cuts_prompts(entry: Entry) -> None:
    for text in (entry.name, f"{entry.name}()", f"vtc + {entry.name}", f"{entry.name}(max_requests=8) + vtc"):
        ((name, found),) = parse_policies(with_chunks(text, 96))
        assert f"{entry.chunk_option}=96" in name
        few = replace(
            found, max_requests=8
        )  # sglang has steps of decodes alone, with a token of each request
        assert few.engine_needs(1000).max_batch_tokens == 96


def test_without_a_batch_policy_the_chunks_are_those_of_the_default() -> None:
    assert parse_policies(with_chunks("vtc", 96)) == (
        ("vllm(max_batch_tokens=96) + vtc", vllm(96, admission=VTC())),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "sarathi, orca + vtc",
            "orca has no option .*; those that cut prompts into chunks: vllm, sarathi, sglang",
        ),
        ("vllm_v0(max_requests=8)", r"vllm_v0\(max_requests=8\) has no option that says how many tokens"),
        ("own.py:Own + vtc", "own.py:Own has no option that says how many tokens"),
        ("vllm(max_batch_tokens=96)", r"vllm\(max_batch_tokens=96\) says already how many tokens a step has"),
        ("vlm", "unknown policy 'vlm'; known: vllm"),
    ],
)
def test_chunks_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(ServeError, match=said):
        with_chunks(text, 96)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vlm", "unknown policy 'vlm'; known: vllm, "),
        (
            "vllm + sarathi",
            "vllm + sarathi: two of them decide about batches; name one",
        ),
        ("vtc + longest_prefix", "vtc + longest_prefix: two of them decide about admission"),
        (
            "vllm(chunk=3)",
            "vllm has no option 'chunk'; its options: max_batch_tokens, max_requests, admission",
        ),
        ("vllm(max_batch_tokens=0)", "vllm(max_batch_tokens=0): max_batch_tokens is 0; allowed is 1 or more"),
        ("orca(max_requests=-1)", "orca(max_requests=-1): max_requests is -1; allowed is 1 or more"),
        ("vtc(output_weight=-1)", "vtc(output_weight=-1): output_weight is -1; allowed is 0 or more"),
        (
            "shortest_prompt(max_wait_s=-1)",
            "shortest_prompt(max_wait_s=-1): max_wait_s is -1; allowed is 0 or more",
        ),
        ("vllm_v0(watermark=-0.1)", "vllm_v0(watermark=-0.1): watermark is -0.1; allowed is 0 or more"),
        ("vllm(max_batch_tokens=1.5)", "option max_batch_tokens of vllm must be a whole number"),
        ("sarathi(max_requests=1e2)", "option max_requests of sarathi must be a whole number"),
        ("vllm(max_batch_tokens='a')", "option max_batch_tokens of vllm must be a number"),
        ("vllm(preempt='drop')", "option preempt of vllm must be 'recompute' or 'swap' or 'swap samples'"),
        ("vllm +", "cannot read policies from 'vllm +'; write names joined by , +, such as"),
        ("alpaserve", "unknown policy 'alpaserve'"),
    ],
)
def test_other_text_is_refused(text: str, said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        parse_policies(text)
